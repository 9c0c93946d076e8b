"""What a job's log says, read after its end, as values."""

from __future__ import annotations

from dataclasses import dataclass

from pardbg_agent.ctrl.codec import Line, Message, Word


@dataclass(frozen=True, slots=True)
class LogSays(Message, tag="log"):
    """A conclusion of ``pardbg explain``, in its words."""

    kind: Word
    """As in docs/explain.md."""
    text: Line
    advice: Line = ""
    error: bool = False
    """Not a note, and no consequence of another one."""
    stop: bool = False
    """About an op that did not end, not about a process that failed."""
    culprits: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    group: Line = ""
    seq: int | None = None
    where: Line = ""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a conclusion rests on."""

    rank: int | None
    text: str
