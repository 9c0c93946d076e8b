"""What the engine's thread says to the UI. Frames may be replaced by newer ones, words never."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from pardbg.events.commands import Reply
from pardbg.events.control_codes import Verb
from pardbg.ui.engine.feed import Frame


class _Newest(Message, bubble=False):
    """Only the newest waiting one of a kind is handled."""

    def can_replace(self, message: Message) -> bool:
        return type(message) is type(self)


@dataclass
class FrameReady(_Newest, bubble=False):
    """A new frame."""

    frame: Frame


@dataclass
class Loading(_Newest, bubble=False):
    """A recording is being read: how much of it is."""

    share: float


@dataclass
class Trouble(Message, bubble=False):
    """One line about something that failed in the viewer."""

    text: str


@dataclass
class Arrived(Message, bubble=False):
    """Where a journey in time ended, in words."""

    text: str


@dataclass
class Answered(Message, bubble=False):
    """The hub answered a command (or the port raised)."""

    verb: Verb | None
    """None: ``take`` or ``leave``."""
    reply: Reply
