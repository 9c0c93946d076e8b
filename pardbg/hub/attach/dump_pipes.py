"""Dumps of NCCL's Flight Recorder, requested through the pipe that a rank reads.

With TORCH_NCCL_DEBUG_INFO_PIPE_FILE a rank makes a pipe of that name, its rank and ``.pipe``. Its
monitor thread polls the pipe for a byte, each second by default, writes a dump, and training goes
on (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp). Nothing here blocks: a pipe without a reader
cannot be opened."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pardbg.hub.attach.job_ranks import JobRank
from pardbg.hub.ranks.processes import environ
from pardbg.words import duration

PIPE: Final = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
FILES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
WAIT_S: Final = 5.0
POLL_S: Final = 0.1
MAX_BYTES: Final = 64 << 20
STOP: Final = b"."
"""Last byte of a pickle."""


@dataclass(frozen=True, slots=True)
class DumpsLook:
    """Dumps by rank, written after the request; and reasons for ranks without a dump."""

    dumps: dict[int, bytes] = field(default_factory=dict)
    why: dict[int, str] = field(default_factory=dict)


def ask_dumps(ranks: Sequence[JobRank]) -> DumpsLook:
    """Request a dump of each rank, and wait until it is written."""
    look = DumpsLook()
    before: dict[int, dict[Path, int]] = {}
    for one in ranks:
        files = {path: _changed(path) for path in _files(one)}
        if why := _ask(one):
            look.why[one.rank] = why
        else:
            before[one.rank] = files
    until = time.monotonic() + WAIT_S
    sizes: dict[Path, int] = {}
    while before and time.monotonic() < until:
        time.sleep(POLL_S)
        for rank, files in list(before.items()):
            if (dump := _written(files, sizes)) is not None:
                look.dumps[rank] = dump
                del before[rank]
    look.why.update(dict.fromkeys(before, f"no dump within {duration(WAIT_S * 1e9)}"))
    return look


def _ask(one: JobRank) -> str:
    """Request a dump; return the reason if that is impossible."""
    stem = environ(one.pid).get(PIPE)
    if not stem:
        return f"{PIPE} is not in its environment"
    pipe = _of_process(one.pid, f"{stem}{one.rank}.pipe")
    try:
        if not stat.S_ISFIFO(pipe.stat().st_mode):
            return f"{stem}{one.rank}.pipe is no pipe"
        to = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            os.write(to, b"1")
        finally:
            os.close(to)
    except OSError as error:
        return f"{stem}{one.rank}.pipe: {os.strerror(error.errno or 0)}"
    return ""


def _files(one: JobRank) -> list[Path]:
    """Return the possible files of a rank's dump: the default has changed in torch 2.8."""
    env = environ(one.pid)
    if named := next((env[name] for name in FILES if env.get(name)), ""):
        stems = [named]
    else:
        homes = [env.get("XDG_CACHE_HOME"), f"{env.get('HOME', '/tmp')}/.cache"]
        stems = [f"{home}/torch/comm_lib_trace_rank_" for home in homes if home]
        stems.append("/tmp/nccl_trace_rank_")
    return [_of_process(one.pid, f"{stem}{one.rank}") for stem in stems]


def _of_process(pid: int, name: str) -> Path:
    """Return a path as a process sees it, which may be in a container."""
    where = "root" if name.startswith("/") else "cwd"
    return Path(f"/proc/{pid}/{where}/{name.lstrip('/')}")


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return -1


def _written(files: dict[Path, int], sizes: dict[Path, int]) -> bytes | None:
    """Return the newly written dump if it is complete: same size at two looks, and ended."""
    for path, before in files.items():
        try:
            found = path.stat()
            if found.st_mtime_ns == before or not stat.S_ISREG(found.st_mode):
                continue
            known, sizes[path] = sizes.get(path), found.st_size
            if known == found.st_size <= MAX_BYTES and (told := path.read_bytes()).endswith(STOP):
                return told
        except OSError:
            continue
    return None
