"""State of control, shared by the machine's parts; commands under way, effects to carry out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from pardbg.control.machine.breakpoints import Breakpoints
from pardbg.control.machine.cut import GracePeriod, Settlement, View
from pardbg.control.machine.delivery import Deliveries, Send
from pardbg.control.machine.holding import HeldRanks, Lease, UncaughtErrors
from pardbg.events.commands import Arguments
from pardbg.events.control_codes import Mode, Verb
from pardbg.events.control_events import Status
from pardbg.events.control_facts import Fact, Refusal, Waits
from pardbg_agent.ctrl.agent_messages import State


@dataclass(slots=True)
class Order:
    """Command of a viewer while it is under way."""

    viewer: str
    """Viewer that gets the answer."""
    by: str
    """Viewer that takes control by the command."""
    re: int
    verb: Verb
    ranks: tuple[int, ...]
    text: str = ""
    """Rank set as the user wrote it."""
    args: Arguments = field(default_factory=Arguments)
    deadline_ns: int = 0
    """Time by which its sender wants an answer; 0: no limit."""
    keep: bool = False
    """Whether ``by`` is a script, which does not stay."""
    lease_ns: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """Fact to be recorded and published, and the one answer to the orders that it ends."""

    fact: Fact | None
    status: Status
    by: str = ""
    answers: tuple[Order, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to an order without a recorded fact: refused, or nothing changed."""

    order: Order
    status: Status | None = None
    refusal: Refusal | None = None


Effect = Send | Event | Answer


class ControlState:
    """Held ranks, with reason and duration; the machine's parts change it."""

    def __init__(self, first_id: int = 1) -> None:
        self.next_id = first_id
        """Id of the newest message that wants an answer; ids increase."""
        self.deliveries = Deliveries()
        self.mode = Mode.RUNNING
        self.lease = Lease()
        self.views: dict[str, View] = {}
        self.groups: dict[str, tuple[int, ...]] = {}
        """Group key -> global ranks, from the definitions."""
        self.pipelines: dict[str, tuple[int, ...]] = {}
        """Group key -> global ranks by pipeline index, from the plans."""
        self.timeouts: dict[str, int] = {}
        """Group key -> timeout of its ops, in ns."""
        self.breakpoints = Breakpoints()
        self.pinned = HeldRanks()
        self.raised = UncaughtErrors()
        self.restored = False
        """Whether a previous hub was killed: agents may still follow its messages."""
        self.why: tuple[Fact, ...] = ()
        """Reasons why ranks are held, or events being waited for; part of Status."""
        self.settlement = Settlement()
        self.grace_period = GracePeriod()
        self.current: list[Order] = []
        self.queue: deque[Order] = deque()
        self.leaving: list[tuple[Order, int]] = []
        self.until: list[Order] = []
        self.departed: set[int] = set()
        self.free: set[str] = set()
        """Processes that were not asked to hold (``pause RANKS``)."""
        self.stopped_by: list[Fact] = []
        """Facts that stopped the ranks without a viewer's order: a breakpoint, an exception."""
        self.hits: set[tuple[str, int]] = set()
        """(process, held since) of hits that were acted on."""
        self.goal: tuple[tuple[int, ...], int, int] | None = None
        """Goal of ``next``: (ranks, steps behind them at the end, rounds left)."""
        self.before: dict[int, State] = {}
        """Rank -> its State when the verb that moves ranks began."""
        self.again: tuple[Order, int, int] | None = None
        """(that verb, its present repetition, number of repetitions)."""
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
        """Return rank -> its next event, for ranks that are held for certain."""
        views = sorted(self.views.values(), key=lambda view: view.rank)
        return {v.rank: v.state.next for v in views if v.held and v.state is not None}

    def pending(self) -> int:
        """Return the number of ops issued and not complete, over all ranks."""
        return sum(len(view.state.open) for view in self.views.values() if view.state)

    def status(self, now: int) -> Status:
        """Return the state of control for viewers."""
        left = self.pinned.left_ns(now)
        return Status(
            self.mode, self.lease.holder, self.lease.left_ns(now), self.why,
            self.held() if self.active else {}, self.pending() if self.active else 0,
            len(self.queue), self.waiting(), left, self.breakpoints.infos(),
        )  # fmt: skip

    def states(self) -> dict[int, State]:
        """Return rank -> its last State."""
        return {view.rank: view.state for view in self.views.values() if view.state is not None}

    # -- choosing processes

    def of_ranks(self, ranks: Iterable[int]) -> list[View]:
        wanted = set(ranks)
        return [view for view in self.views.values() if view.rank in wanted]

    def dying(self, views: Iterable[View]) -> list[int]:
        """Return the held ranks that are at an exception, from where no step leads on."""
        return [view.rank for view in views if view.proc in self.raised.procs]

    def led(self, views: Iterable[View]) -> list[int]:
        """Return the ranks that a debugger leads."""
        return [view.rank for view in views if view.state is not None and view.state.led]

    def by_pipeline(self) -> list[list[State]]:
        """Return the held ranks' states, one list per pipeline; ranks without one together."""
        held = {view.rank: view.state for view in self.views.values() if view.held and view.state}
        lists = [[held[r] for r in ranks if r in held] for ranks in self.pipelines.values()]
        seen = {state.rank for states in lists for state in states}
        lists.append([state for rank, state in held.items() if rank not in seen])
        return [states for states in lists if states]

    def waiting(self) -> dict[int, Waits]:
        """Return the ranks that wait for a rank that is held on purpose."""
        return {
            self.views[p].rank: w for p, w in self.settlement.waiting.items() if p in self.views
        }

    def under_way(self) -> tuple[int, ...]:
        """Return the ranks that have not reached a gate."""
        found = (self.views[p].rank for p in self.settlement.under_way if p in self.views)
        return tuple(sorted(found))

    def acted_on(self, view: View, since: int) -> bool:
        """Return whether a rank's own stop was acted on already, and mark it so."""
        key = (view.proc, since)
        if key in self.hits:
            return True
        self.hits = {k for k in self.hits if k[0] != view.proc} | {key}
        return False
