"""Reasons for which ranks stay held, and for how long: the lease of the controlling viewer, pinned
ranks, which stay where they stand though others wait for them, and uncaught exceptions.

Times are the hub's monotonic ns, given by the caller.

[Note: pinned ranks] At a cut no rank waits, so no timeout runs. A breakpoint's rank, or one that
alone was asked to hold, must not move, so the ranks that wait for it are inside ops with a clock.
It is released before the nearest of these can run out, unless ``--hold`` was asked for. On gloo an
op's clock runs while a rank waits in it; counting from its issue is on the safe side.

[Note: holder of a post-mortem] A rank that raised (``--on-exception hold``) stops itself for a
lease, as at a breakpoint, and the hub decides. If a viewer has control, the rank is held as all
others. If none has, the run does (holder RUN): for ``hold_ns`` from the last time a viewer was
there or a question was asked. Any viewer may command meanwhile without taking control over first.
Without a viewer the rank dies as it would have, so an unattended job does not hang.
Exceptions after a death that was allowed are not held: connections to the dead rank close.
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
"""Share of a timeout that is left when held ranks are released."""
LEAST_MARGIN_NS: Final = 2_000_000_000
"""Minimum time, in ns, before the timeout at which held ranks are released."""
UNKNOWN_NS: Final = 60_000_000_000
"""Assumed timeout, in ns, of a group with an unknown one: a short one."""
_DAY_NS: Final = 86_400_000_000_000


@dataclass(slots=True)
class HeldRanks:
    """Pinned ranks, and the deadline given by the ranks that wait for them."""

    procs: set[str] = field(default_factory=set)
    forever: bool = False
    """Whether ``--hold`` was asked for: no rank is released, whatever runs out."""
    deadline_ns: int | None = None
    """Hub time of the nearest timeout; None: no rank waits."""
    _seen: dict[tuple[str, OpenOp], int] = field(default_factory=dict)

    def clear(self) -> None:
        self.procs, self.forever, self.deadline_ns, self._seen = set(), False, None, {}

    def update(self, found: Settlement, timeouts: Mapping[str, int], now: int) -> bool:
        """Note the waiting ranks; return whether it is time to let the pinned ranks go."""
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
        """Return the time, in ns, until the nearest timeout of a waiting rank; None: none waits."""
        return None if self.deadline_ns is None else max(0, self.deadline_ns - now)


MAX_LEASE_NS = 3_600_000_000_000
"""Maximum length of a lease, an hour, whatever a script asks for."""


@dataclass(slots=True)
class Lease:
    """Lease on control, with at most one holder. It lapses by itself."""

    holder: str | None = None
    until_ns: int = 0
    period_ns: int = LEASE_NS
    keep: bool = False
    """Whether only the lease's end frees control; the holder may come and go (a script)."""

    def grant(self, holder: str, now: int, *, keep: bool = False, period_ns: int = 0) -> None:
        """Give control to ``holder`` (also to another than before)."""
        self.holder, self.keep = holder, keep
        self.period_ns = min(max(period_ns, LEASE_NS), MAX_LEASE_NS)
        self.until_ns = now + self.period_ns

    def renew(self, holder: str, now: int) -> bool:
        """Restart the lease if ``holder`` has control; False: no control, or ranks run on then."""
        if self.holder != holder or self.lapsed(now):
            return False
        self.until_ns = now + self.period_ns
        return True

    def left_ns(self, now: int) -> int | None:
        """Return the time left, in ns; None if control is free."""
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
"""Default time that a rank is held at its exception without a viewer, in s."""
MAX_HOLD_S: Final = 3600.0
FOLLOWS_NS: Final = 60_000_000_000
"""Time, in ns, after a rank's death within which an exception counts as a consequence."""
_PREFIX: Final = "exception "
"""Prefix of the agent's label of such a gate; not shown."""


@dataclass(slots=True)
class UncaughtErrors:
    """Processes that are held at their uncaught exception."""

    hold_ns: int = 0
    """Maximum time, in ns, they are held unattended; 0: exceptions are not held at all."""
    procs: dict[str, str] = field(default_factory=dict)
    """Process -> ``ValueError: no labels`` (or `` in thread …``)."""
    _let_die: dict[str, int] = field(default_factory=dict)
    """Epoch (one start of the job's ranks) -> time when a rank was let die, hub ns."""

    def refusal(self, proc: str, now: int) -> NotHeld | None:
        """Return why a process is not held; None: it is held."""
        if not self.hold_ns:
            return NotHeld.OFF
        died = self._let_die.get(epoch_of(proc))
        if died is not None and now - died < FOLLOWS_NS:
            return NotHeld.FOLLOWS
        return None

    def add(self, proc: str, rank: int, coming: str) -> Raised:
        """Hold a process; return why all ranks stop. ``coming``: the next event that it reports."""
        self.procs[proc] = coming.removeprefix(_PREFIX)
        return Raised(rank, self.procs[proc])

    def let_die(self, proc: str, now: int) -> None:
        """Let a process die of its exception."""
        if self.procs.pop(proc, None) is not None:
            self._let_die[epoch_of(proc)] = now
