"""Two runs beside each other: the moment of one that corresponds to a moment of the other."""

from __future__ import annotations

from dataclasses import dataclass

from pardbg.session.navigation.travel import step_end
from pardbg.store.process import Process
from pardbg.store.store import Store


@dataclass(frozen=True, slots=True)
class Aligned:
    """A moment of the second run."""

    t_ns: int
    by: str
    """``step 42``, or ``time`` where one of the runs has no steps."""
    note: str = ""
    """What does not correspond, in words."""


def aligned(first: Store, t_ns: int, second: Store) -> Aligned:
    """As far into the same training step as the first run is; as far from the begin where a run
    has no steps."""
    here = _step_at(first, t_ns)
    process = _counting(second)
    if here is None or process is None:
        return Aligned(min(second.begin_ns + t_ns - first.begin_ns, second.end_ns), "time")
    number, share = here
    table = process.table("step")
    steps = table.col("step")
    low, high = int(steps.min()), int(steps.max())
    wanted = min(max(number, low), high)
    note = "" if wanted == number else f"it has no step {number}"
    rows = table.step_rows(wanted, wanted, len(table))
    if share >= 1 or wanted != number or not len(rows):
        end = step_end(second, wanted)
        return Aligned(second.end_ns if end is None else end, f"step {wanted}", note)
    t0, t1 = int(table.col("t0_ns")[rows[0]]), int(table.col("t1_ns")[rows[0]])
    return Aligned(t0 + round(share * (t1 - t0)), f"step {wanted}", note)


def _step_at(store: Store, t_ns: int) -> tuple[int, float] | None:
    """(step, how much of it has passed) by the lowest rank that counts steps."""
    process = _counting(store)
    if process is None:
        return None
    table = process.table("step")
    ended = table.visible(t_ns)
    for row in range(ended, min(ended + 4, len(table))):
        t0, t1 = int(table.col("t0_ns")[row]), int(table.col("t1_ns")[row])
        if t0 < t_ns < t1:
            number = int(table.col("step")[row])
            end = step_end(store, number)
            over = end is not None and t_ns >= end
            return number, 1.0 if over else (t_ns - t0) / (t1 - t0)
    if not ended:
        return int(table.col("step")[0]), 0.0
    return int(table.col("step")[ended - 1]), 1.0


def _counting(store: Store) -> Process | None:
    store.settle()
    counting = [p for p in store.procs.values() if p.rank is not None and len(p.table("step"))]
    return min(counting, key=lambda p: (p.rank or 0, -p.epoch), default=None)
