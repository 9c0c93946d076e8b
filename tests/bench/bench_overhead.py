"""A training step with the agent at full level beside the same step without, and beside
torch.profiler: DDP, FSDP2 and tensor parallelism on two ranks and a paced 1F1B on four, all real,
on gloo.

Short blocks alternate in one process, plain and watched (hooks taken off and put in place), with a
profiled one now and then, so that what a shared machine does to one it does to its neighbours.
Reported: the median over neighbouring blocks of watched/plain - 1 with its 90 % interval
(bootstrap). Read it together with the two figures that do not wander: the CPU time that all ranks
spend more, per step and rank, as a share of the step (a rank's own CPU time is no good base where
it mostly sleeps: in the paced 1F1B it is 5 % of the step), and what the hooks say they cost. A
collector takes the agent's data, as a hub would; its sender thread is there in all blocks.

In the paced 1F1B every hook runs with cold caches, after a sleep: 10-30 us for each op and action,
of which an op's empty Python kernel takes 13.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.bench.figures import Figure
from tests.processes import rank_env, torchrun_argv

WAYS = ("plain", "agent", "profiler")
SECONDS = float(os.environ.get("PARDBG_BENCH_SECONDS", "75"))
"""Per program."""
PAIRS = 80
"""At most."""
PROFILED_EVERY = 4
STEPS = 6
SETTLE = 4
"""Steps after each switch that are not counted: a job's hooks see once that steps are alike."""
PACE_MS = 4.0


# -- in the ranks


def ddp_step() -> Callable[[], None]:
    """About 60-90 ms on one slow core, five buckets' worth of gradients."""
    torch.manual_seed(0)
    layers = [m for _ in range(8) for m in (torch.nn.Linear(768, 768), torch.nn.GELU())]
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=4)
    return _stepping(net, torch.randn(160, 768))


def fsdp2_step() -> Callable[[], None]:
    """Eight units, each gathered twice and reduced once."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    units = [torch.nn.Sequential(torch.nn.Linear(768, 768), torch.nn.GELU()) for _ in range(8)]
    net: Any = torch.nn.Sequential(*units)
    for unit in units:
        fully_shard(unit)
    fully_shard(net)
    return _stepping(net, torch.randn(160, 768))


def tp_step() -> Callable[[], None]:
    """Eight pairs of layers, the first sharded by columns, the second by rows."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    pairs = [
        torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
        for _ in range(8)
    ]
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan: Any = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    for pair in pairs:
        parallelize_module(pair, mesh, plan)
    return _stepping(torch.nn.Sequential(*pairs), torch.randn(160, 512))


