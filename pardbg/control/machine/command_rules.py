"""Rules of verbs: their effect, now or at the next cut, and the time of their answer."""

from __future__ import annotations

from typing import Final

from pardbg.control.language.arguments import parse_watch
from pardbg.control.machine.breakpoints import EDITS, Breakpoints, Refuse
from pardbg.control.machine.holding import RUN
from pardbg.control.machine.moves import Moves
from pardbg.control.machine.outbox import Outbox
from pardbg.control.machine.permits import HOLD, PASS, permits, step_target
from pardbg.control.machine.state import ControlState, Order
from pardbg.errors import UserError
from pardbg.events import control_facts as facts
from pardbg.events.control_codes import Mode, Verb, Why
from pardbg_agent.ctrl.agent_messages import Delay

MAX_QUEUE: Final = 8
MAX_COUNT: Final = 10_000
"""Maximum number of repetitions of a verb in one order."""
RUN_WAIT_NS: Final = 1_000_000_000
"""Maximum time, in ns, that ``continue`` waits for the agents' states before its answer."""
MAX_ROUNDS: Final = 4
"""Maximum times that ``next`` sends ranks, left inside the step by settling, on to its end."""


class CommandRules:
    """Handler of orders: begins those not refused, and ends those whose sender stops waiting."""

    def __init__(self, control: ControlState, outbox: Outbox, moves: Moves) -> None:
        self._control, self._outbox, self._moves = control, outbox, moves

    def take(self, order: Order, now: int) -> None:
        """Refuse an order, or begin it."""
        refusal = self._refusal(order, now)
        if refusal is not None:
            self._moves.refuse(order, refusal, now)
        elif order.verb in EDITS:
            self._edit(order, now)
        else:
            self._control.lease.grant(order.by, now, keep=order.keep, period_ns=order.lease_ns)
            self._outbox.pass_lease_on(now)
            if order.verb is Verb.CONTINUE:
                self._outbox.event(asked(order), now, order.by)
                self._continue(order, now)
            else:  # published with the mode it leads to
                self._begin(order, now)
                self._outbox.event(asked(order), now, order.by)

    def _refusal(self, order: Order, now: int) -> facts.Refusal | None:
        control = self._control
        holder = control.lease.holder
        if holder not in (None, RUN, order.by):
            return facts.Refusal(Why.TAKEN, holder=holder or "", ns=control.lease.left_ns(now) or 0)
        if order.verb is Verb.CONTINUE or order.verb in EDITS:
            nobody = order.verb is Verb.DELAY and not control.views
            return facts.Refusal(Why.NO_SUCH_RANK) if nobody else None
        if not control.views:
            return facts.Refusal(Why.NO_RANK_YET)
        if order.verb is Verb.PAUSE:
            return None
        if control.mode is Mode.RUNNING:
            return facts.Refusal(Why.NOTHING_HELD, verb=order.verb.value)
        held = [view for view in control.of_ranks(order.ranks) if view.held]
        if held and len(dying := control.dying(held)) == len(held):
            return facts.Refusal(Why.AT_EXCEPTION, ranks=tuple(dying))
        if held and len(led := control.led(held)) == len(held):
            return facts.Refusal(Why.IN_DEBUGGER, ranks=tuple(led))
        if len(control.queue) >= MAX_QUEUE:
            return facts.Refusal(Why.QUEUE_FULL, number=MAX_QUEUE)
        return None

    def _begin(self, order: Order, now: int) -> None:
        if order.verb is Verb.PAUSE:
            self._pause(order, now)
        elif self._control.mode is Mode.HELD:
            self.advance(order, now)
        else:
            self._control.queue.append(order)

    def _pause(self, order: Order, now: int) -> None:
        control = self._control
        everybody = {view.rank for view in control.views.values()} <= set(order.ranks)
        wanted = control.free & {view.proc for view in control.of_ranks(order.ranks)}
        if wanted:  # some ranks are held, now more or all
            control.pinned.procs |= wanted
            if everybody:
                control.pinned.clear()
            self._moves.hold_free(wanted, now)
        if control.mode is Mode.HELD:
            control.pinned.forever = control.pinned.forever or order.args.hold
            self._outbox.answer(order, now)
            return
        control.current.append(order)
        if control.mode is not Mode.RUNNING:
            return  # the cut that is being settled is the answer
        self._moves.enter(Mode.PAUSING, now)
        control.why = (facts.Paused(),)
        chosen = list(control.views.values()) if everybody else control.of_ranks(order.ranks)
        if not everybody:
            control.free = set(control.views) - {view.proc for view in chosen}
            for proc in control.free:
                self._outbox.permit(control.views[proc], PASS, now)
            control.pinned.procs = {view.proc for view in chosen}
            control.pinned.forever = order.args.hold
        for view in chosen:
            self._outbox.permit(view, HOLD, now)

    def advance(self, order: Order, now: int) -> None:
        """Begin an order that moves held ranks."""
        control = self._control
        held = [view for view in control.of_ranks(order.ranks) if view.held]
        chosen = [v for v in held if not control.dying([v]) and not control.led([v])]
        if not chosen:
            self._outbox.refuse(order, facts.Refusal(Why.NOT_HELD, ranks=order.ranks))
            return
        states = [view.state for view in chosen if view.state is not None]
        granted = permits(order.verb, states, control.by_pipeline())
        if order.verb is Verb.NEXT:
            control.goal = (order.ranks, step_target(states), MAX_ROUNDS)
        control.current.append(order)
        control.stopped_by = []
        control.pinned.procs -= granted.keys()
        control.before = control.states()
        self._moves.enter(Mode.STEPPING, now)
        control.why = (self._count(order),)
        for proc, permit in granted.items():
            view = control.views[proc]
            if permit.n or view.state is None or not permit.holds(view.state.held):
                self._outbox.permit(view, permit, now)

    def _count(self, order: Order) -> facts.Asked:
        known = self._control.again
        if known is None or known[0] is not order:
            known = (order, 0, min(max(order.args.count, 1), MAX_COUNT))
        self._control.again = (order, known[1] + 1, known[2])
        return asked(order, known[1] + 1)

    def _continue(self, order: Order, now: int) -> None:
        control = self._control
        if control.mode is Mode.RUNNING:
            if order.verb is not Verb.UNTIL:  # ``until`` is answered where it stops
                self._outbox.answer(order, now)
            return
        self._moves.run_on(facts.RunsOn(), now, by=order.by)
        if order.verb is Verb.UNTIL:
            return
        control.leaving.append((order, now + RUN_WAIT_NS))
        if control.lease.keep:
            control.lease.drop()  # a script does not stay to give control back

    def _edit(self, order: Order, now: int) -> None:
        """Carry out a verb about breakpoints or delays."""
        control, outbox = self._control, self._outbox
        try:
            fact = _edit(control.breakpoints, order)
        except Refuse as error:
            self._moves.refuse(order, error.refusal, now)
            return
        except UserError as error:
            self._moves.refuse(order, facts.Refusal(Why.INVALID, str(error)), now)
            return
        if order.verb is Verb.BREAKS:
            outbox.answer(order, now)
            return
        if order.verb is Verb.DELAY:
            for view in control.of_ranks(order.ranks):
                outbox.send(view, Delay(outbox.next_id(), order.args.ns))
        else:
            outbox.send_breaks(control.views.values())
        if order.verb is Verb.UNTIL:
            outbox.event(fact, now, order.by)
            control.until.append(order)
            self._continue(order, now)
        else:
            outbox.event(fact, now, order.by, [order])

    def answer_leaving(self, now: int) -> None:
        """Answer ``continue`` once the agents' states say that ranks run."""
        control = self._control
        runs = all(view.fresh and not view.held for view in control.views.values())
        over = control.mode is not Mode.RUNNING or runs
        for order in [order for order, deadline in control.leaving if over or now >= deadline]:
            self._outbox.answer(order, now)
        control.leaving = [one for one in control.leaving if not over and now < one[1]]

    def expire(self, now: int) -> None:
        """Answer senders whose deadline has passed; their orders go on."""
        control = self._control
        for waiting in (control.current, control.queue, control.until):
            for order in [o for o in waiting if o.deadline_ns and now >= o.deadline_ns]:
                waiting.remove(order)
                refusal = facts.Refusal(Why.NO_CUT_YET, ranks=control.under_way())
                if waiting is control.until:
                    refusal = facts.Refusal(Why.NOT_TRUE_YET, order.args.expr)
                self._outbox.refuse(order, refusal, now)

    def end_until(self, now: int) -> None:
        """End each ``until`` that can no longer be reached, as the job has ended."""
        for order in self._control.until:
            self._outbox.refuse(order, facts.Refusal(Why.JOB_ENDED), now)
        self._control.until = []


