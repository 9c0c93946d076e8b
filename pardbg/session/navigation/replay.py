"""The clock of a replay: a cursor that plays, stops and moves; callers pass the present time. And,
for two runs beside each other, the moment in one run that corresponds to a moment in the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pardbg.session.navigation.travel import step_end
from pardbg.store.process import Process
from pardbg.store.store import Store

SPEEDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
"""Speeds for ``faster`` and ``slower``; ``set_speed`` takes any up to MAX_SPEED, negative too."""
MAX_SPEED: Final = 1000.0


class ReplayClock:
    """Cursor over [begin, end], hub clock ns.

    Every method that depends on time is given ``now_s``, the wall's monotonic seconds. A negative
    speed plays backwards; playing stops at either end.
    """

    def __init__(self, begin_ns: int = 0, end_ns: int = 0) -> None:
        self.begin_ns, self.end_ns = begin_ns, max(begin_ns, end_ns)
        self.speed = 1.0
        self._at_ns = begin_ns
        self._since_s: float | None = None

    @property
    def playing(self) -> bool:
        return self._since_s is not None

    def bounds(self, begin_ns: int, end_ns: int) -> None:
        """Set the range; the cursor is kept inside, at the begin if it has not moved yet."""
        fresh = self._at_ns == self.begin_ns
        self.begin_ns, self.end_ns = begin_ns, max(begin_ns, end_ns)
        self._at_ns = begin_ns if fresh else self._clamped(self._at_ns)

    def now(self, now_s: float) -> int:
        """Return the position of the cursor, hub ns."""
        if self._since_s is None:
            return self._at_ns
        passed = round((now_s - self._since_s) * self.speed * 1e9)
        at = self._clamped(self._at_ns + passed)
        end = self.end_ns if self.speed > 0 else self.begin_ns
        if at == end:
            self._at_ns, self._since_s = at, None
        return at

    def play(self, now_s: float) -> None:
        """Start playing; at the end, from the begin (backwards: at the begin, from the end)."""
        if self.playing:
            return
        first, last = (self.begin_ns, self.end_ns)
        if self.speed < 0:
            first, last = last, first
        if self._at_ns == last:
            self._at_ns = first
        self._since_s = now_s

    def stop(self, now_s: float) -> None:
        self._at_ns, self._since_s = self.now(now_s), None

    def toggle(self, now_s: float) -> None:
        if self.playing:
            self.stop(now_s)
        else:
            self.play(now_s)

    def set_speed(self, speed: float, now_s: float) -> None:
        """Play ``speed`` times as fast as the run ran; the cursor does not jump."""
        at, playing = self.now(now_s), self.playing
        bounded = max(-MAX_SPEED, min(MAX_SPEED, speed))
        self.speed = bounded if bounded else 1.0
        self._at_ns, self._since_s = at, now_s if playing else None

    def faster(self, now_s: float) -> None:
        self._change_speed(1, now_s)

    def slower(self, now_s: float) -> None:
        self._change_speed(-1, now_s)

    def step(self, by_ns: int, now_s: float) -> None:
        """Move by ``by_ns``, in either direction."""
        self.seek(self.now(now_s) + by_ns, now_s)

    def seek(self, t_ns: int, now_s: float) -> None:
        """Move to ``t_ns``, kept inside the run; a playing clock keeps playing."""
        self.now(now_s)
        self._at_ns = self._clamped(t_ns)
        if self._since_s is not None:
            self._since_s = now_s

    def _change_speed(self, by: int, now_s: float) -> None:
        sign = 1.0 if self.speed > 0 else -1.0
        nearest = min(range(len(SPEEDS)), key=lambda i: abs(SPEEDS[i] - abs(self.speed)))
        at = max(0, min(len(SPEEDS) - 1, nearest + by))
        self.set_speed(sign * SPEEDS[at], now_s)

    def _clamped(self, t_ns: int) -> int:
        return max(self.begin_ns, min(self.end_ns, t_ns))


@dataclass(frozen=True, slots=True)
class Aligned:
    """A moment of the second run, aligned with the first."""

    t_ns: int
    by: str
    """Axis of the alignment: ``step 42``, or ``time`` if one of the runs has no steps."""
    note: str = ""
    """Description of what does not correspond."""


def aligned(first: Store, t_ns: int, second: Store) -> Aligned:
    """Return the second run's moment at the same share of the step; without steps, by time."""
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


def place_on_steps(store: Store, t_ns: int) -> float | None:
    """Return the position of a time on an axis of steps, by the lowest rank that counts them: 6.5
    is the middle of step 6. None: before the first step, or no rank counts steps."""
    process = _counting(store)
    if process is None or t_ns < int(process.table("step").col("t0_ns")[0]):
        return None
    here = _step_at(store, t_ns)
    return None if here is None else here[0] + here[1]


def _step_at(store: Store, t_ns: int) -> tuple[int, float] | None:
    """Return (step, elapsed share of it) by the lowest rank that counts steps."""
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
