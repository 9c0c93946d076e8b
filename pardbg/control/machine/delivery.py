"""What processes were told and have not answered yet: told again, as a message may be lost with a
connection or in a full queue.

Doubles do no harm: an agent obeys a PERMIT or RUN only if its id is newer than what it obeyed
before, and BREAKS and DELAY say all there is to know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pardbg.control.machine.effects import ToAgent
from pardbg_agent.wire import LEASE_NS, Msg

AGAIN_NS: Final = 1_000_000_000
"""An agent's thread answers in milliseconds, whatever the rank does; not while a rank holds its
GIL."""
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
        """The process's STATE follows that PERMIT or RUN."""
        told = self._told.get(proc, {}).get("gate")
        if told is not None and reply_to is not None and reply_to >= told.message["id"]:
            del self._told[proc]["gate"]

    def acked(self, proc: str, number: int) -> None:
        """The process answered a message."""
        told = self._told.get(proc, {})
        for kind in [kind for kind, one in told.items() if one.message["id"] == number]:
            del told[kind]

    def gone(self, proc: str) -> None:
        """The process answers nobody any more."""
        self._told.pop(proc, None)

    def due(self, now: int) -> list[tuple[ToAgent, bool]]:
        """What is to be sent again, and whether that is the first time."""
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
