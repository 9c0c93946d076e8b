"""The test ranks end with the tests, also where pytest is killed or interrupted twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

from tests.distributed.programs.watched import make_run
from tests.forked import PROGRAM, served
from tests.processes import MARK, end_tree, rank_env, torchrun_argv, wait_until


def test_ranks_do_not_outlive_the_tests() -> None:
    session = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    argv = [sys.executable, "-m", PROGRAM, "2", "http.server", "0"]
    env = rank_env({MARK: f"{session.pid}-killed"})
    job = subprocess.Popen(argv, env=env, start_new_session=True, stderr=subprocess.PIPE, text=True)
    try:
        ranks = psutil.Process(job.pid).children
        wait_until(lambda: len(ranks()) == 2, what="two ranks")
        left = ranks()
        session.kill()
        session.wait()
        assert "the test session is gone" in job.communicate(timeout=20)[1]
        _, alive = psutil.wait_procs(left, timeout=5)
        assert not alive
    finally:
        for process in (session, job):
            end_tree(process.pid)
            process.wait()


def test_ranks_of_a_server_end_with_their_job(tmp_path: Path) -> None:
    """They are known by their directory: other tests may have theirs there at the same time."""
    argv = served(torchrun_argv("-m", "http.server", "0", nproc=2))
    job = subprocess.Popen(argv, env=rank_env(make_run(tmp_path)), cwd=tmp_path)

    def ranks() -> list[psutil.Process]:
        return [p for p in psutil.process_iter() if p.pid != job.pid and _is_in(p, tmp_path)]

    try:
        wait_until(lambda: len(ranks()) == 3, what="two ranks and what forked them")
        left = ranks()
    finally:
        job.kill()
        job.wait()
    _, alive = psutil.wait_procs(left, timeout=10)
    assert not alive


def _is_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.cwd() == str(folder)
    except psutil.Error:
        return False
