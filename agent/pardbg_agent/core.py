"""The agent's heart in a rank: ring, definitions, gate, op table, and the thread that ships them.

What hooks use. A hook that runs for every process (spans, phases) does::

    c = core.CURRENT
    if c is None: return            # not a rank (yet): a launcher, a DataLoader worker

and one that proves that this is a rank (a group is formed, an op is issued) does
``c = core.CURRENT or core.ensure()``. Never keep a Core or its ``record`` across calls: after
``fork`` the child has none until it forms a group itself.

``ensure`` always gives a usable Core. If the agent is off (no run, files cannot be made, the
process ends) it is one whose ring is anonymous memory, with ``level`` 0.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import math
import operator
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, SupportsIndex

from pardbg_agent import active, clock, identity, wire
from pardbg_agent.control.gate import GateControl
from pardbg_agent.control.medians import LATER, STEP, Medians
from pardbg_agent.control.watches import NO_WATCHES, Watch
from pardbg_agent.defs import Defs
from pardbg_agent.guard import Guard
from pardbg_agent.life import calls, moments
from pardbg_agent.life.failures import UncaughtErrors
from pardbg_agent.op_table import OpTable, Sums, Unrecorded
from pardbg_agent.ring import Ring, capacity_from_env
from pardbg_agent.wire import LEVELS, DefKind, Flag, Gate, Kind, Lane
from pardbg_agent.words import took

OFF, SUMMARY, FULL = 0, 1, 2
ENV_BUDGET: Final = "PARDBG_BUDGET"
BUDGET_STEPS: Final = 5
"""Steps in a row over the budget before the level is lowered."""
MAX_REFUSED: Final = 64
"""Arguments that are complained about."""
SMALLEST_RING: Final = 1024
"""Records; below that the agent rather stays off."""


@dataclass(slots=True)
class Progress:
    """A schedule's step, for STATE: planned and finished compute actions, text form."""

    done: list[str] = field(default_factory=list)
    plan: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What the agent takes from run.json."""

    run: str
    ring_dir: str
    data: str = ""
    """DATA endpoint; empty: no hub, the ring alone."""
    ctrl: str = ""
    keys: dict[str, str] = field(default_factory=dict)
    allow_eval: bool = False
    """The job was started with --allow-eval."""
    hold_exceptions: bool = False
    """... with --on-exception hold."""


class Core:
    """Everything hooks need. ``record`` and ``record_f`` are the ring's closures."""

    def __init__(
        self, ring: Ring, defs: Defs, who: identity.Identity, run: RunSettings | None
    ) -> None:
        self.run = run
        """None: the agent is off in this process."""
        self.identity = who
        self.ring, self.defs = ring, defs
        self.status = ring.status
        self.record, self.record_f = ring.record, ring.record_f
        self.guard = Guard(lambda where, text, t: defs.put(
            DefKind.ERROR, where=where, text=text, t_ns=t))  # fmt: skip
        self.step = 0
        """The training step that runs now."""
        self.explicit_steps = False
        """The program calls pardbg_agent.step(): hooks stop guessing where steps end."""
        self.hook_ns = 0
        """Hooks add their own cost here (not the time held at a gate)."""
        self.hook_calls = 0
        self.loss: float | None = None
        """The newest loss known, for breakpoints."""
        self.level = level_from_env() if run is not None else OFF
        self.unrecorded = Unrecorded(lambda gaps: defs.identify(unrecorded=gaps), self.level < FULL)
        self._refused: set[str] = set()
        """Arguments of the program that were said to make no sense."""
        self.pipeline = Progress()
        self.pollers: list[Any] = []
        """Zero-argument functions that look for completed ops (Work.is_completed) without
        blocking. The agent's thread calls them every 5 ms under control, else every 50 ms."""
        self.ops = OpTable(ring.status.op)
        self.gate = GateControl(
            record=ring.record, name=defs.name, status=ring.status.gate, step=lambda: self.step,
            facts=self._facts,
        )  # fmt: skip
        self.watches = NO_WATCHES
        """What a person asked to look for (pardbg_agent.control.watches); replaced as a whole."""
        self.watches_changed: Callable[[], None] = lambda: None
        """Called after that. Set by who tells other ranks what this one watches."""
        self.usual = Medians()
        """What ``watch slow`` compares with."""
        self.context: Any = None
        """What the hooks keep of it (hooks.context.Context), from their first call on."""
        self.optimizers: Callable[[], list[Any]] = list
        """Gives the optimizers that have stepped. Set by the hooks."""
        self.sender: Any = None
        self.starting = False
        """In no group yet, and known before that (life.moments)."""
        self.exiting: calls.Call | None = None
        """The main thread has ended: threads and exit handlers run."""
        self.sums = Sums()
        self.step_t0 = clock.now_ns()
        self._step_cost = (0, 0)
        self._budget = budget_from_env()
        self._over = 0

    def set_rank(self, rank: int, world_size: int, local_rank: int | None = None) -> None:
        """The rank as its groups say it: ring header and PROCESS follow."""
        fields: dict[str, Any] = {"rank": rank, "world_size": world_size}
        if local_rank is not None:
            fields["local_rank"] = local_rank
        self.defs.identify(**fields)

    def set_level(self, level: int, why: str = "") -> None:
        """Switch the level, now; said in the definitions."""
        level = min(max(level, OFF), FULL)
        if level == self.level:
            return
        self.level = level
        if level < FULL:
            self.unrecorded.begins(clock.now_ns())
        else:
            self.unrecorded.ends(clock.now_ns())
        self.defs.identify(level=LEVELS[level])
        if why:
            self.defs.put(DefKind.NOTE, key="level", value=f"{LEVELS[level]}: {why}")

    def step_end(self, t1: int | None = None, n: int | None = None) -> None:
        """A training step ended: its STEP record with the agent's cost in it; counts on.

        ``n``: the step's number, where the program says it.
        """
        t0, t1 = self.step_t0, clock.now_ns() if t1 is None else t1
        spent, calls = self.hook_ns, self.hook_calls
        cost, num_calls = max(0, spent - self._step_cost[0]), calls - self._step_cost[1]
        self._step_cost, self.step_t0 = (spent, calls), t1
        step = self.step if n is None else max(0, n)
        self.record(
            Kind.STEP, Lane.STEP, 0, 0, t0, t1, step, 0, wire.NO_GROUP, wire.NONE, wire.NONE,
            wire.NONE, cost, num_calls,
        )  # fmt: skip
        self.sums.write(self.record, t0, t1, step)
        if self.watches.slow is not None:
            self._watch_step(self.watches.slow, step, t0, t1)
        self.step = step + 1
        if self._budget > 0:
            self._keep_budget(cost, t1 - t0)

    def _watch_step(self, watch: Watch, step: int, t0: int, t1: int) -> None:
        if not self.gate.free_since(t0):
            return
        slow = self.usual.add(STEP, t1 - t0, watch.limit, LATER)
        if slow is not None:
            self.gate.stop(watch.number, took(f"step {step}", t1 - t0, slow))

    def refuse(self, call: str, why: str) -> None:
        """An argument of one of the program's calls makes no sense: say so once, and go on."""
        if call not in self._refused and len(self._refused) < MAX_REFUSED:
            self._refused.add(call)
            complain(f"{call}: {why}; left out")

    def explicit_step(self, n: Any) -> None:
        """pardbg_agent.step(): the program itself says where steps end. It is a gate too."""
        if n is not None and not isinstance(n, SupportsIndex):
            self.refuse("step(n)", f"{type(n).__name__} is no whole number")
            n = None
        n = None if n is None else operator.index(n)
        self.explicit_steps = True
        self.step_end(n=n)
        if self.gate.closed:
            self.gate.wait(Gate.STEP, lambda: f"step {self.step}")

    def span(
        self, name: str, place: tuple[int, int, int], t0: int, t1: int | None, failed: bool = False
    ) -> None:
        """pardbg_agent.span ended, or began (``t1`` None). ``place``: part, parts, chunk."""
        if not all(type(number) is int for number in place):
            self.refuse(f"span({str(name)[:40]!r})", "part, parts and chunk are whole numbers")
            place = (0, 0, -1)
        part, parts, chunk = place
        kind, t1 = (Kind.SPAN_BEGIN, t0) if t1 is None else (Kind.SPAN, t1)
        self.record(
            kind, Lane.USER, Flag.FAILED if failed else 0, self.defs.name(str(name)), t0, t1,
            self.step, 0, wire.NO_GROUP, wire.NONE, chunk, wire.NONE, part, parts,
        )  # fmt: skip

    def log(self, numbers: dict[str, Any]) -> None:
        """pardbg_agent.log: one METRIC each."""
        t = clock.now_ns()
        known = {}
        for name, value in numbers.items():
            try:
                known[name] = float(value)
            except (TypeError, ValueError, RuntimeError, OverflowError) as error:
                self.refuse(f"log({name}=…)", f"{type(error).__name__}: {error}")
        self.loss = known.get("loss", self.loss)
        for name, value in known.items():
            self.record_f(
                Kind.METRIC, Lane.COUNTER, Flag.FLOAT, self.defs.name(name), t, t, self.step, 0,
                wire.NO_GROUP, wire.NONE, wire.NONE, wire.NONE, value, 0,
            )  # fmt: skip
            if self.watches.nan is not None and not math.isfinite(value):
                self.gate.stop(self.watches.nan.number, f"logged {name} is {value}")

    def _facts(self) -> dict[str, Any]:
        """What a breakpoint may ask at any gate."""
        who = self.identity
        return {
            "rank": who.rank, "local_rank": who.local_rank, "host": who.host, "step": self.step,
            "loss": self.loss,
        }  # fmt: skip

    def _keep_budget(self, cost_ns: int, step_ns: int) -> None:
        over = self.level > OFF and cost_ns > self._budget * step_ns
        self._over = self._over + 1 if over else 0
        if self._over >= BUDGET_STEPS:
            self._over = 0
            share = 100 * cost_ns / max(step_ns, 1)
            self.set_level(
                self.level - 1, f"hooks took {share:.1f}% of a step, budget {self._budget:.1%}"
            )

    def _identified(self, fields: dict[str, Any]) -> None:
        who = self.identity
        for name in ("rank", "world_size", "local_rank", "device"):
            if name in fields:
                setattr(who, name, fields[name])
        self.write_header()

    def write_header(self) -> None:
        who = self.identity
        self.ring.header(
            start_ns=who.start_ns, wall_ns=who.wall_ns, rank=who.rank,
            world_size=max(0, who.world_size), pid=who.pid, epoch=who.epoch,
        )  # fmt: skip


