"""List of live and dead runs, and removal of what dead runs leave.

The session file of a run that ended properly has everything, so its directory is removed after a
minute. A run whose hub was killed leaves the rings of its ranks for ``pardbg postmortem``; a run
whose `pardbg run` was killed leaves the job's exit code. Both are kept within limits.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from pardbg.errors import UserError
from pardbg.hub.ranks.processes import maps
from pardbg.hub.removal import RING, RINGS_DIR, is_private, marked, remove_rings, remove_run
from pardbg.hub.run import config as files
from pardbg.hub.run.config import ConfigError, RunConfig
from pardbg.hub.run.run_files import read_end, read_part
from pardbg.hub.run.start import RunHandle
from pardbg.session.rotation import part_path
from pardbg.words import binary_size, duration, plural
from pardbg_agent.ring import RingError, RingReader
from pardbg_agent.wire import RUN_FILE

KEEP_S: Final = 60.0
"""Retention of a dead run's directory: its exit code may still be read."""
KEEP_RINGS_S: Final = 24 * 3600.0
"""Retention of a dead run with rings, which hold records that its session file may lack."""
KEEP_RINGS: Final = 8
KEEP_RINGS_BYTES: Final = 512 << 20
"""Maximum number of dead runs with rings, which occupy memory, and of their bytes."""


class RunError(UserError):
    """Raised when there is no such run. One line."""


@dataclass(frozen=True, slots=True)
class Run:
    """Live run."""

    run: str
    name: str
    path: Path
    argv: tuple[str, ...]
    session: Path
    started_ns: int
    """Start on the wall clock, ns since the epoch."""
    hub_alive: bool
    launcher_alive: bool = True
    place: tuple[str, int] = ("", 0)
    """Address of the run's hub for other nodes, and the number of this node."""

    def as_dict(self) -> dict[str, Any]:
        known = asdict(self) | {"path": str(self.path), "session": str(self.session)}
        return {name: value for name, value in known.items() if name != "place"}

    def line(self) -> str:
        """Return the run as one line for users."""
        age = duration(max(0, time.time_ns() - self.started_ns))
        gone = ("" if self.launcher_alive else "  (no launcher)") + (
            "" if self.hub_alive else "  (no hub)"
        )
        return f"{self.run:<28} {age:>9}  {_short(' '.join(self.argv))}{gone}"


@dataclass(frozen=True, slots=True)
class RunRings:
    """Remains of a dead run: its rings, or an exit code that its owner did not live to get."""

    path: Path
    """Directory of the run (that of the rings, where no other is known)."""
    ring_dir: Path
    config: RunConfig | None
    num_rings: int
    num_bytes: int
    died_s: float
    """Wall clock of the last write."""
    untold: int | None = None
    """The job's exit code, if its owner did not get it."""

    @property
    def run(self) -> str:
        return self.config.run if self.config is not None else self.path.name

    @property
    def session(self) -> Path | None:
        """Return the newest part of the run's recording."""
        if self.config is None:
            return None
        return part_path(Path(self.config.session), read_part(self.path))

    def as_dict(self) -> dict[str, Any]:
        argv = list(self.config.shown) if self.config is not None else []
        return {
            "run": self.run, "path": str(self.path), "rings": self.num_rings,
            "bytes": self.num_bytes, "died_ns": round(self.died_s * 1e9), "argv": argv,
            "exit_code": self.untold,
            "session": str(self.session) if self.session is not None else None,
        }  # fmt: skip

    def line(self) -> str:
        """Return the dead run as one line for users."""
        age = duration(1e9 * max(0, time.time() - self.died_s))
        argv = " ".join(self.config.shown) if self.config is not None else ""
        what = f"{plural(self.num_rings, 'ring')}, {binary_size(self.num_bytes)}"
        if self.untold is not None:
            what += f", exit code {self.untold}"
        return f"{self.run:<28} {age:>9} ago  {what}  {_short(argv)}"


def list_runs() -> list[Run]:
    """Return live runs, oldest first; changes nothing. Further nodes of a run whose hub is on this
    host, as of a launcher's tasks, are left out."""
    found = [run for run_dir in _run_dirs() if (run := _look(run_dir)) is not None]
    hubs = {run.place[0] for run in found if run.place[1] == 0}
    shown = (run for run in found if run.place[1] == 0 or run.place[0] not in hubs)
    return sorted(shown, key=lambda run: run.started_ns)


def tidy() -> None:
    """Remove dead runs that hold nothing new, and rings and exit codes beyond the limits."""
    for run_dir in _run_dirs():
        if _look(run_dir) is None:
            _clean(run_dir)
    _clean_rings(list_run_rings())


def list_run_rings() -> list[RunRings]:
    """Return dead runs with rings or an exit code, the oldest first."""
    dead = [_run_rings(run_dir) for run_dir in _run_dirs()]
    return sorted((rings for rings in dead if rings is not None), key=lambda rings: rings.died_s)


def find_run(name: str | None = None) -> Run:
    """Return a run by id, its prefix, name or directory; None: the newest. Raises RunError."""
    if name is not None and (Path(name) / RUN_FILE).is_file():
        if not marked(Path(name)):
            raise RunError(
                f"{name} has a {RUN_FILE} that is not pardbg's, or was copied: see `pardbg ls`"
            )
        run = _look(Path(name))
        if run is not None:
            return run
    runs = list_runs()
    fitting = [run for run in runs if name in (run.run, run.name) or run.run.startswith(name or "")]
    if not fitting and name is not None and Path(name).is_file():
        raise RunError(f"{name} is a file, no live run: `pardbg replay {name}` opens a recording")
    if not runs:
        refused = "".join(f"; {line}" for line in files.refused_roots())
        raise RunError(
            f"no live run; start one with `pardbg demo` or `pardbg watch -- CMD`{refused}"
        )
    if name is None:
        return runs[-1]
    if not fitting:
        raise RunError(f"no live run {name!r}; live: {', '.join(run.run for run in runs)}")
    return fitting[-1]


