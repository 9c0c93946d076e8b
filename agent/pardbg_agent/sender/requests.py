"""Requests of the hub to a rank: permits, the lease, breakpoints, stacks, evaluation; and State,
the rank's report while control is active."""

from __future__ import annotations

import collections
import importlib.util
import platform
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pardbg_agent import clock
from pardbg_agent.control import evaluate, inspect
from pardbg_agent.control.breaks import breaks_of
from pardbg_agent.control.evaluate import TimeLimit
from pardbg_agent.control.watches import watches_of
from pardbg_agent.ctrl import agent_messages as messages
from pardbg_agent.wire import Gate

if TYPE_CHECKING:
    from pardbg_agent.control.debugger import Debugger
    from pardbg_agent.watched_rank import Core

DAP: Final = "dap"
"""Kind of Ask that waits for a debugger's client."""
MAX_ISSUED: Final = 64
"""Maximum number of open ops whose call sites are reported."""


class Requests:
    """Handler of the hub's requests; ``say`` replies, ``wake`` has the thread call ``answer``."""

    def __init__(
        self, core: Core, control: StateReports, say: Callable[[messages.FromAgent], None],
        wake: Callable[[], None],
    ) -> None:  # fmt: skip
        self._core, self._control, self._say, self._wake = core, control, say, wake
        self._answers: collections.deque[messages.Evaluated] = collections.deque()
        """Answers of held threads, to be sent by the agent's thread."""
        self.limit = TimeLimit()
        """Time limit of code that a person has the held thread run."""
        self._debugger: Debugger | None = None
        self._obeyed = -1
        """Id of the newest Permit or Run that was obeyed."""

    def new_hub(self) -> None:
        self._obeyed = -1

    def answer(self) -> None:
        while self._answers:
            self._say(self._answers.popleft())

    def _permit(self, asked: messages.Permit) -> None:
        if self._is_new(asked.id):
            self._core.gate.permit(asked.id, asked.count, asked.n, asked.stop, asked.lease_ns)
        self._control.begin()

    def _run(self, asked: messages.Run) -> None:
        if self._is_new(asked.id):
            self._core.gate.run(asked.id)
        self._control.begin()  # one more State shows it

    def _is_new(self, number: int) -> bool:
        """Return whether to obey: the hub repeats a Permit or Run until a State follows it."""
        new, self._obeyed = number > self._obeyed, max(number, self._obeyed)
        return new

    def _lease(self, asked: messages.Lease) -> None:
        self._core.gate.lease(asked.lease_ns)

    def _ping(self, asked: messages.Ping) -> None:
        self._say(messages.Pong(asked.id, clock.now_ns()))

    def _where(self, asked: messages.Where) -> None:
        native = self._core.native
        standing = None if native is None else native.standing()
        found = inspect.stacks(threading.get_ident(), self._core.gate.raised(), standing)
        self._say(messages.Stacks(asked.id, found, tuple(self._issued())))

    def _issued(self) -> list[messages.IssuedAt]:
        """Return the known call sites of open asynchronous ops."""
        found = []
        for op in self._core.ops.snapshot().open[:MAX_ISSUED]:
            site = self._core.call_site(op.since_ns)
            if site is not None:
                seq = op.seq if op.peer is None else -1
                found.append((op.since_ns, op.group, seq, *site))
        return found

    def _level(self, asked: messages.SetLevel) -> None:
        self._core.set_level(asked.level)
        self._say(messages.Done(asked.id))

    def _breaks(self, asked: messages.SetBreaks) -> None:
        try:
            watches = watches_of(asked.watches)
            self._core.gate.set_breaks(breaks_of(asked.breaks), watches)
            self._core.watch(watches)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            self._say(messages.Done(asked.id, f"breakpoints refused: {error}"))
        else:
            self._say(messages.Done(asked.id, unknown=watches.unknown))

    def _delay(self, asked: messages.Delay) -> None:
        self._core.gate.set_delay(asked.ns)
        self._say(messages.Done(asked.id))

    def _ask(self, asked: messages.Ask) -> None:
        """Have the held thread evaluate; the answer comes when that thread has it. The agent
        decides which of the hub's questions are valid, as the code runs here."""
        run = self._core.run
        if asked.kind not in evaluate.SOURCE and not (run is not None and run.allow_eval):
            self._say(messages.Evaluated(asked.id, messages.NoAnswer.EVAL_OFF))
            return
        if asked.kind == DAP:
            self._say(replace(self._await_client(), re=asked.id))
            return

        def work(innermost: Any) -> None:
            try:
                found = evaluate.answer(
                    asked.kind, asked.expr, asked.frame, innermost, self._core.optimizers(),
                    asked.every,
                )  # fmt: skip
                self._answers.append(replace(found, re=asked.id))
            except Exception as error:  # noqa: BLE001 - the training's thread must come back
                self._answers.append(
                    messages.Evaluated(asked.id, messages.NoAnswer.FAILED, str(error)[:500])
                )

        def limited(innermost: Any) -> None:
            if not self.limit.run(lambda: work(innermost)):
                self._answers.append(messages.Evaluated(asked.id, messages.NoAnswer.TOO_LONG))
            self._wake()

        if not self._core.gate.ask(limited):
            self._say(messages.Evaluated(asked.id, messages.NoAnswer.NOT_HELD))

    def _await_client(self) -> messages.Evaluated:
        gate, known = self._core.gate, self._debugger
        if known is None or not known.waits:
            held = gate.state().held
            if not held or held & Gate.EXCEPTION:
                why = messages.NoAnswer.NO_LINE if held else messages.NoAnswer.NOT_HELD
                return messages.Evaluated(refusal=why)
            if importlib.util.find_spec("debugpy") is None:
                return messages.Evaluated(refusal=messages.NoAnswer.NO_DEBUGPY, text=sys.executable)
            from pardbg_agent.control.debugger import Debugger

            known = self._debugger = Debugger(gate, known)
            known.start()
        return messages.Evaluated(text=platform.node(), port=known.port)

    HANDLERS: Final[dict[type, Callable[..., None]]] = {
        messages.Permit: _permit, messages.Run: _run, messages.Lease: _lease, messages.Ping: _ping,
        messages.Where: _where, messages.SetLevel: _level, messages.SetBreaks: _breaks,
        messages.Delay: _delay, messages.Ask: _ask,
    }  # fmt: skip


