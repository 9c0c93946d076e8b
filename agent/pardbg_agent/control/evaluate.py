"""Evaluation in a held rank: expressions and statements in the frame where its thread is held, or,
if it is held at an exception, in the frames of that exception's traceback.

This runs code that a person typed, in the training's own thread, so it exists only where the job
was started with ``--allow-eval`` and only while the rank is held at a gate. All output is text of
bounded size; nothing is sent as an object."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import io
import linecache
import pprint
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Final, cast

from pardbg_agent import clock
from pardbg_agent.ctrl.agent_messages import Evaluated, NoAnswer
from pardbg_agent.life.own_frames import is_own
from pardbg_agent.tables.code_files import in_reach

KINDS: Final = ("p", "pp", "whatis", "tensor", "list", "longlist", "args", "locals", "exec", "hash")
MOST_PRINTED: Final = 16
"""Maximum elements of a tensor that ``p`` prints; ``pp`` prints any, as torch does."""
SOURCE: Final = ("list", "longlist")
"""Kinds of questions that run no code."""
MAX_TEXT: Final = 8_000
MAX_NAMES: Final = 200
MAX_REPR: Final = 200
AROUND: Final = 5
"""Source lines before and after the current one."""
AROUND_LONG: Final = 60
"""Source lines before and after the current one, in a long function that is shown whole."""


@dataclass(frozen=True, slots=True)
class Place:
    """Frame with its current line: a frame that an exception has left has moved on from there
    (``finally`` has run), only the traceback has the line."""

    frame: FrameType
    line: int
    at_hand: Mapping[str, Any] | None = None
    """Further named values: those of the held action; empty: the rank is not held before an action;
    None: it runs no pipeline."""


_OF_ACTIONS: Final = ("input", "output", "grad")
"""Names of an action's values."""
From = FrameType | TracebackType | None
"""Starting point of a look-up: the innermost frame, or an exception's traceback."""


def answer(
    kind: str, expr: str, frame: int, innermost: From, optimizers: Iterable[Any] = (),
    every: bool = False,
) -> Evaluated:  # fmt: skip
    """Return the answer to a question of KINDS in a frame, 0 the innermost of the program's frames,
    or of all with ``every``. ``optimizers``: those that have stepped. An exception of the evaluated
    code is part of the answer; a frame or a question that does not exist is its ``refusal``."""
    at = pick(innermost, frame, every)
    num = len(frames(innermost, every))
    if at is None:
        return Evaluated(refusal=NoAnswer.NO_FRAME, frames=num)
    if kind in SOURCE:
        found = _source(at, whole=kind == "longlist")
    elif kind == "hash":
        found = _hash(replace(at, at_hand=_at_hand(innermost)), expr, optimizers)
    elif kind in _KINDS:
        found = _KINDS[kind](replace(at, at_hand=_at_hand(innermost)), expr)
    else:
        return Evaluated(refusal=NoAnswer.NO_QUESTION)
    code = at.frame.f_code
    place = code.co_filename, at.line, code.co_name
    return replace(found, text=_cut(found.text, MAX_TEXT), frame=place, frames=num)


def frames(innermost: From, every: bool = False) -> list[Place]:
    """Return the frames ``in_reach``, innermost first; never the agent's."""
    known = [at for at in _places(innermost) if not is_own(at.frame.f_code.co_filename)]
    files = [at.frame.f_code.co_filename for at in known]
    return [known[at] for at in in_reach(files, every)]


def _places(innermost: From) -> list[Place]:
    if isinstance(innermost, TracebackType):
        return [Place(frame, line) for frame, line in traceback.walk_tb(innermost)][::-1]
    found = []
    while innermost is not None:
        found.append(Place(innermost, innermost.f_lineno or 0))
        innermost = innermost.f_back
    return found


def pick(innermost: From, number: int, every: bool = False) -> Place | None:
    """Return frame ``number`` of ``frames``, 0 the innermost; None if there is no such frame."""
    known = frames(innermost, every)
    return known[number] if 0 <= number < len(known) else None


def _at_hand(innermost: From) -> Mapping[str, Any] | None:
    """Return the values of the pipeline action at whose gate the thread is held, by name."""
    pipeline: Any = sys.modules.get("pardbg_agent.hooks.training.pipeline")
    if pipeline is None or not isinstance(innermost, FrameType):
        return None
    found: Mapping[str, Any] | None = _try(lambda: pipeline.at_hand(innermost), None)[0]
    return found


