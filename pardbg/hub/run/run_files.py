"""Facts that a run's processes leave in its directory for each other: processes, the job's end."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pardbg.hub.ranks.processes import start_time
from pardbg.hub.run import config as files


@dataclass(frozen=True, slots=True)
class Process:
    """Process of the run; its start time tells it from a later one with the same pid."""

    pid: int
    start: str

    @property
    def alive(self) -> bool:
        """Return whether the process exists (also unreaped)."""
        return bool(self.start) and start_time(self.pid) == self.start


@dataclass(frozen=True, slots=True)
class Launch:
    """Processes of the run, as the launcher noted them. ``job``: the job's first process, once it
    has become the job's command."""

    launcher: Process | None = None
    guardian: Process | None = None
    keeper: Process | None = None
    job: Process | None = None


@dataclass(frozen=True, slots=True)
class JobEnd:
    """End of the job."""

    code: int | None = None
    """Exit code, 128 + N for signal N as in a shell; None: unknown."""
    signal: int = 0
    error: str = ""
    """Reason why there was no job, or why its exit code is unknown."""
    t_ns: int = 0
    wall_ns: int = 0
    hub_restarts: int = 0
    told: tuple[tuple[int, int], ...] = ()
    """(time in ns, signal): signals that the job was given, the first ones."""
    untold: bool = False
    """Whether the owner that awaited the exit code was killed: it is kept for a later question."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Result of the recording."""

    error: str = ""
    """Write error that stopped the recording, or reason why a relay reached no hub."""
    messages: int = 0
    """Number of messages missing after the error."""
    missing_ns: int = 0
    """Time that is missing after the error; 0: nothing of this run was written."""


def this_process() -> Process:
    """Return the calling process."""
    return Process(os.getpid(), start_time(os.getpid()))


def read_launch(run_dir: Path) -> Launch | None:
    """Read the launcher's file; None before it is written."""
    found = files.read_json(run_dir / files.LAUNCH_FILE)
    if found is None:
        return None
    return Launch(*(_process(found, name) for name in Launch.__slots__))


def read_job(run_dir: Path) -> Process | None:
    """Return the job's first process, running or ended, as soon as it notes itself."""
    for name in (files.LAUNCH_FILE, files.JOB_FILE):
        if (job := _process(files.read_json(run_dir / name) or {}, "job")) is not None:
            return job
    return None


def write_launch(run_dir: Path, launch: Launch) -> None:
    """Write the launcher's file. Raises OSError."""
    files.write_json(run_dir / files.LAUNCH_FILE, asdict(launch))


def write_job(run_dir: Path) -> None:
    """Note the calling process as the job's first one. Raises OSError."""
    files.write_json(run_dir / files.JOB_FILE, {"job": asdict(this_process())})


def read_hub(run_dir: Path) -> Process | None:
    """Return the newest hub that listened; None: there was none."""
    return _process({"hub": files.read_json(run_dir / files.HUB_FILE)}, "hub")


def write_hub(run_dir: Path, hub: str) -> None:
    """Note the calling process as the listening hub of that id. Raises OSError."""
    files.write_json(run_dir / files.HUB_FILE, {**asdict(this_process()), "hub": hub})


def read_end(run_dir: Path) -> JobEnd | None:
    """Read the job's end; None: it has not ended."""
    found = files.read_json(run_dir / files.EXIT_FILE)
    if found is None:
        return None
    known = {name: found[name] for name in JobEnd.__slots__ if found.get(name) is not None}
    return JobEnd(**{**known, "told": tuple((at, number) for at, number in known.get("told", ()))})


def first_code(run_dir: Path, pid: int) -> int | None:
    """Return the exit code (< 0: a signal) of the job's first process, if that is ``pid`` and has
    ended; None: it is not, or the code is not known."""
    job, end = read_job(run_dir), read_end(run_dir)
    if job is None or job.pid != pid or end is None:
        return None
    return -end.signal if end.signal else end.code


def write_end(run_dir: Path, end: JobEnd) -> None:
    """Write the job's end. Raises OSError."""
    files.write_json(run_dir / files.EXIT_FILE, asdict(end))


def has_ended(run_dir: Path) -> bool:
    return (run_dir / files.EXIT_FILE).exists()


def read_recorded(run_dir: Path) -> Recorded | None:
    """Read the result of the recording; None: it goes on, or the hub was killed."""
    found = files.read_json(run_dir / files.RECORDED_FILE)
    return Recorded(**found) if found is not None else None


def write_recorded(run_dir: Path, recorded: Recorded) -> None:
    """Write the result of the recording. Raises OSError."""
    files.write_json(run_dir / files.RECORDED_FILE, asdict(recorded))


def read_part(run_dir: Path) -> int:
    """Return the number of the recording's file that is being written, from 1."""
    return int((files.read_json(run_dir / files.PART_FILE) or {}).get("part", 1))


def _process(found: dict[str, Any], name: str) -> Process | None:
    said = found.get(name)
    return Process(said["pid"], said["start"]) if isinstance(said, dict) else None
