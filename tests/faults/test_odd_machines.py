"""Machines that do not let pardbg record: the job runs, with its output and exit code, and if it is
not recorded, one line says why."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.distributed.owned import PARDBG
from tests.distributed.runs import events, maps
from tests.harness import whole_messages
from tests.processes import rank_env

JOB = ["sh", "-c", 'echo out; echo "$1" | od -An -tx1; exit 3', "sh"]
ROOT = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare(1)"
)
NOBODY = [
    "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=+dac_override",
    "--ambient-caps=+dac_override", "--bounding-set=-sys_resource",
]  # fmt: skip


def ran(script: str, session: Path | str | None, word: str = "a", **env: str) -> list[str]:
    """Run the job by ``pardbg run`` in a shell, as its last command, after ``script``; the lines of
    stderr. ``session`` None: without -o."""
    output = [] if session is None else ["-o", str(session)]
    argv = [*PARDBG, "run", *output, "--", *JOB, word]
    line = f"{script}; exec {' '.join(map(shlex.quote, argv))}"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, timeout=55, check=False,
        env=rank_env() | {"PYTHONPATH": str(Path(__file__).parents[2]), **env},
    )  # fmt: skip
    out = b"out\n" + b"".join(b" %02x" % byte for byte in os.fsencode(word) + b"\n") + b"\n"
    assert (done.returncode, done.stdout) == (3, out), done.stderr
    lines = [
        line for line in done.stderr.decode(errors="replace").splitlines() if "getcwd" not in line
    ]
    assert len(lines) == 1 and lines[0].startswith("pardbg: "), lines
    return lines


def codes(session: Path) -> list[int]:
    """Exit codes in the recording."""
    ends = [d for d in maps(list(whole_messages(session)), b"D") if d["k"] == "end"]
    return [end["code"] for end in ends]


@ROOT
def test_no_proc(tmp_path: Path) -> None:
    script = "exec unshare -m bash -c 'mount -t tmpfs none /proc; exec \"$@\"' -"
    argv = " ".join(map(shlex.quote, [*PARDBG, "run", "-o", str(tmp_path / "s"), "--", *JOB, "a"]))
    done = subprocess.run(["bash", "-c", f"{script} {argv}"], capture_output=True, timeout=55,
                          check=False, env=rank_env())  # fmt: skip
    assert (done.returncode, done.stdout) == (3, b"out\n 61 0a\n"), done.stderr
    assert done.stderr.count(b"\n") == 1 and b"/proc" in done.stderr


@pytest.mark.parametrize("kib", [90_000, pytest.param(120_000, marks=pytest.mark.long)])
def test_little_address_space(tmp_path: Path, kib: int) -> None:
    ran(f"ulimit -v {kib}", tmp_path / "s.mcap")


@ROOT
@pytest.mark.parametrize(
    "processes", [3, 24, *(pytest.param(most, marks=pytest.mark.long) for most in (1, 6, 100))]
)
def test_no_more_processes(run_dir: Path, processes: int) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv(1)")
    run_dir.chmod(0o777)
    script = f"exec {' '.join(NOBODY)} bash -c 'ulimit -u {processes}; exec \"$@\"' -"
    argv = [*PARDBG, "run", "-o", str(run_dir / "s"), "--", *JOB, "a"]
    done = subprocess.run(
        ["bash", "-c", f"{script} {' '.join(map(shlex.quote, argv))}"], capture_output=True,
        timeout=55, check=False, env=rank_env() | {"TMPDIR": str(run_dir), "HOME": str(run_dir)},
    )  # fmt: skip
    # The job itself needs a process for od where there is none.
    assert done.stdout.startswith(b"out\n") and done.stderr.startswith(b"pardbg: NOT recorded")


def test_a_current_directory_that_is_no_more(tmp_path: Path) -> None:
    gone = shlex.quote(str(tmp_path / "gone"))
    script = f"mkdir {gone} && cd {gone} && rmdir {gone}"
    ran(script, tmp_path / "s.mcap")
    assert codes(tmp_path / "s.mcap") == [3]
    assert "NOT recorded" in ran(script, "relative.mcap")[0]


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    """Of the session, the directory, and an argument: recorded, and readable."""
    odd = tmp_path / os.fsdecode(b"d\xff")
    odd.mkdir()
    session = odd / os.fsdecode(b"s\xfe.mcap")
    ran(f"cd {shlex.quote(str(odd))}", session, word=os.fsdecode(b"a\xff\xfe"))
    assert codes(session) == [3]
    assert "hub_restart" not in events(list(whole_messages(session)))


@ROOT
def test_a_run_directory_that_another_user_made_first(run_dir: Path) -> None:
    (run_dir / f"pardbg-{os.getuid()}").mkdir()
    os.chown(run_dir / f"pardbg-{os.getuid()}", 65534, 65534)
    none = {"TMPDIR": str(run_dir), "XDG_RUNTIME_DIR": "/no/such"}
    assert "belongs to another user" in ran(":", run_dir / "s.mcap", **none)[0]


def test_a_full_runtime_directory(small_tmpfs: Path, tmp_path: Path) -> None:
    """The next place takes the run."""
    fill = f"dd if=/dev/zero of={small_tmpfs}/fill bs=64k 2>/dev/null"
    runtime = {"XDG_RUNTIME_DIR": str(small_tmpfs)}
    assert "NOT recorded" not in ran(fill, tmp_path / "s.mcap", **runtime)[0]


@pytest.mark.parametrize("home", ["/proc/none", "/dev/null"])
def test_no_place_for_recordings(home: str) -> None:
    """A place of our own choice, not of -o: the job runs, and the line says which it was."""
    (line,) = ran(":", None, XDG_DATA_HOME=home)
    assert "NOT recorded" in line and home in line
