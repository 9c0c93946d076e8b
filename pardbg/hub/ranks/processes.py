"""Kernel facts about a process (start time, exit code, state), and the number of further processes
allowed: ``ulimit -u`` and pids.max of cgroups count threads, too. Quick to import."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path
from typing import Final

from pardbg_agent import identity
from pardbg_agent.identity import cgroup_directories, read_text
from pardbg_agent.words import whole

MIN_FREE_TASKS: Final = 128
"""Number of free tasks below which a job is not recorded: pardbg takes 12, and 4 in each rank."""
NO_LIMIT: Final = 1 << 30
_UNLIMITED_CAPS: Final = 1 << 24 | 1 << 21
"""CAP_SYS_RESOURCE, CAP_SYS_ADMIN, which ``ulimit -u`` does not limit (kernel/fork.c)."""


def free_tasks(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int:
    """Return the number of tasks this user may still start, ``NO_LIMIT`` at most."""
    return min(_by_cgroup(proc, cgroups), _by_user(proc))


def _by_cgroup(proc: str, root: str) -> int:
    found = [NO_LIMIT]
    for _, directory in cgroup_directories(read_text(f"{proc}/self/cgroup"), root, "pids"):
        most, now = (read_text(f"{directory}/pids.{name}").strip() for name in ("max", "current"))
        limit = whole(most)  # "max": none
        if limit is not None:
            found.append(limit - (whole(now) or 0))
    return min(found)


def _by_user(proc: str) -> int:
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if limit == resource.RLIM_INFINITY or _exempt(proc):
        return NO_LIMIT
    everybody = whole(read_text(f"{proc}/loadavg").rpartition("/")[2].partition(" ")[0])
    if everybody is not None and limit - everybody >= MIN_FREE_TASKS:
        return limit - everybody  # at least so many: looking at each process takes longer
    return limit - _tasks_of(os.getuid(), proc)


def _exempt(proc: str) -> bool:
    """Return whether root or those capabilities lift the limit: not inside a user namespace."""
    if read_text(f"{proc}/self/uid_map").split() != ["0", "0", "4294967295"]:
        return False
    lines = read_text(f"{proc}/self/status").splitlines()
    caps = next((int(line[7:], 16) for line in lines if line.startswith("CapEff:")), 0)
    return os.getuid() == 0 or bool(caps & _UNLIMITED_CAPS)


def _tasks_of(uid: int, proc: str) -> int:
    """Return the threads of a user's processes that can be seen here."""
    number = 0
    for name in filter(str.isdecimal, os.listdir(proc)):
        try:
            found = os.stat(f"{proc}/{name}/task")
        except OSError:
            continue  # it has ended
        number += found.st_nlink - 2 if found.st_uid == uid else 0
    return number


start_time: Final = identity.started
stat_fields: Final = identity.stat_fields


def give_way() -> None:
    """Make this process run after the job's and, where memory runs out, be ended before a rank."""
    os.nice(10)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def exit_code(pid: int, started: str) -> int | None:
    """Return the exit code of a process that is not reaped; None if it is too late."""
    fields = stat_fields(pid, ended=True)
    if len(fields) < 50 or fields[19] != started or fields[0] not in "ZX":
        return None
    status = int(fields[49])
    return -(status & 0x7F) if status & 0x7F else status >> 8


def schedule(pid: int) -> list[int]:
    """Return [ns the main thread ran, ns it was ready without a core]; empty if unknown."""
    return [int(word) for word in read_text(f"/proc/{pid}/schedstat").split()[:2]]


def times_run(pid: int) -> int | None:
    """Return the number of times the main thread was given a core; None if unknown."""
    words = read_text(f"/proc/{pid}/schedstat").split()
    return int(words[2]) if len(words) == 3 else None


def maps(pid: int, name: str) -> bool:
    """Return whether a process has a file of that name mapped, which a recycled pid has not."""
    return name in read_text(f"/proc/{pid}/maps")


def runnable() -> float:
    """Return the host's runnable threads per core; 0 if the kernel does not tell."""
    words = read_text("/proc/loadavg").split()
    number = whole(words[3].partition("/")[0]) if len(words) > 3 else None
    return max(0, (number or 0) - 1) / (os.cpu_count() or 1)  # one of them asks


def group(leader: int) -> list[int]:
    """Return the processes of a process group."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(int(name)) == leader:
                found.append(int(name))
    return found


def handles(pid: int, number: int) -> bool:
    """Return whether the process catches or ignores that signal."""
    lines = read_text(f"/proc/{pid}/status").splitlines()
    masks = [int(line[7:], 16) for line in lines if line[:7] in ("SigIgn:", "SigCgt:")]
    return any(mask >> (number - 1) & 1 for mask in masks)


def orphaned() -> bool:
    """Return whether the kernel ignores SIGTSTP in our group: no shell would continue it."""
    ours, pid = os.getpgrp(), os.getpid()
    while (fields := stat_fields(pid)) and int(fields[2]) == ours:
        pid = int(fields[1])
    return not fields or int(fields[3]) != os.getsid(0)


def children(parent: int) -> list[int]:
    """Return the child processes of a process that have not ended."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [pid for pid in pids if (f := stat_fields(pid)) and f[1] == str(parent)]


def command_line(pid: int) -> bytes:
    """Return a process's arguments, each ended by a zero byte; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def environ(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with; empty if it cannot be read."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    return {name: value for name, _, value in (word.partition("=") for word in words)}
