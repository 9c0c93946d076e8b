"""Ranks forked from one process that has imported torch: with few cores a torchrun start costs
several times the training. Everything else is real: processes, gloo, the agent, which meets its
ranks as a forking launcher's. This is the one way in which tests fork ranks.

    python -m tests.distributed.programs.forked_ranks NPROC MODULE [OPTIONS]
    python -m tests.distributed.programs.forked_ranks --jobs FOLDER
    python -m tests.distributed.programs.forked_ranks --serve SOCKET
    python -m tests.distributed.programs.forked_ranks --from SOCKET NPROC MODULE [OPTIONS]

The first is one job, in place of torchrun. The second runs those of FOLDER/jobs.json (see
tests.forked.Job), each with its own environment; a job's exit codes (or minus the signal) go to
FOLDER/NAME.json, each rank's output to FOLDER/NAME.RANK.out and .err. The third imports what
recipes need and the agent's hooks, goes into the background and listens: the fourth is the first
with its ranks forked there, in its own environment, directory and output. They end with it.

RANKS_TIMEOUT_S in the environment: the timeout of every process group that says none. The ranks do
not outlive the pytest that they were started for, however it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

GRACE_S = 4.0
"""How long the others of a job in FOLDER may take to notice that a rank has failed; torchrun gives
them less."""
LOOK_S = 0.02
MESSAGE_BYTES = 1 << 17
RECIPES = "tests.distributed.programs.recipes_in_one"
"""Imports what any recipe imports."""


@dataclass
class Running:
    """A job whose ranks have been forked."""

    pids: list[int]
    grace_s: float = 0.0
    codes: dict[int, int] = field(default_factory=dict)
    """By pid, of those that have ended."""
    ends_at_s: float = float("inf")
    killed_at_s: float = float("inf")

    def look(self) -> bool:
        """Has every rank ended? When one has failed, the others are ended too, as torchrun does;
        at ``killed_at_s`` by a signal that nothing holds up."""
        for pid in [pid for pid in self.pids if pid not in self.codes]:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self.codes[pid] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > self.killed_at_s:
                os.kill(pid, signal.SIGKILL)
            elif time.monotonic() > self.ends_at_s:
                os.kill(pid, signal.SIGTERM)
        if any(self.codes.values()):
            self.ends_at_s = min(self.ends_at_s, time.monotonic() + self.grace_s)
        return len(self.codes) == len(self.pids)


def end_with_session(running: Iterable[Running]) -> None:
    """End all ranks and leave if the pytest of this is gone: killed, or interrupted twice."""
    session = os.environ.get("PARDBG_TEST_SESSION", "").partition("-")[0]
    try:
        if session:
            os.kill(int(session), 0)
    except ProcessLookupError:
        for pid in (pid for job in running for pid in job.pids if pid not in job.codes):
            os.kill(pid, signal.SIGKILL)
        sys.exit("the test session is gone")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rank_env(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun sets. One node of several is told which by GROUP_RANK in the environment, and
    then the job's WORLD_SIZE and MASTER_PORT."""
    alone = {"GROUP_RANK": "0", "WORLD_SIZE": str(size), "MASTER_PORT": str(port)}
    job = {name: os.environ[name] for name in alone} if "GROUP_RANK" in os.environ else alone
    return {
        **job, "RANK": str(int(job["GROUP_RANK"]) * size + rank), "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
    }  # fmt: skip


def prepare(modules: set[str]) -> None:
    """Import what the ranks would import, once for all of them. What a server has is frozen."""
    gc.disable()  # a fifth of the time: what is imported stays
    for name in (*sorted(modules), *(["torch._dynamo"] if any(map(trains, modules)) else [])):
        importlib.import_module(name)
    for name in modules:  # each rank runs its program's own lines itself
        sys.modules.pop(name, None)
    if limit := os.environ.get("RANKS_TIMEOUT_S"):
        c10d = importlib.import_module("torch.distributed.distributed_c10d")
        c10d.default_pg_timeout = timedelta(seconds=float(limit))
    gc.freeze()  # else each rank's first collection copies all of torch's pages
    gc.enable()


def trains(module: str) -> bool:
    """Has it an optimizer, by its source? The first one that is made imports dynamo, which takes
    as long as all of torch."""
    spec = importlib.util.find_spec(module)
    source = b"" if spec is None or spec.origin is None else Path(spec.origin).read_bytes()
    return b"optim" in source or b"recipes" in source


