"""The state of control, which the machine's parts share; and as values for the hub, the commands
that come in and what is to be done."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from pardbg.control.language.verbs import Verb
from pardbg.control.machine.breakpoints import Breakpoints
from pardbg.control.machine.cut import AgentState, GracePeriod, Settlement, View
from pardbg.control.machine.holding import HeldRanks, Lease, UncaughtErrors
from pardbg.words import ranks_text

MAX_REASONS: Final = 3


@dataclass(frozen=True, slots=True)
class ToAgent:
    """A CTRL message to one process (``t`` and fields of wire.Msg)."""

    proc: str
    message: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ack:
    """The answer to a viewer's request."""

    viewer: str
    re: int
    ok: bool
    error: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """A CONTROL message, without ``n`` and ``t_ns``."""

    fields: dict[str, Any]


Effect = ToAgent | Ack | Event


@dataclass(slots=True)
class Command:
    """A viewer's command while it is under way."""

    viewer: str
    """Where the answer goes."""
    by: str
    """Viewer that takes control by it."""
    re: int
    verb: Verb
    ranks: tuple[int, ...]
    text: str = ""
    """The rank set as the user wrote it."""
    deadline_ns: int = 0
    """When its sender wants an answer at the latest; 0: whenever."""
    args: dict[str, Any] = field(default_factory=dict)
    """What else the verb needs; see Verb."""


class Mode(str, Enum):
    RUNNING = "running"
    """-> PAUSING by pause."""
    PAUSING = "pausing"
    """-> HELD at the cut; -> RUNNING by continue, leave, a lapsed lease or the last rank's end."""
    HELD = "held"
    """-> STEPPING by step, tick, next, op; -> PAUSING when a rank joins; -> RUNNING as above."""
    STEPPING = "stepping"
    """-> HELD at the new cut; -> RUNNING as above."""


class ControlState:
    """Which ranks are held, why and for how long; the machine's parts change it."""

    def __init__(self) -> None:
        self.mode = Mode.RUNNING
        self.lease = Lease()
        self.views: dict[str, View] = {}
        self.groups: dict[str, tuple[int, ...]] = {}
        """group key -> global ranks, from the definitions."""
        self.pipelines: dict[str, tuple[int, ...]] = {}
        """group key -> global ranks by pipeline index, from the plans."""
        self.timeouts: dict[str, int] = {}
        """group key -> ns until its ops time out."""
        self.breakpoints = Breakpoints()
        self.pinned = HeldRanks()
        self.raised = UncaughtErrors()
        self.restored = False
        """A hub before this one was killed: agents may have what it told them."""
        self.reason = ""
        self.settlement = Settlement()
        self.grace_period = GracePeriod()
        self.current: list[Command] = []
        self.queue: deque[Command] = deque()
        self.leaving: list[tuple[Command, int]] = []
        self.until: list[Command] = []
        self.departed: set[int] = set()
        self.free: set[str] = set()
        """Procs that nobody asked to hold (``pause RANKS``)."""
        self.why: list[str] = []
        """What stopped the ranks, where nobody asked for it: a breakpoint."""
        self.hits: set[tuple[str, int]] = set()
        """(proc, held since) of hits that were acted on."""
        self.goal: tuple[tuple[int, ...], int, int] | None = None
        """``next``: (ranks, steps behind them at the end, rounds left)."""
        self.before: dict[int, AgentState] = {}
        """rank -> its state when the verb that moves ranks began."""
        self.again: tuple[Command, int, int] | None = None
        """That verb, which time it is, and how often it was asked for."""
        self.since = self.renewed = self.reported = 0

    # -- what the hub asks

    @property
    def active(self) -> bool:
        """Return whether ranks are (being) held, or an answer is due."""
        return self.mode is not Mode.RUNNING or bool(self.leaving)

    @property
    def settling(self) -> bool:
        """Return whether a cut is being made, which needs frequent ticks."""
        return self.mode in (Mode.PAUSING, Mode.STEPPING)

    def held(self) -> dict[int, str]:
        """Return rank -> what comes next there, of ranks that are held for certain."""
        views = sorted(self.views.values(), key=lambda view: view.rank)
        return {v.rank: v.state.next for v in views if v.held and v.state is not None}

    def pending(self) -> int:
        """Return the number of ops issued and not complete, over all ranks."""
        return sum(len(view.state.open) for view in self.views.values() if view.state)

    def status(self, now: int) -> dict[str, Any]:
        """Return the fields of ControlView."""
        return {
            "mode": self.mode.value,
            "controller": self.lease.holder,
            "lease_ns": self.lease.left_ns(now),
            "reason": self.reason,
            "held": self.held() if self.active else {},
            "pending": self.pending() if self.active else 0,
            "queued": len(self.queue),
            "waiting": self.waiting(),
            "timeout_ns": self.pinned.left_ns(now),
            "breaks": self.breakpoints.as_dicts(),
        }

    def states(self) -> dict[int, AgentState]:
        """Return rank -> what it said last."""
        return {view.rank: view.state for view in self.views.values() if view.state is not None}

    # -- choosing processes

    def of_ranks(self, ranks: Iterable[int]) -> list[View]:
        wanted = set(ranks)
        return [view for view in self.views.values() if view.rank in wanted]

    def dying(self, views: Iterable[View]) -> list[int]:
        """Return the held ranks that are at an exception: no step leads on from there."""
        return [view.rank for view in views if view.proc in self.raised.procs]

    def by_pipeline(self) -> list[list[AgentState]]:
        """Held ranks' states, one list per pipeline; ranks of none together."""
        held = {view.rank: view.state for view in self.views.values() if view.held and view.state}
        lists = [[held[r] for r in ranks if r in held] for ranks in self.pipelines.values()]
        seen = {state.rank for states in lists for state in states}
        lists.append([state for rank, state in held.items() if rank not in seen])
        return [states for states in lists if states]

    def nearest(self) -> str:
        for proc, (_, text) in self.settlement.waiting.items():
            if proc in self.views:
                return f"rank {self.views[proc].rank} {text} and"
        return "somebody's op"

    def waiting(self) -> dict[int, str]:
        """rank -> what it waits in, of those that wait for a rank that is held on purpose."""
        waiting = self.settlement.waiting.items()
        return {self.views[p].rank: text for p, (_, text) in waiting if p in self.views}

    @property
    def under_way(self) -> str:
        """Return the ranks that have not reached a gate, in words."""
        ranks = [self.views[p].rank for p in self.settlement.under_way if p in self.views]
        return f"{ranks_text(ranks)} not at a gate yet"

    @property
    def stopped_by(self) -> str:
        """Return ``why`` in words: at a mismatch each rank of a group may stop, with a text."""
        more = len(self.why) - MAX_REASONS
        return "; ".join(self.why[:MAX_REASONS] + [f"and {more} more"] * (more > 0))

    def acted_on(self, view: View, since: int) -> bool:
        """Return whether that stop of its own was acted on already, and mark it so."""
        key = (view.proc, since)
        if key in self.hits:
            return True
        self.hits = {k for k in self.hits if k[0] != view.proc} | {key}
        return False
