"""A program whose own modules are named like the agent's libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pardbg_agent.life.own_libraries import program_directory

PROGRAM = """
import msgpack, zmq, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(3))
print("mine", msgpack.MINE, zmq.MINE, flush=True)
dist.destroy_process_group()
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ranks", [
    pytest.param("by torchrun", marks=pytest.mark.long), "without RANK",
])  # fmt: skip
def test_both_get_their_own(tmp_path: Path, ranks: str) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    for name in ("msgpack", "zmq"):
        (tmp_path / f"{name}.py").write_text("MINE = 41\n")
    session = tmp_path / "s.mcap"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    if ranks == "without RANK":
        text = (tmp_path / "train.py").read_text()
        (tmp_path / "train.py").write_text(
            text.replace(
                '("gloo")', f'("gloo", init_method="file://{tmp_path}/f", rank=0, world_size=1)'
            )
        )
        launch = [sys.executable]
    pardbg = [sys.executable, "-m", "pardbg"]
    job = subprocess.run(
        [*pardbg, "run", "-o", session, "--", *launch, tmp_path / "train.py"],
        cwd=os.path.dirname(tmp_path), capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert job.returncode == 0, job.stderr[:3000]
    assert "mine 41 41" in job.stdout
    report = subprocess.check_output([*pardbg, "report", session, "--json"], timeout=60)
    assert [one["op"] for one in json.loads(report)["collectives"]] == ["all_reduce"], job.stderr


@pytest.mark.parametrize(
    ("command", "directory"),
    [
        (["python", "-u", "-X", "dev", "a/train.py", "-m", "b"], "a"),
        (["python", "-Wignore", "-m", "a.train", "b/c.py"], "."),
        (["python", "-c", "import a"], "."),
        (["python", "a"], "a"),
        (["python", "-i"], None),
        (["python"], None),
    ],
)
def test_program_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], directory: str | None
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/train.py").touch()
    monkeypatch.chdir(tmp_path)
    expected = None if directory is None else str((tmp_path / directory).resolve())
    assert program_directory(command) == expected
