"""The way to a cut, and watching over it: applies the rule of ``cut``, answers who waits for it."""

from __future__ import annotations

from collections.abc import Callable

from pardbg.control.machine.cut import Settlement, settle
from pardbg.control.machine.delivery import Outbox
from pardbg.control.machine.effects import Command
from pardbg.control.machine.exceptions import RUN
from pardbg.control.machine.moves import Moves
from pardbg.control.machine.outcome import outcome
from pardbg.control.machine.permits import HOLD, ONE_OP, to_step
from pardbg.control.machine.state import ControlState, Mode
from pardbg.words import countdown, ranks_text
from pardbg_agent.wire import Gate

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
        ripe = control.grace_period.update(control.views, now)
        control.settlement = settle(
            control.views,
            control.groups,
            ripe,
            control.departed,
            control.pinned.procs,
            control.free,
        )
        return control.settlement

    def settle(self, now: int) -> None:
        """Apply the rule once more: release ranks, or answer at the cut."""
        found = self._apply_rule(now)
        self._watch_pins(now)
        for proc in found.release:
            self._outbox.permit(self._control.views[proc], ONE_OP, now)
        if found.reached:
            self._cut(now)
        elif now - max(self._control.since, self._control.reported) >= REPORT_NS:
            self._control.reported = now
            self._control.reason = self._control.under_way
            self._outbox.event("wait", now, text=self._control.reason)

    def _cut(self, now: int) -> None:
        if self._pursue(now):
            return
        self._moves.enter(Mode.HELD, now)
        self._control.reason = "; ".join(
            filter(None, [self._control.why, *self._control.settlement.stuck.values()])
        )
        did = self._did()
        text = "; ".join(filter(None, [self._control.reason, did]))
        self._outbox.event("cut", now, text=text)
        if self._once_more(now):
            return
        current, self._control.current = self._control.current, []
        self._control.again = None
        for command in current:
            self._outbox.ack(command, **self._control.status(now), text=text)
        while self._control.queue and self._control.mode is Mode.HELD:
            self._advance(self._control.queue.popleft(), now)

    def _did(self) -> str:
        """What the verb that moved the ranks did, in words; empty where none did."""
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
        if self._control.goal is None:
            return False
        ranks, target, rounds = self._control.goal
        views = {v.proc: v for v in self._control.of_ranks(ranks) if v.held and v.state is not None}
        aside = Gate.BREAK | Gate.EXCEPTION
        states = [v.state for v in views.values() if v.state and not v.state.held & aside]
        onward = to_step(states, target)
        self._control.goal = (ranks, target, rounds - 1) if onward and rounds else None
        if self._control.goal is None:
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
        if not loose:
            return
        self._moves.enter(Mode.PAUSING, now)
        control.reason = f"{ranks_text(view.rank for view in loose)} came loose"
        self._outbox.event("loose", now, text=f"{control.reason}: held again")
        for view in loose:
            self._outbox.permit(view, HOLD, now)

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
        control.why = text
        self._outbox.event("released", now, text=text)
