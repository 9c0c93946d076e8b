"""What a watch adds to an op of the rank that has it: a 16 KiB all_reduce that goes nowhere (a fake
group), so that all it costs is hooks and torch's own way."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from pardbg_agent import core, hooks
from pardbg_agent.control.breaks import breaks_of
from pardbg_agent.control.watches import watches_of
from pardbg_agent.ctrl.agent_messages import Watch
from tests.bench.figures import Figure
from tests.distributed.programs.watched import make_run

OPS = 500
ROUNDS = 15


def main() -> list[Figure]:
    torch.set_num_threads(1)
    os.environ["PARDBG_PROBES"] = "off"  # what they cost is in bench_probes
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
    """Rounds of all kinds in turn, so that a busy moment is everybody's."""
    kinds = [None, "memory", "slow", "nan"]
    taken: dict[str | None, list[float]] = {kind: [] for kind in kinds}
    tensor = torch.zeros(4096)
    for _ in range(ROUNDS):
        for kind in kinds:
            _watch(kind)
            taken[kind].append(_us(tensor))
    _watch(None)
    alone = median(taken[None])
    return [
        Figure("op, recorded, no watch", alone, "us", note="the fake group's own part included"),
        *(Figure(f"watch {kind}: more per op", median(taken[kind]) - alone, "us", budget)
          for kind, budget in (("memory", 0.5), ("slow", 10.0), ("nan", None))),
    ]  # fmt: skip


def _watch(kind: str | None) -> None:
    c = core.ensure()
    said = [] if kind is None else [Watch(1, kind, 1e15)]
    watches = watches_of(said)
    c.gate.set_breaks(breaks_of([]), watches)
    c.watches = watches


def _us(tensor: torch.Tensor) -> float:
    """CPU us of an op. Steps of 50 ops, as ``slow`` tells places of a step apart."""
    c = core.ensure()
    t0 = time.thread_time_ns()
    for n in range(OPS):
        if n % 50 == 0:
            c.step_end()
        dist.all_reduce(tensor)
    return (time.thread_time_ns() - t0) / 1e3 / OPS
