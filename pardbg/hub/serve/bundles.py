"""Record batches of very many processes on their way to viewers: what one sent within a moment
goes as one message.

A thousand ranks send ten thousand messages a second, and what a viewer does with each is most of
what following them costs it. The recording has them as they came.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pardbg_agent import wire

MANY: Final = 128
"""Number of processes above which records of a process wait to be sent together."""
HOLD_NS: Final = 400_000_000
"""Maximum time a record waits."""
MAX_RECORDS: Final = 1024
"""Maximum records of one message, unless a single batch has more."""


@dataclass(slots=True)
class _Bundle:
    since_ns: int
    first: int
    count: int
    flags: int
    said: tuple[int, int]
    """(records dropped, when it was sent), of the newest batch"""
    bodies: list[bytes]

    def payload(self) -> bytes:
        version = wire.PROTOCOL_VERSION
        head = wire.FRAME.pack(version, self.flags, self.count, self.first, *self.said)
        return b"".join((head, *self.bodies))


class Bundles:
    """Batches that wait, by process."""

    def __init__(self, publish: Callable[[bytes, bytes], None]) -> None:
        self._publish = publish
        self._waiting: dict[bytes, _Bundle] = {}

    def add(self, key: bytes, payload: bytes, now: int) -> None:
        """Keep a batch for a moment. What does not go on where the one before it ended, is of
        another origin, or would be too long with it, waits by itself."""
        _, flags, count, first, *said = wire.FRAME.unpack_from(payload)
        body = payload[wire.FRAME.size :]
        waits = self._waiting.get(key)
        if waits is not None:
            goes_on = (first, flags) == (waits.first + waits.count, waits.flags)
            if goes_on and waits.count + count <= MAX_RECORDS:
                waits.count, waits.said = waits.count + count, (said[0], said[1])
                waits.bodies.append(body)
                return
            self._send(key)
        self._waiting[key] = _Bundle(now, first, count, flags, (said[0], said[1]), [body])

    def tick(self, now: int) -> None:
        """Publish what has waited long enough: not all at once, or viewers' queues overflow."""
        while self._waiting:
            key = next(iter(self._waiting))
            if now - self._waiting[key].since_ns < HOLD_NS:
                break
            self._send(key)

    def release(self, key: bytes) -> None:
        """Publish what waits of one process."""
        if key in self._waiting:
            self._send(key)

    def flush(self) -> None:
        """Publish all."""
        for key in list(self._waiting):
            self._send(key)

    def _send(self, key: bytes) -> None:
        self._publish(key, self._waiting.pop(key).payload())
