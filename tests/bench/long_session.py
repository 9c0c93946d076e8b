"""A session of any length, made of one 1F1B step that repeats: ``make(path, records)``.

The step is that of bench_store (8 ranks, 8 microbatches, labelled p2p with waits, phases, memory,
loss): about 870 records in 50 ms. Each step's durations differ by a few percent, one step in a
thousand is three times as long on one rank. Batches, definitions, output and STATE come as a hub
records them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from pardbg.analysis.pipeline.play import simulate
from pardbg.events.decode import RECORD_DTYPE
from pardbg.session.writer import RunFacts, SessionWriter
from pardbg_agent import wire
from tests.bench.bench_store import MICROBATCHES, RANKS, STEP_MS, one_step
from tests.unit.trace_builder import BEGIN, MS, Trace, one_f_one_b

STEP_NS = round(STEP_MS * MS)
_WALL_NS = 1_760_000_000 * 10**9


class Rank:
    """One rank's step as columns, and its definitions."""

    def __init__(self, trace: Trace, rank: int) -> None:
        proc = trace.ranks[rank]
        self.key = wire.Key.RECORDS.value + proc.proc.encode()
        self.proc = proc.proc
        bodies = [m.payload[wire.FRAME.size :] for m in trace.messages if m.key == self.key]
        self.step = np.frombuffer(b"".join(bodies), RECORD_DTYPE)
        ops = (self.step["kind"] == wire.Kind.OP_ISSUE) | (self.step["kind"] == wire.Kind.OP_DONE)
        p2p = (self.step["flags"] & wire.Flag.P2P) != 0
        issued = self.step["kind"] == wire.Kind.OP_ISSUE
        self.seqs = np.where(
            ops, np.where(p2p, (issued & p2p).sum(), (issued & ~p2p).sum()), 0
        ).astype(np.uint32)
        """How far each record's seq moves from step to step."""

    def records(self, number: int, rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Those of step ``number``; up to 2 % longer by chance."""
        made = self.step.copy()
        stretch = 1 + 0.02 * float(rng.random()) if rng is not None else 1.0
        begin = BEGIN + number * STEP_NS
        for name in ("t0_ns", "t1_ns"):
            made[name] = begin + ((self.step[name] - BEGIN) * 0.95 * stretch).astype(np.int64)
        made["step"] = number
        made["seq"] += self.seqs * np.uint32(number)
        made["mark"] += np.uint64(number * len(made))
        return made


def make(path: Path, num_records: int) -> int:
    """Write the session; how many records it has (at least ``num_records``)."""
    trace = Trace(RANKS)
    plan = one_f_one_b(RANKS, MICROBATCHES)
    trace.plan("Schedule1F1B", plan, MICROBATCHES)
    simulated = simulate(plan, RANKS, lambda _rank, _action: 1.0)
    assert simulated is not None
    for proc in trace.ranks:
        one_step(proc, 0, simulated.rows[proc.rank or 0])
        proc.flush()
    facts = RunFacts("long-1", "long", "host", ("train.py",), "/", "", BEGIN, _WALL_NS)
    writer = SessionWriter(path, facts)
    definition = {"k": "run", "run": "long-1", "name": "long", "argv": ["train.py"],
                  "t_ns": BEGIN, "wall_ns": _WALL_NS, "host": "host"}  # fmt: skip
    writer.write(wire.Key.DEFINITION.value, msgpack.packb(definition), BEGIN)
    for message in trace.messages:
        if message.key[:1] == wire.Key.DEFINITION.value:
            writer.write(message.key, message.payload, BEGIN)
    made = _write_steps(writer, [Rank(trace, rank) for rank in range(RANKS)], num_records)
    writer.close(0)
    return made


def _write_steps(writer: SessionWriter, ranks: list[Rank], num_records: int) -> int:
    rng = np.random.default_rng(1)
    made = number = said = 0
    while made < num_records:
        now = BEGIN + (number + 1) * STEP_NS
        for rank in ranks:
            records = rank.records(number, rng)
            first = int(records["mark"][0]) - 1
            head = wire.FRAME.pack(wire.PROTOCOL_VERSION, 0, len(records), first, 0, now)
            writer.write(rank.key, head + records.tobytes(), now)
            made += len(records)
        if number % 4 == 0:
            said += 1
            states = {r.proc: {"rank": i, "step": number, "phase": "pipeline", "alive": True,
                               "heartbeat_ns": now} for i, r in enumerate(ranks)}  # fmt: skip
            state = {"n": said, "t_ns": now, "ranks": states}
            writer.write(wire.Key.STATE.value, msgpack.packb(state), now)
        writer.tick(now)
        number += 1
    end = {"k": "end", "proc": None, "t_ns": BEGIN + number * STEP_NS, "code": 0}
    writer.write(wire.Key.DEFINITION.value, msgpack.packb(end), BEGIN + number * STEP_NS)
    return made


if __name__ == "__main__":
    print(make(Path(sys.argv[1]), int(float(sys.argv[2]))))
