"""Rule of settling: how held ranks come to a consistent cut.

[Note: the cut] Every rank stops at its next gate. While a rank that is not held has an issued op
that is not complete, just those held ranks that have not issued that op are released, one op at a
time. This moves each rank no further than the causal past of the ops in flight, so it ends for
every program that would itself have gone on. The rule uses issued and incomplete ops, not observed
waits: DDP waits for its buckets in C++, where no hook sees it. In a pipeline whose plan is known,
``ahead`` releases everything an op waits for at once.

A rank that is *pinned* (a breakpoint hit, or it alone was asked to hold) is not released so: ranks
that wait for it wait on purpose, until the nearest timeout is close (``machine.holding``).

A rank is judged only by a state that follows the newest message sent to it. The one exception is
safe: an op that was open in an older state of a rank that runs cannot have completed without the
ranks that have not issued it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from pardbg.events.control_facts import Stuck, Waits
from pardbg_agent.ctrl.agent_messages import OpenOp, State


@dataclass(slots=True)
class View:
    """State of one process as control knows it."""

    proc: str
    rank: int
    state: State | None = None
    """Newest State of the process; None before the first."""
    asked: int = 0
    """Id of the newest Permit or Run sent to the process; 0: none."""
    runs: bool = False
    """Whether that message was Run."""
    settles: bool = False
    """Whether that message held it, or let it go as far as others need, without a command."""
    ahead: int = 0
    """Number of actions that the process may have behind it, by the plan (machine.ahead)."""
    heard_ns: int = 0
    """Time when the newest State came, hub ns."""
    computing_since_ns: int = 0
    """Begin of the current pipeline action (the rank's clock); 0: none runs."""

    @property
    def fresh(self) -> bool:
        """Return whether the process's State follows all requests to it."""
        state = self.state
        return state is not None and (self.asked == 0 or (state.reply_to or 0) >= self.asked)

    @property
    def held(self) -> bool:
        """Return whether the rank is held for certain."""
        return self.fresh and self.state is not None and self.state.held != 0


@dataclass(frozen=True, slots=True)
class Settlement:
    """Result of the rule: the next releases, and why the cut is not reached."""

    release: tuple[str, ...] = ()
    """Processes to release by one op, now."""
    under_way: tuple[str, ...] = ()
    """Processes that have not come to a gate, or not answered."""
    stuck: dict[str, Stuck] = field(default_factory=dict)
    """Processes inside an op for which a rank is gone: they will come to no gate."""
    waiting: dict[str, Waits] = field(default_factory=dict)
    """Processes inside an op that waits, directly or not, for a pinned rank."""

    @property
    def reached(self) -> bool:
        """Return whether the cut is reached: no rank is moving."""
        return not self.under_way and not self.release


Ripe = Callable[[View, OpenOp], bool]
"""Tells whether an open op of a running rank has been seen long enough to act on it."""


def settle(
    views: Mapping[str, View],
    groups: Mapping[str, tuple[int, ...]],
    ripe: Ripe = lambda view, op: True,
    departed: Collection[int] = (),
    pinned: Collection[str] = (),
    free: Collection[str] = (),
) -> Settlement:
    """Apply the rule once. ``departed``: ranks that were there and are gone; a rank that was never
    seen may still come. ``pinned``: processes that stay where they are. ``free``: processes that
    are not to be held at all."""
    release: set[str] = set()
    under_way: list[str] = []
    stuck: dict[str, Stuck] = {}
    waiting = _waiting(views, groups, ripe, pinned) if pinned else {}
    for view in views.values():
        if view.held or view.proc in waiting:
            continue
        gone = None
        for op in view.state.open if view.state else ():
            if not ripe(view, op):
                continue
            behind, lost = missing(view, op, views, groups)
            lost = [rank for rank in lost if rank in departed]
            if lost:  # it never completes, so no rank is moved for it
                gone = gone or Stuck(view.rank, op, lost[0])
            else:
                release.update(other.proc for other in behind if other.held)
        if gone is not None and view.fresh:
            stuck[view.proc] = gone
        elif view.proc not in free:
            under_way.append(view.proc)
    return Settlement(tuple(sorted(release.difference(pinned))), tuple(under_way), stuck, waiting)


def _waiting(
    views: Mapping[str, View], groups: Mapping[str, tuple[int, ...]], ripe: Ripe,
    pinned: Collection[str],
) -> dict[str, Waits]:  # fmt: skip
    """Return ranks inside an op that waits, directly or not, for pinned ranks."""
    waiting: dict[str, Waits] = {}
    loose = [view for view in views.values() if not view.held and view.fresh and view.state]
    grew = True
    while grew:
        grew = False
        for view in loose:
            found = None if view.proc in waiting else _waits_for(
                view, groups, views, ripe, {*pinned, *waiting}
            )  # fmt: skip
            if found is not None:
                waiting[view.proc] = found
                grew = True
    return waiting


def _waits_for(
    view: View, groups: Mapping[str, tuple[int, ...]], views: Mapping[str, View], ripe: Ripe,
    those: Collection[str],
) -> Waits | None:  # fmt: skip
    for op in view.state.open if view.state else ():
        behind = missing(view, op, views, groups)[0] if ripe(view, op) else []
        for other in behind:
            if other.proc in those:
                return Waits(view.rank, op, other.rank)
    return None


def missing(
    view: View, op: OpenOp, views: Mapping[str, View], groups: Mapping[str, tuple[int, ...]]
) -> tuple[list[View], list[int]]:
    """Return (processes that have not issued their part of an op, its ranks without a process)."""
    if op.peer is not None and op.peer < 0:
        return _nobody_yet(view, op, views, groups)
    behind: list[View] = []
    lost: list[int] = []
    epoch = epoch_of(view.proc)
    for rank in _partners(view, op, views, groups):
        peers = [v for v in views.values() if v.rank == rank and epoch_of(v.proc) == epoch]
        if not peers:
            lost.append(rank)
        behind += [peer for peer in peers if not _issued(peer, op, view.rank)]
    return behind, lost


def _nobody_yet(
    view: View, op: OpenOp, views: Mapping[str, View], groups: Mapping[str, tuple[int, ...]]
) -> tuple[list[View], list[int]]:
    """Return (processes that may still send to a receive from any source, lost ranks). It has its
    message once as many were sent to it, under its tag, as it has asked for, from any."""
    ranks, epoch = _partners(view, op, views, groups), epoch_of(view.proc)
    peers = [v for v in views.values() if v.rank in ranks and epoch_of(v.proc) == epoch]
    mine = view.state.p2p if view.state is not None else {}
    asked = sum(
        number
        for (group, _, tag, send), number in mine.items()
        if (group, tag, send) == (op.group, op.tag, False)
    )
    to_me = (op.group, view.rank, op.tag, True)
    sent = sum(peer.state.p2p.get(to_me, 0) for peer in peers if peer.state is not None)
    return ([], []) if sent >= asked else (peers, [] if peers else ranks)


def _partners(
    view: View, op: OpenOp, views: Mapping[str, View], groups: Mapping[str, tuple[int, ...]]
) -> list[int]:
    if op.peer is not None and op.peer >= 0:
        return [op.peer]
    members = groups.get(op.group)
    if members is None:  # its definition is still on its way: ranks that used it are members
        members = tuple(
            v.rank for v in views.values() if v.state is not None and op.group in v.state.issued
        )
    return [rank for rank in members if rank != view.rank]


def _issued(peer: View, op: OpenOp, rank: int) -> bool:
    if peer.state is None:
        return False
    if op.peer is None:
        return peer.state.issued.get(op.group, 0) > op.seq
    return peer.state.p2p.get((op.group, rank, op.tag, not op.send), 0) > op.order


def epoch_of(proc: str) -> str:
    """Return the epoch in ``epoch.host.pid``."""
    return proc.partition(".")[0]


class GracePeriod:
    """Short wait before an open op of a running rank moves others: most ops complete, and most
    ranks come to their gate, by themselves. Without it a step of one rank would drag its neighbours
    along each time a send is in flight. It is short, as a cut may need a chain of such waits: in a
    pipeline of 8 ranks one after the other for the first microbatch to come through. A p2p op that
    was issued before the current pipeline action is not what blocks the rank, so its peers may stay
    where they are while it computes (for ``long_ns`` at most)."""

    def __init__(self, grace_ns: int = 6_000_000, long_ns: int = 2_000_000_000) -> None:
        self.grace_ns, self.long_ns = grace_ns, long_ns
        self._first: dict[tuple[str, OpenOp], int] = {}

    def update(self, views: Mapping[str, View], now: int) -> Ripe:
        """Note the open ops of running ranks at ``now``; forget all others."""
        seen = {
            (view.proc, op): self._first.get((view.proc, op), now)
            for view in views.values()
            if not view.held and view.state is not None
            for op in view.state.open
        }
        self._first = seen

        def ripe(view: View, op: OpenOp) -> bool:
            age = now - seen.get((view.proc, op), now)
            computes = view.computing_since_ns > op.since_ns and op.peer is not None
            return age >= (self.long_ns if computes else self.grace_ns)

        return ripe

    def clear(self) -> None:
        """Forget everything seen."""
        self._first = {}
