"""Starting ranks, and making sure that none is left: shared by conftest and the test programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil

MARK = "PARDBG_TEST_SESSION"
"""Set in this process's environment, ``PID-NAME``, so every descendant carries it, even one that
left the process group, the session and its parent."""
SHARED = "PARDBG_TEST_SHARED"
"""A directory of all workers of one pytest."""
_KEPT = (MARK, "PARDBG_HOOKS", "PARDBG_NATIVE", "PARDBG_SIM")
"""What ranks inherit of PARDBG...: the mark, which way a test wants ops to be seen, and where the
simulated accelerator is built."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What a program under torchrun left behind."""

    code: int
    out: str
    err: str
    timed_out: bool

    def lines(self, rank: int) -> list[str]:
        """stdout lines that rank printed with the recipes' prefix ``[rank0] ``, without it."""
        prefix = f"[rank{rank}] "
        return [x.removeprefix(prefix) for x in self.out.splitlines() if x.startswith(prefix)]


def torchrun_argv(*program: str, nproc: int) -> list[str]:
    """``torchrun --standalone`` through this interpreter; it finds its own port."""
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(nproc), *program,
    ]  # fmt: skip


def rank_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment ranks run in: one thread each, unbuffered, nothing inherited of a run."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PARDBG") or k in _KEPT}
    always = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PARDBG_NATIVE_BUILD": "off"}
    env.update(always | dict(extra or {}))
    return env


def run_ranks(
    *program: str, nproc: int = 2, env: Mapping[str, str] | None = None, timeout_s: float = 50
) -> Finished:
    """Run a program under torchrun to its end; on timeout end the whole tree and say so."""
    return run_argv(torchrun_argv(*program, nproc=nproc), env=rank_env(env), timeout_s=timeout_s)


def run_argv(argv: list[str], *, env: Mapping[str, str], timeout_s: float) -> Finished:
    """Run any command to its end in a session of its own; on timeout end its whole tree."""
    process = subprocess.Popen(
        argv, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    timed_out = False
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        timed_out = True
        out, err = _end_and_read(process)
    except BaseException:  # pytest-timeout or Ctrl-C
        _end_and_read(process)
        raise
    return Finished(process.returncode, out, err, timed_out)


def _end_and_read(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End the tree; what it had printed. An orphan of it may still hold the pipes open."""
    end_tree(process.pid)
    try:
        return process.communicate(timeout=3)
    except subprocess.TimeoutExpired as late:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        return _text(late.output), _text(late.stderr)


def _text(raw: bytes | str | None) -> str:
    return raw if isinstance(raw, str) else (raw or b"").decode(errors="replace")


def end_tree(pid: int, grace_s: float = 3.0) -> None:
    """SIGTERM a process and all its descendants (torchrun's ranks lead their own sessions), then
    SIGKILL what is left."""
    try:
        top = psutil.Process(pid)
        tree = [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    _signal(tree, signal.SIGTERM)
    _, alive = psutil.wait_procs(tree, timeout=grace_s)
    _signal(alive, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=grace_s)


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def marked() -> dict[int, psutil.Process]:
    """Processes alive now that this test session started, by pid, without itself."""
    found = {p.pid: p for p in psutil.Process().children(recursive=True)}
    ours = os.environ.get(MARK, "-")
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == ours:
                found[process.pid] = process
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    found.pop(os.getpid(), None)
    return {pid: process for pid, process in found.items() if not _harmless(process)}


def _harmless(process: psutil.Process) -> bool:
    """Ended already, or multiprocessing's own helper, which lives as long as its parent."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return True
        return any("resource_tracker" in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return True


def command(process: psutil.Process) -> str:
    """A process's command line, shortened, for a message."""
    try:
        return " ".join(process.cmdline())[:200]
    except psutil.NoSuchProcess:
        return "(ended meanwhile)"


def comes_true(condition: Callable[[], object], timeout_s: float) -> bool:
    """Poll until the condition is truthy; return whether that came in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def wait_until(
    condition: Callable[[], object], timeout_s: float = 30.0, what: str = "condition"
) -> None:
    """Poll until the condition is truthy; fail with ``what`` in words when it never is."""
    if not comes_true(condition, timeout_s):
        raise AssertionError(f"waited {timeout_s:g} s in vain: {what}")
