"""The fixture that looks for processes left behind finds those that hide."""

from __future__ import annotations

import subprocess
import sys

from tests.processes import end_tree, marked, run_argv, wait_until

ORPHAN = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"],
                         start_new_session=True, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
print(child.pid)
"""


def test_a_process_in_a_session_of_its_own_whose_parent_ended_is_found() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN], capture_output=True, text=True, timeout=120, check=True
    )
    orphan = int(done.stdout)
    try:
        wait_until(lambda: orphan in marked(), what="the orphan is seen")
    finally:
        end_tree(orphan)
    wait_until(lambda: orphan not in marked(), what="the orphan is gone")


def test_a_command_that_hangs_is_ended_with_all_it_started() -> None:
    code = ORPHAN + "\nsys.stdout.flush(); child.wait()"
    done = run_argv([sys.executable, "-c", code], env={}, timeout_s=1.5)
    assert done.timed_out
    child = int(done.out)
    wait_until(lambda: child not in marked(), what="the child is gone")
