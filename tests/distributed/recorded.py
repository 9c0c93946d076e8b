"""Recipes run for real under ``pardbg run``, once however many tests look, in whatever worker.

run = recorded("1f1b", steps=10)
assert run.exit_code == 0
assert run.losses == pytest.approx(single_process, rel=1e-4)
assert run.report["pipeline"]["num_stages"] == 4
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pardbg.analysis.answers.report import as_json, report
from pardbg.lab.recipes import catalogue
from pardbg.session.reader import load
from pardbg.store.store import Store
from tests.forked import served, shared_directory
from tests.processes import Finished, rank_env, run_argv

_LOSS = re.compile(r"step (\d+) loss (\S+)")


@dataclass(frozen=True)
class Recorded:
    """A recipe's run: what it printed, and the session pardbg recorded of it."""

    name: str
    path: Path
    """The session file, kept until pytest ends."""
    finished: Finished

    @property
    def exit_code(self) -> int:
        """The job's own, as `pardbg run` passes it on."""
        return self.finished.code

    @property
    def err(self) -> str:
        return self.finished.err

    def lines(self, rank: int) -> list[str]:
        """What the rank printed, without its ``[rank0] `` prefix."""
        return self.finished.lines(rank)

    @cached_property
    def loss_texts(self) -> list[str]:
        """The loss of each step as printed: nine digits, so equal text is equal bits."""
        found = [_LOSS.search(line) for line in self.finished.out.splitlines()]
        return [match[2] for match in found if match is not None]

    @property
    def losses(self) -> list[float]:
        return [float(text) for text in self.loss_texts]

    @cached_property
    def store(self) -> Store:
        return load(self.path)

    @cached_property
    def report(self) -> dict[str, Any]:
        """``pardbg report --json`` of it."""
        return as_json(report(self.store))


def recorded(
    name: str, *, nproc: int | None = None, steps: int = 10, pace: float = 0.0,
    extra: Sequence[str] = (), nnodes: int = 1, timeout_s: float = 120,
) -> Recorded:  # fmt: skip
    """The recipe's run with these options: started by the first test that asks for it, the same
    object for the next. A test that may start it needs a timeout beyond ``timeout_s``."""
    return _run(name, nproc, steps, pace, tuple(extra), nnodes, timeout_s)


@cache
def _run(
    name: str, nproc: int | None, steps: int, pace: float, extra: tuple[str, ...], nnodes: int,
    timeout_s: float,
) -> Recorded:  # fmt: skip
    job = [*launched(name, nproc, steps, nnodes), "--pace", str(pace), *extra]
    key = repr((name, nproc, steps, pace, extra, nnodes)).encode()
    path = shared_directory() / f"{hashlib.sha256(key).hexdigest()[:16]}.mcap"
    ended = path.with_suffix(".json")
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may be recording it just now
        if not ended.exists():
            argv = [sys.executable, "-m", "pardbg.cli", "run", "-o", str(path), "--", *job]
            finished = run_argv(argv, env=rank_env(), timeout_s=timeout_s)
            assert not finished.timed_out, f"{name} took more than {timeout_s:g} s\n{finished.err}"
            ended.write_text(json.dumps(asdict(finished)))
    return Recorded(name, path, Finished(**json.loads(ended.read_text())))


def launched(name: str, nproc: int | None, steps: int, nnodes: int = 1) -> list[str]:
    """The recipe's command; on one node its ranks are forked instead of started one by one."""
    argv = catalogue.command(name, nproc, steps, nnodes=nnodes)
    return argv if nnodes > 1 else served(argv)