# -- STATE
REPEAT_NS: Final = 1_000_000_000
"""Interval at which an unchanged STATE is repeated."""


class StateReports:
    """Reports of State: when one is due, and its contents."""

    def __init__(self, core: Core) -> None:
        self.active = False
        """Whether control is active: from the first Permit to the State that the rank runs on."""
        self.rests = False
        """Whether the last State showed the rank held, with no op open."""
        self._core = core
        self._serial = 0
        self._sent: tuple[Any, ...] = ()
        self._sent_ns = 0

    def begin(self) -> None:
        self.active = True
        self.changed()

    def changed(self) -> None:
        """Make a State due at once."""
        self._sent, self.rests = (), False

    def next_state(self) -> messages.State | None:
        """Return the State if something changed since the last one, or a repetition is due."""
        now, key = clock.now_ns(), self._key()
        if key == self._sent and now - self._sent_ns < REPEAT_NS:
            return None
        self._sent, self._sent_ns = key, now
        self._serial += 1
        state = self._consistent()
        self.active = state.closed
        self.rests = bool(state.held) and not state.open
        return state

    def _key(self) -> tuple[Any, ...]:
        core = self._core
        done = core.pipeline.done
        stands = core.gate.stands()
        return core.gate.revision, stands, core.ops.revision, core.step, id(done), len(done)

    def _consistent(self) -> messages.State:
        """Read gate, then ops, until the gate stays: *held* includes each op issued before."""
        core = self._core
        for _ in range(100):
            gate = core.gate.state()
            ops = core.ops.snapshot()
            done, plan = tuple(core.pipeline.done), tuple(core.pipeline.plan)
            if core.gate.state() == gate:
                break
        number, found = gate.hit or (None, "")
        return messages.State(
            core.identity.rank, self._serial, gate.reply_to, gate.held, gate.since_ns, gate.next,
            core.step, ops.open, ops.issued, ops.p2p, done, plan, gate.closed, number, found,
            {**core.gate.breaks.hits(), **core.gate.watches.hits}, gate.led,
        )  # fmt: skip
