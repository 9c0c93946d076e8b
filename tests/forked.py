"""Ranks without a torchrun start, where the launcher is not what a test is about: one command for
one job, or many jobs in one process. See tests.distributed.programs.forked_ranks."""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from tests.processes import MARK, SHARED, Finished, rank_env, run_argv

PROGRAM = "tests.distributed.programs.forked_ranks"


def forked(torchrun: Sequence[str]) -> list[str]:
    """The command of the same job, its ranks forked: ``torchrun … --nproc-per-node N -m MODULE``
    on one node."""
    words = list(torchrun)
    at = words.index("--nproc-per-node")
    module = words.index("-m", at)
    return [sys.executable, "-m", PROGRAM, words[at + 1], *words[module + 1 :]]


def served(torchrun: Sequence[str], **hooks: str) -> list[str]:
    """``forked`` for a job that is watched as the agent does it of itself: torch, which takes
    longer than most jobs, is imported once for all of them. ``hooks``: what the agent reads in the
    environment when torch is imported; of the job's own it would come too late."""
    argv = forked(torchrun)
    return [*argv[:3], "--from", rank_server(hooks), *argv[3:]]


def rank_server(hooks: Mapping[str, str]) -> str:
    """The socket of a process to fork ranks from, which lives as long as pytest does; started by
    the first that asks."""
    from tests.distributed.programs.watched import make_run

    folder = shared_directory() / "-".join(["ranks", *hooks.values()])
    path = folder / "socket"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            folder.mkdir()
            mark = (shared_directory() / MARK).read_text()
            env = rank_env({**make_run(folder), **hooks, MARK: mark})
            argv = [sys.executable, "-m", PROGRAM, "--serve", str(path)]
            done = run_argv(argv, env=env, timeout_s=120)
            assert done.code == 0, done.err
    return str(path)


@cache
def shared_directory() -> Path:
    """Of all workers of one pytest; it has the mark of the process that started them."""
    if shared := os.environ.get(SHARED):
        return Path(shared)
    path = Path(tempfile.mkdtemp(prefix="pardbg-recorded-"))
    (path / MARK).write_text(f"{os.getpid()}-ranks")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@dataclass(frozen=True, slots=True)
class Job:
    """One of several jobs that are forked from the same process."""

    name: str
    """Also of its files."""
    ranks: int
    argv: tuple[str, ...]
    """``MODULE OPTIONS…``"""
    env: Mapping[str, str] = field(default_factory=dict)
    """Beside what torchrun sets. PARDBG must be in the parent's environment, too, for the agent's
    hooks to be there."""
    limit_s: float = 0
    """When its ranks are killed; 0: never."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a job left behind, by rank."""

    codes: tuple[int, ...]
    """Negative: the signal."""
    out: tuple[str, ...]
    err: tuple[str, ...]

    @property
    def whole(self) -> Finished:
        """As if one pipe had taken it all."""
        return Finished(int(any(self.codes)), "".join(self.out), "".join(self.err), False)


def run_jobs(
    jobs: Sequence[Job], *, env: Mapping[str, str] | None = None, at_once: int = 1,
    timeout_s: float = 120,
) -> dict[str, Ended]:  # fmt: skip
    """Run them all to their ends, ``at_once`` at a time, with one import of torch."""
    with tempfile.TemporaryDirectory(prefix="pardbg-jobs-") as name:
        folder = Path(name)
        wanted = {"at_once": at_once, "jobs": [asdict(job) for job in jobs]}
        (folder / "jobs.json").write_text(json.dumps(wanted))
        argv = [sys.executable, "-m", PROGRAM, "--jobs", name]
        done = run_argv(argv, env=rank_env(env), timeout_s=timeout_s)
        assert done.code == 0 and not done.timed_out, done.err
        return {job.name: _ended(folder, job) for job in jobs}


def _ended(folder: Path, job: Job) -> Ended:
    codes = json.loads((folder / f"{job.name}.json").read_text())
    texts = [
        tuple((folder / f"{job.name}.{rank}.{kind}").read_text() for rank in range(job.ranks))
        for kind in ("out", "err")
    ]
    return Ended(tuple(codes), *texts)
