"""Causes of an exception: the end of its chain of causes; for a group, those of its members.

No code of a program's own class is called: BaseException's own slots are read. The caller formats
the texts, as Python prints them, or without the program's code where that may not run."""

from __future__ import annotations

import builtins
import contextlib
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from itertools import islice
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple

from pardbg_agent.control.inspect import MAX_FRAMES, frames_told
from pardbg_agent.ctrl.agent_messages import Frame

MAX_LINKS: Final = 8
MAX_ENDS: Final = 4
"""Maximum exceptions of one group that are reported."""
_MAX_RANKS: Final = 1024
_MAX_PASSED_ON: Final = 100_000
_SLOTS: Final = vars(BaseException)
_ARGS: Final = _SLOTS["args"].__get__
_CAUSE: Final = _SLOTS["__cause__"].__get__
_CONTEXT: Final = _SLOTS["__context__"].__get__
_SUPPRESSES: Final = _SLOTS["__suppress_context__"].__get__
_TRACE: Final = _SLOTS["__traceback__"].__get__
_DICT: Final = _SLOTS["__dict__"].__get__
_CHECKPOINT: Final = ("torch.distributed.checkpoint.api", "CheckpointException")
_EXCHANGES: Final = "/torch/distributed/checkpoint/utils.py"
_TEXTS: Final = ("RemoteTraceback", "_RemoteTraceback")
"""Causes with which process pools pass on a traceback's text: the exception is its own cause."""
_PASSED_ON: Final = "\nOriginal Traceback (most recent call last):\n"
"""Marker with which torch passes on exceptions of DataLoader workers and DataParallel threads."""
_ONE_MORE: Final = "\nTraceback (most recent call last):\n"
_FRAME: Final = re.compile(r'  File "(.+)", line (\d{1,9}), in (.+)')
Lines = list[tuple[FrameType, int]]


class Root(NamedTuple):
    """Exception that another one was raised from."""

    value: BaseException
    frames: list[Frame]
    """Frames, outermost first, from the first frame of the other exception on."""
    implicit: bool = False
    """Whether the exception was being handled as the other was raised, without ``from``."""
    ranks: tuple[int, ...] = ()
    """Ranks that raised it, where a checkpoint names them."""
    passed_on: str = ""
    """Last line of a traceback that another process passed on as text: ``value`` carries it."""
    others: tuple[Root, ...] = ()
    """Further causes, if the other exception is a group."""


def root_of(value: BaseException, trace: TracebackType | None) -> Root | None:
    """Return the cause of ``value``, by ``raise … from`` alone if its chain begins so: a program's
    explicit cause matters more than its earlier attempts. None: it has no cause."""
    ends = _ends(value, list(traceback.walk_tb(trace)), {id(value)}, contexts=True)
    first, *others = islice(ends, MAX_ENDS)
    if first.value is value and not first.passed_on:
        return None
    return first._replace(others=tuple(others))


def group_text(value: BaseException) -> str | None:
    """Return a group's own text, without those of its members; None: it is not a group."""
    kind = _group()
    if kind is None or not issubclass(type(value), kind):
        return None
    return str(vars(kind)["__str__"](value))


def _ends(at: BaseException, lines: Lines, met: set[int], contexts: bool) -> Iterator[Root]:
    """Yield the causes of an exception, itself if it has none. ``contexts``: also exceptions that
    were being handled as it was raised."""
    begin, implicit = at, False
    for _ in range(MAX_LINKS):
        if failed := _failed_ranks(at, lines):
            yield from (one._replace(implicit=implicit) for one in failed)
            return
        if members := _members(at):
            for member in (one for one in members if id(one) not in met):
                met.add(id(member))
                of = _ends(member, _stack(lines, _TRACE(member)), met, contexts=False)
                yield from (one._replace(implicit=implicit) for one in of)
            return
        link = _CAUSE(at)
        if link is None and contexts and (implicit or at is begin) and not _SUPPRESSES(at):
            link = _CONTEXT(at)
            implicit = implicit or link is not None
        if link is None or id(link) in met or type(link).__name__ in _TEXTS:
            break
        met.add(id(link))
        at, lines = link, _stack(lines, _TRACE(link))
    yield _passed_on(at, implicit) or Root(at, frames_told(lines), implicit)