def _stepping(net: Any, x: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step() -> None:
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def pipeline_step() -> Callable[[], None]:
    """1F1B, 4 stages, 8 microbatches, paced: 4 ms forward, 8 ms backward."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    from pardbg.lab.recipes.paced import Paced

    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), Paced(PACE_MS))
    stage = PipelineStage(net, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 8, loss_fn=torch.nn.MSELoss())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = torch.randn(32, 64), torch.randn(32, 64)

    def step() -> None:
        args = (x,) if rank == 0 else ()
        schedule.step(*args, target=y if rank == size - 1 else None, return_outputs=False)
        optimizer.step()
        optimizer.zero_grad()

    return step


PROGRAMS = {"ddp": ddp_step, "fsdp2": fsdp2_step, "tp": tp_step, "1f1b": pipeline_step}


def block(step: Callable[[], None], way: str) -> tuple[float, float, float, float]:
    """(median ms, own CPU ms, hooks' own ms, ms the profiler takes to end) per step of one block;
    all ranks do it together."""
    from pardbg_agent import core, hooks

    profiler: Any = contextlib.nullcontext()
    if way == "agent":
        hooks.install()
    elif way == "profiler":
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    c = core.ensure()
    times, own = [], []
    with profiler:
        for _ in range(SETTLE):
            step()
        cpu = time.process_time()
        for _ in range(STEPS):
            begun, spent = time.perf_counter(), c.cost()[0]
            step()
            times.append((time.perf_counter() - begun) * 1000)
            own.append((c.cost()[0] - spent) / 1e6)
        cpu_ms = (time.process_time() - cpu) * 1000 / STEPS
        ends = time.thread_time()
    end_ms = (time.thread_time() - ends) * 1000 / (STEPS + SETTLE)
    if way == "agent":
        hooks.uninstall()
    return statistics.median(times), cpu_ms, statistics.median(own), end_ms


def rounds(step: Callable[[], None]) -> list[dict[str, tuple[float, float, float, float]]]:
    """Way -> its block, per round, until the time is up on rank 0."""
    found: list[dict[str, tuple[float, float, float, float]]] = []
    until = time.monotonic() + SECONDS
    more = torch.ones(1)
    while more.item() and len(found) < PAIRS:
        ways = WAYS if len(found) % PROFILED_EVERY == 0 else WAYS[:2]
        found.append({way: block(step, way) for way in (ways[::-1] if len(found) % 2 else ways)})
        more[0] = time.monotonic() < until
        dist.broadcast(more, 0)
    return found


def worker(kind: str) -> None:
    """One rank: all rounds; rank 0 prints its own times and everybody's CPU times as JSON."""
    from pardbg_agent import core

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    step = PROGRAMS[kind]()
    for _ in range(3):
        step()
    c = core.ensure()
    mine = rounds(step)
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, mine)
    if dist.get_rank() == 0:
        found = [
            {way: (ms, *(statistics.mean(rank[i][way][k] for rank in everybody) for k in (1, 2, 3)))
             for way, (ms, *_) in blocks.items()}
            for i, blocks in enumerate(mine)
        ]  # fmt: skip
        result = {"found": found, "errors": c.guard.errors, "native": c.native is not None}
        sys.stdout.write(f"RESULT {json.dumps(result)}\n")
        sys.stdout.flush()
    del step
    dist.destroy_process_group()


# -- around them


def collect(run_dir: Path, stop: threading.Event) -> None:
    """Take what the agents send and drop it."""
    import zmq

    with zmq.Context() as ctx, ctx.socket(zmq.PULL) as data, ctx.socket(zmq.ROUTER) as ctrl:
        data.bind(f"ipc://{run_dir}/data")
        ctrl.bind(f"ipc://{run_dir}/ctrl")
        while not stop.is_set():
            for socket in (data, ctrl):
                if socket.poll(20):
                    socket.recv_multipart()
        data.linger = ctrl.linger = 0


def run(kind: str, nproc: int) -> dict[str, Any]:
    """The blocks of rank 0."""
    with tempfile.TemporaryDirectory(prefix="pdbb-", dir="/tmp") as name:
        run_dir = Path(name)
        facts = {"v": 1, "run": "bench", "ring_dir": f"{name}/rings", "data": f"ipc://{name}/data",
                 "ctrl": f"ipc://{name}/ctrl"}  # fmt: skip
        (run_dir / "run.json").write_text(json.dumps(facts))
        stop = threading.Event()
        thread = threading.Thread(target=collect, args=(run_dir, stop))
        thread.start()
        try:
            # PARDBG without autostart: the blocks themselves put the hooks in place.
            argv = torchrun_argv("-m", "tests.bench.bench_overhead", "--worker", kind, nproc=nproc)
            done = subprocess.run(
                argv, env=rank_env({"PARDBG_RUN_DIR": name}), capture_output=True, text=True,
                timeout=500, check=True,
            )  # fmt: skip
        finally:
            stop.set()
            thread.join()
    (line,) = [x for x in done.stdout.splitlines() if x.startswith("RESULT ")]
    result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    assert result["errors"] == 0
    return result


def interval(ratios: list[float]) -> tuple[float, float]:
    """90 % of the medians of resampled ratios."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[100], medians[-101]


def added(pairs: list[tuple[float, float]]) -> tuple[float, str]:
    """Median of new/old - 1 in percent, and its interval as text."""
    ratios = [100 * (new / old - 1) for old, new in pairs]
    low, high = interval(ratios)
    return statistics.median(ratios), f"[{low:+.2f}, {high:+.2f}] {len(pairs)} pairs"


def figures(name: str, result: dict[str, Any]) -> list[Figure]:
    """Per way: percent added to the step, and CPU time added as percent of the step."""
    found = result["found"]
    step_ms = statistics.median(x["plain"][0] for x in found)
    out = []
    for way, budget in (("agent", 1.0), ("profiler", None)):
        both = [(x["plain"], x[way]) for x in found if way in x]
        share, note = added([(p[0], w[0]) for p, w in both])
        out.append(Figure(f"{name}: {way}", share, "%", budget, note=f"{note}, {step_ms:.1f} ms"))
        cpu = [100 * (w[1] - p[1]) / step_ms for p, w in both]
        low, high = interval(cpu)
        base_ms = statistics.median(p[1] for p, _ in both)
        note = f"[{low:+.2f}, {high:+.2f}] on {base_ms:.1f} ms CPU per step and rank"
        out.append(
            Figure(f"{name}: {way}, CPU / step", statistics.median(cpu), "%", budget, note=note)
        )
    end_ms = statistics.median(x["profiler"][3] for x in found if "profiler" in x)
    note = f"{end_ms:.1f} ms CPU per profiled step, after it: not in the figures above"
    out.append(Figure(f"{name}: profiler's end", 100 * end_ms / step_ms, "%", note=note))
    own_ms = statistics.median(x["agent"][2] for x in found)
    note = f"{1000 * own_ms:.0f} us per step and rank"
    out.append(Figure(f"{name}: hooks' own cost", 100 * own_ms / step_ms, "%", 1.0, note=note))
    return out


def main() -> list[Figure]:
    names = {"ddp": "ddp, 2 ranks", "fsdp2": "fsdp2, 2", "tp": "tp, 2", "1f1b": "1f1b paced, 4"}
    wanted = os.environ.get("PARDBG_BENCH_PROGRAMS", ",".join(names)).split(",")
    found = {kind: run(kind, 4 if kind == "1f1b" else 2) for kind in wanted}
    if not all(one["native"] for one in found.values()):
        print("the native way is not built (make native): what follows is the Python way's cost")
    return [figure for kind in wanted for figure in figures(names[kind], found[kind])]


if __name__ == "__main__":
    os.environ["PARDBG"] = os.environ["PARDBG_RUN_DIR"]
    worker(sys.argv[2])
