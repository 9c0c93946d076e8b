"""Facts from a job's log, read after the job's end, as values."""

from __future__ import annotations

from dataclasses import dataclass

from pardbg_agent.ctrl.codec import Line, Message, Word


@dataclass(frozen=True, slots=True)
class LogSays(Message, tag="log"):
    """A conclusion of ``pardbg explain``, in that command's words."""

    kind: Word
    """Kind of the conclusion, as in docs/explain.md."""
    text: Line
    advice: Line = ""
    error: bool = False
    """Whether the conclusion is a failure: no note, and no consequence of another one."""
    stop: bool = False
    """Whether the conclusion is about an op that did not end, not about a failed process."""
    culprits: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    group: Line = ""
    seq: int | None = None
    where: Line = ""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log line that supports a conclusion."""

    rank: int | None
    text: str
