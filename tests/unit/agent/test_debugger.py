"""debugpy in a led thread, on whatever Python runs the tests: its tracing differs from 3.12 on."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("debugpy")


@pytest.mark.timeout(90)
def test_clients_step_and_leave_no_trace_nor_stop_a_forked_worker() -> None:
    words = [sys.executable, "-m", "tests.unit.agent.led_program"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=80, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # gate.wait is on the third line of the function's body, and is where it is held
    steps = [3, 4, 5, 2, 3, 4]
    assert [one["lines"] for one in found["seen"]] == [steps, [*steps, 5], steps]
    assert all(one["led"] for one in found["seen"])
    assert (found["trace"], found["tools"]) == (False, [])
