"""Agent of one rank: everything that hooks use."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final, SupportsIndex

from pardbg_agent import clock, identity, wire
from pardbg_agent.control.gate import GateControl, nothing
from pardbg_agent.control.watches import LATER, NO_WATCHES, STEP, Medians, Watches
from pardbg_agent.ctrl.agent_messages import Watch
from pardbg_agent.defs import Defs
from pardbg_agent.guard import Guard
from pardbg_agent.op_table import Call, OpTable, Sums, Unrecorded
from pardbg_agent.ring import Ring
from pardbg_agent.settings import FULL, OFF, RunSettings, budget_from_env, complain, level_from_env
from pardbg_agent.wire import LEVELS, DefKind, Flag, Gate, Kind, Lane
from pardbg_agent.words import percent, took

_HOST: Final = "cpu"
BUDGET_STEPS: Final = 5
"""Number of steps in a row over the budget before the level is lowered."""
MAX_REFUSED: Final = 64
"""Maximum number of invalid arguments that are complained about."""


def _none(done: list[str]) -> None:
    """Add no actions: none ran without Python."""


class Progress:
    """Progress of a schedule's step, for State: planned and finished compute actions, text form."""

    def __init__(self) -> None:
        self.begin([])

    def begin(self, plan: list[str]) -> None:
        """Begin a schedule's step, with no action done yet."""
        self.pull: Callable[[list[str]], None] = _none
        """Adds actions that ran without Python to the finished ones."""
        self.plan, self._done = plan, list[str]()

    @property
    def done(self) -> list[str]:
        self.pull(self._done)
        return self._done


