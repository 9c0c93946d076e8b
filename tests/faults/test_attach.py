"""A job that was started without pardbg, hung, and looked at from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import ROOT
from tests.distributed.programs import launched_ranks
from tests.processes import end_tree, rank_env, wait_until
from tests.unit.joblog.dumps import write as write_dump

PROGRAM = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(3))
if dist.get_rank() == 1:
    open(sys.argv[1], "w").close()
    while not os.path.exists(sys.argv[1] + ".go"):
        time.sleep(0.05)
tensor = torch.ones(3)
dist.all_reduce(tensor)
sys.stdout.write(f"sum {tensor.tolist()}\\n")
sys.stdout.flush()
dist.barrier()
os._exit(0)  # torch's own end may abort, with nobody looking on
"""


def attached(*words: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "pardbg", "attach", *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.timeout(120)
def test_a_hung_job(tmp_path: Path) -> None:
    """The rank is named, by pid or launcher, several times; then the job goes on as it would."""
    (tmp_path / "train.py").write_text(PROGRAM)
    hung = tmp_path / "hung"
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3",
            tmp_path / "train.py", hung]  # fmt: skip
    number = str(10**6 + os.getpid())
    env = rank_env() | {"SLURM_JOB_ID": number}
    job = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env)
    try:
        wait_until(hung.exists, 60, "the ranks")
        ranks = [one.pid for one in psutil.Process(job.pid).children()]
        found: dict[str, object] = {}

        def named() -> bool:  # the others come to the op a moment later
            found.update(json.loads(attached("--launcher", job.pid, "--json").stdout))
            return found["waiting"] == [0, 2]

        wait_until(named, 30, "a verdict")
        assert (found["kind"], found["culprits"], found["call"]) == (
            "missing-rank", [1], "all_reduce",
        )  # fmt: skip
        text = attached(*ranks).stdout
        assert "train.py:8" in text and "Rank 1" in text
        for words in (("--slurm", number), ("--user",)):
            told = json.loads(attached(*words, "--json").stdout)
            [own] = [one for one in told if one["slurm_job"] == number]
            assert [(one["rank"], one["pid"]) for one in own["ranks"]] == [*enumerate(ranks)]
            assert own["culprits"] == [1]
        (tmp_path / "hung.go").touch()
        out, _ = job.communicate(timeout=60)
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 0 and out.count("sum [3.0, 3.0, 3.0]") == 3


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["spawn", "popen"])
def test_a_healthy_job_of_launchers_with_ranks_environment(
    tmp_path: Path, free_port: Callable[..., int], how: str
) -> None:
    """The ranks are what is in a group, not what started them; ranks that wait for a moment are no
    hang."""
    argv = [sys.executable, str(launched_ranks.__file__), how, str(free_port())]
    job = subprocess.Popen(argv, env=rank_env({"END": str(tmp_path / "end")}))
    found: dict[str, Any] = {}

    def all_there() -> bool:
        told = attached("--launcher", job.pid, "--json")
        found.update(json.loads(told.stdout) if told.returncode == 0 else {"ranks": []})
        return [one["rank"] for one in found["ranks"]] == [0, 1, 2, 3]

    try:
        wait_until(all_there, 60, "four ranks in their group")
        everybody = psutil.Process(job.pid).children(recursive=True)
        below = {one.pid for node in psutil.Process(job.pid).children() for one in node.children()}
        assert {one["pid"] for one in found["ranks"]} <= below
        assert len(everybody) > len(below)
        assert (found["kind"], found["culprits"]) == ("nobody-waits", [])
        entered = attached("--agent", "--launcher", job.pid) if how == "spawn" else None
        assert entered is None or entered.returncode == 2
        (tmp_path / "end").touch()
        assert job.wait(60) == 0
    finally:
        end_tree(job.pid)
        job.wait()


NOT_COME = """
import os, sys, time, torch.distributed as dist
open(sys.argv[1] + os.environ["RANK"], "w").close()
if os.environ["RANK"] == "2":
    time.sleep(1000)
dist.init_process_group("gloo")
"""


