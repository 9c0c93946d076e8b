"""What processes were told and have not answered yet: told again, as a message may be lost with a
connection or in a full queue.

Doubles do no harm: an agent obeys a PERMIT or RUN only if its id is newer than what it obeyed
before, and BREAKS and DELAY say all there is to know.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from pardbg.control.machine.cut import View
from pardbg.control.machine.permits import HOLD, ONE_OP, Permit
from pardbg.control.machine.state import Ack, Command, ControlState, Effect, Event, Mode, ToAgent
from pardbg.words import duration, ranks_text
from pardbg_agent.wire import LEASE_NS, Msg

AGAIN_NS: Final = 1_000_000_000
"""An agent's thread answers in milliseconds, unless its rank holds the GIL."""
RUN_NS: Final = LEASE_NS + 2 * AGAIN_NS
"""After this long a rank has run on by itself: its lease is over."""
_KINDS: Final = {Msg.PERMIT.value: "gate", Msg.RUN.value: "gate"}
"""A PERMIT or RUN replaces the one before."""


@dataclass(slots=True)
class _Told:
    message: dict[str, Any]
    first_ns: int = 0
    """0: since the next look."""
    last_ns: int = 0
    again: int = 0


class Deliveries:
    """The newest message of each kind to each process, until it is answered."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, _Told]] = {}
        """proc -> kind -> the message."""

    def told(self, proc: str, message: dict[str, Any]) -> ToAgent:
        """Take note of a message that wants an answer, and give it back to be sent."""
        kind = str(message["t"])
        self._told.setdefault(proc, {})[_KINDS.get(kind, kind)] = _Told(message)
        return ToAgent(proc, message)

    def state(self, proc: str, reply_to: int | None) -> None:
        """Note that the process's STATE follows that PERMIT or RUN."""
        told = self._told.get(proc, {}).get("gate")
        if told is not None and reply_to is not None and reply_to >= told.message["id"]:
            del self._told[proc]["gate"]

    def acked(self, proc: str, number: int) -> None:
        """Note that the process answered a message."""
        told = self._told.get(proc, {})
        for kind in [kind for kind, one in told.items() if one.message["id"] == number]:
            del told[kind]

    def gone(self, proc: str) -> None:
        """Forget a process that has ended."""
        self._told.pop(proc, None)

    def due(self, now: int) -> list[tuple[ToAgent, bool]]:
        """Return the messages to resend, and whether it is the first retry."""
        out = []
        waiting = [(p, k, told) for p, kinds in self._told.items() for k, told in kinds.items()]
        for proc, kind, told in waiting:
            told.first_ns = told.first_ns or now
            told.last_ns = told.last_ns or now
            if told.message["t"] == Msg.RUN and now - told.first_ns >= RUN_NS:
                del self._told[proc][kind]
            elif now - told.last_ns >= AGAIN_NS:
                told.last_ns, told.again = now, told.again + 1
                out.append((ToAgent(proc, told.message), told.again == 1))
        return out


class Outbox:
    """Outgoing queue, in order: messages to agents, replies and events."""

    def __init__(self, control: ControlState, first_id: int) -> None:
        self._control, self._next_id = control, first_id
        self.deliveries = Deliveries()
        self._out: list[Effect] = []

    def drain(self) -> list[Effect]:
        """Return everything to be done since the last call, in order."""
        out, self._out = self._out, []
        return out

    def put(self, effect: Effect) -> None:
        """Queue an effect."""
        self._out.append(effect)

    def ack(self, command: Command, error: str | None = None, **data: Any) -> None:
        """Answer a command; with an error, or data."""
        self._out.append(Ack(command.viewer, command.re, error is None, error, data))

    def next_id(self) -> int:
        """Return the id of a message that wants an answer; ids increase."""
        self._next_id += 1
        return self._next_id

    def permit(self, view: View, permit: Permit, now: int) -> None:
        """Hold it, or let it go so far."""
        view.asked, view.runs = self.next_id(), False
        view.settles, view.ahead = permit in (HOLD, ONE_OP), 0
        message = {
            "t": Msg.PERMIT.value, "id": view.asked, "count": permit.count, "n": permit.n,
            "stop": permit.stop, "lease_ns": self._agent_lease(now),
        }  # fmt: skip
        self.tell(view, message)

    def run(self, view: View, now: int) -> None:
        """Open its gate: it runs on, or dies of its exception."""
        self._control.raised.let_die(view.proc, now)
        view.asked, view.runs, view.settles = self.next_id(), True, False
        self.tell(view, {"t": Msg.RUN.value, "id": view.asked})

    def tell(self, view: View, message: dict[str, Any]) -> None:
        """Send what has to be answered: again until it is."""
        self._out.append(self.deliveries.told(view.proc, message))

    def tell_breaks(self, views: Iterable[View]) -> None:
        """Send these ranks all their breakpoints and watches."""
        for view in views:
            breaks = self._control.breakpoints.for_rank(view.rank)
            self.tell(view, {"t": Msg.BREAKS.value, "id": self.next_id(), **breaks})

    def tell_again(self, now: int) -> None:
        """Messages that nobody answered may be lost."""
        silent = []
        for again, first in self.deliveries.due(now):
            if "lease_ns" in again.message:
                again.message["lease_ns"] = self._agent_lease(now)
            self._out.append(again)
            if first and again.proc in self._control.views:
                silent.append((self._control.views[again.proc].rank, str(again.message["t"])))
        if silent:
            ranks = ranks_text(rank for rank, _ in silent)
            kinds = ", ".join(sorted({kind for _, kind in silent}))
            text = f"{ranks} did not answer {kinds} in {duration(AGAIN_NS)}"
            self.event("resend", now, text=f"{text}: said again")

    def pass_lease_on(self, now: int) -> None:
        """Ranks stay held for as long as the holder's lease says."""
        self._control.renewed = now
        if self._control.mode is Mode.RUNNING:
            return
        message = {"t": Msg.LEASE.value, "lease_ns": self._agent_lease(now)}
        self._out += [ToAgent(proc, message) for proc in self._control.views]

    def _agent_lease(self, now: int) -> int:
        left = self._control.lease.left_ns(now)
        return LEASE_NS if left is None else min(left, LEASE_NS)

    def event(self, event: str, now: int, *, by: str = "", text: str = "") -> None:
        """Say for viewers and the recording what happened, with the state of control."""
        said = {"event": event, **self._control.status(now), "by": by, "text": text}
        self._out.append(Event(said))
