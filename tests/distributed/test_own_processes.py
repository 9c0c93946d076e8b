"""pardbg's own processes: nothing of the job's directory is in them, nothing of theirs is open."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pardbg.session.reader import load
from tests.harness import whole_messages
from tests.processes import rank_env

# Several commands in one test, among them `doctor`, which imports torch.
pytestmark = pytest.mark.timeout(180)
MODULES = ("click", "select", "random", "msgpack", "zmq", "psutil", "platformdirs", "mcap")


def pardbg(
    folder: Path, *words: str, before: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "pardbg", *words]
    return subprocess.run(
        ["sh", "-c", before + 'exec "$@"', "sh", *argv], cwd=folder, capture_output=True, text=True,
        timeout=50, env={**rank_env(), **env}, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.parametrize("way", [
    "directory", pytest.param("PYTHONPATH", marks=pytest.mark.long),
])  # fmt: skip
def test_nothing_is_imported_from_the_job(tmp_path: Path, way: str) -> None:
    """By command line, launcher and hub; the job itself has its modules as always."""
    evil = tmp_path / "evil"
    evil.mkdir()
    for name in MODULES:
        (evil / f"{name}.py").write_text(f"open({str(tmp_path / 'seen')!r}, 'a').write('{name} ')")
    cwd, env = (evil, {}) if way == "directory" else (tmp_path, {"PYTHONPATH": str(evil)})
    job = [sys.executable, "-c", "import sys; sys.path.insert(0, ''); import click"]
    done = pardbg(cwd, "run", "-o", str(tmp_path / "s.mcap"), "--", *job, **env)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "seen").read_text() == "click "
    for words in (["ls"], ["report", str(tmp_path / "s.mcap")], ["doctor"]):
        assert "Traceback" not in pardbg(cwd, *words, **env).stderr
    assert (tmp_path / "seen").read_text() == "click "


def test_a_rehearsal_imports_nothing_that_lies_here(tmp_path: Path) -> None:
    """But the program: it has its own, of its directory and of PYTHONPATH."""
    names = ("json", "msgpack", "selectors", "queue", "numpy", "zmq", "psutil")
    for folder in ("here", "named", "own"):
        (tmp_path / folder).mkdir()
        text = f"open({str(tmp_path / 'seen')!r}, 'a').write(__name__ + {' ' + folder + ' '!r})"
        for name in names if folder != "own" else ():
            (tmp_path / folder / f"{name}.py").write_text(text)
        (tmp_path / folder / f"only_{folder}.py").write_text(text)
    program = tmp_path / "own" / "train.py"
    program.write_text(
        "import only_own, only_named, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\ndist.barrier()\n"
    )
    done = pardbg(
        tmp_path / "here", "rehearse", "--world-size", "2", "-o", str(tmp_path / "s.mcap"), "--",
        "python", str(program), PYTHONPATH=str(tmp_path / "named"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = (tmp_path / "seen").read_text().split()
    assert set(zip(seen[::2], seen[1::2], strict=True)) == {
        ("only_own", "own"), ("only_named", "named")
    }  # fmt: skip


def test_a_recorded_command_line_has_no_secret_and_the_job_has_it(tmp_path: Path) -> None:
    """In the session's facts and processes, the report, `ls`, and the run's files as it runs."""
    program = tmp_path / "train.py"
    program.write_text(
        "import glob, os, subprocess, sys, time\n"
        "from pardbg_agent import core\n"
        "assert core.ensure().run is not None\n"
        "assert sys.argv[1:] == ['--api-key', 'shibboleth', '--lr', '0.1']\n"
        "run = os.environ.pop('PARDBG')\n"
        "print(subprocess.run([sys.executable, '-m', 'pardbg', 'ls', '--json'],\n"
        "                     capture_output=True, text=True).stdout)\n"
        "until = time.monotonic() + 20\n"
        "while any(b'shibboleth' in open(path, 'rb').read() for path in glob.glob(run + '/*')\n"
        "          if os.path.isfile(path)):\n"
        "    assert time.monotonic() < until\n"
    )
    job = [sys.executable, str(program), "--api-key", "shibboleth", "--lr", "0.1"]
    session = tmp_path / "s.mcap"
    done = pardbg(tmp_path, "run", "-o", str(session), "--", *job, RANK="0", WORLD_SIZE="1")
    assert done.returncode == 0, done.stderr
    store = load(session)
    listed = [run["argv"] for run in json.loads(done.stdout)]
    shown = [*(argv for argv in listed if str(program) in argv), list(store.run["argv"])]
    assert [argv[-4:] for argv in shown] == [["--api-key", "***", "--lr", "0.1"]] * 2
    recorded = [message.payload for message in whole_messages(session)]
    assert sum(b"***" in payload for payload in recorded) >= 2  # the run's facts, the process's
    assert not any(b"shibboleth" in payload for payload in recorded)
    assert "shibboleth" not in pardbg(tmp_path, "report", str(session), "--json").stdout


def test_files_are_ours_alone_and_the_jobs_are_its_own(tmp_path: Path) -> None:
    job = [sys.executable, "-c", "import os; print(oct(os.umask(0)))"]
    done = pardbg(tmp_path, "run", "-o", "s.mcap", "--", *job, before="umask 022; ")
    assert done.stdout == "0o22\n"
    assert stat.S_IMODE((tmp_path / "s.mcap").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("before", "env"),
    [
        ("ulimit -n 20; ", {}),
        ("unset HOME; ", {}),
        ("", {"XDG_RUNTIME_DIR": "/proc/1"}),
        ("", {"XDG_RUNTIME_DIR": "/nowhere", "HOME": "/nowhere"}),
    ],
    ids=["few descriptors", "no HOME", "a runtime directory of others", "nothing there"],
)
def test_odd_environments(tmp_path: Path, before: str, env: dict[str, str]) -> None:
    """It works; where there is no place for a file of our own, a line says so and the job runs."""
    job = [sys.executable, "-c", "print(5)"]
    done = pardbg(tmp_path, "run", "-o", "s.mcap", "--", *job, before=before, **env)
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr
    default = pardbg(tmp_path, "run", "--", *job, before=before, **env, XDG_DATA_HOME="/proc/x")
    assert (default.returncode, default.stdout) == (0, "5\n")
    assert len(default.stderr.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts over /dev/shm")
def test_no_shared_memory(tmp_path: Path) -> None:
    mounts = "mount -t tmpfs -o ro none /dev/shm && "
    argv = [sys.executable, "-m", "pardbg", "run", "-o", "s.mcap", "--", "echo", "5"]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mounts + 'exec "$@"', "sh", *argv], cwd=tmp_path,
        capture_output=True, text=True, timeout=50, env=rank_env(),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr
