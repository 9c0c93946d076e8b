"""Entering a program that was started without the agent: ``pardbg attach --agent``.

Ranks number their ops from the agent's start, so all of them must start it where the same ops are
over. Each rank is held once, when its optimizer's step() has returned; while all are held there at
one moment, no collective is under way, and each begins at op 0 of each group. A rank reports its
state in a file of its own and reads its orders from another: docs/attach.md. Code from outside runs
in the main thread between two bytecodes (a *pending call*): it may only do there what the program's
own code could do at that place."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, Final

from pardbg_agent.life.own_frames import hide_own, is_own

POLL_S: Final = 0.005
ORDERS_FILE: Final = "orders.json"
"""File of the attaching process: ``{"turn": N, "ready": bool, "go": bool, "over": bool}``,
rewritten at least each second. ``ready``: all ranks are ready; before, none is held."""
GRACE_S: Final = 5.0
"""Time in s for the main thread to end an entrance that is over."""
SILENT_S: Final = 8.0
"""Time in s without orders after which the rank runs on alone."""
GONE: Final = "who attached is gone"
NOT_AMID: Final = ("/torch/library.py", "/threading.py", "/logging/__init__.py")
"""Files with functions that hold locks."""

_NUMBER: Final = "_get_sequence_number_for_group"
_IS_TRUE: Final = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
_entering: list[Entering] = []
"""Entrances, kept for good: the interpreter may be about to call any of them."""


def enter(folder: str, run_dir: str, wait_s: float, more_path: list[str]) -> None:
    """Begin to enter; returns at once. ``folder`` has the files of all ranks. ``more_path``:
    directories of modules that the program may lack, searched while the agent is imported."""
    new, before = Entering(folder, run_dir, wait_s, more_path), _entering[-1] if _entering else None
    if before is not None and before.is_under_way:
        if before.is_wanted():
            new.refuse("another `pardbg attach` enters it")
            return
        before.is_under_way = False
    _entering.append(new)
    # The thread of a Thread object would take locks that the main thread may hold here.
    _thread.start_new_thread(new.prepare, ())


def leave(folder: str) -> None:
    """Take the agent out when the main thread can do it; returns at once."""
    _entering.append(Entering(folder, "", 0.0, []))
    _thread.start_new_thread(_entering[-1].part, ())


class Entering:
    """Entrance into a rank. States: ``ready``, ``held``, then ``in`` or ``failed``; ``out``."""

    def __init__(self, folder: str, run_dir: str, wait_s: float, more_path: list[str]) -> None:
        self.is_under_way = True
        self._folder, self._run_dir, self._more = folder, run_dir, more_path
        self._until = time.monotonic() + wait_s
        self._turn = 0
        """Turn of this hold: the rank is held while it exceeds the turn in the orders."""
        self._hook: Any = None
        self._due = False
        """Whether to hold as soon as step() has returned."""
        self._place = ""
        """Program line that called step()."""
        self._main = threading.main_thread().ident or 0
        self._then: Callable[[], None] | None = None

    # -- in a thread of its own

    def prepare(self) -> None:
        """Import the agent while the program runs on, then wait for an optimizer's step."""
        try:
            with _added(self._more):
                from pardbg_agent.life import own_libraries

                own_libraries.load_own_libraries()
                from pardbg_agent import core, hooks  # noqa: F401
                from pardbg_agent.hooks import installed, patching  # noqa: F401
                from pardbg_agent.sender import agent_thread  # noqa: F401

                # The main thread may ask between the pieces of a compiled step().
                unseen = patching.unseen(Entering.__bool__)
                Entering.__bool__ = unseen  # type: ignore[method-assign]
        except Exception as error:  # noqa: BLE001 - the program goes on as it was
            self._end("failed", _why_no_import(error))
            return
        self._tell("ready")
        if (why := self._wait_for_all()) is not None:
            self._end("failed", why)
            return
        self._in_main(self._follow_steps)
        while self.is_under_way and not self._is_over():
            time.sleep(POLL_S)
        if self.is_under_way:
            self._in_main(lambda: self._give_up("no optimizer's step() ended meanwhile"))
        elif self._hook is not None:  # another took its place
            self._in_main(self._unhook)

    def is_wanted(self) -> bool:
        """Return whether the attaching process is alive."""
        return self._orders() is not None

    def refuse(self, why: str) -> None:
        self._end("failed", why)

    def _wait_for_all(self) -> str | None:
        """Wait until all ranks are ready; return the reason if that fails, else None."""
        while self.is_under_way and not self._is_over():
            orders = self._orders()
            if orders is None:
                return GONE
            if orders.get("ready"):
                return None
            time.sleep(POLL_S)
        return "the others did not come"

    def part(self) -> None:
        """Have the main thread remove the agent, even while it is held."""
        core = sys.modules.get("pardbg_agent.core")
        if core is not None and core.CURRENT is not None:
            core.CURRENT.gate.end()
        self._in_main(self._leave)

    def _in_main(self, then: Callable[[], None]) -> None:
        """Have the main thread run a function as soon as it may; wait for that."""
        self._then = then
        while self._then is then and not self._is_over(GRACE_S):
            self._call()
            time.sleep(POLL_S)

    def _call(self) -> None:
        """Have the main thread take the truth value of this object: an exception of ``__bool__``
        then comes out where the program is. (ctypes' own callbacks swallow exceptions.)"""
        ctypes.pythonapi.Py_AddPendingCall(_IS_TRUE, ctypes.py_object(self))

    # -- in the main thread

    def __bool__(self) -> bool:
        """Run the pending function, unless the main thread is in code that must not be interrupted.
        An exception of a signal's handler meanwhile is the program's."""
        try:
            frame = sys._getframe(1)
            if self._due and _steps(frame):
                # Asked again at once, so that no op comes between the step's end and the hold.
                self._call()
            elif self._due:
                self._hold()
            elif (then := self._then) is not None and not _is_amid(frame):
                self._then = None
                then()
        except BaseException as error:
            theirs = not isinstance(error, Exception) or _is_from_elsewhere(error)
            name = type(error).__name__
            why = (
                f"the program raised {name} meanwhile; try again" if theirs else f"{name}: {error}"
            )
            with contextlib.suppress(Exception):
                self._give_up(why)
            if theirs:
                hide_own(error)
                raise
        return False  # anything else, without an exception, is an error in the program

    def _follow_steps(self) -> None:
        optimizer = sys.modules["torch.optim.optimizer"]
        self._hook = optimizer.register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, *_: object) -> None:
        if sys.modules["torch"].compiler.is_compiling():
            return
        try:
            self._step_ends()
        except Exception:  # noqa: BLE001 - nothing of ours gets into a step
            self.is_under_way = False

    def _step_ends(self) -> None:
        """Prepare to hold as soon as an optimizer's step() has returned to the program."""
        if self._due or threading.get_ident() != self._main or not self.is_under_way:
            return
        steps = _steps(sys._getframe())
        if len(steps) != 1:
            return  # one optimizer steps another: the outer one's end counts
        caller = steps[0].f_back
        self._place = f"{caller.f_code.co_filename}:{caller.f_lineno}" if caller is not None else ""
        self._due = True
        self._call()

    def _hold(self) -> None:
        """Wait for the other ranks, the GIL released; then begin, or run on to the next step."""
        self._due = False  # the next hold needs a new step's end
        if not self.is_under_way:
            return
        self._turn = 1 + max(self._turn, int((self._orders() or {}).get("turn", 0)))
        self._tell("held", turn=self._turn, place=self._place, numbers=_numbers())
        while self.is_under_way:
            orders = self._orders()
            if orders is None or self._is_over():
                why = GONE if orders is None else "the others did not come"
                self._give_up(why)
                return
            if orders.get("go"):
                self._begin()
                return
            if int(orders.get("turn", 0)) >= self._turn:
                return
            time.sleep(POLL_S)

    def _begin(self) -> None:
        import pardbg_agent
        from pardbg_agent import core
        from pardbg_agent.wire import NOTE_ATTACHED, DefKind

        self._unhook()
        if core.CURRENT is not None:  # it could not leave when its run ended
            pardbg_agent.detach()
        with _added(self._more):
            began = pardbg_agent.attach(self._run_dir)
        c = core.CURRENT
        if not began or c is None or c.run is None:
            pardbg_agent.detach()
            self._end("failed", "; ".join(core.WHY_OFF) or "there is no group")
            return
        c.defs.put(DefKind.NOTE, key=NOTE_ATTACHED, value=c.identity.proc)
        self._end("in")

    def _give_up(self, why: str) -> None:
        if self.is_under_way:
            self._unhook()
            self._end("failed", why)

    def _unhook(self) -> None:
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()

    def _leave(self) -> None:
        import pardbg_agent

        pardbg_agent.detach()
        os.environ.pop("PARDBG", None)
        self._end("out")

    # -- files

    def _is_over(self, more_s: float = 0.0) -> bool:
        return time.monotonic() > self._until + more_s

    def _end(self, state: str, why: str = "") -> None:
        self.is_under_way = False
        self._tell(state, why=why)

    def _tell(self, state: str, **more: Any) -> None:
        path = os.path.join(self._folder, f"{os.getpid()}.json")
        with contextlib.suppress(OSError):
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                json.dump({"state": state, **more}, file)
            os.replace(f"{path}.new", path)

    def _orders(self) -> Mapping[str, Any] | None:
        """Return the newest orders; None if there are none any more."""
        path = os.path.join(self._folder, ORDERS_FILE)
        try:
            with open(path, encoding="utf-8") as file:
                if time.time() - os.fstat(file.fileno()).st_mtime > SILENT_S:
                    return None
                orders: Mapping[str, Any] = json.load(file)
                return None if orders.get("over") else orders
        except (OSError, ValueError):
            return None


