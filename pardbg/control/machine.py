"""The control state machine: commands and agents' states in, permits, answers and events out.

No I/O and no clock of its own: every input carries ``now`` (hub monotonic ns), every output waits
in ``drain()``. A command is answered when its new cut is reached, or when it is clear that the
ranks run on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from pardbg.control.cut import Patience, Settlement, View, settle
from pardbg.control.effects import Ack, Command, Effect, Event, ToAgent
from pardbg.control.lease import Lease
from pardbg.control.model import AgentState, Verb
from pardbg.control.ranksets import spell
from pardbg.control.steps import HOLD, ONE_OP, Permit, permits, step_target, to_step
from pardbg_agent.wire import LEASE_NS, Gate, Msg

MAX_QUEUE = 8
RUN_WAIT_NS = 1_000_000_000
"""How long ``continue`` waits for the agents' word before it is answered anyway."""
RENEW_NS = 2_000_000_000
REPORT_NS = 2_000_000_000
"""After this long without a cut, an event says who is under way."""
MAX_ROUNDS = 4
"""``next``: how often ranks that settling left inside the step are sent on to its end."""


class Mode(str, Enum):
    RUNNING = "running"
    """-> PAUSING by pause."""
    PAUSING = "pausing"
    """-> HELD at the cut; -> RUNNING by continue, leave, a lapsed lease or the last rank's end."""
    HELD = "held"
    """-> STEPPING by step, tick, next, op; -> PAUSING when a rank joins; -> RUNNING as above."""
    STEPPING = "stepping"
    """-> HELD at the new cut; -> RUNNING as above."""


