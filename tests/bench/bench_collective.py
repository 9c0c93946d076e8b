"""What the hooks add to one collective and one send, beside the bare op, on torch's fake backend.

The fake backend completes at once, so what is measured is the way there and back alone. Blocks of
bare and hooked calls alternate in one process (the hooks are installed and taken off each time).
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from pardbg_agent import core, hooks
from tests.bench.figures import Figure

BLOCKS, CALLS = 40, 500
BUDGET_US = 6.0


def per_call_us(call: Callable[[], object]) -> float:
    begun = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    return (time.perf_counter_ns() - begun) / CALLS / 1000


def added_us(call: Callable[[], object]) -> tuple[float, float, float]:
    """(bare, hooked, median difference of neighbouring blocks) in µs per call."""
    bare, hooked = [], []
    for _ in range(BLOCKS):
        bare.append(per_call_us(call))
        hooks.install()
        call()
        hooked.append(per_call_us(call))
        hooks.uninstall()
    difference = [h - b for h, b in zip(hooked, bare, strict=True)]
    return statistics.median(bare), statistics.median(hooked), statistics.median(difference)


def floor_us(call: Callable[[], object]) -> float:
    """What an empty Python kernel alone adds: no hook in Python can cost less."""
    from torch.library import Library

    op = torch.ops.c10d.allreduce_.default._handle.redispatch_boxed
    after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    difference = []
    for _ in range(BLOCKS // 2):
        bare = per_call_us(call)
        library = Library("c10d", "IMPL")
        library.impl(
            "allreduce_", lambda keyset, *args: op(keyset & after, *args), "BackendSelect",
            with_keyset=True,
        )  # fmt: skip
        difference.append(per_call_us(call) - bare)
        library._destroy()
    return statistics.median(difference)


def main() -> list[Figure]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir="/tmp") as run_dir:
        run = {"v": 1, "run": "bench", "ring_dir": f"{run_dir}/rings"}
        Path(run_dir, "run.json").write_text(json.dumps(run))
        os.environ["PARDBG"] = run_dir
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
        tensor = torch.zeros(1024)
        core.ensure()
        floor = floor_us(lambda: dist.all_reduce(tensor))
        figures = [
            Figure("collective: an empty Python kernel", floor, "us",
                   note="the floor below torch 2.14"),
        ]  # fmt: skip
        for name, call in (
            ("all_reduce", lambda: dist.all_reduce(tensor)),
            ("all_reduce async", lambda: dist.all_reduce(tensor, async_op=True)),
            ("isend", lambda: dist.isend(tensor, 1)),
        ):
            bare, hooked, added = added_us(call)
            note = f"bare {bare:.2f}, hooked {hooked:.2f}, {BLOCKS} pairs"
            figures.append(Figure(f"{name}: added by the hooks", added, "us", BUDGET_US, note=note))
        dist.destroy_process_group()
        os.environ.pop("PARDBG")
        core.shutdown()
    return figures
