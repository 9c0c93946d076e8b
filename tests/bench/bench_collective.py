"""What the hooks add to one collective and one send, beside the bare op, on torch's fake backend.

The fake backend completes at once, so what is measured is the way there and back alone. Blocks of
bare and hooked calls alternate in one process (the hooks are installed and taken off each time),
and the thread's CPU time is taken: others on the machine change it little.

Where C++ is not built, the only place that sees every op is a Python kernel of the dispatcher. An
empty one alone costs 4-5 us: arguments and results, among them three script objects (group,
reduce op, Work), become Python objects and back, each with an import inside. Python's patched
``allreduce`` and ``wait`` cost 1 us more even if they do nothing. So the budget of 6 us above bare
is out of reach for synchronous and asynchronous all_reduce there; what is ours beyond the empty
kernel is about 4 us, each for two records, two status writes and a table entry. The figures name
the floor measured in the same run.
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
    begun = time.thread_time_ns()
    for _ in range(CALLS):
        call()
    return (time.thread_time_ns() - begun) / CALLS / 1000


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


def floor_us(call: Callable[[], object], name: str) -> float:
    """What an empty Python kernel alone adds: no hook in Python can cost less."""
    from torch.library import Library

    op = getattr(torch.ops.c10d, name).default._handle.redispatch_boxed
    after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    difference = []
    for _ in range(BLOCKS // 2):
        bare = per_call_us(call)
        library = Library("c10d", "IMPL")
        library.impl(
            name, lambda keyset, *args: op(keyset & after, *args), "BackendSelect",
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
        tensor, small, whole = torch.zeros(1024), torch.zeros(2048), torch.zeros(4 * 2048)
        core.ensure()
        figures = []
        for name, op, call in (
            ("all_reduce", "allreduce_", lambda: dist.all_reduce(tensor)),
            ("all_reduce async", "allreduce_", lambda: dist.all_reduce(tensor, async_op=True)),
            ("broadcast", "broadcast_", lambda: dist.broadcast(tensor, 0)),
            (
                "all_gather, 8 KiB",
                "_allgather_base_",
                lambda: dist.all_gather_into_tensor(whole, small),
            ),
            ("isend", "send", lambda: dist.isend(tensor, 1)),
        ):
            floor = floor_us(call, op)
            bare, hooked, added = added_us(call)
            note = (
                f"bare {bare:.2f}, empty kernel +{floor:.2f}, hooked {hooked:.2f}; ours beyond the"
                f" empty kernel {added - floor:.2f}; {BLOCKS} pairs, CPU time"
            )
            figures.append(Figure(f"{name}: added by the hooks", added, "us", BUDGET_US, note=note))
        dist.destroy_process_group()
        os.environ.pop("PARDBG")
        core.shutdown()
    return figures
