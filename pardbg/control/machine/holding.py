"""What keeps ranks held, and for how long: the lease of who has control, the ranks that stay where
they stand though others wait for them, and the exceptions that nobody caught.

Times are the hub's monotonic ns, given by the caller.

[Note: pinned ranks] A cut has nobody waiting, so no timeout runs. A breakpoint's rank, or one that
alone was asked to hold, must not move, so the ranks that wait for it are inside ops with a clock.
It is released before the nearest of these can run out, unless ``--hold`` was asked for. On gloo an
op's clock runs while somebody waits in it; counting from its issue is on the safe side.

[Note: who holds a post-mortem] A rank that raised (``--on-exception hold``) stops itself for a
lease, as at a breakpoint, and the hub decides. Where somebody has control, it is held as everything
else. Where nobody has, the run does (holder RUN): for ``hold_ns`` from the last time a viewer was
there or a question was asked. Any viewer may command meanwhile without taking control over first.
Nobody comes: the rank dies as it would have, so a job without anybody to look at it does not hang.
What follows from a death that somebody allowed is not held: connections to the dead rank close.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pardbg.control.machine.cut import Settlement, epoch_of
from pardbg.events.control_codes import NotHeld
from pardbg.events.control_facts import Raised
from pardbg_agent.ctrl.agent_messages import OpenOp
from pardbg_agent.wire import LEASE_NS

MARGIN: Final = 0.2
"""Share of the timeout that is left when held ranks are released."""
LEAST_MARGIN_NS: Final = 2_000_000_000
"""Minimum time to the timeout when held ranks are released."""
UNKNOWN_NS: Final = 60_000_000_000
"""A group whose timeout nobody said: assume a short one."""
_DAY_NS: Final = 86_400_000_000_000


@dataclass(slots=True)
class HeldRanks:
    """Which ranks are pinned, and the deadline that follows from who waits for them."""

    procs: set[str] = field(default_factory=set)
    forever: bool = False
    """``--hold``: nobody is released, whatever runs out."""
    deadline_ns: int | None = None
    """Hub time of the nearest timeout; None: nobody waits."""
    _seen: dict[tuple[str, OpenOp], int] = field(default_factory=dict)

    def clear(self) -> None:
        self.procs, self.forever, self.deadline_ns, self._seen = set(), False, None, {}

    def update(self, found: Settlement, timeouts: Mapping[str, int], now: int) -> bool:
        """Take note of who waits; True: it is time to let the pinned ranks go."""
        self._seen = {
            (proc, wait.op): self._seen.get((proc, wait.op), now)
            for proc, wait in found.waiting.items()
        }
        ends, release = [], []
        for (_, op), seen in self._seen.items():
            timeout = timeouts.get(op.group, UNKNOWN_NS)
            since = op.since_ns if 0 <= now - op.since_ns < _DAY_NS else seen
            end = min(since, seen) + timeout
            ends.append(end)
            release.append(end - max(int(MARGIN * timeout), LEAST_MARGIN_NS))
        self.deadline_ns = min(ends, default=None)
        return bool(release) and not self.forever and now >= min(release)

    def left_ns(self, now: int) -> int | None:
        """Until the nearest timeout of somebody who waits."""
        return None if self.deadline_ns is None else max(0, self.deadline_ns - now)


MAX_LEASE_NS = 3_600_000_000_000
"""No lease is longer than an hour, whatever a script asks for."""


@dataclass(slots=True)
class Lease:
    """At most one holder. It lapses by itself."""

    holder: str | None = None
    until_ns: int = 0
    period_ns: int = LEASE_NS
    keep: bool = False
    """Only the lease ends it; the holder may come and go (a script, one process per command)."""

    def grant(self, holder: str, now: int, *, keep: bool = False, period_ns: int = 0) -> None:
        """Give control to ``holder`` (also to another than before)."""
        self.holder, self.keep = holder, keep
        self.period_ns = min(max(period_ns, LEASE_NS), MAX_LEASE_NS)
        self.until_ns = now + self.period_ns

    def renew(self, holder: str, now: int) -> bool:
        """Restart the lease if ``holder`` has control; False: not, or ranks run on by then."""
        if self.holder != holder or self.lapsed(now):
            return False
        self.until_ns = now + self.period_ns
        return True

    def left_ns(self, now: int) -> int | None:
        """Return the time left; None if control is free."""
        return None if self.holder is None else max(0, self.until_ns - now)

    def lapsed(self, now: int) -> bool:
        """Return whether there is a holder whose time is over."""
        return self.holder is not None and now >= self.until_ns

    def drop(self) -> None:
        """Free control."""
        self.holder, self.keep = None, False


RUN: Final = "--on-exception hold"
"""Holder of control in the run's own name; any viewer may command instead."""
HOLD_S: Final = 600.0
"""Default time."""
MAX_HOLD_S: Final = 3600.0
FOLLOWS_NS: Final = 60_000_000_000
"""An exception within this time after a rank was let die is a consequence."""
_PREFIX: Final = "exception "
"""How the agent labels such a gate; not shown."""


@dataclass(slots=True)
class UncaughtErrors:
    """Processes that are held at their exception."""

    hold_ns: int = 0
    """Maximum time they are held unattended; 0: exceptions are not held at all."""
    procs: dict[str, str] = field(default_factory=dict)
    """proc -> ``ValueError: no labels`` (or `` in thread …``)."""
    _let_die: dict[str, int] = field(default_factory=dict)
    """epoch (one start of the job's ranks) -> when one was let die, hub ns."""

    def refusal(self, proc: str, now: int) -> NotHeld | None:
        """Return why this one is not held; None: it is."""
        if not self.hold_ns:
            return NotHeld.OFF
        died = self._let_die.get(epoch_of(proc))
        if died is not None and now - died < FOLLOWS_NS:
            return NotHeld.FOLLOWS
        return None

    def add(self, proc: str, rank: int, coming: str) -> Raised:
        """Hold it. Return why all ranks stop. ``coming``: what comes next there, as it reports."""
        self.procs[proc] = coming.removeprefix(_PREFIX)
        return Raised(rank, self.procs[proc])

    def let_die(self, proc: str, now: int) -> None:
        """Let it die."""
        if self.procs.pop(proc, None) is not None:
            self._let_die[epoch_of(proc)] = now
