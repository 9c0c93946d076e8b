"""Which record batches may go on to the hub: none out of turn.

What was under way to a hub that died, or in a connection that broke, comes again: the hub's WELCOME
says from which record on, and the agent goes back to it. Batches that it had sent before that are
still in the relay's queue; passed on first they would look like a gap.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from pardbg.events.decode import Malformed, frame_head

MAX_KEPT: Final = 256
"""Batches that wait for their process's WELCOME; beyond that nothing is taken from any."""

MAX_REFUSED: Final = 100
"""More than queues on the way can hold: then what is wanted does not come any more."""


@dataclass(slots=True)
class _Process:
    welcomed: bool = False
    """On this link."""
    wanted: int = 0
    """Index of the record that is to come next."""
    lost: int = 0
    """Records that its ring had lost, as the last batch said."""
    num_refused: int = 0
    kept: deque[bytes] = field(default_factory=deque)


class Turns:
    """The processes of this node, each with what may pass next."""

    def __init__(self) -> None:
        self._of: dict[bytes, _Process] = {}
        self._num_kept = 0

    @property
    def full(self) -> bool:
        return self._num_kept >= MAX_KEPT

    def new_link(self) -> None:
        """Nothing passes before each process is welcomed (again)."""
        for process in self._of.values():
            process.welcomed = False

    def welcome(self, proc: bytes, wanted: int) -> list[bytes]:
        """The hub wants the process's records from there on; what was kept of them. Once a link:
        a WELCOME that comes again changes nothing."""
        process = self._of.setdefault(proc, _Process())
        if process.welcomed:
            return []
        process.welcomed, process.wanted = True, wanted
        kept = [payload for payload in process.kept if self._passes(process, payload)]
        self._num_kept -= len(process.kept)
        process.kept.clear()
        return kept

    def passes(self, proc: bytes, payload: bytes) -> bool:
        """A batch may go on now. Else it is kept, or comes again by itself."""
        process = self._of.setdefault(proc, _Process())
        if process.welcomed:
            return self._passes(process, payload)
        process.kept.append(payload)
        self._num_kept += 1
        return False

    @staticmethod
    def _passes(process: _Process, payload: bytes) -> bool:
        try:
            head = frame_head(payload)
        except Malformed:
            return True  # the hub counts it
        ahead = head.first - process.wanted
        # The ring may have lost what is wanted: then the batch says so.
        if ahead > max(0, head.dropped - process.lost) and process.num_refused < MAX_REFUSED:
            process.num_refused += 1
            return False
        process.wanted = max(process.wanted, head.first + head.count)
        process.lost, process.num_refused = head.dropped, 0
        return True