def _value(at: Place, expr: str) -> Any:
    code = compile(expr.strip(), "<pardbg>", "eval")
    known, values = at.frame.f_globals, at.at_hand or {}
    besides = {name: value for name, value in values.items() if name not in known}
    lacking = [name for name in _OF_ACTIONS if name in code.co_names and name not in values]
    for name in lacking if at.at_hand is not None else ():
        if name not in known and name not in at.frame.f_locals:  # `input` would be Python's own
            raise NameError(f"{name} {_why_not(name, values)}")
    names = {**besides, **at.frame.f_locals}
    try:
        return eval(code, known, names)  # noqa: S307 - what --allow-eval allows
    except NameError as error:
        if (near := _near(error.name, [*names, *known])) is None or error.name not in code.co_names:
            raise
        raise NameError(f"{error}; near it: {near}") from None


def _near(name: str | None, known: list[str]) -> str | None:
    """Return the known name most similar to ``name``, or None."""
    import difflib

    return next(iter(difflib.get_close_matches(name or "", known, 1)), None)


def _why_not(name: str, values: Mapping[str, Any]) -> str:
    """Return the reason why the held action has no such value."""
    if not values:
        return "is that of a pipeline's action, and this rank is held before none: step it to one"
    if "output" in values:
        return "has not come to the last stage: its own loss begins its backward"
    return "is known before a backward"


def _brief_or_whole(value: Any) -> str:
    """Return ``repr`` of a value, or a brief description of a tensor too large to read."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.numel() > MOST_PRINTED:
        from pardbg_agent.hooks import tensors as values

        if (described := values.describe(value)) is not None:
            lines = [one for one in described["text"].splitlines() if "▕" not in one]
            return "  ".join(lines)
    return repr(value)


def _print(at: Place, expr: str, form: Callable[[Any], str] = _brief_or_whole) -> Evaluated:
    value, raised = _try(lambda: _value(at, expr))
    if raised:
        return Evaluated(text=raised, raised=True)
    text, raised = _try(lambda: form(value))
    number, digest = _try(lambda: _measure(value), (None, ""))[0]
    return Evaluated(text=str(text or raised), number=number, hash=digest)


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _tensor(at: Place, expr: str) -> Evaluated:
    value, raised = _try(lambda: _value(at, expr))
    if raised:
        return Evaluated(text=raised, raised=True)
    from pardbg_agent.hooks import tensors as values

    described, raised = _try(lambda: values.describe(value))
    if raised or described is None:
        return Evaluated(text=raised or f"{type(value).__name__} is no tensor", raised=True)
    return Evaluated(
        text=described["text"], number=described.get("number"), hash=described.get("hash", "")
    )


def _hash(at: Place, expr: str, optimizers: Iterable[Any]) -> Evaluated:
    """Hash ``params``, ``grads``, ``optimizer``, or a tensor, module, dict or list of tensors."""
    from pardbg_agent.hooks import tensors as values

    if expr.strip() in values.WORDS:
        named, raised = _try(lambda: values.known(expr.strip(), optimizers))
    else:
        named, raised = _try(lambda: values.named(_value(at, expr)))
    if raised:
        return Evaluated(text=raised, raised=True)
    return Evaluated(text=f"{len(named)} tensors", hashes=named)


def _source(at: Place, whole: bool) -> Evaluated:
    """Return the lines around the current one, or of the ``whole`` function, if it is not long."""
    file, line = at.frame.f_code.co_filename, at.line or 1
    first, last = line - AROUND, line + AROUND
    if whole:
        lines, begin = _try(lambda: inspect.getsourcelines(at.frame.f_code), ([], line))[0]
        if lines:
            first, last = max(begin, line - AROUND_LONG), line + AROUND_LONG
            last = min(begin + len(lines) - 1, last)
    rows = [
        f"{n:>5}{' ->' if n == line else '   '} {text.rstrip()}"
        for n in range(max(1, first), last + 1)
        if (text := linecache.getline(file, n, at.frame.f_globals))
    ]
    return Evaluated(text="\n".join(rows) or f"no source of {file}")


def _arguments(at: Place, _expr: str) -> Evaluated:
    code = at.frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 4) + bool(code.co_flags & 8)  # *args, **kwargs
    return Evaluated(text=_names(at.frame, code.co_varnames[:count]))


def _locals(at: Place, _expr: str) -> Evaluated:
    return Evaluated(text=_names(at.frame, tuple(sorted(at.frame.f_locals))))


def _names(at: FrameType, names: tuple[str, ...]) -> str:
    known = at.f_locals
    rows = [f"{name} = {_brief(known[name])}" for name in names[:MAX_NAMES] if name in known]
    if len(names) > MAX_NAMES:
        rows.append(f"… and {len(names) - MAX_NAMES} more")
    return "\n".join(rows) or "none"


def _brief(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "dtype"):
        return f"{type(value).__name__} {tuple(shape)} {value.dtype} {getattr(value, 'device', '')}"
    text, raised = _try(lambda: repr(value))
    line = " ".join((text or raised).split())
    return _cut(line, MAX_REPR)


def _exec(at: Place, expr: str) -> Evaluated:
    """Run a statement; its output is the answer. New names last only in a module's own frame."""
    out = OwnOutput(sys.stdout)

    def run() -> None:
        code = compile(expr, "<pardbg>", "single")
        with contextlib.redirect_stdout(cast(io.TextIOBase, out)):
            exec(code, at.frame.f_globals, at.frame.f_locals)  # noqa: S102 - what --allow-eval allows

    _, raised = _try(run)
    return Evaluated(text=raised or out.text.rstrip() or "done", raised=bool(raised))


