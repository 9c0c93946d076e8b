"""What the probes for NaN and for replicas that differ cost the rank that has them."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from pardbg_agent import core, hooks
from pardbg_agent.hooks import context
from pardbg_agent.hooks.watch import probes
from tests.bench.figures import Figure
from tests.distributed.programs.watched import make_run

STEP_MS = 100.0
"""A step of the recipes' DDP with paced compute."""


def main() -> list[Figure]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(make_run(Path(folder)))
        hooks.install()
        dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
        try:
            return _figures()
        finally:
            dist.destroy_process_group()
            hooks.uninstall()
            core.shutdown()


def _figures() -> list[Figure]:
    c = core.ensure()
    probes.FREE_NS = 1 << 62
    small, bucket = torch.randn(4096), torch.randn(437_000)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(50)))
    replica = DistributedDataParallel(model)
    named = list(probes._named(context.of(c).part(probes.Probes), replica))
    few = _us(lambda: probes.check_input(c, small[:4]))
    each = _us(lambda: probes.check_input(c, small))
    large = _us(lambda: probes.check_input(c, bucket))
    sums = _us(lambda: probes._checksum(c, named, replica.process_group, "checksum", 0))
    step_us = 2 * large + sums / probes.EVERY
    return [
        Figure("probe: NaN in four numbers", few, "us"),
        Figure("probe: NaN in 16 KiB", each, "us"),
        Figure("probe: NaN in a bucket of 1.7 MB", large, "us"),
        Figure("probe: checksum of 100 parameters", sums, "us", note=f"every {probes.EVERY} steps"),
        Figure("probes: of a DDP step of 100 ms", 100 * step_us / (STEP_MS * 1e3), "%", 0.3,
               note="two buckets and a tenth of a checksum"),
    ]  # fmt: skip


def _us(run: Callable[[], object], times: int = 200) -> float:
    """Median us of CPU time of a call."""
    taken = []
    for _ in range(times):
        t0 = time.thread_time_ns()
        run()
        taken.append((time.thread_time_ns() - t0) / 1e3)
    return median(taken)
