"""System calls outside of ops in which ranks were seen, as sampled by their agents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, cast, get_args

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.times import device
from pardbg.words import whole
from pardbg_agent.wire import BEAT_NS, BLOCKED

_LAST: Final = 512
"""Maximum number of samples looked at, per rank."""
_NEWEST: Final = 4
"""Number of phases, or ops, begun last of which one may still run on the device."""


Call = Literal[
    "sleep", "lock", "child", "file lock", "lock file", "file", "socket", "pipe", "terminal",
    "poll", "worker", "full pipe", "full terminal", "busy", "device",
]  # fmt: skip
_CALLS: Final = frozenset(get_args(Call))
_OF_DEVICE: Final = ("lock", "poll", "busy")
"""Calls in which a runtime waits for its device, as a copy to the host does."""


@dataclass(frozen=True, slots=True)
class Blocking:
    """System call that the main thread of a rank waits in."""

    call: Call
    file: str = ""
    """File that is read, written or locked; empty: none or not known."""
    other: int = 0
    """Process that holds the lock, has the socket's other end, or is the worker; 0: none."""
    does: str = ""
    """Call that the worker stands in; for a lock file ``held`` while a process has it open."""
    holder: int | None = None
    """Rank of the process ``other``; None: not known."""


class Sample(NamedTuple):
    """Sample of a rank's main thread in a system call."""

    looks: int
    """Number of looks that saw the thread there, at most the number within the time asked for."""
    blocking: Blocking
    place: str
    t_ns: int


def samples(view: View, rank: int, since_ns: int, head: str = BLOCKED) -> Iterator[Sample]:
    """Yield a rank's samples since ``since_ns``, the newest first. ``head``: ``BUSY`` for those of
    a thread at work outside of phases."""
    process = view.ranks[rank]
    if not (wanted := process.names_with(head)):
        return
    table, visible = view.rows(process, "probe")
    lo = int(table.when[:visible].searchsorted(since_ns))
    rows = lo + np.flatnonzero(np.isin(table.col("name_id")[lo:visible], list(wanted)))[-_LAST:]
    for row in rows[::-1].tolist():
        found = _read(view, wanted[int(table.col("name_id")[row])])
        t_ns = int(table.when[row])
        most = (t_ns - since_ns) // BEAT_NS + 1  # its stay may have begun earlier
        if found is not None:
            yield Sample(min(most, max(1, int(table.col("a")[row]))), *found, t_ns)


def counted(
    view: View, rank: int, since_ns: int, until_ns: int, head: str = BLOCKED
) -> Counter[tuple[Blocking, str]]:
    """Return (call, place) -> number of looks in that time that saw the rank there."""
    found: Counter[tuple[Blocking, str]] = Counter()
    for one in samples(view, rank, since_ns, head):
        if one.t_ns <= until_ns:
            waits = one.blocking.call in _OF_DEVICE and _computes(view, rank, one.t_ns)
            found[Blocking("device") if waits else one.blocking, one.place] += one.looks
    return found


def _computes(view: View, rank: int, t_ns: int) -> bool:
    """Return whether the rank's device computes then, by its own times, or is in an op."""
    process, known = view.ranks[rank], False
    for name in ("phase", "done") if device(process) and process.device_times.seen else ():
        table, visible = view.rows(process, name)
        begun = int(table.col("t0_ns")[:visible].searchsorted(t_ns, "right"))
        known |= bool((table.col("t1_ns")[max(0, begun - _NEWEST) : begun] >= t_ns).any())
    return known


def _read(view: View, name: str) -> tuple[Blocking, str] | None:
    words = name.split("\n")
    if len(words) != 4 or words[1] not in _CALLS:
        return None
    file, _, rest = words[2].partition("\t")
    other, _, does = rest.partition("\t")
    pid = whole(other) or 0
    holder = next((r for r, p in view.ranks.items() if pid and p.pid == pid), None)
    return Blocking(cast(Call, words[1]), file, pid, does, holder), words[3]