class Machine:
    """One run's control. Call ``tick`` often (20 ms while ``active``)."""

    def __init__(self, first_id: int = 1, patience: Patience | None = None) -> None:
        self.mode = Mode.RUNNING
        self.lease = Lease()
        self.views: dict[str, View] = {}
        self.groups: dict[str, tuple[int, ...]] = {}
        """group key -> global ranks, from the definitions."""
        self.pipelines: dict[str, tuple[int, ...]] = {}
        """group key -> global ranks by pipeline index, from the plans."""
        self.reason = ""
        self.settlement = Settlement()
        self._patience = patience or Patience()
        self._out: list[Effect] = []
        self._next_id = first_id
        self._current: list[Command] = []
        self._queue: deque[Command] = deque()
        self._leaving: list[tuple[Command, int]] = []
        self._departed: set[int] = set()
        self._goal: tuple[tuple[int, ...], int, int] | None = None
        """``next``: (ranks, steps behind them at the end, rounds left)."""
        self._since = self._renewed = self._reported = 0

    # -- what the hub asks

    @property
    def active(self) -> bool:
        """Ranks are (being) held, or an answer is due."""
        return self.mode is not Mode.RUNNING or bool(self._leaving)

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
        }

    # -- agents

    def joined(self, proc: str, rank: int, now: int) -> None:
        """A process said hello (again), or its rank became known."""
        known = self.views.get(proc)
        if known is not None and known.rank == rank:
            return
        if known is not None:
            known.rank = rank
            return
        self.views[proc] = View(proc, rank)
        self._departed.discard(rank)
        if self.mode is Mode.RUNNING:
            return
        self._permit(self.views[proc], HOLD, now)
        if self.mode is Mode.HELD:
            self._enter(Mode.PAUSING, now)
        self.reason = f"rank {rank} joined"
        self._event("attach", now, text=f"{self.reason} while held: it stops at its next gate")

    def gone(self, proc: str, now: int, why: str = "ended") -> None:
        """A process ended, was lost or killed."""
        view = self.views.pop(proc, None)
        if view is None:
            return
        self._departed.add(view.rank)
        if self.mode is not Mode.RUNNING:
            self._event("detach", now, text=f"rank {view.rank} {why}")
            if not self.views:
                self._run_on("running", "no rank is left", now)
        self.tick(now)

    def state(self, state: AgentState, now: int) -> None:
        """An agent's STATE; older ones than the newest are ignored."""
        view = self.views.get(state.proc)
        if view is None or (view.state is not None and state.serial <= view.state.serial):
            return
        view.state = state
        if state.rank >= 0:
            view.rank = state.rank
        self.tick(now)

    # -- viewers

    def command(self, command: Command, now: int, *, keep: bool = False, lease_ns: int = 0) -> None:
        """A control verb. Answered now or later through ``drain``."""
        refusal = self._refusal(command, now)
        if refusal is not None:
            self._out.append(Ack(command.viewer, command.re, False, refusal))
            self._event("refused", now, by=command.by, text=f"{command.verb.value}: {refusal}")
            return
        self.lease.grant(command.by, now, keep=keep, period_ns=lease_ns)
        self._pass_lease_on(now)
        text = f"{command.verb.value} {command.text}".strip()
        if command.verb is Verb.CONTINUE:
            self._event("continue", now, by=command.by, text=text)
            self._continue(command, now)
        else:  # told with the mode it leads to
            self._begin(command, now)
            self._event(command.verb.value, now, by=command.by, text=text)
        self.tick(now)

    def take(self, viewer: str, re: int, now: int) -> None:
        """Control changes hands; ranks stay as they are."""
        before = self.lease.holder
        self.lease.grant(viewer, now)
        self._pass_lease_on(now)
        text = f"taken over from {before}" if before not in (None, viewer) else "taken"
        self._event("take", now, by=viewer, text=text)
        self._out.append(Ack(viewer, re, True, data=self.status(now)))

    def leave(self, viewer: str, now: int, text: str = "left: everything runs on") -> None:
        """The holder gives control up (or is unreachable): everything runs on."""
        if self.lease.holder != viewer:
            return
        self.lease.drop()
        held = self.mode is not Mode.RUNNING
        self._run_on("leave", f"{viewer} {text}" if held else "", now, by=viewer)

    def renew(self, viewer: str, now: int) -> bool:
        """The holder is still there."""
        if not self.lease.renew(viewer, now):
            return False
        self._pass_lease_on(now)
        return True

    # -- time

    def tick(self, now: int, computing: Mapping[str, int] | None = None) -> None:
        """Time passed, or something changed: settle, answer, renew, lapse."""
        if computing is not None:
            for view in self.views.values():
                view.computing_since_ns = computing.get(view.proc, 0)
        if self.lease.lapsed(now):
            self._lapse(now)
        self._answer_leaving(now)
        if self.mode in (Mode.PAUSING, Mode.STEPPING):
            self._settle(now)
        elif self.mode is Mode.HELD:
            self._watch_held(now)
        if self.mode is not Mode.RUNNING and now - self._renewed >= RENEW_NS:
            self._pass_lease_on(now)
        self._expire(now)

    # -- verbs

    def _refusal(self, command: Command, now: int) -> str | None:
        holder = self.lease.holder
        if holder is not None and holder != command.by:
            left = (self.lease.left_ns(now) or 0) / 1e9
            return f"{holder} holds control (lease {left:.0f} s): take it over first"
        if command.verb is Verb.CONTINUE:
            return None
        if not self.views:
            return "no rank yet: the job has not formed a process group"
        if command.verb is Verb.PAUSE:
            return None
        if self.mode is Mode.RUNNING:
            return f"nothing is held: pause before {command.verb.value}"
        if len(self._queue) >= MAX_QUEUE:
            return f"{MAX_QUEUE} commands wait already: let them come to their cut"
        return None

    def _begin(self, command: Command, now: int) -> None:
        if command.verb is Verb.PAUSE:
            self._pause(command, now)
        elif self.mode is Mode.HELD:
            self._advance(command, now)
        else:
            self._queue.append(command)

    def _pause(self, command: Command, now: int) -> None:
        if self.mode is Mode.HELD:
            self._out.append(Ack(command.viewer, command.re, True, data=self.status(now)))
            return
        self._current.append(command)
        if self.mode is not Mode.RUNNING:
            return  # the cut that is being settled is the answer
        self._enter(Mode.PAUSING, now)
        self.reason = "pause"
        for view in self.views.values():
            self._permit(view, HOLD, now)

    def _advance(self, command: Command, now: int) -> None:
        chosen = [view for view in self._of_ranks(command.ranks) if view.held]
        if not chosen:
            error = f"rank {spell(command.ranks)} is not held"
            self._out.append(Ack(command.viewer, command.re, False, error))
            return
        states = [view.state for view in chosen if view.state is not None]
        granted = permits(command.verb, states, self._by_pipeline())
        if command.verb is Verb.NEXT:
            self._goal = (command.ranks, step_target(states), MAX_ROUNDS)
        self._current.append(command)
        self._enter(Mode.STEPPING, now)
        self.reason = f"{command.verb.value} {command.text}".strip()
        for proc, permit in granted.items():
            view = self.views[proc]
            if permit.n or view.state is None or not view.state.held & permit.stop:
                self._permit(view, permit, now)

    def _continue(self, command: Command, now: int) -> None:
        if self.mode is Mode.RUNNING:
            self._out.append(Ack(command.viewer, command.re, True, data=self.status(now)))
            return
        self._run_on("running", "", now, by=command.by)
        self._leaving.append((command, now + RUN_WAIT_NS))
        if self.lease.keep:
            self.lease.drop()  # a script does not stay to give control back

    def _run_on(self, event: str, text: str, now: int, by: str = "") -> None:
        """Open every gate; whatever waited for a cut is told so."""
        was = self.mode
        waiting = [*self._current, *self._queue]
        self._current, self._queue = [], deque()
        if was is not Mode.RUNNING:
            for view in self.views.values():
                view.asked = self._id()
                self._out.append(ToAgent(view.proc, {"t": Msg.RUN.value, "id": view.asked}))
        self._enter(Mode.RUNNING, now)
        self.reason = text
        for command in waiting:
            error = f"{command.verb.value} ended without a cut: {text or 'the ranks run on'}"
            self._out.append(Ack(command.viewer, command.re, False, error, self.status(now)))
        if was is not Mode.RUNNING or event != "running":
            self._event(event, now, by=by, text=text)

    def _lapse(self, now: int) -> None:
        holder = self.lease.holder
        self.lease.drop()
        if self.mode is Mode.RUNNING:
            return
        self._run_on("lapsed", f"the lease of {holder} lapsed: everything runs on", now)

    # -- settling

    def _settle(self, now: int) -> None:
        ripe = self._patience.look(self.views, now)
        found = settle(self.views, self.groups, ripe, self._departed)
        self.settlement = found
        for proc in found.release:
            self._permit(self.views[proc], ONE_OP, now)
        if found.reached:
            self._cut(now)
        elif now - max(self._since, self._reported) >= REPORT_NS:
            self._reported = now
            self.reason = self._under_way()
            self._event("wait", now, text=self.reason)

    def _cut(self, now: int) -> None:
        if self._pursue(now):
            return
        self._enter(Mode.HELD, now)
        self.reason = "; ".join(self.settlement.stuck.values())
        current, self._current = self._current, []
        self._event("cut", now, text=self.reason)
        for command in current:
            self._out.append(Ack(command.viewer, command.re, True, data=self.status(now)))
        while self._queue and self.mode is Mode.HELD:
            self._advance(self._queue.popleft(), now)

    def _pursue(self, now: int) -> bool:
        """At a cut on the way of ``next``: settling may have moved ranks op by op into the step;
        send them on to its end. True if somebody was."""
        if self._goal is None:
            return False
        ranks, target, rounds = self._goal
        views = {v.proc: v for v in self._of_ranks(ranks) if v.held and v.state is not None}
        states = [v.state for v in views.values() if v.state and not v.state.held & Gate.BREAK]
        onward = to_step(states, target)
        self._goal = (ranks, target, rounds - 1) if onward and rounds else None
        if self._goal is None:
            return False
        for proc, permit in onward.items():
            self._permit(views[proc], permit, now)
        return True

    def _watch_held(self, now: int) -> None:
        """A rank that ran on by itself (its own lease lapsed, the hub was slow) is held again."""
        loose = [v for v in self.views.values() if v.fresh and not v.held and v.proc not in
                 self.settlement.stuck]  # fmt: skip
        if not loose:
            return
        self._enter(Mode.PAUSING, now)
        self.reason = f"rank {spell(view.rank for view in loose)} came loose"
        for view in loose:
            self._permit(view, HOLD, now)

    def _under_way(self) -> str:
        ranks = [self.views[p].rank for p in self.settlement.under_way if p in self.views]
        return f"rank {spell(ranks)} has not come to a gate yet"

    def _answer_leaving(self, now: int) -> None:
        still = []
        runs = all(view.fresh and not view.held for view in self.views.values())
        for command, deadline in self._leaving:
            if runs or now >= deadline or self.mode is not Mode.RUNNING:
                self._out.append(Ack(command.viewer, command.re, True, data=self.status(now)))
            else:
                still.append((command, deadline))
        self._leaving = still

    def _expire(self, now: int) -> None:
        """Answer who does not want to wait longer; what it asked for goes on."""
        for waiting in (self._current, self._queue):
            for command in [c for c in waiting if c.deadline_ns and now >= c.deadline_ns]:
                waiting.remove(command)
                error = f"no cut yet: {self._under_way()}; it goes on"
                self._out.append(Ack(command.viewer, command.re, False, error, self.status(now)))

    # -- small things

    def _enter(self, mode: Mode, now: int) -> None:
        if mode is Mode.RUNNING:
            self._goal = None
            self._patience.clear()
            self.settlement = Settlement()
        self.mode, self._since, self._reported = mode, now, 0

    def _permit(self, view: View, permit: Permit, now: int) -> None:
        view.asked = self._id()
        message = {
            "t": Msg.PERMIT.value, "id": view.asked, "count": permit.count, "n": permit.n,
            "stop": permit.stop, "lease_ns": self._agent_lease(now),
        }  # fmt: skip
        self._out.append(ToAgent(view.proc, message))

    def _pass_lease_on(self, now: int) -> None:
        self._renewed = now
        if self.mode is Mode.RUNNING:
            return
        message = {"t": Msg.LEASE.value, "lease_ns": self._agent_lease(now)}
        self._out += [ToAgent(proc, message) for proc in self.views]

    def _agent_lease(self, now: int) -> int:
        left = self.lease.left_ns(now)
        return LEASE_NS if left is None else min(left, LEASE_NS)

    def _id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _of_ranks(self, ranks: Iterable[int]) -> list[View]:
        wanted = set(ranks)
        return [view for view in self.views.values() if view.rank in wanted]

    def _by_pipeline(self) -> list[list[AgentState]]:
        """Held ranks' states, one list per pipeline; ranks of none together."""
        held = {view.rank: view.state for view in self.views.values() if view.held and view.state}
        lists = [[held[r] for r in ranks if r in held] for ranks in self.pipelines.values()]
        seen = {state.rank for states in lists for state in states}
        lists.append([state for rank, state in held.items() if rank not in seen])
        return [states for states in lists if states]

    def _event(self, event: str, now: int, *, by: str = "", text: str = "") -> None:
        self._out.append(Event({"event": event, **self.status(now), "by": by, "text": text}))
