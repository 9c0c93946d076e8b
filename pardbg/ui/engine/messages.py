"""What the engine's thread says to the UI. Frames may be replaced by newer ones, words never."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from pardbg.control.language.verbs import Reply, Verb
from pardbg.ui.engine.feed import Frame


@dataclass
class FrameReady(Message):
    """A new frame; only the newest waiting one is drawn."""

    bubble = False
    frame: Frame

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, FrameReady)


@dataclass
class Loading(Message):
    """A recording is being read: how much of it is."""

    bubble = False
    share: float

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, Loading)


@dataclass
class Trouble(Message):
    """One line about something that failed in the viewer."""

    bubble = False
    text: str


@dataclass
class Arrived(Message):
    """Where a journey in time ended, in words."""

    bubble = False
    text: str


@dataclass
class Answered(Message):
    """The hub answered a command (or the port raised)."""

    bubble = False
    verb: Verb | None
    """None: ``take`` or ``leave``."""
    reply: Reply
