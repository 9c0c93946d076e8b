"""Stacks of all ranks at about one moment, and whether each uses a CPU meanwhile."""

from __future__ import annotations

import linecache
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import SubprocessError
from typing import Final

from pardbg.analysis.hangs.stacks import activity, program
from pardbg.events.device_facts import Ras
from pardbg.hub.attach.job_ranks import JobRank, why_no_stack
from pardbg.hub.attach.stacks_verdict import RankStack
from pardbg.hub.ranks.processes import schedule
from pardbg.hub.ranks.stack_requests import py_spy
from pardbg.hub.serve.nccl_reports import fact_of, status_of
from pardbg_agent.identity import host_name

AT_ONCE: Final = 8
"""Processes of py-spy at a time: each takes 50 ms of a core."""
WATCH_S: Final = 0.3
DRIVERS: Final = (b"libcuda.so", b"libamdhip64", b"libze_loader")
ASLEEP: Final = 0.05
"""Share of a core below which a rank is asleep."""


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen. ``unread``: rank to why its stack could not be read."""

    stacks: tuple[RankStack, ...]
    unread: dict[int, str]
    seconds: float


def ask_ras(ranks: Sequence[JobRank]) -> Ras | None:
    """Return what NCCL's RAS says of the job. It takes a connection to the RAS port of a rank."""
    status = status_of([one.pid for one in ranks])
    return (
        None
        if status is None
        else fact_of(status, [(one.rank, host_name(), one.pid) for one in ranks])
    )


def look(ranks: Sequence[JobRank]) -> Look:
    """Read a stack of each rank, without stopping it."""
    begun = time.monotonic()
    before = {one.rank: schedule(one.pid) for one in ranks}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        read = list(pool.map(_frames, ranks))
    time.sleep(max(0.0, begun + WATCH_S - time.monotonic()))
    took_ns = (time.monotonic() - begun) * 1e9
    stacks, unread = [], {}
    for one, found in zip(ranks, read, strict=True):
        if isinstance(found, str):
            unread[one.rank] = found
            continue
        now = schedule(one.pid)
        ran = now[0] - before[one.rank][0] if now and before[one.rank] else took_ns
        asleep, has_device = ran < ASLEEP * took_ns, _has_device(one.pid)
        seen = RankStack(one.rank, found, asleep, has_device, _source(found))
        if has_device and not asleep and not seen.waits and activity(found) is None:
            seen = replace(seen, stands=_frames(one) == found)
        stacks.append(seen)
    return Look(tuple(stacks), unread, time.monotonic() - begun)


def _has_device(pid: int) -> bool:
    """Return whether a process has loaded the driver of a device."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return False
    return any(driver in maps for driver in DRIVERS)


def _source(frames: Sequence[tuple[str, int, str]]) -> str:
    """Return the innermost line as it is on disk; empty: not known."""
    own = program(frames)
    return linecache.getline(own[-1][0], own[-1][1]) if own else ""


def _frames(rank: JobRank) -> tuple[tuple[str, int, str], ...] | str:
    """Return the main thread's frames, the innermost last; or why there are none."""
    try:
        threads = py_spy(rank.pid)
    except (OSError, ValueError, SubprocessError) as error:
        return why_no_stack(str(error))
    main = next((one for one in threads if one.main), threads[0] if threads else None)
    return "no Python thread" if main is None else main.frames
