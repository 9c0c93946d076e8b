"""``pardbg run`` as the task of a launcher that starts a process per rank: one recording of all."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from pardbg.session.reader import load
from tests.distributed.owned import PARDBG
from tests.distributed.programs import ddp
from tests.processes import rank_env, run_argv, torchrun_argv

MPIRUN = "mpirun.openmpi"
AS_TORCHRUN = (
    "import os, runpy; env = os.environ; env['RANK'] = env['OMPI_COMM_WORLD_RANK'];"
    "env['WORLD_SIZE'] = '2'; runpy.run_path({!r}, run_name='__main__')"
)


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_the_tasks_of_a_launcher_are_one_run(
    tmp_path: Path, free_port: object, launcher: str
) -> None:
    session, program = tmp_path / "s.mcap", str(ddp.__file__)
    words = [*PARDBG, "run", "-o", str(session), "--", sys.executable]
    env = rank_env()
    if launcher == "torchrun":
        argv = torchrun_argv("--no-python", *words, program, nproc=2)
    elif shutil.which(MPIRUN) is None:
        pytest.skip("no Open MPI here")
    else:
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}  # type: ignore[operator]
        own = ("--allow-run-as-root", "--oversubscribe", "-np", "2")
        argv = [MPIRUN, *own, *words, "-c", AS_TORCHRUN.format(program)]
    done = run_argv(argv, env=env, timeout_s=100)
    assert done.code == 0, done.err
    store = load(session)
    ranks = store.rank_procs(None)
    assert sorted(ranks) == [0, 1] and [end[1] for end in store.run_ends] == [0]
    assert all(len(process.table("step")) == ddp.STEPS for process in ranks.values())
    assert list(tmp_path.glob("*.mcap")) == [session]
