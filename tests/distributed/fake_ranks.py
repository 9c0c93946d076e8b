"""``python -m tests.distributed.fake_ranks N STEPS [SECONDS_PER_STEP [UNTIL]]``: ranks without
torch, whose last step ends when there is a file UNTIL.

Each is a process with the real agent core (ring, gate, op table, sender) that trains nothing: an
action, an all_reduce (a barrier of the processes) and a step's end, at real gates.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from multiprocessing.synchronize import Barrier
from typing import Any

from pardbg_agent import core
from pardbg_agent.wire import DefKind, Flag, Gate, Kind, Lane

NONE = -1


def gate(agent: core.Core, kind: Gate, text: str) -> None:
    if agent.gate.closed:
        agent.gate.wait(kind, text)


def collective(agent: core.Core, group: int, op: int, barrier: Barrier) -> None:
    gate(agent, Gate.COLLECTIVE, f"all_reduce dp #{agent.ops.num_issued('g:dp')}")
    seq = agent.ops.next_seq("g:dp")  # behind the gate: before it, nothing is issued yet
    t0 = time.monotonic_ns()
    token = agent.ops.issued("g:dp", group, "all_reduce", seq, False, False, NONE, 0, op, t0)
    agent.record(Kind.OP_ISSUE, Lane.COMM, 0, op, t0, time.monotonic_ns(), agent.step, seq, group,
                 NONE, NONE, NONE, 64, 64)  # fmt: skip
    barrier.wait(60)
    agent.ops.completed(token)
    agent.record(Kind.OP_DONE, Lane.COMM, Flag.DONE_WAITED, op, t0, time.monotonic_ns(),
                 agent.step, seq, group, NONE, NONE, NONE, 64, 64)  # fmt: skip


def rank(number: int, size: int, steps: int, seconds: float, barrier: Barrier, until: str) -> None:
    os.environ.update(RANK=str(number), WORLD_SIZE=str(size), LOCAL_RANK=str(number))
    agent = core.ensure()
    group = agent.defs.group("g:dp", "dp", "dp", list(range(size)), "fake")
    op, forward = agent.defs.op("all_reduce", "float32", "sum"), agent.defs.name("F")
    agent.defs.put(DefKind.STAGE, stage=number, rank=number, num_stages=size, parameters=1)
    value = 1
    for step in range(steps):
        gate(agent, Gate.ACTION, f"{number}F0")
        while step == steps - 1 and until and not os.path.exists(until):
            time.sleep(seconds)
            gate(agent, Gate.ACTION, f"{number}F0")
        t0 = time.monotonic_ns()
        time.sleep(seconds)
        agent.record(Kind.ACTION, Lane.COMPUTE, 0, forward, t0, time.monotonic_ns(), agent.step, 0,
                     0xFFFF, number, 0, NONE, 0, 0)  # fmt: skip
        collective(agent, group, op, barrier)
        value = (value * 48271 + step) % 2147483647
        if number == 0:
            sys.stdout.write(f"step {step} value {value}\n")
            sys.stdout.flush()
        gate(agent, Gate.OPTIMIZER, "optimizer")
        agent.step_end()
        gate(agent, Gate.STEP, f"step {step + 1}")
    # One write: print() may write the line and its end apart, and ranks tear each other's lines.
    sys.stderr.write(f"[rank{number}]: done\n")
    core.shutdown()


def main(argv: list[str]) -> int:
    size, steps = int(argv[0]), int(argv[1])
    seconds = float(argv[2]) if len(argv) > 2 else 0.002
    until = argv[3] if len(argv) > 3 else ""
    context: Any = multiprocessing.get_context("fork")
    barrier = context.Barrier(size)
    ranks = [
        context.Process(target=rank, args=(i, size, steps, seconds, barrier, until))
        for i in range(size)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return max(abs(process.exitcode) for process in ranks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
