"""What a viewer's end means for a demo."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import os, sys
from pathlib import Path
from pardbg.cli.as_the_job import ending_with_us

class Handle:
    def kill(self):
        Path(sys.argv[1]).touch()

with ending_with_us(Handle() if sys.argv[2] == "ends" else None):
    os.kill(os.getpid(), int(sys.argv[3]))
"""


@pytest.mark.parametrize(
    ("how", "number", "ended"),
    [
        ("ends", signal.SIGHUP, True),  # the terminal was closed
        ("ends", signal.SIGTERM, True),
        ("ends", signal.SIGKILL, False),  # nobody decided that
        ("stays", signal.SIGHUP, False),
    ],
)
def test_a_demo_ends_with_its_viewer_if_somebody_decides_so(
    how: str, number: signal.Signals, ended: bool, tmp_path: Path
) -> None:
    path = tmp_path / "killed"
    argv = [sys.executable, "-c", CODE, str(path), how, str(int(number))]
    done = subprocess.run(
        ["env", "--default-signal=HUP", *argv], check=False, timeout=30
    )  # not as nohup has it
    assert done.returncode == -number
    assert path.exists() == ended
