"""State machine of control: only ``step`` changes a ControlState.

No I/O and no clock of its own: every input carries ``now`` (hub monotonic ns). An order is answered
when its new cut is reached, or when it is clear that the ranks run on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pardbg.control.machine.breakpoints import Refuse
from pardbg.control.machine.command_rules import CommandRules
from pardbg.control.machine.cut import View
from pardbg.control.machine.holding import RUN
from pardbg.control.machine.moves import Moves, Settling
from pardbg.control.machine.outbox import Outbox
from pardbg.control.machine.permits import HOLD, PASS
from pardbg.control.machine.state import ControlState, Effect, Order
from pardbg.errors import UserError
from pardbg.events import control_facts as facts
from pardbg.events.control_codes import Gone, Mode, Verb
from pardbg_agent.ctrl.agent_messages import State
from pardbg_agent.wire import Gate


@dataclass(frozen=True, slots=True)
class Learned:
    """Members and timeouts (ns) of groups and ranks of pipelines, from definitions."""

    groups: Mapping[str, tuple[int, ...]]
    timeouts: Mapping[str, int]
    pipelines: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Restored:
    """Input: breakpoints of a hub that was killed; their numbers are not used again."""

    breaks: Sequence[facts.Breakpoint]
    number: int
    """Highest number that a breakpoint ever had."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Input: a process said hello (again), or its rank became known."""

    proc: str
    rank: int
    now: int


@dataclass(frozen=True, slots=True)
class Departed:
    """Input: a process ended, was lost or killed."""

    proc: str
    now: int
    how: Gone = Gone.ENDED


@dataclass(frozen=True, slots=True)
class Reported:
    """Input: State of an agent."""

    state: State
    now: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Input: a process answered the message of that number."""

    proc: str
    number: int


@dataclass(frozen=True, slots=True)
class Ordered:
    """Input: control verb of a viewer."""

    order: Order
    now: int


@dataclass(frozen=True, slots=True)
class TakenOver:
    """Input: a viewer takes control; the order is answered."""

    order: Order
    now: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Input: a viewer leaves or is lost: its breakpoints go, ranks run on if it had control."""

    viewer: str
    now: int
    disconnected: bool = False


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Input: a viewer of the previous hub did not come back: its breakpoints go."""

    viewer: str
    now: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """Input: a viewer renews the lease: its own, or the run's while the run itself holds a rank."""

    viewer: str
    now: int
    lease_ns: int = 0
    """New length of the lease, in ns; 0: as before."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Input: time passed."""

    now: int
    computing: Mapping[str, int] | None = None
    """Process -> begin of its current pipeline action (its clock); None: as before."""


Input = (
    Learned | Restored | Joined | Departed | Reported | Acknowledged | Ordered | TakenOver | GivenUp
    | Forgotten | Renewed | Ticked
)  # fmt: skip


RENEW_NS: Final = 2_000_000_000


def step(control: ControlState, given: Input) -> tuple[ControlState, list[Effect]]:
    """Return the state after an input, and the effects to carry out, in order. The given state is
    changed in place: the caller continues with the returned one alone. Call with Ticked often
    (every 20 ms while ``active``)."""
    parts = _Parts(control)
    _HANDLERS[type(given)](parts, given)
    return control, parts.outbox.effects


