"""What the hub asks of a rank: permits, the lease, breakpoints, stacks, a look into its frames; and
STATE, what the rank reports while control is active."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pardbg_agent import clock, wire
from pardbg_agent.control import evaluate, inspect
from pardbg_agent.control.breaks import breaks_of
from pardbg_agent.control.evaluate import TimeLimit
from pardbg_agent.control.watches import watches_of
from pardbg_agent.wire import Msg
from pardbg_agent.words import duration

if TYPE_CHECKING:
    from pardbg_agent.watched_rank import Core

MAX_ISSUED: Final = 64
"""Open ops whose places are told."""


class Requests:
    """Obeys the hub's messages, in the agent's thread. ``say`` sends a message back; ``wake`` has
    the thread call ``answer``."""

    def __init__(
        self, core: Core, control: ControlState, say: Callable[[dict[str, Any]], None],
        wake: Callable[[], None],
    ) -> None:  # fmt: skip
        self._core, self._control, self._say, self._wake = core, control, say, wake
        self._answers: collections.deque[tuple[dict[str, Any], dict[str, Any]]] = (
            collections.deque()
        )
        """What held threads found, to be sent from here."""
        self.limit = TimeLimit()
        """Time limit of what a person has the held thread run."""
        self._obeyed = -1
        """Id of the newest PERMIT or RUN that was obeyed."""

    def new_hub(self) -> None:
        self._obeyed = -1

    def answer(self) -> None:
        while self._answers:
            message, fields = self._answers.popleft()
            self._ack(message, **fields)

    def _permit(self, message: dict[str, Any]) -> None:
        count, n, stop = int(message["count"]), int(message["n"]), int(message["stop"])
        if self._is_new(message):
            lease_ns = int(message.get("lease_ns", wire.LEASE_NS))
            self._core.gate.permit(message.get("id"), count, n, stop, lease_ns)
        self._control.begin()

    def _go(self, message: dict[str, Any]) -> None:
        if self._is_new(message):
            self._core.gate.run(message.get("id"))
        self._control.begin()  # one more state says so

    def _is_new(self, message: dict[str, Any]) -> bool:
        """The hub sends a PERMIT or RUN again until a STATE follows it: obeyed once, told again."""
        number = message.get("id")
        if not isinstance(number, int):
            return True
        new, self._obeyed = number > self._obeyed, max(number, self._obeyed)
        return new

    def _lease(self, message: dict[str, Any]) -> None:
        self._core.gate.lease(int(message["lease_ns"]))

    def _ping(self, message: dict[str, Any]) -> None:
        self._say({"t": Msg.PONG.value, "re": message.get("id"), "t_ns": clock.now_ns()})

    def _where(self, message: dict[str, Any]) -> None:
        native = self._core.native
        standing = None if native is None else native.standing()
        found = inspect.stacks(threading.get_ident(), self._core.gate.raised(), standing)
        self._ack(message, stacks=found, issued=self._issued(), t_ns=clock.now_ns())

    def _issued(self) -> list[list[Any]]:
        """[[when, group, seq, file, line, function], ...] of open asynchronous ops; of a message
        without its number."""
        found = []
        for group, _, seq, peer, *_, t0 in self._core.ops.snapshot()["open"][:MAX_ISSUED]:
            site = self._core.call_site(t0)
            if site is not None:
                found.append([t0, group, seq if peer is None else -1, *site])
        return found

    def _level(self, message: dict[str, Any]) -> None:
        self._core.set_level(int(message["level"]))
        self._ack(message, level=self._core.level)

    def _breaks(self, message: dict[str, Any]) -> None:
        try:
            watches = watches_of(message.get("watches"))
            self._core.gate.set_breaks(breaks_of(message.get("breaks")), watches)
            self._core.watch(watches)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            self._ack(message, ok=False, error=f"breakpoints refused: {error}")
        else:
            self._ack(message, unknown=list(watches.unknown))

    def _delay(self, message: dict[str, Any]) -> None:
        self._core.gate.set_delay(int(message["ns"]))
        self._ack(message)

    def _ask(self, message: dict[str, Any]) -> None:
        """Something to be looked at in the held thread; the answer comes when that thread has it.
        Which of the hub's questions make sense is decided here, where the code would run."""
        kind, expr = str(message.get("kind")), str(message.get("expr") or "")
        run = self._core.run
        if kind != "list" and not (run is not None and run.allow_eval):
            refusal = "evaluation is off: start the job with --allow-eval"
            self._ack(message, ok=False, error=refusal)
            return
        number = message.get("frame")

        def work(innermost: Any) -> None:
            try:
                found = evaluate.answer(
                    kind,
                    expr,
                    number if isinstance(number, int) else 0,
                    innermost,
                    self._core.optimizers(),
                )
                self._answers.append((message, {**found, "ok": True}))
            except Exception as error:  # noqa: BLE001 - the training's thread must come back
                self._answers.append((message, {"ok": False, "error": str(error)[:500]}))

        def limited(innermost: Any) -> None:
            if not self.limit.run(lambda: work(innermost)):
                error = f"ended: it took more than {duration(self.limit.limit_ns)}"
                self._answers.append((message, {"ok": False, "error": error}))
            self._wake()

        if not self._core.gate.ask(limited):
            error = "it is not held at a gate: it runs, or waits in an op"
            self._ack(message, ok=False, error=error)

    def _ack(self, message: dict[str, Any], **fields: Any) -> None:
        self._say({"t": Msg.ACK.value, "re": message.get("id"), "ok": True} | fields)

    HANDLERS: Final[dict[Any, Callable[[Requests, dict[str, Any]], None]]] = {
        Msg.PERMIT.value: _permit,
        Msg.RUN.value: _go,
        Msg.LEASE.value: _lease,
        Msg.PING.value: _ping,
        Msg.WHERE.value: _where,
        Msg.LEVEL.value: _level,
        Msg.BREAKS.value: _breaks,
        Msg.DELAY.value: _delay,
        Msg.ASK.value: _ask,
    }


# -- STATE
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