def fork_job(
    argv: list[str], size: int, env: dict[str, str], output: str = "", grace_s: float = 0.0
) -> Running:
    """Fork the ranks of ``MODULE [OPTIONS]``; ``output``: the files' name less ``.RANK.out``."""
    port, pids = free_port(), []
    for rank in range(size):
        pid = os.fork()
        if not pid:
            if output:
                redirect(f"{output}.{rank}")
            os.environ.update({**env, **rank_env(rank, size, port)})
            leave(run_program(argv))
        pids.append(pid)
    return Running(pids, grace_s)


def redirect(path: str) -> None:
    """stdout and stderr into files of their own."""
    for number, kind in ((1, "out"), (2, "err")):
        file = os.open(f"{path}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
        os.close(file)


def run_program(argv: list[str]) -> int:
    """``python -m`` in this process; its exit code."""
    sys.argv = list(argv)
    try:
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            return left.code or 0
        sys.stderr.write(f"{left.code}\n")
        return 1
    except BaseException:  # noqa: BLE001 - said as the interpreter does, by whoever has hooked it
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def leave(code: int) -> NoReturn:
    """The end of a rank: its threads, its exit handlers, its last words. The interpreter's own
    teardown is left out: it would copy, page by page, and free what the parent imported."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve(path: Path) -> None:
    """Fork a process for each job that comes, until the tests end."""
    prepare({RECIPES})
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(path))
        server.listen(16)
        if os.fork():
            return
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        server.settimeout(0.5)
        while True:
            end_with_session([])
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
            with contextlib.suppress(TimeoutError):
                caller = server.accept()[0]
                if not os.fork():
                    server.close()
                    leave(job_for(caller))
                caller.close()


def job_for(caller: socket.socket) -> int:
    """The job as it would be in the caller's own process; it ends with the caller."""
    message, files, _, _ = socket.recv_fds(caller, MESSAGE_BYTES, 3)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    wanted = json.loads(message)
    os.environ.clear()
    os.environ.update(wanted["env"])
    os.chdir(wanted["cwd"])
    prepare({wanted["argv"][0]})
    job = fork_job(wanted["argv"], wanted["size"], {})
    while not job.look():
        if select.select([caller], [], [], LOOK_S)[0]:
            job.killed_at_s = 0
    caller.send(str(int(any(job.codes.values()))).encode())
    return 0


def served_job(path: str, size: int, argv: list[str]) -> int:
    """``one_job`` in a process of the server, whose hooks are there for a watched job only."""
    if not os.environ.get("PARDBG"):
        return one_job(size, argv)
    wanted = {"env": dict(os.environ), "cwd": os.getcwd(), "argv": argv, "size": size}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(path)
        socket.send_fds(server, [json.dumps(wanted).encode()], [0, 1, 2])
        return int(server.recv(16) or b"1")


def one_job(size: int, argv: list[str]) -> int:
    """As ``torchrun`` does it: the exit code is 0 if every rank's was."""
    prepare({argv[0]})
    job = fork_job(argv, size, {})
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while not job.look():
        end_with_session([job])
        time.sleep(LOOK_S)
    return int(any(job.codes.values()))


def many_jobs(folder: Path) -> None:
    """All of a file, ``at_once`` of them at a time."""
    wanted = json.loads((folder / "jobs.json").read_text())
    jobs: list[dict[str, Any]] = wanted["jobs"]
    prepare({job["argv"][0] for job in jobs})
    waiting, running = jobs[::-1], dict[str, Running]()
    while waiting or running:
        while waiting and len(running) < wanted["at_once"]:
            job = waiting.pop()
            output = str(folder / job["name"])
            begun = fork_job(job["argv"], job["ranks"], job["env"], output, GRACE_S)
            begun.killed_at_s = time.monotonic() + (job["limit_s"] or float("inf"))
            running[job["name"]] = begun
        for name in [name for name, job in running.items() if job.look()]:
            job = running.pop(name)
            codes = [job.codes[pid] for pid in job.pids]
            (folder / f"{name}.json").write_text(json.dumps(codes))
        end_with_session(running.values())
        time.sleep(LOOK_S)


if __name__ == "__main__":
    if sys.argv[1] == "--jobs":
        many_jobs(Path(sys.argv[2]))
    elif sys.argv[1] == "--serve":
        serve(Path(sys.argv[2]))
    elif sys.argv[1] == "--from":
        sys.exit(served_job(sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
    else:
        sys.exit(one_job(int(sys.argv[1]), sys.argv[2:]))
