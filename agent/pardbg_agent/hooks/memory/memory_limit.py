"""How much memory this rank may have: its device's, or its cgroup's, which it may share.

Where the limit is is found once. A cgroup's use is read again every few seconds: others' processes
count in it, and page cache that the kernel would give up does not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import torch

from pardbg_agent import core as _core
from pardbg_agent.wire import NO_GROUP, NONE, Kind, Lane

EVERY_NS: Final = 5_000_000_000
NO_LIMIT: Final = 1 << 60
"""cgroup v1 says a number about as large as an address where there is none."""
ROOT: Final = "/sys/fs/cgroup"
_NAMES: Final = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""cgroup version -> (limit, use, what of memory.stat can be given up)"""
_MEMORY, _COUNTER = int(Kind.MEMORY), int(Lane.COUNTER)

_found: tuple[int, int, str] | None = None
"""(limit in bytes, cgroup version, directory); (0, 0, ""): there is none; None: not looked yet."""
_device = 0
_next_ns = 0


def reset() -> None:
    """Look again (a new attach)."""
    global _found, _device, _next_ns
    _found, _device, _next_ns = None, 0, 0


def sample(c: _core.Core, t: int) -> None:
    """``limit``: its bytes, and what of a cgroup's is used."""
    global _found, _next_ns
    if t < _next_ns:
        return
    _next_ns = t + EVERY_NS
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        if not _device:
            _record(c, t, device_bytes(), 0)
        return
    if _found is None:
        _found = cgroup()
    limit, version, directory = _found
    if limit:
        _record(c, t, limit, used_bytes(version, directory))


def device_bytes() -> int:
    """Of the device in use: a constant, so no synchronization; less where the program limits
    itself."""
    global _device
    total = int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda: 1.0)()
    _device = max(1, int(total * min(1.0, float(share))))
    return _device


def cgroup(of: str = "/proc/self/cgroup", root: str = ROOT) -> tuple[int, int, str]:
    """The tightest limit of this process's cgroup and those above it: (bytes, version, directory);
    (0, 0, "") without any."""
    found = [
        (limit, version, directory)
        for version, directory in _directories(_read(of), root)
        if 0 < (limit := _number(_read(os.path.join(directory, _NAMES[version][0])))) < NO_LIMIT
    ]
    return min(found, default=(0, 0, ""))


def used_bytes(version: int, directory: str) -> int:
    """What the kernel cannot simply give up."""
    _, use, inactive = _NAMES[version]
    lines = _read(os.path.join(directory, "memory.stat")).splitlines()
    given_up = next((_number(x.split()[1]) for x in lines if x.split()[:1] == [inactive]), 0)
    return max(0, _number(_read(os.path.join(directory, use))) - given_up)


def _directories(text: str, root: str) -> Iterator[tuple[int, str]]:
    """(version, directory) of each cgroup that this process is in, up to the top. In a container
    the path may be the host's: then only the top is there."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            version, top = 2, root
        elif "memory" in controllers.split(","):
            version, top = 1, os.path.join(root, "memory")
        else:
            continue
        while path.strip("/"):
            yield version, os.path.join(top, path.strip("/"))
            path = os.path.dirname(path.rstrip("/"))
        yield version, top


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(text: str) -> int:
    """0 for ``max`` and what else is no number."""
    word = text.strip()
    return int(word) if word.isdigit() else 0


def _record(c: _core.Core, t: int, limit: int, used: int) -> None:
    c.record(
        _MEMORY, _COUNTER, 0, c.defs.name("limit"), t, t, c.step, 0, NO_GROUP, NONE, NONE, NONE,
        limit, used,
    )  # fmt: skip
