"""Memory limit of this rank: its device's, or its cgroup's, which other processes may share.

The limit is located once. A cgroup's use is read again every few seconds: other processes count in
it, page cache that the kernel would reclaim does not."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from pardbg_agent import core as _core
from pardbg_agent.hooks.context import of
from pardbg_agent.hooks.memory import device_memory
from pardbg_agent.identity import cgroup_directories, read_text
from pardbg_agent.wire import Kind
from pardbg_agent.words import whole

EVERY_NS: Final = 5_000_000_000
NO_LIMIT: Final = 1 << 60
"""Limit from which cgroup v1 means no limit: it then gives a number near the largest address."""
ROOT: Final = "/sys/fs/cgroup"
_NAMES: Final = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""cgroup version -> (limit file, use file, reclaimable field of memory.stat)."""


@dataclass(slots=True)
class Limit:
    """Memory limit that was found."""

    cgroup: tuple[int, int, str] | None = None
    """(limit in bytes, cgroup version, directory); (0, 0, ""): no limit; None: not searched yet."""
    device: bool = False
    """Whether the device's limit, which does not change, is recorded."""
    next_ns: int = 0
    """Time of the next reading of a cgroup's use."""


def sample(c: _core.Core, t: int) -> None:
    """Record ``limit``: the limit in bytes, and for a cgroup its use."""
    known = of(c).part(Limit)
    if t < known.next_ns:
        return
    known.next_ns = t + EVERY_NS
    if c.identity.device != "cpu":
        if not known.device:
            known.device = True
            if most := c.guard.call("device limit", device_memory.limit_bytes, c):
                c.mark(Kind.MEMORY, "limit", t, most)
        return
    if known.cgroup is None:
        known.cgroup = cgroup()
    limit, version, directory = known.cgroup
    if limit:
        c.mark(Kind.MEMORY, "limit", t, limit, used_bytes(version, directory))


def cgroup(file: str = "/proc/self/cgroup", root: str = ROOT) -> tuple[int, int, str]:
    """Return the tightest limit of this process's cgroup and its ancestors: (bytes, version,
    directory); (0, 0, "") without any."""
    found = [
        (limit, version, directory)
        for version, directory in cgroup_directories(read_text(file), root, "memory")
        if 0 < (limit := _number(read_text(os.path.join(directory, _NAMES[version][0])))) < NO_LIMIT
    ]
    return min(found, default=(0, 0, ""))


def used_bytes(version: int, directory: str) -> int:
    """Return the bytes of a cgroup that the kernel cannot reclaim."""
    _, use, inactive = _NAMES[version]
    lines = read_text(os.path.join(directory, "memory.stat")).splitlines()
    given_up = next((_number(x.split()[1]) for x in lines if x.split()[:1] == [inactive]), 0)
    return max(0, _number(read_text(os.path.join(directory, use))) - given_up)


def _number(text: str) -> int:
    """Return the number in a cgroup file; 0 for ``max`` and anything else that is not a number."""
    return whole(text.strip()) or 0