@pytest.mark.timeout(180)
def test_the_store_tells_who_has_not_come(tmp_path: Path) -> None:
    """Asked from two of three ranks, as on another machine."""
    (tmp_path / "train.py").write_text(NOT_COME)
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3",
            tmp_path / "train.py", tmp_path / "rank"]  # fmt: skip
    job = subprocess.Popen(argv, env=rank_env())
    try:
        wait_until(lambda: len(list(tmp_path.glob("rank?"))) == 3, 100, "the ranks")
        ranks = psutil.Process(job.pid).children()

        def told() -> bool:
            done = attached(ranks[0].pid, ranks[1].pid, "--store", "--json")
            return done.returncode == 0 and json.loads(done.stdout)["store"] == {
                "come": [0, 1], "missing": [2], "why_not_asked": None,
            }  # fmt: skip

        wait_until(told, 120, "the store's answer")
    finally:
        end_tree(job.pid)
        job.wait()


@pytest.mark.parametrize("attempt", ["0", "1"])
def test_a_store_that_cannot_tell(attempt: str) -> None:
    """Nobody listens; ranks before the restart left their keys there."""
    env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1",
           "TORCHELASTIC_RESTART_COUNT": attempt}  # fmt: skip
    code = "import torch, time; print(0, flush=True); time.sleep(1000)"
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=rank_env() | env) as rank:
        try:
            assert rank.stdout and rank.stdout.readline()
            found = json.loads(attached(rank.pid, "--store", "--json").stdout)
            assert found["store"].pop("why_not_asked")
            assert found["store"] == {"come": [], "missing": []}
        finally:
            rank.kill()


@pytest.mark.parametrize("words", [(1 << 22,), ("--slurm", "0"), ("--user", "--slurm", "1")])
def test_no_job(words: tuple[object, ...]) -> None:
    done = attached(*words)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


RECORDER = """
import os, sys, time, torch
from pathlib import Path
from tests.unit.joblog import dumps
dumps.START_NS = time.time_ns() - 60 * 10**9
rank, stem = os.environ["RANK"], os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"]
os.mkfifo(f"{stem}{rank}.pipe")
pipe = os.open(f"{stem}{rank}.pipe", os.O_RDONLY | os.O_NONBLOCK)
if rank == "2":
    os.close(pipe)
print(0, flush=True)
while rank == "2" or not os.read(pipe, 128):
    time.sleep(0.1)
ops = [("all_reduce", 8)] * (3 - int(rank))
dumps.write(Path(os.environ["TORCH_FR_DUMP_TEMP_FILE"]).parent, int(rank), ops, 2)
time.sleep(1000)
"""


@pytest.mark.timeout(120)
def test_dumps_of_the_flight_recorder(tmp_path: Path) -> None:
    """Ranks that do what NCCL's monitor thread does; nobody reads the pipe of rank 2, whose dump
    is an old one, and rank 3 has none."""
    write_dump(tmp_path, 2, [("broadcast", 4)], 0, "[0, 1, 2]")
    env = rank_env() | {
        "WORLD_SIZE": "4", "PYTHONPATH": str(ROOT), "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "",
        "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/nccl_trace_rank_",
    }  # fmt: skip
    pipe = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "pipe_"}  # in the rank's own directory
    silent = "import torch, time; print(0, flush=True); time.sleep(1000)"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RECORDER if rank < 3 else silent], cwd=tmp_path,
            stdout=subprocess.PIPE, env=env | (pipe if rank < 3 else {}) | {"RANK": str(rank)},
        )
        for rank in range(4)
    ]  # fmt: skip
    try:
        for rank in ranks:
            assert rank.stdout and rank.stdout.readline()
        found = json.loads(attached(*(one.pid for one in ranks), "--dumps", "--json").stdout)
        assert found["dumps"]["ranks"] == [0, 1] and [*found["dumps"]["why"]] == ["2", "3"]
        missing = found["dumps"]["findings"][0]
        assert (missing["kind"], missing["culprits"]) == ("missing-rank", [1])
        assert all(one.poll() is None for one in ranks)
    finally:
        for one in ranks:
            one.kill()
            one.communicate()