def _stack(above: Lines, trace: TracebackType | None) -> Lines:
    """Return the stack in which a cause was raised: its traceback begins in the frame that caught
    it, which is also in the traceback of its effect."""
    below: Lines = list(traceback.walk_tb(trace))
    if not below:
        return above
    at = next((at for at, (frame, _) in enumerate(above) if frame is below[0][0]), 0)
    return above[:at] + below


def _group() -> Any:
    """Return the class of exception groups. Before Python 3.11 only a package has one."""
    package = sys.modules.get("exceptiongroup")
    return getattr(builtins, "BaseExceptionGroup", getattr(package, "BaseExceptionGroup", None))


def _members(value: BaseException) -> Sequence[BaseException]:
    kind = _group()
    if kind is None or not issubclass(type(value), kind):
        return ()
    members: Sequence[BaseException] = vars(kind)["exceptions"].__get__(value)
    return members


def _failed_ranks(value: BaseException, lines: Lines) -> list[Root]:
    """Return the exceptions of the ranks that a checkpoint failed on, equal ones merged. They are
    copies: their stacks are kept beside them. ``lines``: stack in which ``value`` was raised."""
    kind = type(value)
    if (kind.__module__, kind.__name__) != _CHECKPOINT:
        return []
    alike: list[tuple[object, Root]] = []
    members: Sequence[int] = ()
    with contextlib.suppress(Exception):  # another release of torch, a group that is gone
        members = _checkpoint_members(lines)
    for at, (raised, summary) in islice(_DICT(value).get("_failures", {}).items(), _MAX_RANKS):
        rank = members[at] if at < len(members) else at
        frames = [(one.filename, one.lineno or 0, one.name) for one in (summary or ())]
        key = type(raised), frames[-1:], _plain_args(raised)
        same = next((i for i, (of, _) in enumerate(alike) if of == key), None)
        if same is None:
            alike.append((key, Root(raised, frames[-MAX_FRAMES:], ranks=(rank,))))
        else:
            one = alike[same][1]
            alike[same] = key, one._replace(ranks=(*one.ranks, rank))
    return [one for _, one in alike]


def _checkpoint_members(lines: Lines) -> Sequence[int]:
    """Return the global ranks of a checkpoint's group, whose failures have group ranks; empty: all
    ranks, or not known."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    for frame, _ in reversed(lines):
        if c10d is not None and frame.f_code.co_filename.endswith(_EXCHANGES):
            group = vars(frame.f_locals["self"])["group"]
            return c10d.get_process_group_ranks(group) if group is not None else ()
    return ()


def _plain_args(value: BaseException) -> tuple[object, ...]:
    """Return arguments that can be compared without running code of the program."""
    return tuple(of if type(of) in (str, int) else type(of) for of in _ARGS(value))


def _passed_on(value: BaseException, implicit: bool) -> Root | None:
    """Return a worker's exception, of which the exception here has only the traceback's text."""
    args = _ARGS(value)
    if not args or not isinstance(args[0], str) or len(args[0]) > _MAX_PASSED_ON:
        return None
    text = str.__str__(args[0])
    _, found, rest = text.partition(_PASSED_ON)
    lines = iter(rest.rpartition(_ONE_MORE)[2].splitlines())
    frames, said = [], ""
    for line in lines:
        if at := _FRAME.fullmatch(line):
            frames.append((at[1], int(at[2]), at[3]))
        elif line and not line.startswith(" "):
            said = line
            break
    return Root(value, frames[-MAX_FRAMES:], implicit, passed_on=said) if found and said else None