class Core:
    """Everything hooks need. ``record`` and ``record_f`` are the ring's closures."""

    out_of_memory: Callable[[BaseException], None] | None = None
    """Reports the allocation behind an uncaught torch.OutOfMemoryError. Set by the hooks."""
    loader: Any = None
    """Weak reference to the data loader's iterator that the program used last, if any."""
    device: Any = None
    """Device timer (hooks.device.device_records), if tensors of this rank are on a device that can
    be timed."""

    def __init__(
        self, ring: Ring, defs: Defs, who: identity.Identity, run: RunSettings | None
    ) -> None:
        self.run = run
        """Settings of the run; None: the agent is off in this process."""
        self.identity = who
        self.ring, self.defs = ring, defs
        self.status = ring.status
        self.record, self.record_f = ring.record, ring.record_f
        self.span_ended: Callable[..., None] = ring.span_ended
        self.guard = Guard(lambda where, text, t: defs.put(
            DefKind.ERROR, where=where, text=text, t_ns=t))  # fmt: skip
        self.step = 0
        """Number of the current training step."""
        self.explicit_steps = False
        """Whether the program calls pardbg_agent.step(): hooks then stop detecting step ends."""
        self.hook_ns = self.hook_calls = 0
        """Cost of the hooks, added by themselves (without time held at a gate)."""
        self.loss: float | None = None
        """Newest known loss, for breakpoints."""
        self.level = level_from_env() if run is not None else OFF
        self.unrecorded = Unrecorded(lambda gaps: defs.identify(unrecorded=gaps), self.level < FULL)
        self._refused: set[str] = set()
        """Invalid arguments of the program that were complained about."""
        self.pipeline = Progress()
        self.pollers: list[Callable[[], bool | None]] = []
        """Functions that poll for completed ops (Work.is_completed) without blocking; they return
        whether there were any, which sets how soon the agent's thread calls them again."""
        self.ops: OpTable = OpTable(ring.status.op, ring.status.newest_op)
        self.native: Any = None
        """C++ table (hooks.ops.native_way.NativeTable) if ops are hooked there: then also
        ``ops``."""
        self.changed: Callable[[], None] = nothing
        """Callback for mirrors of step, level and watches, after each change of these."""
        self.gate = GateControl(
            record=ring.record, name=defs.name, status=ring.status.gate, step=lambda: self.step,
            facts=self._facts,
        )  # fmt: skip
        self.watches = NO_WATCHES
        """Watches that a person set (pardbg_agent.control.watches); replaced as a whole."""
        self.watches_changed: Callable[[], None] = lambda: None
        """Callback after a change of the watches. Set by the code that tells other ranks."""
        self.usual = Medians()
        """Medians that ``watch slow`` compares with."""
        self.context: Any = None
        """State of the hooks (hooks.context.Context), from their first call on."""
        self.optimizers: Callable[[], list[Any]] = list
        """Returns the optimizers that have stepped. Set by the hooks."""
        self.call_site: Callable[[int], Any] = lambda t0: None  # hooks.context's ``find``
        self.sender: Any = None
        self.starting = False
        """Whether the rank is known but has not been in a group yet (life.calls)."""
        self.exiting: Call | None = None
        """Call for the exit after the main thread's end, while threads and exit handlers run."""
        self.sums = Sums()
        self.step_t0 = clock.now_ns()
        self.spent = (0, 0)  # (ns, calls) of all hooks at the last step's end
        self.budget = budget_from_env() if run is not None else 0.0
        """Share of a step that hooks may take; 0: any."""
        self.num_over = 0  # steps in a row that were over it

    def set_rank(self, rank: int, world_size: int) -> None:
        """Set the rank from its groups: ring header and PROCESS follow."""
        self.defs.identify(rank=rank, world_size=world_size)

    def meet_again(self, rank: int, world_size: int) -> None:
        """Set the rank from a further default group of this process. Another number, or another
        world size, is another life: later records are of that rank."""
        who = self.identity
        if (who.rank, who.world_size) != (rank, world_size):
            since, now = self.ring.newest(), clock.now_ns()
            self.defs.life = {"epoch": who.epoch + 1}
            self.defs.identify(
                rank=rank, world_size=world_size, since=since, since_ns=now, **self.defs.life
            )

    def computes_on(self, device: str, device_id: str = "") -> None:
        """Send once that tensors of this rank are on a device: its times are the host's then.
        ``device_id`` identifies it among all of the host's devices, if known."""
        if self.identity.device == _HOST and device not in (_HOST, "meta"):
            self.defs.identify(device=device, device_id=device_id)

    def set_level(self, level: int, why: str = "") -> None:
        """Switch the level now, and send it as a definition."""
        level = min(max(level, OFF), FULL)
        if level == self.level:
            return
        self.level = level
        self.changed()
        if level < FULL:
            self.unrecorded.begins(clock.now_ns())
        else:
            self.unrecorded.ends(clock.now_ns())
        self.defs.identify(level=LEVELS[level])
        if why:
            self.defs.put(DefKind.NOTE, key="level", value=f"{LEVELS[level]}: {why}")

    def step_end(self, t1: int | None = None, n: int | None = None) -> None:
        """End a training step: write its STEP record with the agent's cost, and count on.

        ``n``: the step's number, if the program gives it."""
        t0, t1 = self.step_t0, clock.now_ns() if t1 is None else t1
        spent, calls = self.cost()
        cost, num_calls = max(0, spent - self.spent[0]), calls - self.spent[1]
        step = self.step if n is None else max(0, n)
        device = self.device
        timed = device is not None and self.guard.call("device", device.step_ended, step, t1)
        flags = int(Flag.DEVICE) if timed else 0
        self.record(
            Kind.STEP, Lane.STEP, flags, 0, t0, t1, step, 0, wire.NO_GROUP, wire.NONE, wire.NONE,
            wire.NONE, cost, num_calls,
        )  # fmt: skip
        self.sums.write(self.record, t0, t1, step)
        if self.watches.slow is not None:
            self._watch_step(self.watches.slow, step, t0, t1)
        self.count_step(step + 1, t1, spent, calls)
        self.changed()
        if self.budget > 0:
            self._keep_budget(cost, t1 - t0)

    def count_step(self, step: int, t_ns: int, spent_ns: int, calls: int) -> None:
        """Begin this step at ``t_ns``, with the hooks' cost so far. C++ calls it too."""
        self.step, self.step_t0, self.spent = step, t_ns, (spent_ns, calls)

    def cost(self) -> tuple[int, int]:
        """Return (ns, calls) of all hooks so far."""
        ns, calls = (0, 0) if self.native is None else self.native.cost()
        return self.hook_ns + ns, self.hook_calls + calls

    def watch(self, watches: Watches) -> None:
        """Set the watches from now on."""
        self.watches = watches
        self.changed()
        self.guard.call("watches changed", self.watches_changed)

    def _watch_step(self, watch: Watch, step: int, t0: int, t1: int) -> None:
        if not self.gate.free_since(t0):
            return
        slow = self.usual.add(STEP, t1 - t0, watch.limit, LATER)
        if slow is not None:
            self.gate.stop(watch.number, took(f"step {step}", t1 - t0, slow))

    def refuse(self, call: str, why: str) -> None:
        """Complain once about an invalid argument of a call by the program, and go on."""
        if call not in self._refused and len(self._refused) < MAX_REFUSED:
            self._refused.add(call)
            complain(f"{call}: {why}; left out")

    def explicit_step(self, n: Any) -> None:
        """End a step at pardbg_agent.step(), which bounds the program's steps. It is a gate too."""
        if n is not None and not isinstance(n, SupportsIndex):
            self.refuse("step(n)", f"{type(n).__name__} is not a whole number")
            n = None
        n = None if n is None else operator.index(n)
        self.explicit_steps = True
        self.step_end(n=n)
        if self.gate.closed:
            self.gate.wait(Gate.STEP, lambda: f"step {self.step}")

    def span(
        self, name: str, place: tuple[int, int, int], t0: int, t1: int | None,
        failed: bool = False, on_device: Any = None,
    ) -> Any:  # fmt: skip
        """Record the end of a pardbg_agent.span, or its begin (``t1`` None). ``place``: part,
        parts, chunk. Return its span on the device, which the end gets as ``on_device``."""
        if not all(type(number) is int for number in place):
            self.refuse(f"span({str(name)[:40]!r})", "part, parts and chunk are whole numbers")
            place = (0, 0, -1)
        part, parts, chunk = place
        device, name_id = self.device, self.defs.name(str(name))
        flags = Flag.FAILED if failed else 0
        kind, t1 = (Kind.SPAN_BEGIN, t0) if t1 is None else (Kind.SPAN, t1)
        if device is not None and kind is Kind.SPAN_BEGIN:
            on_device = self.guard.call("device", device.begin, t0)
        elif device is not None and self.guard.call(
            "device", device.ended, on_device, Lane.USER, name_id, wire.NONE, chunk
        ):
            flags |= Flag.DEVICE
        self.record(
            kind, Lane.USER, flags, name_id, t0, t1,
            self.step, 0, wire.NO_GROUP, wire.NONE, chunk, wire.NONE, part, parts,
        )  # fmt: skip
        return on_device

    def mark(
        self, kind: Kind, name: str, t: int, a: float = 0, b: int = 0, seq: int = 0,
        step: int | None = None,
    ) -> None:  # fmt: skip
        """Write a record of one moment, without group, stage and peer, with a flag for a float
        ``a``. ``step``: None is the current one."""
        write, flag = (self.record_f, Flag.FLOAT) if isinstance(a, float) else (self.record, 0)
        step = self.step if step is None else step
        write(
            kind, Lane.COUNTER, flag, self.defs.name(name), t, t, step, seq, wire.NO_GROUP,
            wire.NONE, wire.NONE, wire.NONE, a, b,
        )  # fmt: skip

    def log(self, numbers: dict[str, Any]) -> None:
        """Record a METRIC for each number of pardbg_agent.log."""
        t = clock.now_ns()
        known = {}
        for name, value in numbers.items():
            try:
                known[name] = float(value)
            except (TypeError, ValueError, RuntimeError, OverflowError) as error:
                self.refuse(f"log({name}=…)", f"{type(error).__name__}: {error}")
        self.loss = known.get("loss", self.loss)
        for name, value in known.items():
            self.mark(Kind.METRIC, name, t, value)
            if self.watches.nan is not None and not math.isfinite(value):
                self.gate.stop(self.watches.nan.number, f"logged {name} is {value}")

    def _facts(self) -> dict[str, Any]:
        who = self.identity
        return {
            "rank": who.rank, "local_rank": who.local_rank, "host": who.host, "step": self.step,
            "loss": self.loss,
        }  # fmt: skip

    def _keep_budget(self, cost_ns: int, step_ns: int) -> None:
        over = self.level > OFF and cost_ns > self.budget * step_ns
        self.num_over = self.num_over + 1 if over else 0
        if self.num_over >= BUDGET_STEPS:
            self.num_over = 0
            share = percent(cost_ns / max(step_ns, 1))
            why = f"hooks took {share} of a step, budget {percent(self.budget)}"
            self.set_level(self.level - 1, why)

    def _identified(self, fields: dict[str, Any]) -> None:
        who = self.identity
        for name in ("rank", "world_size", "local_rank", "device", "epoch"):
            if name in fields:
                setattr(who, name, fields[name])
        self.write_header()

    def write_header(self) -> None:
        who = self.identity
        self.ring.header(
            start_ns=who.start_ns, wall_ns=who.wall_ns, rank=who.rank,
            world_size=max(0, who.world_size), pid=who.pid, epoch=who.epoch,
        )  # fmt: skip
