"""What ``watch mismatch`` adds to each op of a real job, beside torch's own way to find the same.

Two ranks on gloo, all_reduces of 4 KiB one after the other. The watch is switched on and off in the
same processes, block by block; ``TORCH_DISTRIBUTED_DEBUG=DETAIL``, which compares each op by
collectives of its own first, is on or off from the start, so those are two more runs, without an
agent. Beside it: post and look-up on boards alone, for as many ranks as a node has.

The budget is for what the watch does: CPU time of the thread that issues. How much later the op
ends is more on gloo with few cores, where two ranks and their gloo threads wake each other up; so a
loop of SPIN_US that does nothing stands beside it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from pardbg_agent.control import posts
from tests.bench.figures import Figure
from tests.distributed.programs.watched import make_run
from tests.processes import rank_env, run_argv

BUDGET_US = 50.0
SPIN_US = 20
"""As in watched_ops, which is not imported: it loads torch."""
PROGRAM = "tests.bench.watched_ops"


def main() -> list[Figure]:
    watched = _ranks(agent=True)
    plain = _ranks()
    detail = _ranks(TORCH_DISTRIBUTED_DEBUG="DETAIL")
    off = watched["off_us"]
    note = f"2 gloo ranks; median of pairs of blocks; beside ops of {off:.0f} us without it"
    spun = f"a loop of {SPIN_US} us that does nothing: {watched['spun_us']:.0f} us later"
    times = detail["off_us"] / plain["off_us"]
    return [
        Figure("watch mismatch: added to an op", watched["cpu_us"], "us", BUDGET_US, note=note),
        Figure("watch mismatch: the op ends later by", watched["wall_us"], "us", note=spun),
        Figure("DEBUG=DETAIL: added to the same op", detail["off_us"] - plain["off_us"], "us",
               note=f"{times:.1f} times the plain op of {plain['off_us']:.0f} us"),
        *(_boards(ranks) for ranks in (2, 8)),
    ]  # fmt: skip


def _ranks(agent: bool = False, **env: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        extra = make_run(Path(folder)) if agent else {}
        argv = [sys.executable, "-m", "tests.distributed.programs.forked_ranks", "2", PROGRAM]
        done = run_argv(argv, env=rank_env({**extra, **env}), timeout_s=120)
    if done.code:
        raise RuntimeError(done.err[-2000:])
    found: dict[str, float] = json.loads(done.out.splitlines()[-1])
    if agent and found["num_others"] != 1:
        raise RuntimeError("the ranks did not see each other's boards")
    return found


def _boards(ranks: int) -> Figure:
    """Posting, and finding what all the others posted, to the byte."""
    what, group = posts.pack_what("all_reduce", 0, 1, -1, 4096, 4096, "float32", "1024"), 77
    with tempfile.TemporaryDirectory() as folder:
        boards = [
            posts.Posts.create(f"{folder}/{rank}{posts.SUFFIX}", 1, rank) for rank in range(ranks)
        ]
        others = posts.PeerPosts(folder, boards[0])
        members = tuple(range(ranks))
        taken = []
        for seq in range(2000):
            for other in boards[1:]:
                other.post(group, seq, seq, what)
            t0 = time.thread_time_ns()
            boards[0].post(group, seq, seq, what)
            for found in others.of(members, ranks - 1):
                slot = found.find(group, seq)
                if slot is None or not posts.same(slot, what):
                    raise RuntimeError("not found")
            taken.append((time.thread_time_ns() - t0) / 1e3)
    return Figure(f"board: post and compare, {ranks} ranks", median(taken), "us", BUDGET_US)
