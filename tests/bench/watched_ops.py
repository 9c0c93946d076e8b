"""What bench_mismatch runs on each rank: small all_reduces in blocks; rank 0 prints us per op.

With an agent, blocks with and without ``watch mismatch`` alternate: both ranks take the switch
themselves, between two barriers, as the hub's message would have them do.
"""

from __future__ import annotations

import json
import statistics
import time

import torch
import torch.distributed as dist

from pardbg_agent import core
from pardbg_agent.breaks import Breaks
from pardbg_agent.hooks import comparing
from pardbg_agent.watches import NO_WATCHES, Watch, Watches

BLOCKS, CALLS = 30, 300


def switch(watches: Watches) -> None:
    c = core.ensure()
    c.gate.set_breaks(Breaks([]), watches)
    c.watches = watches


def per_op_us(tensor: torch.Tensor) -> tuple[float, float]:
    """(time, this thread's CPU time) in us of one op."""
    dist.barrier()
    t0, cpu0 = time.perf_counter_ns(), time.thread_time_ns()
    for _ in range(CALLS):
        dist.all_reduce(tensor)
    cpu1, t1 = time.thread_time_ns(), time.perf_counter_ns()
    return (t1 - t0) / CALLS / 1e3, (cpu1 - cpu0) / CALLS / 1e3


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tensor = torch.zeros(1024)
    on = Watches([Watch(1, "mismatch", 0.0)])
    agent = core.CURRENT is not None
    bare, watched = [], []
    for block in range(BLOCKS + 1):
        first = per_op_us(tensor)
        if agent:
            dist.barrier()
            switch(on)
            second = per_op_us(tensor)
            dist.barrier()
            switch(NO_WATCHES)
        else:
            second = first
        if block:  # the first one makes the board
            bare.append(first)
            watched.append(second)
    if dist.get_rank() == 0:
        found = {"off_us": statistics.median(t for t, _ in bare)}
        if agent:
            found |= {
                "wall_us": statistics.median(
                    w[0] - b[0] for w, b in zip(watched, bare, strict=True)
                ),
                "cpu_us": statistics.median(
                    w[1] - b[1] for w, b in zip(watched, bare, strict=True)
                ),
                "num_others": len(list(comparing.of(core.ensure()).others.all())),
            }
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
