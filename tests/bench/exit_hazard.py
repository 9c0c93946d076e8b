"""How often do small gloo programs die or hang at their end, with and without the agent?

``python -m tests.bench.exit_hazard [N]``: N runs of a 2-rank DDP program each way (plain, agent) x
(with, without destroy_process_group), the ways interleaved. torch itself is not innocent here, so
what counts is the rate beside the plain program's.

Ranks are forked from this process, which has imported torch and nothing else of it: each then runs
and ends as a program of its own, with the interpreter's whole finalization, in a fifth of the time
that importing torch anew would take.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
import torch._dynamo  # what optimizers import at their first step takes seconds
import torch.distributed as dist

import pardbg_agent
import pardbg_agent.hooks.installed
from pardbg_agent import core

RANKS, TIMEOUT_S = 2, 30.0


def program(rank: int, work: Path, destroy: bool) -> None:
    """Five DDP steps, one more collective, and the end."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(work / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        model(torch.randn(4, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    work_of = dist.all_reduce(torch.ones(1000), async_op=True)
    assert work_of is not None
    work_of.wait()
    if destroy:
        dist.destroy_process_group()
    else:
        # Module globals live until the interpreter is finalized, as in a script.
        sys.modules["__main__"].__dict__["kept"] = (model, optimizer)


def start_rank(rank: int, work: Path, agent: bool, destroy: bool) -> int:
    """Fork a rank; the child leaves through SystemExit, that is through the whole exit path."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS))
    if agent:
        assert pardbg_agent.attach(work)
    program(rank, work, destroy)
    if agent:
        assert core.CURRENT is not None and core.CURRENT.guard.errors == 0
    sys.exit(0)


def run_once(agent: bool, destroy: bool) -> list[str]:
    """What became of each rank: ``ok``, ``exit N``, ``signal N`` or ``hang``."""
    work = Path(tempfile.mkdtemp(prefix="pdbx-", dir="/tmp"))
    (work / "rings").mkdir()
    run = {"v": 1, "run": "exit", "ring_dir": str(work / "rings")}
    (work / "run.json").write_text(json.dumps(run))
    try:
        pids = [start_rank(rank, work, agent, destroy) for rank in range(RANKS)]
        return [_end_of(pid, time.monotonic() + TIMEOUT_S) for pid in pids]
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _end_of(pid: int, deadline: float) -> str:
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return "ok" if code == 0 else f"signal {-code}" if code < 0 else f"exit {code}"
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hang"


def main(count: int) -> None:
    """Run and print."""
    ways = [(agent, destroy) for agent in (False, True) for destroy in (True, False)]
    found: dict[tuple[bool, bool], Counter[str]] = {way: Counter() for way in ways}
    seconds: dict[tuple[bool, bool], float] = dict.fromkeys(ways, 0.0)
    for _ in range(count):
        for way in ways:
            begun = time.monotonic()
            found[way].update(run_once(*way))
            seconds[way] += time.monotonic() - begun
    for (agent, destroy), counts in found.items():
        who = f"{'agent' if agent else 'plain'} {'destroy' if destroy else 'leave'}"
        mean = seconds[agent, destroy] / count
        print(f"{who:<14} {dict(counts)} of {count * RANKS} ranks, {mean:.2f} s per run")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
