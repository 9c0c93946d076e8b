"""Ranks without a torchrun start, where the launcher is not what a test is about: one command for
one job, or many jobs in one process. See tests.distributed.programs.forked_ranks."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.processes import Finished, rank_env, run_argv

PROGRAM = "tests.distributed.programs.forked_ranks"


def forked(torchrun: Sequence[str]) -> list[str]:
    """The command of the same job, its ranks forked: ``torchrun … --nproc-per-node N -m MODULE``
    on one node."""
    words = list(torchrun)
    at = words.index("--nproc-per-node")
    module = words.index("-m", at)
    return [sys.executable, "-m", PROGRAM, words[at + 1], *words[module + 1 :]]


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
