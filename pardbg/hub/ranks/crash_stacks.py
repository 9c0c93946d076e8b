"""Stacks that Python's faulthandler left of a process that C code ended (``life.crash_file``)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgpack

from pardbg.events.crash_text import crashed_at
from pardbg_agent.life.crash_file import SUFFIX
from pardbg_agent.wire import DefKind

_MAX_BYTES: Final = 1 << 18


def crash_of(ring: Path) -> list[bytes]:
    """Return the definition of a process's crash, by the path of its ring; empty: none is known."""
    try:
        with ring.with_suffix(SUFFIX).open("rb") as file:
            text = file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    frames, current = crashed_at(text.splitlines())
    said = {"k": DefKind.CRASH.value, "frames": frames, "main": not current}
    return [msgpack.packb(said)] if frames else []
