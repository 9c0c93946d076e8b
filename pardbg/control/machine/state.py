"""The state of control, and the small moves that every rule is made of. The rules are in
``pardbg.control.machine.machine``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Any

from pardbg.control.language.ranksets import spell
from pardbg.control.language.verbs import AgentState
from pardbg.control.machine.breakpoints import Breakpoints
from pardbg.control.machine.cut import GracePeriod, Settlement, View
from pardbg.control.machine.delivery import AGAIN_NS, Deliveries
from pardbg.control.machine.effects import Command, Effect, Event, ToAgent
from pardbg.control.machine.exceptions import RUN, UncaughtErrors
from pardbg.control.machine.held_ranks import HeldRanks
from pardbg.control.machine.lease import Lease
from pardbg.control.machine.permits import HOLD, PASS, Permit
from pardbg_agent.wire import LEASE_NS, Msg


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
    """Who is held, why and for how long; effects wait in ``drain``."""

    def __init__(self, first_id: int = 1, patience: GracePeriod | None = None) -> None:
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
        self.pins = HeldRanks()
        self.raised = UncaughtErrors()
        self.deliveries = Deliveries()
        self.restored = False
        """A hub before this one was killed: agents may have what it told them."""
        self.reason = ""
        self.settlement = Settlement()
        self._patience = patience or GracePeriod()
        self._out: list[Effect] = []
        self._next_id = first_id
        self._current: list[Command] = []
        self._queue: deque[Command] = deque()
        self._leaving: list[tuple[Command, int]] = []
        self._until: list[Command] = []
        self._departed: set[int] = set()
        self._free: set[str] = set()
        """Procs that nobody asked to hold (``pause RANKS``)."""
        self._why = ""
        """What stopped the ranks, where nobody asked for it: a breakpoint."""
        self._hits: set[tuple[str, int]] = set()
        """(proc, held since) of hits that were acted on."""
        self._goal: tuple[tuple[int, ...], int, int] | None = None
        """``next``: (ranks, steps behind them at the end, rounds left)."""
        self._since = self._renewed = self._reported = 0

    # -- what the hub asks

    @property
    def active(self) -> bool:
        """Ranks are (being) held, or an answer is due."""
        return self.mode is not Mode.RUNNING or bool(self._leaving)

    @property
    def settling(self) -> bool:
        """A cut is being made: look often."""
        return self.mode in (Mode.PAUSING, Mode.STEPPING)

    def drain(self) -> list[Effect]:
        """Everything to be done since the last call, in order."""
        out, self._out = self._out, []
        return out

    def held(self) -> dict[int, str]:
        """rank -> what comes next there, of ranks that are held for certain."""
        views = sorted(self.views.values(), key=lambda view: view.rank)
        return {v.rank: v.state.next for v in views if v.held and v.state is not None}

    def pending(self) -> int:
        """Ops issued and not complete, over all ranks."""
        return sum(len(view.state.open) for view in self.views.values() if view.state)

    def status(self, now: int) -> dict[str, Any]:
        """The fields of ControlView."""
        return {
            "mode": self.mode.value,
            "controller": self.lease.holder,
            "lease_ns": self.lease.left_ns(now),
            "reason": self.reason,
            "held": self.held() if self.active else {},
            "pending": self.pending() if self.active else 0,
            "queued": len(self._queue),
            "waiting": self._waiting(),
            "timeout_ns": self.pins.left_ns(now),
            "breaks": self.breakpoints.as_dicts(),
        }

    # -- moves

    def _enter(self, mode: Mode, now: int) -> None:
        if mode is Mode.RUNNING:
            self._goal = None
            self._why = ""
            self._free = set()
            self.pins.clear()
            self._patience.clear()
            self.settlement = Settlement()
        self.mode, self._since, self._reported = mode, now, 0

    def _permit(self, view: View, permit: Permit, now: int) -> None:
        view.asked, view.runs = self._id(), False
        message = {
            "t": Msg.PERMIT.value, "id": view.asked, "count": permit.count, "n": permit.n,
            "stop": permit.stop, "lease_ns": self._agent_lease(now),
        }  # fmt: skip
        self._tell(view, message)

    def _tell(self, view: View, message: dict[str, Any]) -> None:
        """Send what has to be answered: again until it is."""
        self._out.append(self.deliveries.told(view.proc, message))

    def _tell_again(self, now: int) -> None:
        """Messages that nobody answered may be lost."""
        silent = []
        for again, first in self.deliveries.due(now):
            if "lease_ns" in again.message:
                again.message["lease_ns"] = self._agent_lease(now)
            self._out.append(again)
            if first and again.proc in self.views:
                silent.append((self.views[again.proc].rank, str(again.message["t"])))
        if silent:
            ranks, kinds = spell(rank for rank, _ in silent), sorted({kind for _, kind in silent})
            text = f"rank {ranks} did not answer {', '.join(kinds)} in {AGAIN_NS // 10**9} s"
            self._event("resend", now, text=f"{text}: said again")

    def _pass_lease_on(self, now: int) -> None:
        self._renewed = now
        if self.mode is Mode.RUNNING:
            return
        message = {"t": Msg.LEASE.value, "lease_ns": self._agent_lease(now)}
        self._out += [ToAgent(proc, message) for proc in self.views]

    def _agent_lease(self, now: int) -> int:
        left = self.lease.left_ns(now)
        return LEASE_NS if left is None else min(left, LEASE_NS)

    def _hold_loose(self, now: int) -> None:
        """A rank's lease was over before the hub's (the hub or the line stood still), so it runs on
        by itself, and says nothing more: tell it anew."""
        loose = [
            view for view in self.views.values()
            if view.fresh and view.state and not view.state.closed and not view.runs
        ]  # fmt: skip
        if self.mode is Mode.RUNNING or not loose:
            return
        if self.mode is Mode.HELD:
            self._enter(Mode.PAUSING, now)
        self.reason = f"rank {spell(view.rank for view in loose)} came loose"
        self._event("loose", now, text=f"{self.reason}: held again")
        for view in loose:
            self._permit(view, PASS if view.proc in self._free else HOLD, now)

    def _miss_silent(self, now: int) -> None:
        """Nothing came of a rank for a lease (it says its state each second while it is held): it
        cannot be held any more."""
        over = [v for v in self.views.values() if v.held and now - v.heard_ns > LEASE_NS]
        if self.mode is Mode.RUNNING or not over:
            return
        for view in over:
            view.state = None
        ranks, lease_s = spell(view.rank for view in over), LEASE_NS // 10**9
        text = f"rank {ranks} was not heard for {lease_s} s: it runs on by itself"
        self._event("silent", now, text=text)

    def _hold_free(self, procs: set[str], now: int) -> None:
        """Ranks that ran on beside held ones stop, too."""
        self._free -= procs
        self._enter(Mode.PAUSING, now)
        for proc in procs & self.views.keys():
            if not self.views[proc].held:
                self._permit(self.views[proc], HOLD, now)

    def _run(self, view: View, now: int) -> None:
        """Open its gate: it runs on, or dies of its exception."""
        self.raised.let_die(view.proc, now)
        view.asked, view.runs = self._id(), True
        self._tell(view, {"t": Msg.RUN.value, "id": view.asked})

    # -- ranks that stop by themselves

    def _raise(self, view: View, state: AgentState, now: int) -> None:
        """A rank is at an exception that nobody caught: hold the others too, and it there."""
        key = (view.proc, state.held_since_ns)
        if key in self._hits:
            return
        self._hits = {k for k in self._hits if k[0] != view.proc} | {key}
        refusal = self.raised.refusal(view.proc, now)
        if refusal and self.mode is Mode.RUNNING:
            self._run(view, now)
            self._event("exception", now, text=f"rank {view.rank}: not held, {refusal}")
            return
        text = self.raised.add(view.proc, view.rank, state.next)
        self._why = "; ".join(filter(None, [self._why, text]))
        self.pins.procs.add(view.proc)
        if self.mode is Mode.RUNNING:
            self._stop_all(RUN, True, self.raised.hold_ns, now)
        elif self._free:
            self._hold_free(set(self._free), now)
        self._event("exception", now, by=self.lease.holder or "", text=text)

    def _stop_all(self, by: str, keep: bool, lease_ns: int, now: int) -> None:
        """Everybody else at the next gate; ``by`` holds control if nobody does."""
        if self.lease.holder is None:
            self.lease.grant(by, now, keep=keep, period_ns=lease_ns)
        self._current += self._until
        self._until = []
        self._enter(Mode.PAUSING, now)
        self.reason = self._why
        for view in self.views.values():
            self._permit(view, HOLD, now)

    def _id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _of_ranks(self, ranks: Iterable[int]) -> list[View]:
        wanted = set(ranks)
        return [view for view in self.views.values() if view.rank in wanted]

    def _dying(self, views: Iterable[View]) -> list[int]:
        """Those of them that are at an exception: no step leads on from there."""
        return [view.rank for view in views if view.proc in self.raised.procs]

    def _by_pipeline(self) -> list[list[AgentState]]:
        """Held ranks' states, one list per pipeline; ranks of none together."""
        held = {view.rank: view.state for view in self.views.values() if view.held and view.state}
        lists = [[held[r] for r in ranks if r in held] for ranks in self.pipelines.values()]
        seen = {state.rank for states in lists for state in states}
        lists.append([state for rank, state in held.items() if rank not in seen])
        return [states for states in lists if states]

    def _event(self, event: str, now: int, *, by: str = "", text: str = "") -> None:
        self._out.append(Event({"event": event, **self.status(now), "by": by, "text": text}))

    def _tell_breaks(self, views: Iterable[View]) -> None:
        for view in views:
            breaks = self.breakpoints.for_rank(view.rank)
            message = {"t": Msg.BREAKS.value, "id": self._id(), "breaks": breaks,
                       "watches": self.breakpoints.watches_for_rank(view.rank)}  # fmt: skip
            self._tell(view, message)

    def _rank_known(self, view: View, rank: int) -> None:
        """A process says which rank it is, now or anew: other breakpoints may be its."""
        if view.rank != rank:
            view.rank = rank
            if self.breakpoints:
                self._tell_breaks([view])

    def _nearest(self) -> str:
        for proc, (_, text) in self.settlement.waiting.items():
            if proc in self.views:
                return f"rank {self.views[proc].rank} {text} and"
        return "somebody's op"

    def _waiting(self) -> dict[int, str]:
        """rank -> what it waits in, of those that wait for a rank that is held on purpose."""
        waiting = self.settlement.waiting.items()
        return {self.views[p].rank: text for p, (_, text) in waiting if p in self.views}
