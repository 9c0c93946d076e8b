"""What the agent's smallest parts cost in the training thread: a record, an open gate, an op."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pardbg.control.language.expr import gates, parse
from pardbg_agent.control.breaks import breaks_of
from pardbg_agent.control.gate import GateControl
from pardbg_agent.ctrl.agent_messages import BreakAt
from pardbg_agent.defs import Defs
from pardbg_agent.op_table import OpTable
from pardbg_agent.ring import Ring
from pardbg_agent.wire import Gate
from tests.bench.figures import Figure

CALLS = 20_000
BLOCKS = 21


def main() -> list[Figure]:
    """Record and gate against their budgets, and what hooks call besides."""
    with tempfile.TemporaryDirectory(dir=_shared_memory()) as directory:
        ring = Ring.create(str(Path(directory) / "bench.ring"), 65536)
        defs = Defs(None)
        ops = OpTable(ring.status.op, ring.status.newest_op)
        gate = GateControl(record=ring.record, name=defs.name, status=ring.status.gate)
        watched = GateControl(record=ring.record, name=defs.name, status=ring.status.gate)
        watched.set_breaks(breaks_of([_break(n) for n in range(10)]))
        return [
            _figure("record", 0.5, lambda n: _records(ring, n)),
            _figure("record with a float", 0.5, lambda n: _float_records(ring, n)),
            _figure("open gate", 0.1, lambda n: _gates(gate, n)),
            _figure("gate, 10 breakpoints that do not match", 2.0, lambda n: _breaks(watched, n)),
            _figure("known name looked up", None, lambda n: _names(defs, n)),
            _figure("op issued and completed (table, status)", None, lambda n: _ops(ops, n)),
        ]


def _figure(name: str, budget: float | None, run: Callable[[int], None]) -> Figure:
    """Microseconds per call, the loop around it included: median of BLOCKS blocks."""
    run(CALLS)
    took = []
    for _ in range(BLOCKS):
        t0 = time.perf_counter_ns()
        run(CALLS)
        took.append((time.perf_counter_ns() - t0) / CALLS / 1000)
    low, high = min(took), max(took)
    return Figure(
        name, statistics.median(took), "us", budget, note=f"{BLOCKS} blocks, {low:.3f}..{high:.3f}"
    )


def _records(ring: Ring, n: int) -> None:
    record, t = ring.record, time.monotonic_ns()
    for i in range(n):
        record(2, 3, 0, 7, t, t, 100, i, 1, -1, -1, -1, 262_144, 262_144)


def _float_records(ring: Ring, n: int) -> None:
    record, t = ring.record_f, time.monotonic_ns()
    for i in range(n):
        record(8, 7, 1, 7, t, t, 100, i, 1, -1, -1, -1, 2.5, 0)


def _gates(gate: GateControl, n: int) -> None:
    for _ in range(n):
        if gate.closed:
            gate.wait(Gate.COLLECTIVE, "never")


def _break(number: int) -> BreakAt:
    tree = parse(f"action==B and mb=={10 + number} and stage==2")
    return BreakAt(number, gates(tree), tree)


def _breaks(gate: GateControl, n: int) -> None:
    known = {"action": "B", "stage": 2, "mb": 3}
    for _ in range(n):
        if gate.closed:
            gate.wait(Gate.ACTION, "2B3", lambda: known)


def _names(defs: Defs, n: int) -> None:
    name = defs.name
    for _ in range(n):
        name("forward")


def _ops(ops: OpTable, n: int) -> None:
    for i in range(n):
        ops.completed(ops.issued("dp", 1, "all_reduce", i, False, False, -1, 0, 7, 1))


def _shared_memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
