"""What the engine's thread says to the UI. Frames may be replaced by newer ones, words never."""

from __future__ import annotations

from textual.message import Message

from pardbg.control.language.verbs import Reply, Verb
from pardbg.ui.engine.feed import Frame


class FrameReady(Message):
    """A new frame; only the newest waiting one is drawn."""

    bubble = False

    def __init__(self, frame: Frame) -> None:
        super().__init__()
        self.frame = frame

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, FrameReady)


class Loading(Message):
    """A recording is being read: how much of it is."""

    bubble = False

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, Loading)


class Trouble(Message):
    """One line about something that failed in the viewer."""

    bubble = False

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class Arrived(Message):
    """Where a journey in time ended, in words."""

    bubble = False

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class Answered(Message):
    """The hub answered a command (or the port raised)."""

    bubble = False

    def __init__(self, verb: Verb | None, reply: Reply) -> None:
        super().__init__()
        self.verb = verb
        """None: ``take`` or ``leave``."""
        self.reply = reply
