"""Watches of this rank: conditions on events in the training, evaluated by the hooks.

A watch has a number of the breakpoints' table, a kind (wire.WATCH_KINDS) and a limit: times the
median for ``slow``, ns for ``skew``, bytes for ``memory``, 0 for the others. Use by a hook:

- ``c.watches`` (replaced as a whole by each SetBreaks) has an attribute per kind: Watch or None.
- A kind of BEFORE_ISSUE checks an op before its issue. ``c.gate.closed`` is True while there is
  one, so the open gate costs what it always did: hooks check inside ``if c.gate.closed:``.
- ``c.gate.stop(number, text)``: this thread's rank holds at its next gate, which for a stop before
  ``wait_gate`` of an op is that op's own. ``text`` (what, where, number against limit, not the
  rank) goes to the hub as STATE's ``hit``. It counts a match, lets ``ignore`` of them pass, and
  does nothing while an earlier hit of this rank waits for the hub. True: it will hold. It never
  waits and never raises; any thread."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from pardbg_agent.ctrl.agent_messages import Watch
from pardbg_agent.wire import MAX_BREAKS, WATCH_KINDS

BEFORE_ISSUE: Final = frozenset(("nan", "mismatch", "skew", "slow"))
"""Kinds that check an op before its issue."""
MAX_TEXT: Final = 200


class Watches:
    """All watches of the rank. Among several of a kind, the one with the lowest limit counts."""

    __slots__ = (
        "_all", "_left", "active", "before_issue", "diverge", "few", "hits", "memory", "mismatch",
        "nan", "skew", "slow", "unknown",
    )  # fmt: skip

    def __init__(self, watches: Iterable[Watch] = (), unknown: tuple[str, ...] = ()) -> None:
        self._all = tuple(watches)
        self.nan = self._of("nan")
        self.mismatch = self._of("mismatch")
        self.slow = self._of("slow")
        self.skew = self._of("skew")
        self.memory = self._of("memory")
        self.diverge = self._of("diverge")
        self.active = bool(self._all)
        self.few = self.nan is self.memory is self.diverge is None
        """Whether no watch checks every phase or action."""
        self.before_issue = any(one.kind in BEFORE_ISSUE for one in self._all)
        self.unknown = unknown
        """Kinds that this agent does not have."""
        self.hits: dict[int, int] = {}
        """Number of a watch -> matches so far."""
        self._left = {one.number: one.ignore for one in self._all}

    def _of(self, kind: str) -> Watch | None:
        found = [one for one in self._all if one.kind == kind]
        return min(found, key=lambda one: (one.limit, one.number), default=None)

    def has(self, number: int) -> bool:
        return number in self._left

    def counts(self, number: int) -> bool:
        """Count a match. Return whether to stop at it."""
        left = self._left.get(number)
        if left is None:
            return False
        self.hits[number] = self.hits.get(number, 0) + 1
        self._left[number] = max(0, left - 1)
        return not left

    def keep_counts(self, old: Watches) -> None:
        """Continue the counts of the watches that were in the list before."""
        before = {one.number: one for one in old._all}
        for one in self._all:
            was = before.get(one.number)
            if was is None:
                continue
            if one.number in old.hits:
                self.hits[one.number] = old.hits[one.number]
            if was.ignore == one.ignore:
                self._left[one.number] = old._left[one.number]


NO_WATCHES: Final = Watches()


def watches_of(asked: Sequence[Watch]) -> Watches:
    """Return the watches of a SetBreaks; those of unknown kinds are left out. Raises ValueError."""
    if len(asked) > MAX_BREAKS:
        raise ValueError("too many watches")
    for one in asked:
        if not math.isfinite(one.limit) or one.limit < 0 or one.ignore < 0:
            raise ValueError(f"limit {one.limit} of a watch")
    known = [one for one in asked if one.kind in WATCH_KINDS]
    unknown = {one.kind for one in asked if one.kind not in WATCH_KINDS}
    return Watches(known, tuple(sorted(unknown))) if asked else NO_WATCHES


# -- what is usual. Short things are never slow, since on a busy machine everything waits some
# milliseconds for a core: less than LEAST_NS, and less than a tenth of a usual step.

WINDOW: Final = 32
"""Number of newest samples in a median."""
FIRST: Final = 5
"""Minimum number of samples for a median."""
LATER: Final = 7
"""Minimum number of samples for durations that grow because another rank is slow, so that the slow
rank, judged by its own time, is found first."""
LEAST_NS: Final = 10_000_000
STEP: Final = "step"
"""Key of a whole training step."""
MAX_THINGS: Final = 1024
"""Maximum number of keys; further ones have no median."""


class Medians:
    """Newest durations by key. Any thread."""

    def __init__(self) -> None:
        self._known: dict[Hashable, deque[int]] = {}
        self.least_ns = LEAST_NS
        """Minimum duration, in ns, that can count as slow."""

    def add(
        self, thing: Hashable, ns: int, times: float, first: int = FIRST
    ) -> tuple[int, int] | None:
        """Add a duration. Return (median, number of samples) of the earlier ones if it exceeds
        ``times`` their median and there were at least ``first`` of them."""
        known = self._known.get(thing)
        if known is None:
            if len(self._known) >= MAX_THINGS:
                return None
            known = self._known.setdefault(thing, deque(maxlen=WINDOW))
        found = None
        if ns >= self.least_ns and len(known) >= first:
            median = _median(known)
            if ns > times * median:
                found = median, len(known)
        known.append(ns)
        if thing == STEP:
            self.least_ns = max(LEAST_NS, _median(known) // 10)
        return found


def _median(known: deque[int]) -> int:
    return sorted(known)[len(known) // 2]
