"""The job is the user's: its streams, its signals, its end, whoever of ours dies meanwhile."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pardbg.hub.run import config as files
from pardbg.hub.run.runs import list_runs
from tests.distributed.owned import children, handle_of, owned, run_argv, terminal
from tests.distributed.runs import events, maps, started
from tests.harness import whole_messages
from tests.processes import wait_until

NOTES = """
import os, signal, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
def note(text):  # no file object: one signal may interrupt another's handler in its write
    os.write(fd, (text + "\\n").encode())
for n in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGALRM, signal.SIGTERM,
          signal.SIGCONT, signal.SIGINT):
    signal.signal(n, lambda n, f: note(signal.Signals(n).name))
child = os.fork()
who = "child " if child == 0 else ""
if child == 0:
    for n in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(n, lambda n, f: note("child " + signal.Signals(n).name))
note(who + "ready")
while not os.path.exists(sys.argv[1] + ".end"):
    time.sleep(0.01)
if child: os.waitpid(child, 0)
sys.exit(5 if child else 0)
"""


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """SIGHUP is heard, though whoever runs the tests under nohup ignores it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes"
    path.touch()
    return path


def wait_notes(notes: Path, *want: str) -> None:
    """Exactly these lines, and no more a moment later."""

    def same() -> bool:
        return Counter(notes.read_text().splitlines()) == Counter(want)

    try:
        wait_until(same, 10, f"{want}")
    except AssertionError:
        raise AssertionError(f"wanted {want}, got {notes.read_text().splitlines()}") from None
    time.sleep(0.1)  # for what should not come
    assert same(), notes.read_text()


def said(session: Path) -> list[str]:
    """The recorded lines of output."""
    return [line["text"] for line in maps(list(whole_messages(session)), b"O")]


READY = ("ready", "child ready")


def test_signals_to_one_process_go_to_the_jobs_first_process(tmp_path: Path, notes: Path) -> None:
    session = tmp_path / "s.mcap"
    with owned(run_argv(session, NOTES, str(notes))) as run:
        wait_notes(notes, *READY)
        want = list(READY)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGALRM,
                       signal.SIGTERM, signal.SIGCONT, signal.SIGINT):  # fmt: skip
            os.kill(run.pid, number)
            want.append(number.name)
            wait_notes(notes, *want)
        Path(f"{notes}.end").touch()
        assert run.wait(30) == 5


def test_signals_to_the_group_go_to_the_jobs_group(tmp_path: Path, notes: Path) -> None:
    with owned(run_argv(tmp_path / "s.mcap", NOTES, str(notes))) as run:
        wait_notes(notes, *READY)
        os.killpg(run.pid, signal.SIGUSR1)
        want = [*READY, "SIGUSR1", "child SIGUSR1"]
        wait_notes(notes, *want)
        os.killpg(run.pid, signal.SIGTERM)
        wait_notes(notes, *want, "SIGTERM", "child SIGTERM")
        Path(f"{notes}.end").touch()
        assert run.wait(30) == 5


def test_signals_to_all_are_not_sent_twice(tmp_path: Path, notes: Path) -> None:
    """As `scancel --signal` or systemd do it: every process that is there."""
    session = tmp_path / "s.mcap"
    with owned(run_argv(session, NOTES, str(notes))) as run:
        wait_notes(notes, *READY)
        found = children(handle_of(session))
        everybody = [run.pid, *(p.pid for p in found.values())]
        for number in (signal.SIGUSR1, signal.SIGTERM):
            for pid in everybody:
                os.kill(pid, number)
        wait_notes(notes, *READY, "SIGUSR1", "SIGTERM")
        assert all(p.is_running() for p in found.values())
        Path(f"{notes}.end").touch()
        assert run.wait(30) == 5


@pytest.mark.parametrize("who", ["launcher", "hub"])
def test_signals_to_one_of_ours_are_nobodys(tmp_path: Path, notes: Path, who: str) -> None:
    session = tmp_path / "s.mcap"
    with owned(run_argv(session, NOTES, str(notes))) as run:
        wait_notes(notes, *READY)
        process = children(handle_of(session))[who]
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM,
                       signal.SIGINT, signal.SIGALRM):  # fmt: skip
            process.send_signal(number)
        wait_notes(notes, *READY)
        assert children(handle_of(session))[who] == process
        Path(f"{notes}.end").touch()
        assert run.wait(30) == 5


def test_what_was_ignored_stays_ignored(tmp_path: Path) -> None:
    """`nohup pardbg run …`: the job ignores SIGHUP, too; but not without nohup."""
    code = "import signal; print(signal.getsignal(signal.SIGHUP).name)"
    for before, want in (("trap '' HUP; ", "SIG_IGN"), ("", "SIG_DFL")):
        argv = run_argv(tmp_path / f"{want}.mcap", code)
        done = subprocess.run(
            ["sh", "-c", before + 'exec "$@"', "sh", *argv], capture_output=True, timeout=50
        )
        assert done.stdout.decode().split() == [want]


ECHO = """
import os, sys
print("tty", os.isatty(0), os.isatty(1), os.isatty(2))
print("line", repr(sys.stdin.readline()))
print("rest", repr(sys.stdin.read()))
"""


def test_stdin_is_the_jobs(tmp_path: Path) -> None:
    argv = run_argv(tmp_path / "s.mcap", ECHO)
    done = subprocess.run(argv, input=b"one\ntwo\n", capture_output=True, timeout=50)
    assert done.stdout.decode().splitlines() == [
        "tty False False False", "line 'one\\n'", "rest 'two\\n'",
    ]  # fmt: skip


ASKS = """
import os, sys
print("tty", os.isatty(0), os.isatty(1), os.isatty(2), os.get_terminal_size().columns)
name = input("name? ")
print("hello", name)
x = 40
breakpoint()
sys.exit(7)
"""


def test_at_a_terminal_the_job_has_one(tmp_path: Path) -> None:
    """input() and breakpoint() work, and what was said is recorded."""
    session = tmp_path / "s.mcap"
    with terminal(run_argv(session, ASKS)) as screen:
        screen.until(b"name? ")
        screen.type(b"Ada\r")
        screen.until(b"hello Ada")
        screen.until(b"(Pdb) ")
        screen.type(b"p x + 2\r")
        screen.until(b"42\r\n")
        screen.type(b"c\r")
        assert screen.end() == 7
        assert b"tty True True True" in screen.shown and b"\r\r\n" not in screen.shown
    lines = said(session)
    assert "hello Ada" in lines and "42" in lines


COUNTS = """
import time
for number in range(3):
    try:
        print("waiting", number, flush=True)
        time.sleep(30)
    except KeyboardInterrupt:
        print("interrupted", number, flush=True)
        if number:
            raise
"""


def test_ctrl_c_once_and_twice(tmp_path: Path) -> None:
    session = tmp_path / "s.mcap"
    with terminal(run_argv(session, COUNTS)) as screen:
        screen.until(b"waiting 0")
        screen.type(b"\x03")
        screen.until(b"interrupted 0")
        screen.until(b"waiting 1")
        screen.type(b"\x03")
        assert screen.end() == 130
        assert b"KeyboardInterrupt" in screen.shown
    assert any(line.endswith("interrupted 1") for line in said(session))


BEATS = """
import sys, time
for number in range(600):
    print("beat", number, flush=True)
    time.sleep(0.1)
"""
SHELL = ["/bin/bash", "--norc", "--noprofile", "-i"]


def typed(argv: list[str]) -> bytes:
    return shlex.join(argv).encode() + b"\r"


def test_ctrl_z_suspends_and_fg_goes_on(tmp_path: Path) -> None:
    """The job stands still, the terminal is the shell's, and `fg` lets the job go on."""
    session = tmp_path / "s.mcap"
    with terminal(SHELL) as screen:
        screen.type(typed(run_argv(session, BEATS)))
        screen.until(b"beat 1\r\n")
        job = children(handle_of(session))["job"]
        screen.type(b"\x1a")
        screen.until(b"Stopped")
        assert job.status() == psutil.STATUS_STOPPED
        screen.type(b"stty -a\r")
        screen.until(b" icanon")
        screen.type(b"fg\r")
        wait_until(lambda: job.status() != psutil.STATUS_STOPPED, 10, "the job")
        last = int(screen.shown.split(b"beat ")[-1].split()[0])
        screen.until(b"beat %d\r\n" % (last + 2))
        screen.type(b"\x03")
        screen.until(b"pardbg: recorded")
        screen.type(b"exit\r")
        screen.end()


def test_ctrl_z_in_a_pipeline(tmp_path: Path) -> None:
    """In a pipeline the kernel sends SIGTSTP to us and not to the job: it stands still as well."""
    session = tmp_path / "s.mcap"
    with terminal(SHELL) as screen:
        screen.type(typed(run_argv(session, BEATS))[:-1] + b" | cat\r")
        screen.until(b"beat 1\r\n")
        job = children(handle_of(session))["job"]
        screen.type(b"\x1a")
        screen.until(b"Stopped")
        wait_until(lambda: job.status() == psutil.STATUS_STOPPED, 10, "the job's stop")
        screen.type(b"fg\r")
        wait_until(lambda: job.status() != psutil.STATUS_STOPPED, 10, "the job")
        job.terminate()
        screen.until(b"pardbg: recorded")
        screen.type(b"exit\r")
        screen.end()


