"""Messages that processes have not answered yet: sent again, as a message may be lost with a
connection or in a full queue.

Duplicates do no harm: an agent obeys a Permit or Run only if its id is newer than the last obeyed
one, and SetBreaks and Delay are complete in themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pardbg_agent.ctrl import agent_messages as messages
from pardbg_agent.wire import LEASE_NS

AGAIN_NS: Final = 1_000_000_000
"""Time, in ns, until a repetition: an agent answers in ms, unless its rank holds the GIL."""
RUN_NS: Final = LEASE_NS + 2 * AGAIN_NS
"""Time, in ns, after which a rank has run on by itself: its lease is over."""


@dataclass(frozen=True, slots=True)
class Send:
    """CTRL message to one process."""

    proc: str
    message: messages.ToAgent


Request = messages.Permit | messages.Run | messages.SetBreaks | messages.Delay
"""Messages that are repeated until they are answered."""


@dataclass(slots=True)
class _Sent:
    message: Request
    first_ns: int = 0
    """Time of the first sending; 0: since the last check."""
    last_ns: int = 0
    again: int = 0


class Deliveries:
    """Newest unanswered message of each kind and process; Permit and Run replace each other."""

    def __init__(self) -> None:
        self._sent: dict[str, dict[type, _Sent]] = {}
        """Process -> kind -> message."""

    def add(self, proc: str, message: Request) -> Send:
        """Note a message that wants an answer, and return it to be sent."""
        kind = messages.Permit if isinstance(message, messages.Run) else type(message)
        self._sent.setdefault(proc, {})[kind] = _Sent(message)
        return Send(proc, message)

    def state(self, proc: str, reply_to: int | None) -> None:
        """Note that the process's State follows the Permit or Run ``reply_to``."""
        sent = self._sent.get(proc, {})
        gate = sent.get(messages.Permit)
        if gate is not None and reply_to is not None and reply_to >= gate.message.id:
            del sent[messages.Permit]

    def acked(self, proc: str, number: int) -> None:
        """Note that the process answered a message."""
        sent = self._sent.get(proc, {})
        for kind in [kind for kind, one in sent.items() if one.message.id == number]:
            del sent[kind]

    def gone(self, proc: str) -> None:
        """Forget a process that has ended."""
        self._sent.pop(proc, None)

    def due(self, now: int, lease_ns: int) -> list[tuple[Send, bool]]:
        """Return the messages to resend, and whether it is the first retry; a Permit with the
        present lease."""
        out = []
        for proc, kind, sent in [(p, k, s) for p, of in self._sent.items() for k, s in of.items()]:
            sent.first_ns, sent.last_ns = sent.first_ns or now, sent.last_ns or now
            if isinstance(sent.message, messages.Run) and now - sent.first_ns >= RUN_NS:
                del self._sent[proc][kind]
            elif now - sent.last_ns >= AGAIN_NS:
                sent.last_ns, sent.again = now, sent.again + 1
                if isinstance(sent.message, messages.Permit):
                    sent.message = replace(sent.message, lease_ns=lease_ns)
                out.append((Send(proc, sent.message), sent.again == 1))
        return out
