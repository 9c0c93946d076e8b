"""The control state machine: commands and agents' states in, permits, answers and events out.

No I/O and no clock of its own: every input carries ``now`` (hub monotonic ns), every output waits
in ``drain()``. A command is answered when its new cut is reached, or when it is clear that the
ranks run on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from pardbg.control.language.expr import ExprError
from pardbg.control.language.ranksets import spell
from pardbg.control.language.verbs import AgentState, Verb
from pardbg.control.machine.breakpoints import EDITS, Breakpoint, BreakpointError, edit, words_of
from pardbg.control.machine.cut import View, settle
from pardbg.control.machine.effects import Ack, Command
from pardbg.control.machine.exceptions import RUN
from pardbg.control.machine.permits import HOLD, ONE_OP, PASS, permits, step_target, to_step
from pardbg.control.machine.state import ControlState, Mode
from pardbg_agent.wire import Gate, Msg

MAX_QUEUE = 8
RUN_WAIT_NS = 1_000_000_000
"""How long ``continue`` waits for the agents' word before it is answered anyway."""
RENEW_NS = 2_000_000_000
REPORT_NS = 2_000_000_000
"""After this long without a cut, an event says who is under way."""
MAX_ROUNDS = 4
"""``next``: how often ranks that settling left inside the step are sent on to its end."""


