"""Stacks of all ranks at about one moment, with their CPU use meanwhile; and the ranks of all
machines that have come to ``init_process_group``, by the job's own TCPStore.

The store is queried as one more client, which only checks whether keys exist. gloo sets a key for
each rank before it connects (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp); NCCL sets none."""

from __future__ import annotations

import linecache
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from subprocess import SubprocessError
from typing import Final

import psutil

from pardbg.analysis.hangs.stacks import activity, program
from pardbg.events.device_facts import Ras
from pardbg.hub.attach.job_ranks import JobRank, why_no_stack
from pardbg.hub.attach.stacks_verdict import RankStack
from pardbg.hub.ranks.processes import maps, schedule, times_run
from pardbg.hub.ranks.rendezvous import came
from pardbg.hub.ranks.stack_requests import py_spy
from pardbg.hub.serve.nccl_reports import fact_of, status_of
from pardbg_agent.identity import host_name

ASK_S: Final = 5.0
ATTEMPT: Final = "TORCHELASTIC_RESTART_COUNT"


@dataclass(frozen=True, slots=True)
class StoreLook:
    """Result of a store query. ``why``: it failed. Empty ``come``: no rank, or not gloo's group."""

    come: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    why: str = ""


def ask_store(ranks: Sequence[JobRank]) -> StoreLook:
    """Query the store of one job."""
    rank = ranks[0]
    host, port = rank.job[:2]
    if not (host and port.isdecimal()):
        return StoreLook(why="MASTER_ADDR and MASTER_PORT are not in the ranks' environment")
    try:
        attempt = psutil.Process(rank.pid).environ().get(ATTEMPT, "0")
    except psutil.Error as error:
        return StoreLook(why=str(error))
    if attempt != "0":
        return StoreLook(why="the ranks were restarted, and it keeps the keys of those before")
    everyone = range(rank.world_size)
    try:
        come = came(host, int(port), everyone, ASK_S)
    except (OSError, ValueError, OverflowError) as error:  # the last: no port has such a number
        return StoreLook(why=f"{type(error).__name__}: {error}")
    return StoreLook(tuple(come), tuple(sorted({*everyone} - {*come})))


AT_ONCE: Final = 8
"""Maximum number of py-spy processes at a time: each takes 50 ms of a core."""
WATCH_S: Final = 0.3
LOOKS: Final = 6
"""Number of further looks at waiting ranks: whether they go on."""
DRIVERS: Final = ("libcuda.so", "libamdhip64", "libze_loader")
ASLEEP: Final = 0.05
"""Share of a core below which a rank counts as asleep."""


@dataclass(frozen=True, slots=True)
class Look:
    """Result of a look at all ranks. ``unread``: rank to why its stack could not be read."""

    stacks: tuple[RankStack, ...]
    unread: dict[int, str]
    seconds: float
    moves: bool = False
    """Whether all waiting ranks had moved a moment later: ranks of a healthy job wait, too."""


def ask_ras(ranks: Sequence[JobRank]) -> Ras | None:
    """Return the job's status from NCCL's RAS. It takes a connection to the RAS port of a rank."""
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
    seen: list[tuple[JobRank, RankStack]] = []
    unread = {}
    for one, found in zip(ranks, read, strict=True):
        if isinstance(found, str):
            unread[one.rank] = found
            continue
        now = schedule(one.pid)
        ran = now[0] - before[one.rank][0] if now and before[one.rank] else took_ns
        asleep, has_device = ran < ASLEEP * took_ns, _has_device(one.pid)
        stack = RankStack(one.rank, found, asleep, has_device, _source(found))
        if has_device and not asleep and not stack.waits and activity(found) is None:
            stack = replace(stack, stands=_frames(one) == found)
        seen.append((one, stack))
    moves = _move([(one, stack) for one, stack in seen if stack.waits])
    return Look(tuple(stack for _, stack in seen), unread, time.monotonic() - begun, moves)


def _move(waiters: Sequence[tuple[JobRank, RankStack]]) -> bool:
    """Return whether all ranks that waited have gone on within a second: the main thread of each
    was run, and each (of many, some) had other frames in one of a few looks. A rank that stands is
    not run, and not looked at again."""
    before, left = {rank.pid: times_run(rank.pid) for rank, _ in waiters}, waiters[:AT_ONCE]
    for _ in range(LOOKS) if waiters else ():
        time.sleep(WATCH_S / 2)
        left = [
            (rank, stack)
            for rank, stack in left
            if times_run(rank.pid) == before[rank.pid] or _is_still(_frames(rank), stack)
        ]
        if not left and all(times_run(pid) != times for pid, times in before.items()):
            return True
    return False


def _is_still(frames: tuple[tuple[str, int, str], ...] | str, stack: RankStack) -> bool:
    return isinstance(frames, str) or frames == stack.frames


def _has_device(pid: int) -> bool:
    """Return whether a process has loaded a device driver."""
    return any(maps(pid, driver) for driver in DRIVERS)


def _source(frames: Sequence[tuple[str, int, str]]) -> str:
    """Return the innermost source line from disk; empty if unknown."""
    own = program(frames)
    return linecache.getline(own[-1][0], own[-1][1]) if own else ""


def _frames(rank: JobRank) -> tuple[tuple[str, int, str], ...] | str:
    """Return the main thread's frames, the innermost last; or the reason if there are none."""
    try:
        threads = py_spy(rank.pid)
    except (OSError, ValueError, SubprocessError) as error:
        return why_no_stack(str(error))
    main = next((one for one in threads if one.main), threads[0] if threads else None)
    return "no Python thread" if main is None else main.frames