CURRENT: Core | None = None
"""This process's Core, or None: not a rank (yet)."""

UNCAUGHT: Final = UncaughtErrors(lambda: CURRENT)
"""The process's hooks for exceptions that nobody caught."""

_lock = threading.RLock()
_ended = False
_exit_registered = False
_parked: Core | None = None
"""The Core that detach() ended."""
_keep: list[Core] = []
"""Cores of the parent process after a fork: kept so that nothing of them is torn down here."""


def ensure() -> Core:
    """This process's Core, made now if it has none. Call at the first group or op."""
    global CURRENT
    current = CURRENT
    if current is not None:
        return current
    with _lock:
        if CURRENT is None:
            at_exit()
            CURRENT = _start()
            active.CORE = CURRENT if CURRENT.run is not None else None
        return CURRENT


def _start() -> Core:
    run_dir = os.environ.get(wire.ENV_RUN)
    if not run_dir or _ended:
        return _off_core()
    try:
        run = load_run(run_dir)
        if _parked is not None and _parked.run == run:
            return _resume(_parked)
        return start(run)
    except Exception as error:  # noqa: BLE001 - no ring, no hub, no disk: the job runs on
        complain(f"agent is off: {type(error).__name__}: {error}")
        return _off_core()


def start(run: RunSettings) -> Core:
    """Ring, definitions and (if the run has a hub) the agent's thread. Raises OSError."""
    who = identity.of_this_process()
    os.makedirs(run.ring_dir, mode=0o700, exist_ok=True)
    ring = _make_ring(os.path.join(run.ring_dir, f"{who.proc}.ring"))
    defs = Defs(os.path.join(run.ring_dir, f"{who.proc}.defs"))
    core = Core(ring, defs, who, run)
    core.write_header()
    core.status.now(0, 0, 0, wire.NONE, wire.NONE, who.start_ns)
    core.ops.idle()
    core.status.gate(0, 0, who.start_ns)
    core.status.health(who.start_ns, 0, 0, 0, core.level, 0)
    defs.process = who.fields(LEVELS[core.level])
    defs.process["unrecorded"] = core.unrecorded.gaps
    defs.on_identify = core._identified
    defs.put(DefKind.PROCESS, **defs.process)
    if run.data and run.ctrl:
        core.guard.call("sender", _make_sender, core)
        if core.sender is not None:
            core.sender.start()
    core.guard.call("excepthook", UNCAUGHT.install)
    return core


