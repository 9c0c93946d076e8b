"""Busy workers of the program's data loader, sampled with each heartbeat; Linux only.

PROBE ``loader workers``: a = workers that were seen at work, b = workers looked at. A loader whose
workers are idle is ahead of its rank, however long other ranks' loaders let it wait."""

from __future__ import annotations

import os
import platform
import sys
from typing import TYPE_CHECKING, Final

from pardbg_agent import wire
from pardbg_agent.clock import now_ns
from pardbg_agent.identity import read_text

if TYPE_CHECKING:
    from pardbg_agent.watched_rank import Core

_MAX_WORKERS: Final = 4
"""Maximum number of workers looked at once, 40 us each; the others' turn comes with later looks."""
_FIRST_LOOKS, _LOOKS, _MOST_LOOKS = 2, 5, 100
"""Least looks for the first record, for later ones, and most: what lies so far back is none of the
steps' any more."""
POLLS: Final = frozenset({"x86_64": (7, 271), "aarch64": (73,)}.get(platform.machine(), ()))
"""Numbers of poll and ppoll."""


class Loaders:
    """Counts of the newest data loader's workers since the last record."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._looks = self._busy = self._seen = 0
        self._due, self._step = _FIRST_LOOKS, core.step
        self._turn = 0
        """Number of looks in all."""

    def look(self) -> int:
        """Count the workers at work; return the number of records made: none in one step twice, so
        that a rank that hangs does not seem to do anything."""
        loader = self._core.loader
        workers = list(getattr(loader and loader(), "_workers", ()))
        self._turn += 1
        at = self._turn * _MAX_WORKERS % max(1, len(workers))
        chosen = (workers[at:] + workers[:at])[:_MAX_WORKERS]
        known = [busy for one in chosen if (busy := _works(one.pid)) is not None]
        if not known:
            return 0
        self._looks, self._seen = self._looks + 1, self._seen + len(known)
        self._busy += sum(known)
        told = self._core.step != self._step and self._looks >= self._due
        if told:
            self._core.mark(wire.Kind.PROBE, wire.LOADERS, now_ns(), self._busy, self._seen)
            self._due, self._step = _LOOKS, self._core.step
        if told or self._looks >= _MOST_LOOKS:
            self._looks = self._busy = self._seen = 0
        return int(told)


def _works(pid: int) -> bool | None:
    """Return whether a worker does anything but wait for indices, as it does where it polls one
    pipe; None: it has ended, or may not be looked at."""
    words = read_text(f"/proc/{pid}/syscall").split()
    if len(words) < 3 or int(words[0]) not in POLLS or int(words[2], 16) != 1:
        return bool(words) or None
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            fd = int.from_bytes(os.pread(memory.fileno(), 4, int(words[1], 16)), sys.byteorder)
        return not os.readlink(f"/proc/{pid}/fd/{fd}").startswith("pipe:")
    except OSError:
        return None
