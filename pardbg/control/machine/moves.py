"""Moves of the whole run: holding and releasing ranks as they stop by themselves or come loose, and
the way to a cut by the rule of ``cut``. A verb's outcome follows from the agents' reports before it
and at the cut after it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from pardbg.analysis.pipeline.dependencies import parse, producer, satisfied, twin
from pardbg.analysis.pipeline.ticks.grid import tick_numbers
from pardbg.control.machine import permits
from pardbg.control.machine.ahead import ahead
from pardbg.control.machine.cut import Settlement, View, settle
from pardbg.control.machine.holding import RUN
from pardbg.control.machine.outbox import Outbox
from pardbg.control.machine.state import ControlState, Order
from pardbg.events import control_facts as facts
from pardbg.events.control_codes import Mode, Verb, Why
from pardbg.events.control_facts import Outcome
from pardbg_agent.ctrl.agent_messages import State
from pardbg_agent.wire import LEASE_NS, Gate

States = Mapping[int, State]
"""Rank -> its last State."""


def outcome(
    verb: Verb, before: States, after: States, pipelines: Sequence[Sequence[int]]
) -> Outcome:
    """Return the outcome of a verb. ``pipelines``: ranks of each."""
    ran = {rank: actions_ran(before[rank], after[rank]) for rank in before if rank in after}
    ran = {rank: actions for rank, actions in ran.items() if actions}
    found = Outcome(
        verb, ran=ran, many_stages=_many(after),
        places={rank: state.next for rank, state in after.items() if state.held},
        moving=tuple(rank for rank, state in after.items() if not state.held),
    )  # fmt: skip
    planned = permits.planned_actions(after.values())
    if verb is Verb.NEXT or (verb is Verb.TICK and not ran and not planned):
        return replace(found, ran={}, steps=_steps(before, after))
    if not ran:
        passed = {
            rank: old.next for rank, old in before.items()
            if rank in after and old.next != after[rank].next
        }  # fmt: skip
        return found if verb is Verb.TICK else replace(found, passed=passed)
    plans = [
        pipe for pipe in pipelines
        if all(rank in after and after[rank].plan for rank in pipe) and ran.keys() & set(pipe)
    ]  # fmt: skip
    if verb is not Verb.TICK or not plans:
        return found
    pipes = [{rank: after[rank] for rank in ranks} for ranks in plans]
    waits: dict[int, str] = {}
    coming: dict[int, str] = {}
    for pipe in pipes:
        _upcoming(pipe, waits, coming)
    ticks = {tick for pipe in pipes for tick in _ticks(ran, pipe)}
    return replace(found, tick=ticks.pop() if len(ticks) == 1 else None, waits=waits, coming=coming)


def _ticks(ran: Mapping[int, Sequence[str]], pipe: States) -> set[int | None]:
    ticks = tick_numbers(
        {rank: state.plan for rank, state in pipe.items()}, permits.num_stages(pipe.values())
    )
    return {ticks.get(text) for rank in pipe for text in ran.get(rank, ())}


def actions_ran(before: State, after: State) -> tuple[str, ...]:
    """Return the compute actions that ended between two states, also over the end of a schedule."""
    if after.done[: len(before.done)] == before.done and after.step == before.step:
        return after.done[len(before.done) :]
    known = set(before.done)
    rest = tuple(text for text in before.plan if text not in known) if before.done else ()
    return (*rest, *after.done)


def _upcoming(pipe: States, waits: dict[int, str], coming: dict[int, str]) -> None:
    """Find the ranks whose next action has its input, and the actions others wait for."""
    last = permits.num_stages(pipe.values())
    done = {text for state in pipe.values() for text in state.done}
    for rank, state in pipe.items():
        action = permits.next_action(state)
        if action is None:
            continue
        if satisfied(action, last, done):
            coming[rank] = action
            continue
        needed = producer(action, last)
        plan = {a for other in pipe.values() for a in other.plan}
        other = twin(needed) if needed is not None else None
        if needed is not None and needed not in done and other not in done:
            waits[rank] = other if other is not None and needed not in plan else needed


def _many(states: States) -> bool:
    """Return whether a rank has several stages, so that actions are named with their stage."""
    return any(
        len({action.stage for text in state.plan if (action := parse(text))}) > 1
        for state in states.values()
    )


def _steps(before: States, after: States) -> tuple[int, int]:
    old = min((state.step for state in before.values()), default=0)
    return old, max([old, *(state.step for state in after.values())])


MAX_WHY: Final = 64
"""Maximum number of facts in a status: at a mismatch each rank of a group may stop."""


class Moves:
    """Changer of the mode, which sends the ranks the resulting messages."""

    def __init__(self, control: ControlState, outbox: Outbox) -> None:
        self._control, self._outbox = control, outbox

    def enter(self, mode: Mode, now: int) -> None:
        """Change the mode; running forgets everything that held ranks."""
        control = self._control
        if mode is Mode.RUNNING:
            control.goal = control.again = None
            control.stopped_by = []
            control.free = set()
            control.pinned.clear()
            control.grace_period.clear()
            control.settlement = Settlement()
        control.mode, control.since, control.reported = mode, now, 0

    def refuse(self, order: Order, refusal: facts.Refusal, now: int) -> None:
        """Refuse an order; the refusal is recorded."""
        self._outbox.event(facts.Refused(order.verb.value, refusal), now, order.by, [order])

    def run_on(self, cause: facts.LetGo, now: int, by: str = "") -> None:
        """Open every gate; answer all orders that wait for a cut."""
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
        control.why = () if cause == facts.RunsOn() else (cause,)
        for order in waiting:
            refusal = facts.Refusal(Why.NO_CUT, verb=order.verb.value, cause=cause)
            self._outbox.refuse(order, refusal, now)
        if was is not Mode.RUNNING or not isinstance(cause, facts.RunsOn):
            self._outbox.event(cause, now, by)

    def _stopped(
        self, view: View, fact: facts.Fact, by: str, keep: bool, lease_ns: int, now: int
    ) -> None:
        """Stop the others, as a rank stopped by itself. ``by`` gets control if it is free."""
        control = self._control
        control.stopped_by.append(fact)
        control.pinned.procs.add(view.proc)
        if control.mode is not Mode.RUNNING:
            if control.free:
                self.hold_free(set(control.free), now)
            return
        if control.lease.holder is None:
            control.lease.grant(by, now, keep=keep, period_ns=lease_ns)
        control.current += control.until
        control.until = []
        self.enter(Mode.PAUSING, now)
        control.why = tuple(control.stopped_by[:MAX_WHY])
        for view in control.views.values():
            self._outbox.permit(view, permits.HOLD, now)

    def hold_free(self, procs: set[str], now: int) -> None:
        """Hold ranks that ran on beside held ones."""
        control = self._control
        control.free -= procs
        self.enter(Mode.PAUSING, now)
        for proc in procs & control.views.keys():
            if not control.views[proc].held:
                self._outbox.permit(control.views[proc], permits.HOLD, now)

    def hold_loose(self, now: int) -> None:
        """Hold ranks again whose lease was over before the hub's (the hub or the line stood still):
        such a rank runs on by itself, and reports nothing more."""
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
        fact = facts.Loose(tuple(sorted(view.rank for view in loose)))
        control.why = (fact,)
        self._outbox.event(fact, now)
        for view in loose:
            self._outbox.permit(
                view, permits.PASS if view.proc in control.free else permits.HOLD, now
            )

    def miss_silent(self, now: int) -> None:
        """Drop the state of held ranks that were silent for a lease (a held rank reports each
        second): they cannot be held any more."""
        over = [v for v in self._control.views.values() if v.held and now - v.heard_ns > LEASE_NS]
        if self._control.mode is Mode.RUNNING or not over:
            return
        for view in over:
            view.state = None
        self._outbox.event(facts.Silent(tuple(sorted(view.rank for view in over)), LEASE_NS), now)

    def at_exception(self, view: View, state: State, now: int) -> None:
        """Hold a rank at its uncaught exception, and the others too."""
        control = self._control
        if control.acted_on(view, state.held_since_ns):
            return
        refusal = control.raised.refusal(view.proc, now)
        if refusal and control.mode is Mode.RUNNING:
            self._outbox.run(view, now)
            self._outbox.event(facts.Raised(view.rank, not_held=refusal), now)
            return
        fact = control.raised.add(view.proc, view.rank, state.next)
        self._stopped(view, fact, RUN, True, control.raised.hold_ns, now)
        self._outbox.event(fact, now, by=control.lease.holder or "")

    def at_breakpoint(self, view: View, state: State, number: int, now: int) -> None:
        """Hold a rank at its breakpoint, and the others too."""
        control = self._control
        known = control.breakpoints.get(number)
        if control.acted_on(view, state.held_since_ns):
            return
        if known is None:  # deleted, once at another rank, or set by a hub that is gone
            self.stray(facts.Stray(view.rank, number, state.next), view, now)
            return
        fact = facts.Hit(
            view.rank, number, known.condition, bool(known.kind), state.hit_text, state.next,
            state.step,
        )  # fmt: skip
        self._stopped(view, fact, known.by, known.keep, known.lease_ns, now)
        self._outbox.event(fact, now, by=known.by)
        if known.once:
            control.breakpoints.delete([number])
            self._outbox.send_breaks(control.views.values())

    def in_debugger(self, view: View, state: State, was_led: bool, now: int) -> None:
        """Note that a debugger leads a rank, or no longer: it moves as the client wants, and others
        as far as its ops need them. It stays where it stands though others may wait for it."""
        control = self._control
        if state.led:
            control.pinned.procs.add(view.proc)
        elif not control.free:
            control.pinned.procs.discard(view.proc)
        if control.mode is Mode.HELD and (was_led or not state.held):
            self.enter(Mode.PAUSING, now)
        if state.led != was_led and control.mode is not Mode.RUNNING:
            fact = facts.InDebugger(view.rank, state.led)
            control.why = (fact,)
            self._outbox.event(fact, now)

    def stray(self, fact: facts.Stray, view: View, now: int) -> None:
        """Have a rank that holds itself for an unknown reason do what the others do."""
        running = self._control.mode is Mode.RUNNING
        free = view.proc in self._control.free
        if running:
            self._outbox.run(view, now)
        elif free:
            self._outbox.permit(view, permits.PASS, now)
        self._outbox.event(replace(fact, runs=running or free), now)


REPORT_NS = 2_000_000_000
"""Time, in ns, without a cut after which an event names the ranks under way."""


class Settling:
    """Driver of the run to a cut; ``advance`` begins the next command that waits for it."""

    def __init__(
        self,
        control: ControlState,
        outbox: Outbox,
        moves: Moves,
        advance: Callable[[Order, int], None],
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
                self._outbox.permit(control.views[proc], permits.ONE_OP, now)
        if found.reached:
            self._cut(now)
        elif now - max(control.since, control.reported) >= REPORT_NS:
            control.reported = now
            fact = facts.UnderWay(control.under_way())
            control.why = (fact,)
            self._outbox.event(fact, now)

    def _cut(self, now: int) -> None:
        control = self._control
        if self._pursue(now):
            return
        self._moves.enter(Mode.HELD, now)
        control.why = (*control.stopped_by, *control.settlement.stuck.values())[:MAX_WHY]
        cut = facts.Cut(self._outcome())
        again = self._again()
        current = [] if again else control.current
        if not again:
            control.current, control.again = [], None
        self._outbox.event(cut, now, answers=current)
        if again is not None:
            self._once_more(again, now)
            return
        while control.queue and control.mode is Mode.HELD:
            self._advance(control.queue.popleft(), now)

    def _outcome(self) -> facts.Outcome | None:
        """Return the outcome of the verb that moved the ranks; None: no verb did."""
        control = self._control
        if control.again is None:
            return None
        order, time, times = control.again
        pipelines = list(control.pipelines.values())
        found = outcome(order.verb, control.before, control.states(), pipelines)
        return replace(found, time=time, times=times)

    def _again(self) -> Order | None:
        """Return the verb if it is to be repeated, and the ranks had no other reason to stop."""
        control = self._control
        if control.again is None:
            return None
        order, time, times = control.again
        return order if time < times and not control.why and control.current == [order] else None

    def _once_more(self, order: Order, now: int) -> None:
        control = self._control
        control.current = []
        self._advance(order, now)
        if control.mode is Mode.STEPPING:
            self._outbox.event(control.why[0], now)

    def _pursue(self, now: int) -> bool:
        """Send ranks on to the end of the step, at a cut on the way of ``next``: settling may have
        moved them op by op into the step. Return whether any was sent."""
        control = self._control
        if control.goal is None:
            return False
        ranks, target, rounds = control.goal
        views = {v.proc: v for v in control.of_ranks(ranks) if v.held and v.state is not None}
        aside = Gate.BREAK | Gate.EXCEPTION
        states = [v.state for v in views.values() if v.state and not v.state.held & aside]
        onward = permits.to_step(states, target)
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
        control = self._control
        if not control.pinned.update(control.settlement, control.timeouts, now):
            return
        ranks = [control.views[proc].rank for proc in control.pinned.procs if proc in control.views]
        waits = next(iter(control.waiting().values()), None)
        fact = facts.Released(tuple(sorted(ranks)), waits, control.pinned.left_ns(now) or 0)
        procs, control.pinned.procs = control.pinned.procs, set()
        if control.free or control.lease.holder == RUN:  # only this rank was held: all ranks run on
            self._moves.run_on(fact, now)
            return
        for proc in procs & control.views.keys():
            if proc in control.raised.procs:
                self._outbox.run(control.views[proc], now)
            else:
                self._outbox.permit(control.views[proc], permits.ONE_OP, now)
        self._moves.enter(Mode.PAUSING, now)
        control.stopped_by = [fact]
        self._outbox.event(fact, now)
