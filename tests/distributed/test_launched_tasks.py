"""``pardbg run`` as the task of a launcher that starts a process per rank: one recording of all."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pardbg.session.reader import load
from tests.distributed.owned import PARDBG
from tests.distributed.programs import crashes, ddp
from tests.processes import Finished, rank_env, run_argv, torchrun_argv, wait_until

MPIRUN = "mpirun.openmpi"
AS_TORCHRUN = (
    "import os, runpy; env = os.environ; env['RANK'] = env['OMPI_COMM_WORLD_RANK'];"
    "env['WORLD_SIZE'] = '2'; runpy.run_path({!r}, run_name='__main__')"
)


def _mpirun(session: Path, *program: str, free_port: Callable[[], int]) -> Finished:
    if shutil.which(MPIRUN) is None:
        pytest.skip("no Open MPI here")
    words = [*PARDBG, "run", "-o", str(session), "--", sys.executable, "-c"]
    argv = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-np", "2", *words]
    env = rank_env() | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return run_argv([*argv, AS_TORCHRUN.format(program[0]), *program[1:]], env=env, timeout_s=100)


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_the_tasks_of_a_launcher_are_one_run(
    tmp_path: Path, free_port: Callable[[], int], launcher: str
) -> None:
    session, program = tmp_path / "s.mcap", str(ddp.__file__)
    if launcher == "torchrun":
        words = [*PARDBG, "run", "-o", str(session), "--", sys.executable, program]
        done = run_argv(torchrun_argv("--no-python", *words, nproc=2), env=rank_env(), timeout_s=99)
    else:
        done = _mpirun(session, program, free_port=free_port)
    assert done.code == 0, done.err
    store = load(session)
    ranks = store.rank_procs(None)
    assert sorted(ranks) == [0, 1] and [end[1] for end in store.run_ends] == [0]
    assert all(len(process.table("step")) == ddp.STEPS for process in ranks.values())
    assert list(tmp_path.glob("*.mcap")) == [session]


def test_tasks_that_crash_at_once_are_recorded(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    session = tmp_path / "s.mcap"
    _mpirun(session, str(crashes.__file__), "here", free_port=free_port)
    wait_until(lambda: load(session).run_ends, 30)  # mpirun does not wait for a task it ends
    ranks = load(session).rank_procs(None)
    assert {rank: process.exit_code for rank, process in ranks.items()} == {0: -11, 1: -11}
