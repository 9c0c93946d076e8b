"""STATE: what the agent reports to the hub while control is active."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pardbg_agent import clock
from pardbg_agent.wire import Msg

if TYPE_CHECKING:
    from pardbg_agent.watched_rank import Core

REPEAT_NS: Final = 1_000_000_000
"""Interval at which an unchanged STATE is repeated."""


class ControlState:
    """When a STATE is due, and what it says."""

    def __init__(self, core: Core) -> None:
        self.active = False
        """From the first PERMIT to the state that says that the rank runs on."""
        self.rests = False
        """The last state said that it is held, and has no op open."""
        self._core = core
        self._serial = 0
        self._sent: tuple[Any, ...] = ()
        self._sent_ns = 0

    def begin(self) -> None:
        self.active = True
        self.changed()

    def changed(self) -> None:
        """Send one whatever the rest says."""
        self._sent, self.rests = (), False

    def next_state(self) -> dict[str, Any] | None:
        """Return the STATE message if something changed since the last one, or it is time to repeat
        it."""
        core, now = self._core, clock.now_ns()
        key = self._key()
        if key == self._sent and now - self._sent_ns < REPEAT_NS:
            return None
        self._sent, self._sent_ns = key, now
        state = self._consistent()
        self.active = state["closed"]
        self.rests = bool(state["held"]) and not state["open"]
        self._serial += 1
        rank = core.identity.rank
        return {"t": Msg.STATE.value, "sn": self._serial, "rank": rank, "t_ns": now, **state}

    def _key(self) -> tuple[Any, ...]:
        core = self._core
        done = core.pipeline.done
        return core.gate.revision, core.ops.revision, core.step, id(done), len(done)

    def _consistent(self) -> dict[str, Any]:
        """Gate first, ops after, again if the gate moved between: a state that says *held* has
        every op that was issued before the hold."""
        core = self._core
        for _ in range(100):
            gate = core.gate.state()
            ops = core.ops.snapshot()
            done, plan = list(core.pipeline.done), list(core.pipeline.plan)
            if core.gate.state() == gate:
                break
        return {
            "re": gate.reply_to, "held": gate.held, "held_since_ns": gate.since_ns,
            "next": gate.next, "closed": gate.closed, "step": core.step, **ops,
            "done": done, "plan": plan,
            "hit": gate.hit, "hits": {str(n): c for n, c in _hits(core).items()},
        }  # fmt: skip


def _hits(core: Core) -> dict[int, int]:
    """number -> matches so far, of breakpoints and watches."""
    return {**core.gate.breaks.hits(), **core.gate.watches.hits}
