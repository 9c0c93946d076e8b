"""Facts of the kernel on a process: start time, exit code, state. Quick to import."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from pardbg_agent import identity
from pardbg_agent.identity import read_text
from pardbg_agent.words import whole

start_time: Final = identity.started
stat_fields: Final = identity.stat_fields


def exit_code(pid: int, started: str) -> int | None:
    """Return the exit code of a process that is not reaped; None if it is too late."""
    fields = stat_fields(pid, ended=True)
    if len(fields) < 50 or fields[19] != started or fields[0] not in "ZX":
        return None
    status = int(fields[49])
    return -(status & 0x7F) if status & 0x7F else status >> 8


def schedule(pid: int) -> list[int]:
    """Return [ns that the main thread ran, ns that it was ready without a core]; empty: not
    known."""
    return [int(word) for word in read_text(f"/proc/{pid}/schedstat").split()[:2]]


def maps(pid: int, name: str) -> bool:
    """Return whether the process has a file of that name mapped: a recycled pid has not."""
    return name in read_text(f"/proc/{pid}/maps")


def runnable() -> float:
    """Return the host's runnable threads per core; 0 if the kernel does not say."""
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
    """Return whether the kernel ignores SIGTSTP in our process group: no shell would continue
    it."""
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
