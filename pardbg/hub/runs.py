"""Which runs there are, and cleaning up after dead ones."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pardbg.hub import config as files
from pardbg.hub.config import ConfigError
from pardbg.hub.launch import RunHandle
from pardbg_agent.wire import RUN_FILE

KEEP_S: Final = 60.0
"""A dead run's directory stays so long: somebody may still read its exit code."""


class RunError(Exception):
    """No such run. One line."""


@dataclass(frozen=True, slots=True)
class Run:
    """A live run."""

    run: str
    name: str
    path: Path
    argv: tuple[str, ...]
    session: Path
    started_ns: int
    """Wall clock, epoch ns."""
    hub_alive: bool

    def as_dict(self) -> dict[str, Any]:
        return {
            "run": self.run, "name": self.name, "path": str(self.path), "argv": list(self.argv),
            "session": str(self.session), "started_ns": self.started_ns,
            "hub_alive": self.hub_alive,
        }  # fmt: skip

    def line(self) -> str:
        """One line for people."""
        age = max(0, time.time_ns() - self.started_ns) // 1_000_000_000
        since = f"{age // 3600}:{age // 60 % 60:02}:{age % 60:02}"
        hub = "" if self.hub_alive else "  (no hub)"
        command = " ".join(self.argv)
        shown = command if len(command) < 80 else f"{command[:79]}…"
        return f"{self.run:<28} {since:>9}  {shown}{hub}"


def list_runs() -> list[Run]:
    """Live runs, oldest first. Dead ones are cleaned on the way."""
    found = []
    for root in files.roots():
        for run_dir in sorted(root.glob("*/")) if root.is_dir() else []:
            run = _look(run_dir)
            if run is not None:
                found.append(run)
    return sorted(found, key=lambda run: run.started_ns)


def find_run(name: str | None = None) -> Run:
    """By id, the id's beginning, its name or its directory; None: the newest. Raises RunError."""
    if name is not None and (Path(name) / RUN_FILE).is_file():
        run = _look(Path(name))
        if run is not None:
            return run
    runs = list_runs()
    if not runs:
        raise RunError("no live run; start one with `pardbg demo` or `pardbg watch -- CMD`")
    if name is None:
        return runs[-1]
    fitting = [run for run in runs if name in (run.run, run.name) or run.run.startswith(name)]
    if not fitting:
        raise RunError(f"no live run {name!r}; live: {', '.join(run.run for run in runs)}")
    return fitting[-1]


def _look(run_dir: Path) -> Run | None:
    try:
        handle = RunHandle(run_dir)
    except ConfigError:
        _clean(run_dir, None)
        return None
    if not handle.launcher_alive():
        _clean(run_dir, Path(handle.config.ring_dir))
        return None
    hub = files.read_json(run_dir / files.HUB_FILE)
    config = handle.config
    return Run(
        config.run, config.name, run_dir, config.argv, Path(config.session), config.wall_ns,
        hub is not None,
    )  # fmt: skip


def _clean(run_dir: Path, ring_dir: Path | None) -> None:
    """Remove what a dead run left, unless it died only just now or its ranks still live."""
    with contextlib.suppress(OSError):
        newest = max(path.stat().st_mtime for path in (run_dir, *run_dir.iterdir()))
        if time.time() - newest < KEEP_S:
            return
        if ring_dir is not None and ring_dir.is_relative_to("/dev/shm"):
            shutil.rmtree(ring_dir, ignore_errors=True)
        shutil.rmtree(run_dir, ignore_errors=True)
