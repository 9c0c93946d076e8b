"""Whoever of pardbg's processes dies, and whenever, dies alone; and `pardbg run` ends as its job
would have ended without it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from pardbg.analysis.answers.report import report
from pardbg.hub.run import config as files
from pardbg.hub.run.run_files import read_end
from pardbg.hub.run.runs import list_run_rings
from pardbg.session.reader import load
from tests.distributed.owned import PARDBG, Terminal, children, handle_of, owned, run_argv, starting
from tests.distributed.runs import events, fake_job
from tests.harness import whole_messages
from tests.processes import end_tree, rank_env, wait_until

WAITS = """
import os, sys, time
print("begun", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
for number in range(3000):
    print("line", number, "x" * 50, flush=number % 10 == 0)
sys.stdout.flush()
sys.exit(9)
"""
EVENTS = {
    "run": "owner_lost", "keeper": "keeper_lost", "guardian": "guardian_lost",
    "launcher": "launcher_lost", "hub": "hub_restart",
}  # fmt: skip
LONG = pytest.mark.long
"""More processes killed, and together: `make test-long`."""
LINES = ["begun", *(f"line {number} {'x' * 50}" for number in range(3000))]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@contextmanager
def begun(argv: list[str], out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """With stdout in a file; ended at the end."""
    with out.open("wb") as file, out.with_suffix(".err").open("wb") as err:
        run = subprocess.Popen(
            argv, env=rank_env(), stdin=subprocess.DEVNULL, stdout=file, stderr=err,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield run
    finally:
        end_tree(run.pid)
        run.wait()


@pytest.mark.parametrize(
    "victims",
    ["run", "launcher", "hub", "run+guardian+launcher+hub", "run+keeper+guardian+hub",
     *(pytest.param(names, marks=LONG) for names in (
         "keeper", "guardian", "run+launcher", "run+guardian", "launcher+hub",
         "hub+launcher+guardian+run", "run+keeper+launcher+hub",
     ))],
)  # fmt: skip
def test_the_job_and_its_output_go_on(victims: str, tmp_path: Path, out: Path) -> None:
    session, go = tmp_path / "s.mcap", tmp_path / "go"
    with begun(run_argv(session, WAITS, str(go)), out) as run:
        handle = handle_of(session)
        wait_until(lambda: out.read_bytes() == b"begun\n", 20, "the first line")
        found = children(handle) | {"run": psutil.Process(run.pid)}
        assert "pardbg" not in " ".join(found["keeper"].cmdline())  # `pkill -f pardbg` spares it
        for name in victims.split("+"):
            found[name].kill()
        said = {EVENTS[name] for name in victims.split("+")}
        wait_until(lambda: said <= {*events(list(whole_messages(session)))}, 20, f"{said}")
        go.touch()
        wait_until(lambda: not handle.alive(), 40, "the end of everything")
        code = run.wait(40)
    assert out.read_text().splitlines() == LINES
    assert code == (-signal.SIGKILL if "run" in victims else 9)
    assert handle.exit_code() == 9
    end = read_end(handle.run_dir)
    assert end is not None
    told = end.told
    assert told == ()  # nobody sent the job a signal
    dead = {one.run: one.untold for one in list_run_rings()}
    assert dead.get(handle.run) == (9 if "run" in victims else None)  # `pardbg ls --dead`
    kinds = {finding.kind for finding in report(load(session)).findings}
    assert "recorder-lost" in kinds and "interrupted" not in kinds


def left_of(word: str) -> list[str]:
    """Processes of ours that name a run or its session."""
    found = (" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"]))
    return [words for words in found if word in words]


@pytest.mark.parametrize("name", [
    "run", "launcher", *(pytest.param(name, marks=LONG) for name in ("keeper", "guardian", "hub")),
])  # fmt: skip
@pytest.mark.timeout(120)
def test_a_kill_while_it_starts(name: str, tmp_path: Path, out: Path) -> None:
    """As soon as that process is there: the job runs and ends as it would have, recorded or not; or
    `pardbg run` is killed before there is a job, and nothing is left."""
    session = tmp_path / f"{tmp_path.name}.mcap"
    called = f"{name}-{os.getpid()}"  # its run's id begins with it
    program = tmp_path / called
    program.write_text(f"#!{sys.executable} -u\nimport sys\nprint('ran')\nsys.exit(9)\n")
    program.chmod(0o755)
    with begun([*PARDBG, "run", "-o", str(session), "--", str(program)], out) as run:
        victim = wait_for(run, name)
        victim.kill()
        code = run.wait(60)
        if name == "run":
            assert code == -signal.SIGKILL
            wait_until(lambda: not left_of(called), 20, "the end of all")
            if not out.read_bytes():  # killed before there was a job
                roots = [root for root in (*files.roots(), files.shm_root()) if root.is_dir()]
                left = [path.name for root in roots for path in root.iterdir()]
                assert not [one for one in left if one.startswith(called)]
        else:
            assert code == 9, out.with_suffix(".err").read_text()
            assert out.read_bytes() == b"ran\n"


def wait_for(run: subprocess.Popen[bytes], name: str) -> psutil.Process:
    """The first moment that this process of ours is there."""
    found: list[psutil.Process] = []

    def look() -> bool:
        there = starting(psutil.Process(run.pid))
        found[:] = [there[name]] if name in there and "keeper" in there else []
        return bool(found)

    wait_until(look, 30, name)
    return found[0]


def test_a_job_ends_when_a_plain_one_would(tmp_path: Path) -> None:
    """Not when its last orphan does, which keeps its stdout and writes on, to whoever reads."""
    code = "import os, sys, time; os.fork() and sys.exit(5)\n"
    code += "for n in range(400):\n    time.sleep(0.05)\n    print(n, flush=True)\n"
    program = tmp_path / "orphan.py"
    program.write_text(code)
    argv = [*PARDBG, "run", "-o", str(tmp_path / "s.mcap"), sys.executable, str(program)]
    with owned(argv, stdin=subprocess.DEVNULL) as run:
        assert run.wait(15) == 5
        assert run.stdout is not None
        for _ in range(5):
            assert run.stdout.readline()
        found = psutil.process_iter(["cmdline"])
        orphans = [p for p in found if (p.info["cmdline"] or [])[1:] == argv[-1:]]
        for process in orphans:
            process.kill()
        assert run.stdout.read() is not None
        wait_until(lambda: not left_of("orphan-"), 20, "the end of the launcher")


def test_nor_when_its_orphaned_ranks_do(tmp_path: Path, out: Path) -> None:
    ranks = fake_job(2, 100_000, 0.0021)  # as no other test has them
    argv = [*PARDBG, "run", "-o", str(tmp_path / "s.mcap"), "--", "sh", "-c"]
    line = f"{' '.join(map(shlex.quote, ranks))} & sleep 2; exit 5"
    with begun([*argv, line], out) as run:
        assert run.wait(20) == 5
        found = psutil.process_iter(["cmdline"])
        orphans = [p for p in found if (p.info["cmdline"] or [])[1:] == ranks[1:]]
        size = out.stat().st_size
        wait_until(lambda: out.stat().st_size > size, 20, "more of their output")
        for process in orphans:
            process.kill()
    assert load(tmp_path / "s.mcap")


@pytest.fixture
def slow_reader(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    code = "for n in range(300_000): print('line', n, 'x' * 40)\nopen('written', 'w')\n"
    argv = run_argv(tmp_path / "s.mcap", code)
    with owned(argv, stdin=subprocess.DEVNULL, cwd=tmp_path) as run:
        yield run


def test_a_slow_reader_holds_no_job_up(
    slow_reader: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """16 MB that nobody reads yet; then all of it comes, in order."""
    wait_until((tmp_path / "written").exists, 40, "the job's last line")
    out, _ = slow_reader.communicate(timeout=40)
    assert out == b"".join(b"line %d %s\n" % (n, b"x" * 40) for n in range(300_000))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGSEGV, signal.SIGKILL])
def test_a_death_by_signal_is_told_as_such(number: signal.Signals, tmp_path: Path) -> None:
    code = f"import os; os.kill(os.getpid(), {int(number)})"
    done = subprocess.run(run_argv(tmp_path / "s.mcap", code), capture_output=True, timeout=50)
    assert done.returncode == -number


@pytest.mark.parametrize(("mode", "want"), [(None, 127), (0o644, 126), (0o755, 126)])
def test_a_command_that_is_none(mode: int | None, want: int, tmp_path: Path) -> None:
    """Not there; not executable; executable, but no program."""
    path = tmp_path / "command"
    if mode is not None:
        path.write_bytes(b"\0\0\0\0")
        path.chmod(mode)
    argv = [*PARDBG, "run", "-o", str(tmp_path / "s.mcap"), "--", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=50)
    assert done.returncode == want, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["loop", "file/below", "", "x" * 300])
def test_a_command_that_cannot_be_looked_up_has_a_shells_exit_code(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    path = f"{tmp_path}/{name}" if name else ""
    plain = subprocess.run(["bash", "-c", '"$0"', path], capture_output=True, timeout=50)
    argv = [*PARDBG, "run", "-o", str(tmp_path / "s.mcap"), "--", path]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=50)
    assert done.returncode == plain.returncode, done.stderr


@pytest.mark.parametrize("recorded", [True, False])
def test_a_script_without_an_interpreter_is_the_shells(recorded: bool, tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text('echo "$0 $1"; exit 5\n')
    script.chmod(0o755)
    session = tmp_path / "s.mcap"
    argv = [*PARDBG, "run", "-o", str(session), "--", str(script), "--lr"]
    if not recorded:  # too little memory for the hub
        argv = ["bash", "-c", 'ulimit -v 60000; exec "$@"', "bash", *argv]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (5, f"{script} --lr\n"), done.stderr
    assert session.exists() == recorded


def test_winch_is_passed_on(tmp_path: Path) -> None:
    code = "import signal, sys\nsignal.signal(signal.SIGWINCH, lambda *_: sys.exit(4))\n"
    code += "print('ready', flush=True)\nwhile True: signal.pause()\n"
    with owned(run_argv(tmp_path / "s.mcap", code), stdin=subprocess.DEVNULL) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        os.kill(run.pid, signal.SIGWINCH)
        assert run.wait(20) == 4


def test_a_group_whose_owner_is_gone_still_gets_its_signals(tmp_path: Path, out: Path) -> None:
    """As a batch system ends a step: TERM to the process group."""
    session = tmp_path / "s.mcap"
    with begun(run_argv(session, WAITS, str(tmp_path / "never")), out) as run:
        handle = handle_of(session)
        run.kill()
        run.wait()
        time.sleep(0.1)  # the launcher sees it
        os.killpg(run.pid, signal.SIGTERM)
        wait_until(handle.ended, 20, "the job's end")
        assert handle.exit_code() == 128 + signal.SIGTERM
        wait_until(lambda: not handle.alive(), 30, "the end of everything")


def test_stdout_and_stderr_at_one_place_keep_their_order(tmp_path: Path) -> None:
    """`2>&1`, or both at a terminal."""
    code = "import sys\nfor n in range(2000):\n    print(n, file=(sys.stdout, sys.stderr)[n % 2])\n"
    argv = run_argv(tmp_path / "s.mcap", code)
    argv[-2:-2] = ["-u"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=50)
    *lines, last = done.stdout.decode().splitlines()
    assert lines == [str(n) for n in range(2000)] and last.startswith("pardbg: ")


def test_closing_the_terminal_ends_a_job_whose_owner_was_killed(tmp_path: Path) -> None:
    """The shell knows nothing of that job any more, and tells it nothing."""
    session = tmp_path / "s.mcap"
    heard = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # not as nohup has it
    shell = Terminal(["/bin/bash", "--norc", "--noprofile", "-i"])
    try:
        shell.type(shlex.join(run_argv(session, WAITS, str(tmp_path / "never"))).encode() + b"\r")
        shell.until(b"begun\r\n")
        handle = handle_of(session)
        assert handle.config.owner_pid is not None
        os.kill(handle.config.owner_pid, signal.SIGKILL)
        shell.until(b"Killed")
        assert not handle.ended()
        os.close(shell.master)
        wait_until(handle.ended, 20, "the job's end")
        assert handle.exit_code() == 128 + signal.SIGHUP
        wait_until(lambda: not handle.alive(), 30, "the end of everything")
    finally:
        signal.signal(signal.SIGHUP, heard)
        end_tree(shell.pid)
        if handle.job_alive():
            handle.signal(signal.SIGKILL)
