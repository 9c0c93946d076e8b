"""The test ranks end with the tests, also where pytest is killed or interrupted twice."""

from __future__ import annotations

import subprocess
import sys

import psutil

from tests.forked import PROGRAM
from tests.processes import MARK, end_tree, rank_env, wait_until


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
