"""Overlap of communication and compute: hidden and exposed communication.

An op is under way on a rank from its issue on. Until the last rank has arrived it *waits*, after
that data *moves*. It is *exposed* while it holds the host up: in a wait, in a synchronous call, or
at the end of a backward after its last op was issued (DDP waits for its buckets there, in C++,
unseen). On a device streams are held up; where a wait of theirs is not seen (`waits_unseen`),
what is exposed is a lower bound, what is hidden an upper one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.intervals import Interval, clip, intersect, subtract, total, union
from pardbg.analysis.base.leads import streams_held
from pardbg.analysis.base.spans import records, stretches
from pardbg.analysis.base.times import times
from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.store.process import Process
from pardbg_agent import wire

_P2P: Final = int(wire.Flag.P2P)
_ASYNC: Final = int(wire.Flag.ASYNC)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Collectives of a rank in one step, times in ns; waiting and moving time do not overlap."""

    step: int
    step_ns: int
    moving_ns: int
    """Time in which data of any op moved, in ns."""
    exposed_ns: int
    """Time in which data moved while the host was held up, in ns."""
    waits: tuple[Interval, ...]
    """When the host was held up by an op to which other ranks had yet to come."""
    held_up_ns: int
    """Time in which the host was held up by any communication, in ns."""

    @property
    def could_hide_ns(self) -> int:
        """Return the exposed time that compute could hide, in ns: at most the time of compute."""
        return min(self.exposed_ns, max(0, self.step_ns - self.held_up_ns))

    @property
    def waiting_ns(self) -> int:
        return total(self.waits)

    @property
    def hidden_ns(self) -> int:
        return self.moving_ns - self.exposed_ns


Ops = Mapping[int, Sequence[tuple[int, int, int]]]
"""rank -> (issue, last arrival or earlier own completion, completion) of its ops, in ns"""


def ops_by_rank(rows: Iterable[CollectiveRow]) -> Ops:
    """Return the times of each rank's completed ops, reading each row once for all ranks."""
    found: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for row in rows:
        last = max([a.issued_ns for a in row.arrivals if a.issued_ns is not None], default=0)
        for a in row.arrivals:
            if a.issued_ns is not None and a.completed_ns is not None:
                found[a.rank].append((a.issued_ns, min(last, a.completed_ns), a.completed_ns))
    return found


def overlaps(
    view: View, rank: int, spans: Mapping[int, Interval],
    ops: Mapping[int, Sequence[tuple[int, int, int]]],
) -> list[Overlap]:  # fmt: skip
    """Return the overlap of ``rank``'s communication and compute in each step of ``spans``.

    ``ops``: step -> its ops, as in ``Ops``; further ops do no harm, but take time.
    """
    ways = {step: under_way(span, ops[step]) for step, span in spans.items()}
    whole = (min(a for a, _ in spans.values()), max(b for _, b in spans.values()))
    both = [part for waiting, moving in ways.values() for part in (*waiting, *moving)]
    held_up_ever = blocked(view, view.ranks[rank], whole, both)
    found = []
    for step, (begin, end) in spans.items():
        waiting, moving = ways[step]
        at = bisect_left(held_up_ever, begin, key=lambda part: part[1])
        until = bisect_left(held_up_ever, end, key=lambda part: part[0])
        held_up = clip(held_up_ever[at:until], begin, end)
        waits = intersect(held_up, waiting)
        moves = subtract(moving, waits)
        exposed = total(intersect(moves, held_up))
        found.append(
            Overlap(step, end - begin, total(moves), exposed, tuple(waits), total(held_up))
        )
    return found


def under_way(
    span: Interval, ops: Sequence[tuple[int, int, int]]
) -> tuple[list[Interval], list[Interval]]:
    """Return (waiting, moving): intervals of a rank's ops before and after the last arrival."""
    waiting = [(issued, last) for issued, last, _ in ops]
    moving = [(last, completed) for _, last, completed in ops]
    return union(clip(waiting, *span)), union(clip(moving, *span))


def blocked(
    view: View, process: Process, span: Interval, under_way: Sequence[Interval]
) -> list[Interval]:
    """Return the intervals in which communication held up the rank's host, or its device."""
    issued = records(view, process, "issue", span)
    if times(view) == "device":  # what a host waits for says nothing about its device
        found = streams_held(view, process, span)
    else:
        waits = records(view, process, "wait", span)
        found = [wait[1:3] for wait in waits if not wait.flags & _P2P]
        found += [wait[1:3] for wait in issued if not wait.flags & _ASYNC]
    for begin, end in stretches(view, process, "phase", span, ("backward",)):
        inside = [wait.t1_ns for wait in issued if begin <= wait.t0_ns <= end]
        if inside:
            found += clip(under_way, max(inside), end)
    return union(clip(found, *span))