class Machine:
    """State of one run's control, and effects that wait to be carried out."""

    def __init__(self, first_id: int = 1) -> None:
        self.control = ControlState(first_id)
        self._effects: list[Effect] = []

    def take(self, given: Input) -> None:
        self.control, effects = step(self.control, given)
        self._effects += effects

    def drain(self) -> list[Effect]:
        """Return the effects since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects


class _Parts:
    def __init__(self, control: ControlState) -> None:
        self.control, self.outbox = control, Outbox(control)
        self.moves = Moves(control, self.outbox)
        self.commands = CommandRules(control, self.outbox, self.moves)

    def learned(self, given: Learned) -> None:
        control = self.control
        control.groups, control.timeouts = dict(given.groups), dict(given.timeouts)
        control.pipelines = dict(given.pipelines)

    def restored(self, given: Restored) -> None:
        table = self.control.breakpoints
        table.skip(given.number)
        self.control.restored = True
        for info in given.breaks:
            try:
                table.restore(info)
            except (UserError, Refuse):
                continue  # the hub reports the breakpoints that are set

    # -- agents

    def joined(self, given: Joined) -> None:
        control, now = self.control, given.now
        known = control.views.get(given.proc)
        if known is not None and given.rank < 0 <= known.rank:  # a launcher: never at a gate
            del control.views[given.proc]
            control.deliveries.gone(given.proc)
            self._settle(now)
            return
        if known is not None:
            self._rank_known(known, given.rank)
            return
        view = control.views[given.proc] = View(given.proc, given.rank)
        control.departed.discard(given.rank)
        # A previous hub may have sent it others.
        if control.breakpoints or control.restored:
            self.outbox.send_breaks([view])
        if control.mode is Mode.RUNNING:
            return
        if control.free:
            control.free.add(given.proc)
            self.outbox.permit(view, PASS, now)
            return
        self.outbox.permit(view, HOLD, now)
        if control.mode is Mode.HELD:
            self.moves.enter(Mode.PAUSING, now)
        fact = facts.Attached(given.rank)
        control.why = (fact,)
        self.outbox.event(fact, now)

    def departed(self, given: Departed) -> None:
        control, now = self.control, given.now
        view = control.views.pop(given.proc, None)
        if view is None:
            return
        control.departed.add(view.rank)
        control.deliveries.gone(given.proc)
        control.raised.let_die(given.proc, now)
        if control.mode is not Mode.RUNNING:
            self.outbox.event(facts.Detached(view.rank, given.how), now)
            if not control.views:
                self.moves.run_on(facts.RunsOn(no_rank_left=True), now)
            elif control.lease.holder == RUN and not control.raised.procs:
                self.moves.run_on(facts.RunsOn(no_exception_left=True), now)
        if not control.views:
            self.commands.end_until(now)
        self._settle(now)

    def reported(self, given: Reported) -> None:
        """Take a State, unless a newer one is known. Its consequences follow at the next Ticked,
        once for all States by then."""
        state, now, control = given.state, given.now, self.control
        view = control.views.get(state.proc)
        if view is None or (view.state is not None and state.serial <= view.state.serial):
            return
        was_led = view.state is not None and view.state.led
        view.state, view.heard_ns = state, now
        control.deliveries.state(state.proc, state.reply_to)
        if state.rank >= 0:
            self._rank_known(view, state.rank)
        control.breakpoints.count(state.proc, state.hits)
        if state.led or was_led:
            self.moves.in_debugger(view, state, was_led, now)
        if state.hit is not None and state.held:
            self.moves.at_breakpoint(view, state, state.hit, now)
        elif state.held & Gate.EXCEPTION:
            self.moves.at_exception(view, state, now)
        elif state.held and view.fresh and control.mode is Mode.RUNNING:
            self.moves.stray(facts.Stray(view.rank), view, now)

    def acknowledged(self, given: Acknowledged) -> None:
        self.control.deliveries.acked(given.proc, given.number)

    # -- viewers

    def ordered(self, given: Ordered) -> None:
        self.commands.take(given.order, given.now)
        self._settle(given.now)

    def taken_over(self, given: TakenOver) -> None:
        """Transfer control to a viewer; ranks stay as they are."""
        viewer, before = given.order.by, self.control.lease.holder
        self.control.lease.grant(viewer, given.now)
        self.outbox.pass_lease_on(given.now)
        fact = facts.Taken(None if before == viewer else before)
        self.outbox.event(fact, given.now, viewer, [given.order])

    def given_up(self, given: GivenUp) -> None:
        if self.control.lease.holder == given.viewer:
            self.control.lease.drop()
            held = self.control.mode is not Mode.RUNNING
            fact = facts.Left(given.viewer, given.disconnected, held)
            self.moves.run_on(fact, given.now, by=given.viewer)
        self.forgotten(Forgotten(given.viewer, given.now))

    def forgotten(self, given: Forgotten) -> None:
        gone = tuple(self.control.breakpoints.forget(given.viewer))
        if gone:
            self.outbox.send_breaks(self.control.views.values())
            fact = facts.Edited(Verb.DELETE, gone, viewer_gone=given.viewer)
            self.outbox.event(fact, given.now, given.viewer)

    def renewed(self, given: Renewed) -> None:
        lease = self.control.lease
        holder = RUN if lease.holder == RUN else given.viewer
        if given.lease_ns and lease.holder == holder != RUN:
            lease.grant(holder, given.now, keep=lease.keep, period_ns=given.lease_ns)
        if lease.renew(holder, given.now):
            self.outbox.pass_lease_on(given.now)

    # -- time

    def ticked(self, given: Ticked) -> None:
        if given.computing is not None:
            for view in self.control.views.values():
                view.computing_since_ns = given.computing.get(view.proc, 0)
        self._settle(given.now)

    def _settle(self, now: int) -> None:
        control = self.control
        if control.lease.lapsed(now):
            fact = facts.Lapsed(control.lease.holder or "")
            control.lease.drop()
            if control.mode is not Mode.RUNNING:
                self.moves.run_on(fact, now)
        self.commands.answer_leaving(now)
        self.moves.hold_loose(now)
        settling = Settling(control, self.outbox, self.moves, self.commands.advance)
        if control.settling:
            settling.settle(now)
        elif control.mode is Mode.HELD:
            settling.watch_held(now)
        if control.mode is not Mode.RUNNING and now - control.renewed >= RENEW_NS:
            self.outbox.pass_lease_on(now)
            self.outbox.event(None, now)  # the time left of the lease and of the timeouts
        self.outbox.send_again(now)
        self.moves.miss_silent(now)
        self.commands.expire(now)

    def _rank_known(self, view: View, rank: int) -> None:
        """Note the rank that a process reports; a new rank may have other breakpoints."""
        if view.rank != rank:
            view.rank = rank
            if self.control.breakpoints:
                self.outbox.send_breaks([view])


_HANDLERS: Final[dict[type, Callable[..., None]]] = {
    Learned: _Parts.learned, Restored: _Parts.restored, Joined: _Parts.joined,
    Departed: _Parts.departed, Reported: _Parts.reported, Acknowledged: _Parts.acknowledged,
    Ordered: _Parts.ordered, TakenOver: _Parts.taken_over, GivenUp: _Parts.given_up,
    Forgotten: _Parts.forgotten, Renewed: _Parts.renewed, Ticked: _Parts.ticked,
}  # fmt: skip
