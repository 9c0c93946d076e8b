"""Moves of the whole run: who is held or let go because ranks stop by themselves or come loose, and
the way to a cut by the rule of ``cut``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from pardbg.control.machine.ahead import ahead
from pardbg.control.machine.breakpoints import Breakpoint
from pardbg.control.machine.cut import AgentState, Settlement, View, settle
from pardbg.control.machine.delivery import Outbox
from pardbg.control.machine.holding import RUN
from pardbg.control.machine.outcome import outcome
from pardbg.control.machine.permits import HOLD, ONE_OP, PASS, to_step
from pardbg.control.machine.state import Command, ControlState, Mode
from pardbg.words import countdown, duration, ranks_text
from pardbg_agent.wire import LEASE_NS, Gate


class Moves:
    """Changes the mode, and tells the ranks that follow from it what to do."""

    def __init__(self, control: ControlState, outbox: Outbox) -> None:
        self._control, self._outbox = control, outbox

    def enter(self, mode: Mode, now: int) -> None:
        """Change the mode; running forgets everything that held ranks."""
        control = self._control
        if mode is Mode.RUNNING:
            control.goal = control.again = None
            control.why = []
            control.free = set()
            control.pinned.clear()
            control.grace_period.clear()
            control.settlement = Settlement()
        control.mode, control.since, control.reported = mode, now, 0

    def run_on(self, event: str, text: str, now: int, by: str = "") -> None:
        """Open every gate; whatever waited for a cut is told so."""
        control = self._control
        was = control.mode
        waiting = [*control.current, *control.queue]
        control.current, control.queue = [], deque()
        if was is not Mode.RUNNING:
            for view in control.views.values():
                self._outbox.run(view, now)
        self.enter(Mode.RUNNING, now)
        if control.lease.holder == RUN:
            control.lease.drop()
        control.reason = text
        for command in waiting:
            error = f"{command.verb.value} ended without a cut: {text or 'the ranks run on'}"
            self._outbox.ack(command, error, **control.status(now))
        if was is not Mode.RUNNING or event != "running":
            self._outbox.event(event, now, by=by, text=text)

    def stop_all(self, by: str, keep: bool, lease_ns: int, now: int) -> None:
        """Everybody else at the next gate; ``by`` holds control if nobody does."""
        control = self._control
        if control.lease.holder is None:
            control.lease.grant(by, now, keep=keep, period_ns=lease_ns)
        control.current += control.until
        control.until = []
        self.enter(Mode.PAUSING, now)
        control.reason = control.stopped_by
        for view in control.views.values():
            self._outbox.permit(view, HOLD, now)

    def hold_free(self, procs: set[str], now: int) -> None:
        """Ranks that ran on beside held ones stop, too."""
        control = self._control
        control.free -= procs
        self.enter(Mode.PAUSING, now)
        for proc in procs & control.views.keys():
            if not control.views[proc].held:
                self._outbox.permit(control.views[proc], HOLD, now)

    def hold_loose(self, now: int) -> None:
        """A rank's lease was over before the hub's (the hub or the line stood still), so it runs on
        by itself, and says nothing more: tell it anew."""
        control = self._control
        loose = [
            view for view in control.views.values()
            if view.fresh and view.state and not view.state.closed and not view.runs
        ]  # fmt: skip
        if control.mode is not Mode.RUNNING and loose:
            self.hold_again(loose, now)

    def hold_again(self, loose: Sequence[View], now: int) -> None:
        """Hold ranks that ran on by themselves, while others are held."""
        control = self._control
        if control.mode is Mode.HELD:
            self.enter(Mode.PAUSING, now)
        control.reason = f"{ranks_text(view.rank for view in loose)} came loose"
        self._outbox.event("loose", now, text=f"{control.reason}: held again")
        for view in loose:
            self._outbox.permit(view, PASS if view.proc in control.free else HOLD, now)

    def miss_silent(self, now: int) -> None:
        """Nothing came of a rank for a lease (it says its state each second while it is held): it
        cannot be held any more."""
        over = [v for v in self._control.views.values() if v.held and now - v.heard_ns > LEASE_NS]
        if self._control.mode is Mode.RUNNING or not over:
            return
        for view in over:
            view.state = None
        ranks = ranks_text(view.rank for view in over)
        text = f"nothing heard from {ranks} for {duration(LEASE_NS)}: running on without control"
        self._outbox.event("silent", now, text=text)

    def at_exception(self, view: View, state: AgentState, now: int) -> None:
        """Hold a rank at its uncaught exception, and the others too."""
        control = self._control
        if control.acted_on(view, state.held_since_ns):
            return
        refusal = control.raised.refusal(view.proc, now)
        if refusal and control.mode is Mode.RUNNING:
            self._outbox.run(view, now)
            self._outbox.event("exception", now, text=f"rank {view.rank}: not held, {refusal}")
            return
        text = control.raised.add(view.proc, view.rank, state.next)
        control.why.append(text)
        control.pinned.procs.add(view.proc)
        if control.mode is Mode.RUNNING:
            self.stop_all(RUN, True, control.raised.hold_ns, now)
        elif control.free:
            self.hold_free(set(control.free), now)
        self._outbox.event("exception", now, by=control.lease.holder or "", text=text)

    def at_breakpoint(self, view: View, state: AgentState, number: int, now: int) -> None:
        """Hold a rank at its breakpoint, and the others too."""
        control = self._control
        known = control.breakpoints.get(number)
        if control.acted_on(view, state.held_since_ns):
            return
        if known is None:  # deleted, or another rank's once, or told to a hub that is gone
            text = f"rank {view.rank} before {state.next} hit {number}, which is set no more"
            self.stray(view, text, now)
            return
        text = _hit_text(known, view.rank, state)
        control.why.append(text)
        control.pinned.procs.add(view.proc)
        if control.mode is Mode.RUNNING:
            self.stop_all(known.by, known.keep, known.lease_ns, now)
        elif control.free:
            self.hold_free(set(control.free), now)
        self._outbox.event("hit", now, by=known.by, text=text)
        if known.once:
            control.breakpoints.delete([number])
            self._outbox.tell_breaks(control.views.values())

    def stray(self, view: View, text: str, now: int) -> None:
        """Have a rank that holds itself for an unknown reason do what the others do."""
        runs = self._control.mode is Mode.RUNNING
        if runs:
            self._outbox.run(view, now)
        elif view.proc in self._control.free:
            self._outbox.permit(view, PASS, now)
        after = "it runs on" if runs or view.proc in self._control.free else "held with the others"
        self._outbox.event("stray", now, text=f"{text}: {after}")


def _hit_text(known: Breakpoint, rank: int, state: AgentState) -> str:
    """Why everybody stops: who, where, and what a watch found."""
    if not known.kind:
        return f"{known.what}: rank {rank} before {state.next} ({known.text})"
    found = f"{known.text}: {state.hit_text}" if state.hit_text else known.text
    return f"{known.what}: rank {rank} step {state.step}, {found}; before {state.next}"


REPORT_NS = 2_000_000_000
"""After this long without a cut, an event says who is under way."""


class Settling:
    """Brings the run to a cut; ``advance`` begins the next command that waits for it."""

    def __init__(
        self,
        control: ControlState,
        outbox: Outbox,
        moves: Moves,
        advance: Callable[[Command, int], None],
    ) -> None:
        self._control, self._outbox, self._moves = control, outbox, moves
        self._advance = advance

    def _apply_rule(self, now: int) -> Settlement:
        control = self._control
        self._ripe = ripe = control.grace_period.update(control.views, now)
        pinned, free = control.pinned.procs, control.free
        control.settlement = settle(
            control.views, control.groups, ripe, control.departed, pinned, free
        )
        return control.settlement

    def settle(self, now: int) -> None:
        """Apply the rule once more: release ranks, or answer at the cut."""
        control = self._control
        found = self._apply_rule(now)
        self._watch_pins(now)
        onward = {} if control.pinned.procs else ahead(control.views, control.pipelines, self._ripe)
        for proc, go in onward.items():
            self._outbox.permit(control.views[proc], go.permit, now)
            control.views[proc].settles, control.views[proc].ahead = True, go.to
        for proc in found.release:
            if proc not in onward:
                self._outbox.permit(control.views[proc], ONE_OP, now)
        if found.reached:
            self._cut(now)
        elif now - max(control.since, control.reported) >= REPORT_NS:
            control.reported = now
            control.reason = control.under_way
            self._outbox.event("wait", now, text=control.reason)

    def _cut(self, now: int) -> None:
        control = self._control
        if self._pursue(now):
            return
        self._moves.enter(Mode.HELD, now)
        why = [control.stopped_by, *control.settlement.stuck.values()]
        control.reason = "; ".join(filter(None, why))
        text = "; ".join(filter(None, [control.reason, self._did()]))
        self._outbox.event("cut", now, text=text)
        if self._once_more(now):
            return
        current, control.current = control.current, []
        control.again = None
        for command in current:
            self._outbox.ack(command, **control.status(now), text=text)
        while control.queue and control.mode is Mode.HELD:
            self._advance(control.queue.popleft(), now)

    def _did(self) -> str:
        """Return what the verb that moved the ranks did, in words; empty where none did."""
        control = self._control
        if control.again is None:
            return ""
        command, time, times = control.again
        where = f"{time} of {times}" if times > 1 else ""
        pipelines = list(control.pipelines.values())
        return outcome(command.verb, control.before, control.states(), pipelines, where)

    def _once_more(self, now: int) -> bool:
        """The verb was asked for several times, and nothing else stopped the ranks."""
        control = self._control
        if control.again is None:
            return False
        command, time, times = control.again
        if time >= times or control.reason or control.current != [command]:
            return False
        control.current = []
        self._advance(command, now)
        if control.mode is Mode.STEPPING:
            self._outbox.event(command.verb.value, now, text=control.reason)
        return True

    def _pursue(self, now: int) -> bool:
        """At a cut on the way of ``next``: settling may have moved ranks op by op into the step;
        send them on to its end. True if somebody was."""
        control = self._control
        if control.goal is None:
            return False
        ranks, target, rounds = control.goal
        views = {v.proc: v for v in control.of_ranks(ranks) if v.held and v.state is not None}
        aside = Gate.BREAK | Gate.EXCEPTION
        states = [v.state for v in views.values() if v.state and not v.state.held & aside]
        onward = to_step(states, target)
        control.goal = (ranks, target, rounds - 1) if onward and rounds else None
        if control.goal is None:
            return False
        for proc, permit in onward.items():
            self._outbox.permit(views[proc], permit, now)
        return True

    def watch_held(self, now: int) -> None:
        """Hold a rank again that ran on by itself (its lease lapsed, the hub was slow)."""
        control = self._control
        if control.pinned.procs:
            self._apply_rule(now)
            self._watch_pins(now)
        aside = {*control.settlement.stuck, *control.settlement.waiting, *control.free}
        views = control.views.values()
        loose = [v for v in views if v.fresh and not v.held and v.proc not in aside]
        if loose:
            self._moves.hold_again(loose, now)

    def _watch_pins(self, now: int) -> None:
        """Release pinned ranks before a peer's op times out."""
        control = self._control
        if not control.pinned.update(control.settlement, control.timeouts, now):
            return
        ranks = [control.views[proc].rank for proc in control.pinned.procs if proc in control.views]
        left = countdown(control.pinned.left_ns(now) or 0)
        text = f"{ranks_text(ranks)} let go: {control.nearest()} times out in {left}"
        procs, control.pinned.procs = control.pinned.procs, set()
        if control.free or control.lease.holder == RUN:  # it alone was held: all ranks run on
            self._moves.run_on("released", text, now)
            return
        for proc in procs & control.views.keys():
            if proc in control.raised.procs:
                self._outbox.run(control.views[proc], now)
            else:
                self._outbox.permit(control.views[proc], ONE_OP, now)
        self._moves.enter(Mode.PAUSING, now)
        control.why = [text]
        self._outbox.event("released", now, text=text)