class OwnOutput:
    """Stand-in for ``sys.stdout``: keeps this thread's output, passes on that of other threads."""

    def __init__(self, others: Any) -> None:
        self._others, self._ident = others, threading.get_ident()
        self._own = io.StringIO()

    @property
    def text(self) -> str:
        return self._own.getvalue()

    def __getattr__(self, name: str) -> Any:
        mine = threading.get_ident() == self._ident
        return getattr(self._own if mine else self._others, name)


def _measure(value: Any) -> tuple[float | None, str]:
    if isinstance(value, (bool, int, float)):
        return float(value) if abs(value) < 2**53 else None, ""
    values = sys.modules.get("pardbg_agent.hooks.tensors")
    if values is None and "torch" in sys.modules:
        from pardbg_agent.hooks import tensors as values
    measured = values.measure(value) if values is not None else None
    return (measured or {}).get("number"), (measured or {}).get("hash", "")


def _try(work: Callable[[], Any], otherwise: Any = "") -> tuple[Any, str]:
    """Return (result, "") or (``otherwise``, the exception in one line)."""
    try:
        return work(), ""
    except TimeIsUp:
        raise
    except BaseException as error:  # noqa: BLE001 - what a person typed must not end the rank
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        return otherwise, f"{type(error).__name__}: {first.strip()}"[:500]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


_KINDS: Final[dict[str, Callable[[Place, str], Evaluated]]] = {
    "p": _print, "pp": partial(_print, form=partial(pprint.pformat, width=100, compact=True)),
    "whatis": partial(_print, form=_type_name), "tensor": _tensor,
    "args": _arguments, "locals": _locals, "exec": _exec,
}  # fmt: skip


# -- for how long: the agent's thread looks at the clock and raises TimeIsUp in the thread that runs
# the evaluated code, which takes it at its next bytecode. Code in C (a sleep, a collective) cannot
# be interrupted: TimeIsUp is raised there when the call returns.

LIMIT_NS: Final = 5_000_000_000
_BYTECODES: Final = 1000
"""Enough bytecodes for a pending TimeIsUp to be raised in this thread: each is a place for it."""


class TimeIsUp(BaseException):
    """Raised at the time limit. Not an Exception, so that the evaluated code does not catch it."""


class TimeLimit:
    """Time limit of one evaluation: ``run`` in the held thread, ``check`` from the agent's."""

    def __init__(self, limit_ns: int = LIMIT_NS) -> None:
        self.limit_ns = limit_ns
        self._lock = threading.Lock()
        self._ident = 0
        """Ident of the thread that evaluates; 0: none does."""
        self._until_ns = 0
        self._sent = False
        """Whether TimeIsUp was raised in that thread, or will be at its next bytecode."""

    def run(self, work: Callable[[], None]) -> bool:
        """Run ``work()`` in this thread; return False if its time was up. TimeIsUp is not raised in
        this thread afterwards."""
        try:
            try:
                with self._lock:  # inside: from here on TimeIsUp may be raised at any bytecode
                    self._ident, self._sent = threading.get_ident(), False
                    self._until_ns = clock.now_ns() + self.limit_ns
                work()
            finally:
                self._end()
        except TimeIsUp:
            return False
        return not self._sent  # the work may have swallowed it

    def check(self) -> None:
        with self._lock:
            if self._ident and clock.now_ns() >= self._until_ns:
                ident, self._ident, self._sent = self._ident, 0, True
                kind = ctypes.py_object(TimeIsUp)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), kind)

    def _end(self) -> None:
        """Send no more TimeIsUp; one that is still pending is raised here.

        It cannot be taken back: clearing it leaves CPython's request to look for it set for ever
        (3.11, ``_PyEval_SignalAsyncExc``), which slows every bytecode down, and hangs a thread that
        is profiled."""
        with self._lock:
            self._ident = 0
        if self._sent and not isinstance(sys.exc_info()[1], TimeIsUp):
            for _ in range(_BYTECODES):
                pass