def test_the_terminal_is_as_it_was_after_a_kill(tmp_path: Path) -> None:
    session = tmp_path / "s.mcap"
    run = shlex.join(run_argv(session, BEATS))
    with terminal(["/bin/sh", "-c", f"{run}; sleep 1; stty -a; echo end"]) as screen:
        screen.until(b"beat 1")
        handle = handle_of(session)
        assert handle.config.owner_pid is not None
        os.kill(handle.config.owner_pid, signal.SIGKILL)
        screen.until(b"end\r\n")
        assert b" icanon" in screen.shown and b" echo " in screen.shown


FLOODS = """
import sys
for number in range(200_000):
    print("line", number, "x" * 100)
print("done", file=sys.stderr)
"""


def test_output_is_bounded_and_whole(tmp_path: Path) -> None:
    """24 MB of output: all of it passed on, a part of it kept."""
    argv = run_argv(tmp_path / "s.mcap", FLOODS + "import time; time.sleep(1)\n")
    with owned(argv, stdin=subprocess.DEVNULL) as run:
        handle = handle_of(tmp_path / "s.mcap")
        out, err = run.communicate(timeout=50)
        kept = os.stat(handle.run_dir / files.OUT_FILE)
    assert out == b"".join(b"line %d %s\n" % (n, b"x" * 100) for n in range(200_000))
    assert err.startswith(b"done\n") and run.returncode == 0
    assert kept.st_size == len(out) and kept.st_blocks * 512 < 12 << 20


def test_a_closed_stdout_is_the_jobs_business(tmp_path: Path) -> None:
    """`pardbg run -- yes | head -1` ends, as `yes | head -1` does: the writer dies of SIGPIPE."""
    words = [*run_argv(tmp_path / "s.mcap", "")[:-3], "yes"]
    with owned(words, stdin=subprocess.DEVNULL) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"y\n"
        run.stdout.close()
        assert run.wait(30) == -signal.SIGPIPE


WORKS = """
import sys, time
for number in range(60):
    print("step", number, flush=True)
    time.sleep(0.05)
sys.exit(9)
"""
STEPS = [f"step {number}" for number in range(60)]


def test_a_launcher_killed_alone_costs_nothing(tmp_path: Path) -> None:
    session = tmp_path / "s.mcap"
    argv = run_argv(session, WORKS)
    with owned(argv, stdin=subprocess.DEVNULL) as run:
        handle = handle_of(session)
        children(handle)["launcher"].kill()
        wait_until(lambda: not handle.launcher_alive(), 10, "the launcher's end")
        found = [one for one in list_runs() if one.run == handle.run]
        assert [one.launcher_alive for one in found] == [False]
        assert found[0].line().endswith("(no launcher)")
        out, err = run.communicate(timeout=40)
        assert run.returncode == 9, err
    assert out.decode().splitlines() == STEPS
    assert said(session) == STEPS
    assert not handle.alive() and handle.run not in [one.run for one in list_runs()]


@pytest.mark.timeout(90)
@pytest.mark.parametrize("order", [("launcher", "hub"), ("hub", "launcher")])
def test_launcher_and_hub_killed_together(tmp_path: Path, order: tuple[str, str]) -> None:
    """The guardian starts the hub again, and the recording says who was killed."""
    session = tmp_path / "s.mcap"
    with owned(run_argv(session, WORKS), stdin=subprocess.DEVNULL) as run:
        found = children(handle_of(session))
        for name in order:
            found[name].kill()
        out, err = run.communicate(timeout=60)
        assert run.returncode == 9, err
    assert out.decode().splitlines() == STEPS
    assert said(session) == STEPS
    told = events(list(whole_messages(session)))
    assert "launcher_lost" in told and "hub_restart" in told, told


def test_without_an_owner_the_hub_goes_on_alone(tmp_path: Path) -> None:
    """A watched job whose viewer has left and whose launcher is killed: its output is read, kept
    and recorded, and the recording is closed at its end."""
    with started([sys.executable, "-u", "-c", WORKS], tmp_path / "s.mcap") as handle:
        found = children(handle)
        wait_until(lambda: b"step 3" in (handle.run_dir / files.OUT_FILE).read_bytes(), 20, "steps")
        found["launcher"].kill()
        found["launcher"].wait(10)
        wait_until(lambda: not handle.alive(), 30, "the hub's end")
        assert handle.exit_code() == 9
    assert said(tmp_path / "s.mcap") == STEPS
    assert "launcher_lost" in events(list(whole_messages(tmp_path / "s.mcap")))


def test_without_an_owner_nobody_of_ours_is_needed(tmp_path: Path) -> None:
    """A watched job whose launcher and hub are killed writes on and ends as it would have."""
    with started([sys.executable, "-u", "-c", WORKS], tmp_path / "s.mcap") as handle:
        found = children(handle)
        wait_until(lambda: b"step 3" in (handle.run_dir / files.OUT_FILE).read_bytes(), 20, "steps")
        for name in ("launcher", "hub"):
            found[name].kill()
            found[name].wait(10)
        assert found["job"].is_running()
        wait_until(lambda: not handle.alive(), 30, "the job's end")
        assert handle.exit_code() == 9