def asked(order: Order, time: int = 1) -> facts.Asked:
    """Return the fact that an order was given."""
    times = min(max(order.args.count, 1), MAX_COUNT)
    return facts.Asked(order.verb, order.text, order.args.expr, time, times)


def _edit(table: Breakpoints, order: Order) -> facts.Fact:
    """Carry out a verb of EDITS. Raises UserError and Refuse."""
    args, verb = order.args, order.verb
    if verb in (Verb.BREAK, Verb.TBREAK, Verb.UNTIL, Verb.WATCH):
        ranks = order.ranks if order.text not in ("", "all") else None
        kind = parse_watch(args.expr)[0] if verb is Verb.WATCH else ""
        changed = [table.add(facts.Breakpoint(
            0, args.expr, ranks, once=verb in (Verb.TBREAK, Verb.UNTIL), kind=kind, by=order.by,
            keep=order.keep, lease_ns=order.lease_ns,
        ))]  # fmt: skip
    elif verb is Verb.CONDITION:
        changed = [table.change(args.number, args.expr)]
    elif verb is Verb.IGNORE:
        changed = [table.ignore(args.number, args.count)]
    elif verb in (Verb.ENABLE, Verb.DISABLE):
        changed = table.enable(args.numbers, verb is Verb.ENABLE)
    elif verb is Verb.DELETE:
        changed = table.delete(args.numbers)
    elif verb is Verb.DELAY:
        return facts.Delayed(order.ranks, args.ns)
    else:
        changed = []
    return facts.Edited(verb, tuple(changed))
