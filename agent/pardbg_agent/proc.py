"""What the kernel says of a process: the one place that reads /proc."""

from __future__ import annotations

import os
from typing import Final

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def read_text(path: str) -> str:
    """A small file's text; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def resident_bytes() -> int:
    """Resident set size of this process."""
    return int(read_text("/proc/self/statm").split()[1]) * _PAGE


def started(pid: int) -> str:
    """When a process began, in kernel ticks; empty if it is gone or a zombie."""
    fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return "" if len(fields) < 20 or fields[0] in "ZX" else fields[19]
