"""Sources of the store's messages: a live hub or a session file, behind one interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Message:
    """A recorded or streamed message, with the bytes as sent."""

    key: bytes
    """``wire.Key`` byte and process id."""
    payload: bytes
    """FRAME + records, or one msgpack map."""
    received_ns: int
    """Hub clock (monotonic ns) at which the hub received the message."""


class Source(Protocol):
    """A source that feeds a store. Called from the feeding thread only; never from the UI's."""

    @property
    def live(self) -> bool:
        """Return whether more data may come (a live run, not a file)."""
        ...

    def poll(self, timeout_ms: int) -> list[Message]:
        """Return the messages received, oldest first; empty after ``timeout_ms`` or at the end."""
        ...

    @property
    def finished(self) -> bool:
        """Return whether no more messages will come."""
        ...

    def close(self) -> None: ...
