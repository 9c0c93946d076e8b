"""Where the store's messages come from: a live hub or a session file, behind one seam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Message:
    """One recorded or streamed message, exactly as it travelled."""

    key: bytes
    """``wire.Key`` byte and process id."""
    payload: bytes
    """FRAME + records, or one msgpack map."""
    received_ns: int
    """Hub clock (monotonic ns) when the hub had it."""


class Source(Protocol):
    """Feeds a store. Called from the feeding thread only; never from the UI's."""

    @property
    def live(self) -> bool:
        """Return whether more data may come (a live run, not a file)."""
        ...

    def poll(self, timeout_ms: int) -> list[Message]:
        """Messages that have come, oldest first; empty after ``timeout_ms`` or at the end."""
        ...

    @property
    def finished(self) -> bool:
        """Return whether nothing more will come."""
        ...

    def close(self) -> None: ...
