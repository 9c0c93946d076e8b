"""Messages of the engine's thread to the UI. A frame may be replaced by a newer one, a text
never."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from pardbg.events.commands import Reply
from pardbg.events.control_codes import Verb
from pardbg.ui.engine.feed import Frame


class _Newest(Message, bubble=False):
    """A message of which only the newest waiting one is handled."""

    def can_replace(self, message: Message) -> bool:
        return type(message) is type(self)


@dataclass
class FrameReady(_Newest, bubble=False):
    """A new frame."""

    frame: Frame


@dataclass
class Loading(_Newest, bubble=False):
    """Progress of reading a recording, before its first frame."""

    share: float


@dataclass
class Trouble(Message, bubble=False):
    """One line about a failure in the viewer."""

    text: str


@dataclass
class Arrived(Message, bubble=False):
    """The end of a journey in time, as text."""

    text: str
    rank: int | None = None
    """Whom there is to look at."""


@dataclass
class Answered(Message, bubble=False):
    """The hub's answer to a command, or an exception of the port."""

    verb: Verb | None
    """None: ``take`` or ``leave``."""
    reply: Reply
    expr: str = ""
    """What was asked of ranks, or the condition of a breakpoint."""