class Machine(ControlState):
    """One run's control. Call ``tick`` often (20 ms while ``active``)."""

    # -- agents

    def joined(self, proc: str, rank: int, now: int) -> None:
        """A process said hello (again), or its rank became known."""
        known = self.views.get(proc)
        if known is not None:
            self._rank_known(known, rank)
            return
        self.views[proc] = View(proc, rank)
        self._departed.discard(rank)
        if self.breakpoints or self.restored:  # a hub before this one may have told it others
            self._tell_breaks([self.views[proc]])
        if self.mode is Mode.RUNNING:
            return
        if self._free:
            self._free.add(proc)
            self._permit(self.views[proc], PASS, now)
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
        self.deliveries.gone(proc)
        self.raised.let_die(proc, now)
        if self.mode is not Mode.RUNNING:
            self._event("detach", now, text=f"rank {view.rank} {why}")
            if not self.views:
                self._run_on("running", "no rank is left", now)
            elif self.lease.holder == RUN and not self.raised.procs:
                self._run_on("running", "nobody is at an exception any more", now)
        if not self.views:
            self._end_until("the job ended before it was true", now)
        self.tick(now)

    def state(self, state: AgentState, now: int) -> None:
        """An agent's STATE; older ones than the newest are ignored. What follows of it comes with
        the next ``tick``, once for all states that came by then."""
        view = self.views.get(state.proc)
        if view is None or (view.state is not None and state.serial <= view.state.serial):
            return
        view.state, view.heard_ns = state, now
        self.deliveries.state(state.proc, state.reply_to)
        if state.rank >= 0:
            self._rank_known(view, state.rank)
        self.breakpoints.count(state.proc, state.hits)
        if state.hit is not None and state.held:
            self._hit(view, state, state.hit, now)
        elif state.held & Gate.EXCEPTION:
            self._raise(view, state, now)
        elif state.held and view.fresh and self.mode is Mode.RUNNING:
            self._stray(view, f"rank {view.rank} was held by a hub that is gone", now)

    # -- viewers

    def command(self, command: Command, now: int, *, keep: bool = False, lease_ns: int = 0) -> None:
        """A control verb. Answered now or later through ``drain``."""
        refusal = self._refusal(command, now)
        if refusal is None and command.verb in EDITS:
            refusal = self._edit(command, now, keep, lease_ns)
            if refusal is None:
                return
        if refusal is not None:
            self._out.append(Ack(command.viewer, command.re, False, refusal))
            self._event("refused", now, by=command.by, text=f"{command.verb.value}: {refusal}")
            return
        self.lease.grant(command.by, now, keep=keep, period_ns=lease_ns)
        self._pass_lease_on(now)
        text = words_of(command)
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

    def forget(self, viewer: str, now: int) -> None:
        """A viewer is gone, and its breakpoints with it."""
        gone = self.breakpoints.forget(viewer)
        if gone:
            self._tell_breaks(self.views.values())
            numbers = ", ".join(map(str, gone))
            self._event("delete", now, by=viewer, text=f"breakpoint {numbers}: {viewer} is gone")

    def renew(self, viewer: str, now: int) -> bool:
        """The holder is still there; or somebody is, while the run itself holds a rank."""
        if not self.lease.renew(RUN if self.lease.holder == RUN else viewer, now):
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
        self._hold_loose(now)
        if self.settling:
            self._settle(now)
        elif self.mode is Mode.HELD:
            self._watch_held(now)
        if self.mode is not Mode.RUNNING and now - self._renewed >= RENEW_NS:
            self._pass_lease_on(now)
            self._event("", now)  # no event: what is left of the lease and of the timeouts
        self._tell_again(now)
        self._miss_silent(now)
        self._expire(now)

    # -- verbs

    def _refusal(self, command: Command, now: int) -> str | None:
        holder = self.lease.holder
        if holder not in (None, RUN, command.by):
            left = (self.lease.left_ns(now) or 0) / 1e9
            return f"{holder} holds control (lease {left:.0f} s): take it over first"
        if command.verb is Verb.CONTINUE or command.verb in EDITS:
            return "no such rank yet" if command.verb is Verb.DELAY and not self.views else None
        if not self.views:
            return "no rank yet: the job has not formed a process group"
        if command.verb is Verb.PAUSE:
            return None
        if self.mode is Mode.RUNNING:
            return f"nothing is held: pause before {command.verb.value}"
        held = [view for view in self._of_ranks(command.ranks) if view.held]
        if held and len(dying := self._dying(held)) == len(held):
            return f"rank {spell(dying)} is at its exception: continue lets it die"
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
        everybody = {view.rank for view in self.views.values()} <= set(command.ranks)
        wanted = self._free & {view.proc for view in self._of_ranks(command.ranks)}
        if wanted:  # it held some, now more or all
            self.pins.procs |= wanted
            if everybody:
                self.pins.clear()
            self._hold_free(wanted, now)
        if self.mode is Mode.HELD:
            self.pins.forever = self.pins.forever or bool(command.args.get("hold"))
            self._out.append(Ack(command.viewer, command.re, True, data=self.status(now)))
            return
        self._current.append(command)
        if self.mode is not Mode.RUNNING:
            return  # the cut that is being settled is the answer
        self._enter(Mode.PAUSING, now)
        self.reason = "pause"
        chosen = list(self.views.values()) if everybody else self._of_ranks(command.ranks)
        if not everybody:
            self._free = set(self.views) - {view.proc for view in chosen}
            for proc in self._free:
                self._permit(self.views[proc], PASS, now)
            self.pins.procs = {view.proc for view in chosen}
            self.pins.forever = bool(command.args.get("hold"))
        for view in chosen:
            self._permit(view, HOLD, now)

    def _advance(self, command: Command, now: int) -> None:
        chosen = [v for v in self._of_ranks(command.ranks) if v.held and not self._dying([v])]
        if not chosen:
            error = f"rank {spell(command.ranks)} is not held"
            self._out.append(Ack(command.viewer, command.re, False, error))
            return
        states = [view.state for view in chosen if view.state is not None]
        granted = permits(command.verb, states, self._by_pipeline())
        if command.verb is Verb.NEXT:
            self._goal = (command.ranks, step_target(states), MAX_ROUNDS)
        self._current.append(command)
        self._why = ""
        self.pins.procs -= granted.keys()
        self._enter(Mode.STEPPING, now)
        self.reason = words_of(command)
        for proc, permit in granted.items():
            view = self.views[proc]
            if permit.n or view.state is None or not view.state.held & permit.stop:
                self._permit(view, permit, now)

    def _continue(self, command: Command, now: int) -> None:
        if self.mode is Mode.RUNNING:
            if command.verb is not Verb.UNTIL:  # that one is answered where it stops
                self._out.append(Ack(command.viewer, command.re, True, data=self.status(now)))
            return
        self._run_on("running", "", now, by=command.by)
        if command.verb is Verb.UNTIL:
            return
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
                self._run(view, now)
        self._enter(Mode.RUNNING, now)
        if self.lease.holder == RUN:
            self.lease.drop()
        self.reason = text
        for command in waiting:
            error = f"{command.verb.value} ended without a cut: {text or 'the ranks run on'}"
            self._out.append(Ack(command.viewer, command.re, False, error, self.status(now)))
        if was is not Mode.RUNNING or event != "running":
            self._event(event, now, by=by, text=text)

    def _lapse(self, now: int) -> None:
        text = f"the lease of {self.lease.holder} lapsed: everything runs on"
        self.lease.drop()
        if self.mode is not Mode.RUNNING:
            self._run_on("lapsed", text, now)

    # -- settling

    def _settle(self, now: int) -> None:
        ripe = self._patience.look(self.views, now)
        found = settle(
            self.views, self.groups, ripe, self._departed, self.pins.procs, self._free
        )  # fmt: skip
        self.settlement = found
        self._watch_pins(now)
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
        self.reason = "; ".join(filter(None, [self._why, *self.settlement.stuck.values()]))
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
        aside = Gate.BREAK | Gate.EXCEPTION
        states = [v.state for v in views.values() if v.state and not v.state.held & aside]
        onward = to_step(states, target)
        self._goal = (ranks, target, rounds - 1) if onward and rounds else None
        if self._goal is None:
            return False
        for proc, permit in onward.items():
            self._permit(views[proc], permit, now)
        return True

    def _watch_held(self, now: int) -> None:
        """A rank that ran on by itself (its own lease lapsed, the hub was slow) is held again."""
        if self.pins.procs:
            ripe = self._patience.look(self.views, now)
            self.settlement = settle(
                self.views, self.groups, ripe, self._departed, self.pins.procs, self._free
            )  # fmt: skip
            self._watch_pins(now)
        aside = {*self.settlement.stuck, *self.settlement.waiting, *self._free}
        loose = [
            v for v in self.views.values() if v.fresh and not v.held and v.proc not in aside
        ]  # fmt: skip
        if not loose:
            return
        self._enter(Mode.PAUSING, now)
        self.reason = f"rank {spell(view.rank for view in loose)} came loose"
        self._event("loose", now, text=f"{self.reason}: held again")
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
        for waiting in (self._current, self._queue, self._until):
            for command in [c for c in waiting if c.deadline_ns and now >= c.deadline_ns]:
                waiting.remove(command)
                error = f"no cut yet: {self._under_way()}; it goes on"
                if waiting is self._until:
                    error = f"{command.args.get('expr')} was not true yet; it goes on"
                self._out.append(Ack(command.viewer, command.re, False, error, self.status(now)))

    # -- breakpoints, and ranks that stay where they are

    def _edit(self, command: Command, now: int, keep: bool, lease_ns: int) -> str | None:
        """A verb about breakpoints or delays: done at once. What is wrong with it, or None."""
        try:
            text = edit(self.breakpoints, command, keep, lease_ns)
        except (ExprError, BreakpointError) as error:
            return str(error)
        if command.verb is Verb.DELAY:
            delay = {"t": Msg.DELAY.value, "id": self._id(), "ns": int(command.args.get("ns", 0))}
            for view in self._of_ranks(command.ranks):
                self._tell(view, delay)
        elif command.verb is not Verb.BREAKS:
            self._tell_breaks(self.views.values())
        if command.verb is not Verb.BREAKS:
            self._event(command.verb.value, now, by=command.by, text=text)
        if command.verb is Verb.UNTIL:
            self._until.append(command)
            self._continue(command, now)
        else:
            data = {**self.status(now), "text": text}
            self._out.append(Ack(command.viewer, command.re, True, data=data))
        return None

    def _hit(self, view: View, state: AgentState, number: int, now: int) -> None:
        """A rank stopped at a breakpoint: hold the others too, and it where it stands."""
        known, key = self.breakpoints.get(number), (view.proc, state.held_since_ns)
        if key in self._hits:
            return
        self._hits = {k for k in self._hits if k[0] != view.proc} | {key}
        if known is None:  # deleted, or another rank's once, or told to a hub that is gone
            text = f"rank {view.rank} before {state.next} hit {number}, which is set no more"
            self._stray(view, text, now)
            return
        text = _hit_text(known, view.rank, state)
        self._why = "; ".join(filter(None, [self._why, text]))
        self.pins.procs.add(view.proc)
        if self.mode is Mode.RUNNING:
            self._stop_all(known.by, known.keep, known.lease_ns, now)
        elif self._free:
            self._hold_free(set(self._free), now)
        self._event("hit", now, by=known.by, text=text)
        if known.once:
            self.breakpoints.delete([number])
            self._tell_breaks(self.views.values())

    def _stray(self, view: View, text: str, now: int) -> None:
        """It holds itself for a reason that nobody here knows: it does what the others do."""
        runs = self.mode is Mode.RUNNING
        if runs:
            self._run(view, now)
        elif view.proc in self._free:
            self._permit(view, PASS, now)
        after = "it runs on" if runs or view.proc in self._free else "held with the others"
        self._event("stray", now, text=f"{text}: {after}")

    def _end_until(self, text: str, now: int) -> None:
        for command in self._until:
            self._out.append(Ack(command.viewer, command.re, False, text, self.status(now)))
        self._until = []

    def _watch_pins(self, now: int) -> None:
        """Let pinned ranks go before somebody's op times out."""
        if not self.pins.look(self.settlement, self.timeouts, now):
            return
        ranks = [self.views[proc].rank for proc in self.pins.procs if proc in self.views]
        left = (self.pins.left_ns(now) or 0) / 1e9
        text = f"rank {spell(ranks)} let go: {self._nearest()} times out in {left:.0f} s"
        procs, self.pins.procs = self.pins.procs, set()
        if self._free or self.lease.holder == RUN:  # it alone was held, so everything runs on
            self._run_on("released", text, now)
            return
        for proc in procs & self.views.keys():
            if proc in self.raised.procs:
                self._run(self.views[proc], now)
            else:
                self._permit(self.views[proc], ONE_OP, now)
        self._enter(Mode.PAUSING, now)
        self._why = text
        self._event("released", now, text=text)


def _hit_text(known: Breakpoint, rank: int, state: AgentState) -> str:
    """Why everybody stops: who, where, and what a watch found."""
    if not known.kind:
        return f"{known.what}: rank {rank} before {state.next} ({known.text})"
    found = f"{known.text}: {state.hit_text}" if state.hit_text else known.text
    return f"{known.what}: rank {rank} step {state.step}, {found}; before {state.next}"
