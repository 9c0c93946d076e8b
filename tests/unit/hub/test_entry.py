"""gdb, as the way into a rank."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pardbg.hub.attach.entry import gdb_refuses, run_in_each, write_script
from pardbg.hub.attach.job_ranks import JobRank

GDB = """#!/bin/sh
printf '%s\\n' "$*" >> "{log}"
echo "Couldn't write extended state status: Bad address." >&2
"""


@pytest.fixture
def broken_gdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A gdb that fails in each process; return the file with what it was asked to do."""
    log, gdb = tmp_path / "log", tmp_path / "gdb"
    gdb.write_text(GDB.format(log=log))
    gdb.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    gdb_refuses.cache_clear()
    yield log
    gdb_refuses.cache_clear()


@pytest.fixture
def ranks() -> Iterator[list[JobRank]]:
    words = [sys.executable, "-I", "-S", "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with (
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one,
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other,
    ):
        for process in (one, other):
            assert process.stdout is not None
            process.stdout.readline()
        yield [JobRank(p.pid, rank, 2, (), "", False) for rank, p in enumerate((one, other))]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="3.14 needs no gdb")
@pytest.mark.timeout(30)
def test_a_gdb_that_can_call_nothing_here_touches_no_rank(
    broken_gdb: Path, ranks: list[JobRank], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    write_script(script, "")
    whys = run_in_each(ranks, script)
    assert set(whys) == {0, 1}
    (asked,) = broken_gdb.read_text().splitlines()  # once, for both
    pid = asked.split("-p ")[1].split()[0]
    assert pid not in {str(one.pid) for one in ranks}


@pytest.mark.timeout(30)
def test_gdb_is_tried_for_real() -> None:
    """It calls a function here, or why not is what it said of our own process."""
    if shutil.which("gdb") is None:
        pytest.skip("no gdb")
    gdb_refuses.cache_clear()
    with subprocess.Popen(["sleep", "30"]) as own:
        words = [
            "gdb",
            "-nx",
            "-batch",
            "-p",
            str(own.pid),
            "-ex",
            "print ((int(*)(void))getpid)()",
        ]
        done = subprocess.run(words, capture_output=True, text=True, timeout=20)
        own.kill()
    assert (f"= {own.pid}" in done.stdout) == (gdb_refuses() == "")