FLOODS_AND_SAYS = (
    FLOODS
    + """
open(sys.argv[1], "w")
import time
time.sleep(60)
"""
)


def test_a_launcher_that_stands_still_holds_no_job_up(tmp_path: Path) -> None:
    """The job writes 24 MB meanwhile; what is kept of it is bounded, what is not is counted."""
    done = tmp_path / "done"
    argv = [sys.executable, "-c", "import time; time.sleep(1)" + FLOODS_AND_SAYS, str(done)]
    with started(argv, tmp_path / "s.mcap") as handle:
        launcher = children(handle)["launcher"]
        launcher.suspend()
        wait_until(done.exists, 30, "the job's last line")
        launcher.resume()
        handle.kill()
        assert handle.wait(30) == 128 + signal.SIGTERM
        kept = os.stat(handle.run_dir / files.OUT_FILE)
        assert kept.st_blocks * 512 < 12 << 20
    lines = said(tmp_path / "s.mcap")
    assert lines[-1] in (f"line 199999 {'x' * 100}", "done")
    assert any("bytes of output are missing here" in line for line in lines)


def test_a_full_runtime_directory_never_costs_the_job(
    tmp_path: Path, small_tmpfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 MB of output through 2 MB, which something else then fills to the last byte."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(small_tmpfs))
    fill = f"""
import os, sys
try:
    with open({str(small_tmpfs / "fill")!r}, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
except OSError:
    pass
"""
    argv = run_argv(tmp_path / "s.mcap", FLOODS + fill + FLOODS + "sys.exit(6)")
    with owned(argv, stdin=subprocess.DEVNULL) as run:
        out, err = run.communicate(timeout=50)
    whole = b"".join(b"line %d %s\n" % (n, b"x" * 100) for n in range(200_000))
    assert out == whole * 2 and run.returncode == 6
    assert err.startswith(b"done\ndone\n")
    assert any("bytes of output" in line for line in said(tmp_path / "s.mcap"))


def test_breakpoint_where_nobody_can_type(tmp_path: Path) -> None:
    """Under `watch` the job has no stdin: breakpoint() says what to do, and the job goes on."""
    code = "for n in range(3):\n    breakpoint()\nprint('end', input is None)\n"
    with started([sys.executable, "-c", code], tmp_path / "s.mcap") as handle:
        assert handle.wait(30) == 0
    lines = said(tmp_path / "s.mcap")
    assert "end False" in lines
    assert sum("breakpoint() at <string>:2" in line and "pardbg run" in line for line in lines) == 1


WRITES = """
import sys, time
from pathlib import Path
print("begun", flush=True)
while not Path("go").exists():
    time.sleep(0.01)
for n in range(30_000):
    print(n, "x" * 90)
    if n % 10 == 0:
        print("err", n, file=sys.stderr)
sys.stdout.flush()
Path("written").touch()
"""


def test_a_stopped_run_keeps_no_job_waiting(tmp_path: Path) -> None:
    """SIGSTOP to `pardbg run` alone: 3 MB go through pipes that hold 64 kB, and are passed on, all
    of it and in order, once it runs again."""
    session = tmp_path / "s.mcap"
    expected = ["begun", *(f"{n} {'x' * 90}" for n in range(30_000))]
    with owned(run_argv(session, WRITES), cwd=tmp_path) as run:
        assert run.stdout is not None and run.stderr is not None
        assert run.stdout.readline() == b"begun\n"
        os.kill(run.pid, signal.SIGSTOP)
        (tmp_path / "go").touch()
        wait_until((tmp_path / "written").exists, 30, "the job's output")
        os.kill(run.pid, signal.SIGCONT)
        out, err = run.communicate(timeout=30)
    assert out.decode().splitlines() == expected[1:]
    errors = [line for line in err.decode().splitlines() if not line.startswith("pardbg: ")]
    assert errors == [f"err {n}" for n in range(0, 30_000, 10)]
    assert run.returncode == 0


def test_nor_does_one_that_was_stopped_at_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal holds less than a pipe, and a program at one writes line by line."""
    monkeypatch.chdir(tmp_path)
    with terminal(run_argv(tmp_path / "s.mcap", WRITES.replace("n % 10 == 0", "False"))) as run:
        run.until(b"begun")
        os.kill(run.pid, signal.SIGSTOP)
        (tmp_path / "go").touch()
        wait_until((tmp_path / "written").exists, 30, "the job's output")
        os.kill(run.pid, signal.SIGCONT)
        assert run.end() == 0
    numbers = [int(n) for n in re.findall(rb"(\d+) x{90}\r\n", run.shown)]
    assert numbers == list(range(30_000))
