"""``pardbg.record`` and the fixture of pytest, as somebody's tests of training code use them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pardbg
from pardbg.errors import UserError
from tests.processes import rank_env

TESTS = """
import faulthandler, os, sys

import torch.distributed as dist
import torch
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel


def train(rank, world, folder):
    faulthandler.dump_traceback_later(60)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=world)
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()


def test_without_the_fixture():
    assert not {"pardbg.recorded_block", "zmq", "pardbg_agent.core"} & sys.modules.keys()


def test_ranks_that_it_starts(pardbg_recording, tmp_path):
    mp.spawn(train, (2, tmp_path), 2)
    session = pardbg_recording.stop()
    assert "PARDBG" in os.environ  # until the test ends
    assert len(session.report().ranks) == 2
    assert session.steps()["step"].tolist() == [0, 1, 2]
    assert {*session.collectives()["op"]} >= {"all_reduce"}
    assert not [one for one in session.findings() if one.severity == "error"]


def test_this_process(pardbg_recording, tmp_path):
    train(0, 1, tmp_path)
    session = pardbg_recording.stop()
    train(0, 1, tmp_path)
    assert len(session.report().ranks) == 1
    assert session.steps()["step"].tolist() == [0, 1, 2]


def test_nothing_is_left():
    assert "PARDBG" not in os.environ and dist.all_reduce.__module__.startswith("torch.")
"""


@pytest.mark.timeout(170)
def test_a_project_that_uses_the_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_training.py").write_text(TESTS)
    argv = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "pardbg.pytest_plugin", "-p",
            "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path)]  # fmt: skip
    env = rank_env() | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=160
        )
    except subprocess.TimeoutExpired as hung:
        pytest.fail(f"where it stands: {hung.stdout!r} {hung.stderr!r}")
    assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout + done.stderr


def test_what_cannot_be_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old.mcap").touch()
    for path in (tmp_path / "old.mcap", tmp_path / "none" / "new.mcap"):
        with pytest.raises(UserError), pardbg.record(path):
            pass
    monkeypatch.setenv("PARDBG", os.fspath(tmp_path))
    with pytest.raises(UserError), pardbg.record(tmp_path / "new.mcap"):
        pass
    assert [one.name for one in tmp_path.iterdir()] == ["old.mcap"]
