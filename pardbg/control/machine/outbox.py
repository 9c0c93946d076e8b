"""Output of the machine: messages to agents, answers to viewers, events."""

from __future__ import annotations

from collections.abc import Iterable

from pardbg.control.machine.cut import View
from pardbg.control.machine.delivery import AGAIN_NS, Request, Send
from pardbg.control.machine.permits import HOLD, ONE_OP, Permit
from pardbg.control.machine.state import Answer, ControlState, Effect, Event, Order
from pardbg.events.control_codes import Mode
from pardbg.events.control_facts import Fact, Refusal, Resent
from pardbg_agent.ctrl import agent_messages as messages
from pardbg_agent.wire import LEASE_NS


class Outbox:
    """Effects of one step, in order."""

    def __init__(self, control: ControlState) -> None:
        self._control = control
        self.effects: list[Effect] = []

    # -- viewers

    def event(
        self, fact: Fact | None, now: int, by: str = "", answers: Iterable[Order] = ()
    ) -> None:
        """Record and publish a fact, and control's state: the answer to these orders."""
        self.effects.append(Event(fact, self._control.status(now), by, tuple(answers)))

    def answer(self, order: Order, now: int) -> None:
        """Answer an order that changed nothing."""
        self.effects.append(Answer(order, self._control.status(now)))

    def refuse(self, order: Order, refusal: Refusal, now: int | None = None) -> None:
        """Refuse an order, or report that it goes on; with the state of control as of ``now``."""
        status = self._control.status(now) if now is not None else None
        self.effects.append(Answer(order, status, refusal))

    # -- agents

    def next_id(self) -> int:
        """Return the id of a message that wants an answer."""
        self._control.next_id += 1
        return self._control.next_id

    def permit(self, view: View, permit: Permit, now: int) -> None:
        """Hold a rank, or let it go as far as the permit allows."""
        view.asked, view.runs = self.next_id(), False
        view.settles, view.ahead = permit in (HOLD, ONE_OP), 0
        lease_ns = self._agent_lease(now)
        self.send(view, messages.Permit(view.asked, permit.count, permit.n, permit.stop, lease_ns))

    def run(self, view: View, now: int) -> None:
        """Open a rank's gate: it runs on, or dies of its exception."""
        self._control.raised.let_die(view.proc, now)
        view.asked, view.runs, view.settles = self.next_id(), True, False
        self.send(view, messages.Run(view.asked))

    def send(self, view: View, message: Request) -> None:
        """Send a message that has to be answered: again until it is."""
        self.effects.append(self._control.deliveries.add(view.proc, message))

    def send_breaks(self, views: Iterable[View]) -> None:
        """Send these ranks all their breakpoints and watches."""
        for view in views:
            self.send(view, self._control.breakpoints.for_rank(view.rank, self.next_id()))

    def send_again(self, now: int) -> None:
        """Repeat unanswered messages, which may be lost."""
        silent = []
        for again, first in self._control.deliveries.due(now, self._agent_lease(now)):
            self.effects.append(again)
            if first and again.proc in self._control.views:
                silent.append((self._control.views[again.proc].rank, again.message.TAG))
        if silent:
            ranks = tuple(sorted({rank for rank, _ in silent}))
            kinds = tuple(sorted({kind for _, kind in silent}))
            self.event(Resent(ranks, kinds, AGAIN_NS), now)

    def pass_lease_on(self, now: int) -> None:
        """Send the held ranks the time left of the holder's lease."""
        self._control.renewed = now
        if self._control.mode is Mode.RUNNING:
            return
        lease = messages.Lease(self._agent_lease(now))
        self.effects += [Send(proc, lease) for proc in self._control.views]

    def _agent_lease(self, now: int) -> int:
        left = self._control.lease.left_ns(now)
        return LEASE_NS if left is None else min(left, LEASE_NS)