def find_run_rings(name: str) -> RunRings:
    """Return a dead run by id, its prefix, name or directory (of rings). Raises UserError."""
    path = Path(name)
    if path.is_dir():
        return _rings_at(path)
    if path.exists() or "/" in name:
        raise RunError(
            f"{name} is not a directory: give a run (`pardbg ls --dead`) or its directory"
        )
    dead = [rings for rings in list_run_rings() if rings.num_rings]
    fitting = [rings for rings in dead if _fits(rings, name)]
    if fitting:
        return fitting[-1]
    if any(name in (run.run, run.name) for run in list_runs()):
        raise RunError(f"{name} is alive: `pardbg report {name}`, or `pardbg watch {name}`")
    known = ", ".join(rings.run for rings in dead) or "none"
    raise RunError(f"no dead run {name!r} with rings; there: {known}")


def _fits(rings: RunRings, name: str) -> bool:
    called = rings.config.name if rings.config is not None else rings.run
    return name in (rings.run, called) or rings.run.startswith(name)


def _run_dirs() -> list[Path]:
    """Return directories that pardbg made for runs, in roots that belong to this user alone."""
    found = []
    for root in files.roots():
        if is_private(root):
            with contextlib.suppress(OSError):
                found += [path for path in sorted(root.iterdir()) if marked(path) == path.name]
    return found


def _look(run_dir: Path) -> Run | None:
    try:
        handle = RunHandle(run_dir)
    except ConfigError:
        return None
    if not handle.alive():
        return None
    config = handle.config
    return Run(
        config.run, config.name, run_dir, config.shown, Path(config.session), config.wall_ns,
        handle.hub_alive(), handle.launcher_alive(), (config.hub, config.node),
    )  # fmt: skip


def _run_rings(run_dir: Path) -> RunRings | None:
    try:
        handle = RunHandle(run_dir)
    except ConfigError:
        return None
    if handle.alive():
        return None
    rings = _rings_in(run_dir, handle.config.ring_dir, handle.config)
    rings = replace(rings, untold=_untold(run_dir))
    return rings if rings.num_rings or rings.untold is not None else None


def _untold(run_dir: Path) -> int | None:
    end = read_end(run_dir)
    return end.code if end is not None and end.untold else None


def _rings_at(path: Path) -> RunRings:
    """Return the run in a directory: its own, or a copy of its rings alone. Raises UserError."""
    if not (path / RUN_FILE).is_file():
        rings = _rings_in(path, path, None)
        if not rings.num_rings:
            raise RunError(f"{path} has neither a run.json nor rings: see `pardbg ls --dead`")
        return rings
    config = files.load(path)
    ring_dir = config.ring_dir
    if not ring_dir.is_dir():  # copied here: then its rings lie beside or under it
        ring_dir = next((d for d in (path / "rings", path) if list(d.glob(f"*{RING}"))), ring_dir)
    return _rings_in(path, ring_dir, config)


def _rings_in(path: Path, ring_dir: Path, config: RunConfig | None) -> RunRings:
    sizes, newest = [], 0.0
    with contextlib.suppress(OSError):
        newest = path.stat().st_mtime
        for ring in ring_dir.glob(f"*{RING}"):
            found = ring.stat()
            sizes.append(found.st_size)
            newest = max(newest, found.st_mtime)
    return RunRings(path, ring_dir, config, len(sizes), sum(sizes), newest)


def _clean(run_dir: Path) -> None:
    """Remove a dead run unless it died within ``KEEP_S`` or has rings or an exit code."""
    with contextlib.suppress(OSError):
        newest = max(path.lstat().st_mtime for path in (run_dir, *run_dir.iterdir()))
        # Where rings may lie is derived from the run's name, not read from its files.
        places = run_dir / RINGS_DIR, files.shm_root() / run_dir.name
        rings = any(True for place in places for _ in place.glob(f"*{RING}"))
        kept = rings or _untold(run_dir) is not None
        if time.time() - newest > KEEP_S and not kept:
            _remove(run_dir)


def _clean_rings(dead: list[RunRings]) -> None:
    """Remove dead runs with rings that are too old, too many or too large, the oldest first."""
    now, kept_bytes = time.time(), 0
    for number, rings in enumerate(reversed(dead)):
        kept_bytes += rings.num_bytes
        too_many = number > 0 and (number >= KEEP_RINGS or kept_bytes > KEEP_RINGS_BYTES)
        keep_s = KEEP_S if too_many else KEEP_RINGS_S
        if now - rings.died_s > keep_s and not _any_alive(rings):
            _remove(rings.path)


def _any_alive(rings: RunRings) -> bool:
    for path in rings.ring_dir.glob(f"*{RING}"):
        with contextlib.suppress(RingError, OSError, ValueError):
            reader = RingReader.open(str(path))
            pid = reader.header.pid
            reader.close()
            if maps(pid, path.name):
                return True
    return False


def _remove(run_dir: Path) -> None:
    remove_rings(files.shm_root() / run_dir.name, run_dir.name)
    remove_run(run_dir)


def _short(command: str) -> str:
    command = " ".join(command.split())  # a program may be written in several lines
    return command if len(command) < 80 else f"{command[:79]}…"
