"""What `pardbg run` says of its recording is so."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pardbg.session.reader import load
from tests.distributed.owned import PARDBG, children, handle_of, owned, run_argv
from tests.distributed.runs import fake_job
from tests.processes import rank_env, wait_until

NOTHING = "import sys; sys.exit(4)"


def pardbg(*words: str) -> tuple[int, str]:
    done = subprocess.run(
        [*PARDBG, *words], capture_output=True, text=True, timeout=50, env=rank_env()
    )
    return done.returncode, done.stderr.strip().removeprefix("pardbg: ")


def run(session: Path, *options: str, job: str = NOTHING) -> tuple[int, str]:
    return pardbg("run", *options, "-o", str(session), "--", sys.executable, "-c", job)


def test_a_file_that_is_there_is_refused(tmp_path: Path) -> None:
    session = tmp_path / "s.mcap"
    assert run(session) == (4, f"recorded {session}")
    before = session.read_bytes()
    code, said = run(session)
    assert code == 2 and said == f"{session} exists: choose another -o, or --force to replace it"
    assert session.read_bytes() == before
    assert run(session, "--force") == (4, f"recorded {session}")
    assert session.read_bytes() != before


def test_a_file_that_another_run_writes_is_refused_always(tmp_path: Path) -> None:
    session = tmp_path / "s.mcap"
    with owned(run_argv(session, "input()")):
        handle = handle_of(session)
        code, said = run(session, "--force")
        assert code == 2 and said.startswith(f"{handle.run} is being recorded to {session}")


def test_of_two_runs_that_start_at_once_the_second_records_nothing(tmp_path: Path) -> None:
    session = tmp_path / "s.mcap"
    with session.open("wb") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        code, said = run(session)
    assert code == 4 and said.startswith("NOT recorded: ") and "\n" not in said
    assert session.read_bytes() == b""


@pytest.mark.parametrize("path", ["/dev/full", "/proc/x.mcap", "/dev/null"])
def test_no_place_for_a_file(path: str) -> None:
    code, said = run(Path(path), "--force")
    assert code == 2 and "choose another -o" in said and "\n" not in said


def test_a_disk_that_fills_up(tmp_path: Path, small_tmpfs: Path) -> None:
    """The exit code is the job's, and what is missing is said, with how much."""
    session = small_tmpfs / "s.mcap"
    job = fake_job(2, 300)
    fill = (
        "import subprocess, sys\n"
        f"subprocess.run({job!r}, check=True)\n"
        f"file = open({str(small_tmpfs / 'fill')!r}, 'wb', buffering=0)\n"
        "try:\n    while True: file.write(bytes(4096))\nexcept OSError: pass\n"
        f"subprocess.run({job!r}, check=True)\nsys.exit(4)\n"
    )
    code, said = run(session, job=fill)
    assert code == 4
    line = said.splitlines()[-1].removeprefix("pardbg: ")
    found = re.fullmatch(
        rf"recorded {session} IN PART: recording stopped: No space left on device; "
        r"the last (.+) are missing \((\d+) messages\)",
        line,
    )
    assert found is not None, said
    assert int(found[2]) > 10
    assert load(session).truncated


def test_a_hub_that_is_gone_for_good(tmp_path: Path) -> None:
    """All that would start a hub is killed: nobody closes the recording, and that is said."""
    session = tmp_path / "s.mcap"
    with owned(run_argv(session, "import time; print('up', flush=True); input(); exit(4)")) as job:
        handle = handle_of(session)
        found = children(handle)
        wait_until(lambda: session.exists() and session.stat().st_size > 0, 20, "a recording")
        for name in ("keeper", "guardian", "launcher", "hub"):
            os.kill(found[name].pid, signal.SIGKILL)
        wait_until(lambda: not handle.hub_alive(), 20, "the hub's end")
        out, err = job.communicate(b"\n", timeout=30)
    assert job.returncode == 4 and out == b"up\n"
    last = err.decode().splitlines()[-1]
    assert last.startswith(f"pardbg: recorded {session} IN PART: the hub was lost and the file")
