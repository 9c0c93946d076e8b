"""How often do small gloo programs die or hang at their end, with and without the agent?

``python -m tests.bench.exit_hazard [--runs N] [WAY …]``: N runs of a 2-rank DDP program in each way
to end (WAYS), plain and with the agent (``seen_as``), interleaved. torch itself is not innocent
here, so what counts is the rate beside the plain program's.

Ranks are forked from this process, which has imported torch and nothing else of it: each then runs
and ends as a program of its own, with the interpreter's whole finalization, in a fifth of the time
that importing torch anew would take.
"""

from __future__ import annotations

import argparse
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
from pardbg_agent import core, native

RANKS, TIMEOUT_S = 2, 30.0


WAYS = {
    "destroy": "ok", "leave": "ok", "local": "ok", "exit": "exit 3", "exit in an op": "exit 3",
    "_exit": "exit 4", "raise": "exit 1", "raise in an op": "exit 1",
}  # fmt: skip
"""How a program ends, and what its parent sees of it."""


def seen_as() -> tuple[str, ...]:
    """How its ops are seen: not at all, in Python, and in C++ where that was built."""
    try:
        native.state()
    except native.Unusable:
        return "plain", "dispatcher"
    return "plain", "dispatcher", "native"


def program(rank: int, work: Path, way: str) -> None:
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
    if way.endswith("in an op"):
        # Rank 1 never comes to the next one: rank 0 leaves it, and with it the peer.
        work_of = dist.all_reduce(torch.ones(1000), async_op=True) if rank == 0 else work_of
    else:
        work_of.wait()
    if way != "local":
        # Module globals live until the interpreter is finalized, as in a script.
        sys.modules["__main__"].__dict__["kept"] = (model, optimizer, work_of)
    _end(way)


def _end(way: str) -> None:
    if way in ("destroy", "local"):
        dist.destroy_process_group()
    elif way.startswith("exit"):
        sys.exit(3)
    elif way == "_exit":
        os._exit(4)
    elif way.startswith("raise"):
        raise RuntimeError("the end")


def start_rank(rank: int, work: Path, seen: str, way: str) -> int:
    """Fork a rank; the child leaves through SystemExit, that is through the whole exit path."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), PARDBG_HOOKS=seen)
    if seen != "plain":
        assert pardbg_agent.attach(work)
    program(rank, work, way)
    if seen != "plain":
        assert core.CURRENT is not None and core.CURRENT.guard.errors == 0
        assert (core.CURRENT.native is not None) == (seen == "native")
    sys.exit(0)


def run_once(seen: str, way: str) -> list[str]:
    """What became of each rank: ``ok``, ``exit N``, ``signal N`` or ``hang``."""
    work = Path(tempfile.mkdtemp(prefix="pdbx-", dir="/tmp"))
    (work / "rings").mkdir()
    run = {"v": 1, "run": "exit", "ring_dir": str(work / "rings")}
    (work / "run.json").write_text(json.dumps(run))
    try:
        pids = [start_rank(rank, work, seen, way) for rank in range(RANKS)]
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


def main(ways: list[str], count: int) -> None:
    """Run and print."""
    each = [(way, seen) for way in ways for seen in seen_as()]
    found: dict[tuple[str, str], Counter[str]] = {one: Counter() for one in each}
    seconds: dict[tuple[str, str], float] = dict.fromkeys(each, 0.0)
    for _ in range(count):
        for way, seen in each:
            begun = time.monotonic()
            found[way, seen].update(run_once(seen, way))
            seconds[way, seen] += time.monotonic() - begun
    print(f"{count} runs of {RANKS} ranks each way")
    for (way, seen), counts in found.items():
        odd = sum(n for what, n in counts.items() if what != WAYS[way])
        mean = seconds[way, seen] / count
        print(f"{way:<14} {seen:<10} {odd:>4} odd  {mean:.2f} s per run  {dict(counts)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.exit_hazard")
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--runs", type=int, default=200)
    words = parser.parse_args()
    main(words.ways or list(WAYS), words.runs)
