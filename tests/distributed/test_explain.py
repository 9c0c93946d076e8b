"""Logs of real jobs that ran without pardbg: killed, hung, mismatched, with an exception."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pardbg.doors.explained import explained
from pardbg.joblog.scan import read
from pardbg.joblog.verdict import judge
from tests.processes import rank_env

PROGRAM = """
import datetime, os, sys, time, torch, torch.distributed as dist
kind = sys.argv[1]
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3))
rank = dist.get_rank()
def dump():
    with open(f"{sys.argv[2]}/fr_rank_{rank}", "wb") as file:
        file.write(torch._C._distributed_c10d._dump_fr_trace())
for step in range(4):
    odd = step == 2 and rank == 1
    if odd and kind == "kill":
        os.kill(os.getpid(), 9)
    if odd and kind == "hang":
        dump()
        time.sleep(10)
    if odd and kind == "raise":
        raise ValueError("bad batch 17")
    try:
        dist.all_reduce(torch.ones(900 if odd and kind == "mismatch" else 1000))
    except RuntimeError:
        dump()
        raise
"""
FOUND = {
    "kill": ("process-ended", (1,)),
    "hang": ("absent-ranks", (1,)),
    "raise": ("exception", (1,)),
    "mismatch": ("mismatch", ()),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", FOUND)
def test_a_real_jobs_log(tmp_path: Path, kind: str) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    with open(tmp_path / "job.log", "wb") as log:
        job = subprocess.run(
            [*launch, tmp_path / "train.py", kind, tmp_path], stdout=log, stderr=log,
            env=rank_env() | {"TORCH_FR_BUFFER_SIZE": "100"}, timeout=100,
        )  # fmt: skip
    assert job.returncode != 0
    causes = [c for c in judge(read([str(tmp_path / "job.log")])).conclusions if not c.follows]
    assert [(one.kind, one.culprits) for one in causes] == [FOUND[kind]]
    if kind == "hang":  # the third op, and the place of rank 1's second, which was its last
        [one] = [c for c in explained([str(tmp_path)]).verdict.conclusions if not c.follows]
        assert (one.kind, one.culprits, one.ranks, one.seq) == ("missing-rank", (1,), (0, 2), 3)
        assert (one.fact("last"), one.fact("line")) == (2, 19)
