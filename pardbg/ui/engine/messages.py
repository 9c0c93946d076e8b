"""Messages of the engine's thread to the UI. A newer frame may replace a waiting one; texts are
never replaced."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from pardbg.events.commands import Reply
from pardbg.events.control_codes import Verb
from pardbg.ui.engine.feed import Frame


class _Newest(Message, bubble=False):
    """A message type of which only the newest waiting message is handled."""

    def can_replace(self, message: Message) -> bool:
        return type(message) is type(self)


@dataclass
class FrameReady(_Newest, bubble=False):
    """A new frame."""

    frame: Frame


@dataclass
class Loading(_Newest, bubble=False):
    """Progress of reading a recording, before the first frame."""

    share: float


@dataclass
class Trouble(Message, bubble=False):
    """An internal error of the viewer, in one line."""

    text: str


@dataclass
class Arrived(Message, bubble=False):
    """The end of a journey in time, as text."""

    text: str
    rank: int | None = None
    """Rank to select; None: no rank."""


@dataclass
class Answered(Message, bubble=False):
    """The hub's answer to a command, or an exception of the port."""

    verb: Verb | None
    """Verb of the command; None: ``take`` or ``leave``."""
    reply: Reply
    expr: str = ""
    """Expression sent to ranks, or the condition of a breakpoint."""