def _make_ring(path: str) -> Ring:
    """A ring as large as wanted, or smaller where shared memory is short (64 MiB in a container
    that nobody configured)."""
    capacity = capacity_from_env()
    while True:
        try:
            return Ring.create(path, capacity)
        except OSError as error:
            if error.errno != errno.ENOSPC or capacity <= SMALLEST_RING:
                raise
            capacity = max(SMALLEST_RING, capacity // 4)


def _make_sender(core: Core) -> None:
    # Imported here, in the caller's thread: a fork while another thread imports zmq would leave
    # the child with a module lock that nobody ever releases.
    from pardbg_agent import sender

    core.sender = sender.Sender(core)


def _resume(core: Core) -> Core:
    """attach() after detach(): the same ring and the same counters, since a process is one
    stream of records and one sequence of ops to everybody else."""
    core.gate.begin()
    core.guard.call("excepthook", UNCAUGHT.install)
    old, core.sender = core.sender, None
    if old is not None:
        core.guard.disabled -= {"sender", "sender end"}
        core.guard.call("sender", _make_sender, core)
        if core.sender is not None:
            core.sender.take_over(old)
            core.sender.start()
    return core


def _off_core() -> Core:
    return Core(Ring.anonymous(), Defs(None), identity.of_this_process(), None)


def load_run(run_dir: str) -> RunSettings:
    """Read run.json. Raises OSError, ValueError or KeyError."""
    with open(os.path.join(run_dir, wire.RUN_FILE), encoding="utf-8") as file:
        data = json.load(file)
    return RunSettings(
        run=str(data.get("run", "")),
        ring_dir=str(data["ring_dir"]),
        data=str(data.get("data") or ""),
        ctrl=str(data.get("ctrl") or ""),
        keys=dict(data.get("keys") or {}),
        allow_eval=data.get("allow_eval") is True,
        hold_exceptions=bool(data.get("on_exception_s")),
    )


def shutdown(deadline_s: float = 0.9) -> None:
    """End the agent in this process within ``deadline_s``: hooks quiet, gate open, rest sent."""
    global CURRENT, _parked
    until = clock.now_ns() + int(deadline_s * 1e9)
    core = CURRENT
    if core is not None:
        moments.exited(core)
    hooks = sys.modules.get("pardbg_agent.hooks")
    quiesce = getattr(hooks, "quiesce", None)
    if core is not None:
        core.gate.end()
        core.watches = NO_WATCHES
        core.guard.call("watches changed", core.watches_changed)
        if quiesce is not None:
            core.guard.call("quiesce", quiesce, deadline_s * 0.55)
    with _lock:
        CURRENT, active.CORE = None, None
    if core is not None and core.sender is not None:
        with contextlib.suppress(Exception):
            core.sender.stop(max(0.05, (until - clock.now_ns()) / 1e9))
    if core is not None and core.run is not None:
        _parked = core  # for attach(); and hooks still on their way may hold its closures


def at_exit() -> None:
    """Have the agent end before the interpreter does. Idempotent.

    ``atexit`` runs after the program's non-daemon threads have ended, so their ops are still
    seen. Forked children (multiprocessing) leave by ``os._exit``: no ``atexit``, but they pass
    ``threading._shutdown``, where what is in the ring is sent. Nothing is stopped there: other
    threads may still issue ops.
    """
    global _exit_registered
    atexit.unregister(_leave)  # handlers run newest first: what came before torch comes after us
    atexit.register(_leave)
    if _exit_registered:
        return
    _exit_registered = True
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        with contextlib.suppress(RuntimeError):  # the interpreter is already leaving
            register(_main_thread_ended)


def _main_thread_ended() -> None:
    """A process that is gone after this was not killed in its work: a forked child never gets to
    say BYE."""
    core = CURRENT
    if core is not None and core.run is not None:
        with contextlib.suppress(Exception):
            core.defs.put(
                DefKind.NOTE, key=wire.NOTE_LEAVING, value=core.identity.proc, t_ns=clock.now_ns()
            )
        moments.watch_exit(core)
    flush()


def _leave() -> None:
    global _ended
    _ended = True
    with contextlib.suppress(Exception):
        shutdown()


def flush(timeout_s: float = 0.2) -> None:
    """Have the agent's thread send what is in the ring now; wait for it, bounded."""
    core = CURRENT
    if core is not None and core.sender is not None:
        with contextlib.suppress(Exception):
            core.sender.flush(timeout_s)


def level_from_env() -> int:
    """``PARDBG_LEVEL``; full if unset or unknown."""
    name = os.environ.get(wire.ENV_LEVEL, "full").strip().lower()
    return LEVELS.index(name) if name in LEVELS else FULL


def budget_from_env() -> float:
    """``PARDBG_BUDGET`` (``1%`` or ``0.01``) as a fraction of the step; 0: none."""
    text = os.environ.get(ENV_BUDGET, "").strip()
    try:
        value = float(text.rstrip("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return 0.0
    return value if 0 < value < 1 else 0.0


def complain(text: str) -> None:
    """The agent's one line on stderr."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"pardbg: {text}"[:300].splitlines()[0] + "\n")
        sys.stderr.flush()


def _after_fork_in_child() -> None:
    """The child is not a rank until it forms a group; nothing of the parent's is touched."""
    global CURRENT, _lock, _ended, _parked
    _keep.extend(core for core in (CURRENT, _parked) if core is not None)
    CURRENT, active.CORE, _parked = None, None, None
    # The handlers registered before the fork are the child's too, so nothing to do for them.
    _lock, _ended = threading.RLock(), False


os.register_at_fork(after_in_child=_after_fork_in_child)
