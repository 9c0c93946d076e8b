"""What bench_mismatch runs on each rank: small all_reduces in blocks; rank 0 prints us per op.

With an agent, blocks without and with ``watch mismatch``, and blocks that only burn SPIN_US before
each op, alternate: both ranks take the switch themselves, between two barriers, as the hub's
message would have them do. The third kind says what being later costs, whatever one is late with.
"""

from __future__ import annotations

import json
import statistics
import time

import torch
import torch.distributed as dist

from pardbg_agent import core
from pardbg_agent.control.breaks import Breaks
from pardbg_agent.control.watches import NO_WATCHES, Watches
from pardbg_agent.ctrl.agent_messages import Watch
from pardbg_agent.hooks.watch import mismatch

BLOCKS, CALLS, SPIN_US = 30, 300, 20


def switch(watches: Watches) -> None:
    c = core.ensure()
    c.gate.set_breaks(Breaks([]), watches)
    c.watches = watches


def per_op_us(tensor: torch.Tensor, spin_us: int = 0) -> tuple[float, float]:
    """(time, this thread's CPU time) in us of one op."""
    dist.barrier()
    t0, cpu0 = time.perf_counter_ns(), time.thread_time_ns()
    for _ in range(CALLS):
        if spin_us:
            until = time.perf_counter_ns() + spin_us * 1000
            while time.perf_counter_ns() < until:
                pass
        dist.all_reduce(tensor)
    cpu1, t1 = time.thread_time_ns(), time.perf_counter_ns()
    return (t1 - t0) / CALLS / 1e3, (cpu1 - cpu0) / CALLS / 1e3


def more(these: list[tuple[float, float]], those: list[tuple[float, float]], at: int) -> float:
    """The median of what each block took more than the one before it."""
    return statistics.median(a[at] - b[at] for a, b in zip(these, those, strict=True))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tensor = torch.zeros(1024)
    on = Watches([Watch(1, "mismatch", 0.0)])
    agent = core.CURRENT is not None
    kinds: dict[str, list[tuple[float, float]]] = {"off": [], "watched": [], "spun": []}
    for block in range(BLOCKS + 1):
        off = per_op_us(tensor)
        if agent:
            dist.barrier()
            switch(on)
        watched = per_op_us(tensor) if agent else off
        if agent:
            dist.barrier()
            switch(NO_WATCHES)
        spun = per_op_us(tensor, SPIN_US) if agent else off
        if block:  # the first one makes the board
            for kind, taken in (("off", off), ("watched", watched), ("spun", spun)):
                kinds[kind].append(taken)
    if dist.get_rank() == 0:
        found = {
            "off_us": statistics.median(wall for wall, _ in kinds["off"]),
            "wall_us": more(kinds["watched"], kinds["off"], 0),
            "cpu_us": more(kinds["watched"], kinds["off"], 1),
            "spun_us": more(kinds["spun"], kinds["off"], 0),
            "num_others": len(list(mismatch.of(core.ensure()).others.all())) if agent else 0,
        }
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
