"""Two watched ranks with a device each, which rank 1 never makes its current one: it names it with
each tensor; ``contexts NUM_OPS``. Prints what the agent made of it, and did to it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import warnings
from typing import Any

import torch
import torch.distributed as dist

import pardbg.lab.sim.device as sim
from pardbg_agent import core
from pardbg_agent.hooks.device.device_records import NativeRecords
from pardbg_agent.hooks.memory import device_memory
from tests.gpu.programs.ranks import agents_thread
from tests.processes import wait_until


def main() -> None:
    warnings.filterwarnings("ignore")
    dist.init_process_group(sim.GROUP)
    rank = int(os.environ["LOCAL_RANK"])
    tensor = torch.ones(1 << 16, device=f"sim:{rank}")
    sim.settings.comm_default_ns = 1_000_000
    dist.all_reduce(tensor)
    threading.Thread(target=agents_thread, daemon=True).start()
    device = core.CURRENT.device
    wait_until(lambda: len(device.times.clock._anchors) > 1, what="anchors")
    recorded = sim.counts()["recorded"]
    for is_async in (False, True) * (int(sys.argv[1]) // 2):
        work = dist.all_reduce(tensor, async_op=is_async)
        if is_async:
            work.wait()
    # The others of a program's thread: a second stream, and an op on it.
    with torch.sim.device(rank), torch.Stream(f"sim:{rank}"):
        dist.all_reduce(tensor)
    found: dict[str, Any] = {"recorded": sim.counts()["recorded"] - recorded}
    torch.sim.synchronize(rank)
    wait_until(lambda: not core.CURRENT.ops.num_open, what="ends of all ops")
    wait_until(lambda: not device.poll(), what="all times read")
    found |= {
        "current": torch.sim.current_device(),
        "allocated": device_memory.held(core.CURRENT)["allocated"][0],
        "left_out": device.times.num_left_out,
    }
    # Recording fails, once: what was issued before ends all the same, and what comes after.
    sim.settings.comm_default_ns = 300_000_000
    work = dist.broadcast(tensor, 0, async_op=True)
    if isinstance(device, NativeRecords):  # Python's way leaves that to the guard
        device.begin(0, torch.Stream(stream_id=0, device_index=rank, device_type=0))  # no such
    work.wait()
    dist.broadcast(tensor, 0)
    torch.sim.synchronize(rank)
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not core.CURRENT.ops.num_open, 10, what="ends of the last ops")
    found["open"] = core.CURRENT.ops.num_open
    dist.barrier()
    dist.destroy_process_group()
    core.CURRENT.device.close()
    found["contexts"] = sim.counts()["contexts"]
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