@contextlib.contextmanager
def _added(path: list[str]) -> Iterator[None]:
    """Add these directories to ``sys.path``, after the program's own, for a while."""
    more = [entry for entry in path if entry not in sys.path]
    sys.path += more
    try:
        yield
    finally:
        for entry in more:
            sys.path.remove(entry)


def _why_no_import(error: Exception) -> str:
    from pardbg_agent.life.own_libraries import LIBRARIES

    name = (getattr(error, "name", None) or "").partition(".")[0]
    if name not in LIBRARIES:
        return f"{type(error).__name__}: {error}"
    python = ".".join(map(str, sys.version_info[:2]))
    return (f"no {name} for its Python {python}, which is not pardbg's: `pip install pardbg-agent` "
            f"there ({sys.prefix}); then it can be entered as it runs")  # fmt: skip


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _steps(frame: FrameType | None) -> list[FrameType]:
    """Return the frames that call an optimizer's step() and then its hooks, innermost first."""
    return [one for one in _frames(frame) if one.f_code.co_name == "wrapper"
            and one.f_code.co_filename.endswith("/torch/optim/optimizer.py")]  # fmt: skip


def _is_amid(frame: FrameType) -> bool:
    codes = [one.f_code for one in _frames(frame)]
    return (
        bool(_steps(frame))
        or codes[0].co_filename.startswith("<frozen importlib")
        or any(
            any(part in code.co_filename for part in NOT_AMID)
            or (code.co_name == "<module>" and "/torch/" in code.co_filename)
            for code in codes
        )
    )


def _is_from_elsewhere(error: BaseException) -> bool:
    """Return whether the innermost frame of a traceback is outside of this package."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and not is_own(trace.tb_frame.f_code.co_filename)


def _numbers() -> dict[str, int]:
    """Return the number of ops given to NCCL's groups: hosts run ahead of their devices there, and
    may have come to different steps."""
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    found = {}
    for pg, (backend, _) in list(c10d._world.pg_map.items()):
        if "nccl" in backend:
            ranks = sorted(c10d._world.pg_group_ranks.get(pg, ()))
            with contextlib.suppress(RuntimeError):
                key = f"{c10d._world.pg_names.get(pg)} {ranks}"
                found[key] = int(getattr(pg, _NUMBER)())
    return found
