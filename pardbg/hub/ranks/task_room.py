"""How many processes and threads may still be started here: ``ulimit -u``, and pids.max of cgroups.

Both count threads. A limit that is reached makes the next start fail, the job's like ours.
"""

from __future__ import annotations

import os
import resource
from typing import Final

from pardbg_agent.identity import cgroup_directories, read_text
from pardbg_agent.words import whole

MIN_FREE_TASKS: Final = 128
"""With fewer free a job is not recorded: pardbg takes a dozen, and four in each rank."""
NO_LIMIT: Final = 1 << 30
_UNLIMITED_CAPS: Final = 1 << 24 | 1 << 21
"""CAP_SYS_RESOURCE, CAP_SYS_ADMIN: ``ulimit -u`` is not theirs (kernel/fork.c)."""


def free_tasks(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int:
    """Return how many processes and threads this user may still start, ``NO_LIMIT`` at most."""
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
    """Of root and of those capabilities, but not inside a user namespace."""
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
