"""What the kernel says of a process: when it started, how it ended. Quick to import."""

from __future__ import annotations

import contextlib
import os


def start_time(pid: int) -> str:
    """When a process started (kernel ticks, as text); empty if it is not there or a zombie."""
    fields = stat_fields(pid)
    return fields[19] if fields else ""


def exit_code(pid: int, started: str) -> int | None:
    """How a process ended that its parent has not reaped yet; None if it is too late."""
    fields = stat_fields(pid, ended=True)
    if len(fields) < 50 or fields[19] != started or fields[0] not in "ZX":
        return None
    status = int(fields[49])
    return -(status & 0x7F) if status & 0x7F else status >> 8


def stat_fields(pid: int, *, ended: bool = False) -> list[str]:
    """/proc/PID/stat from the state on; empty for no process, or a zombie unless ``ended``."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            stat = file.read()
    except OSError:
        return []
    fields = stat.rpartition(")")[2].split()
    return [] if len(fields) < 20 or (fields[0] in "ZX" and not ended) else fields


def schedule(pid: int) -> list[int]:
    """(ns that its main thread ran, ns that it was ready without a core); empty: not known."""
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
            return [int(word) for word in file.read().split()[:2]]
    except (OSError, ValueError):
        return []


def runnable() -> float:
    """Threads of this host that run or are ready to, per core; 0 where the kernel does not say."""
    try:
        with open("/proc/loadavg", encoding="ascii") as file:
            number = int(file.read().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0, number - 1) / (os.cpu_count() or 1)  # one of them asks


def group(leader: int) -> list[int]:
    """The processes of a process group."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(int(name)) == leader:
                found.append(int(name))
    return found


def handles(pid: int, number: int) -> bool:
    """The process catches or ignores that signal."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            masks = [int(line[7:], 16) for line in file if line[:7] in ("SigIgn:", "SigCgt:")]
    except OSError:
        return False
    return any(mask >> (number - 1) & 1 for mask in masks)


def orphaned() -> bool:
    """The kernel ignores SIGTSTP in our process group: nobody is there who would wake us."""
    ours, pid = os.getpgrp(), os.getpid()
    while (fields := stat_fields(pid)) and int(fields[2]) == ours:
        pid = int(fields[1])
    return not fields or int(fields[3]) != os.getsid(0)
