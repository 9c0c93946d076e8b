"""One case in a child of its own, with limits; what became of it, and what it took."""

from __future__ import annotations

import gc
import os
import resource
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pardbg.errors import UserError
from tests.harness import Tried

MOST_BYTES: Final = 3 << 29
"""Resident, at most: 1.5 GiB, beside what the process has that runs the cases."""
MOST_S: Final = 10.0
"""Of processor time, at most, of one command."""
COMMANDS: Final = 4
"""Of a case that is several of them, one after another."""
_ROOM_BYTES: Final = 2 << 30
"""More address space than that is mapped for nothing: threads' stacks, libraries."""
_TEXT_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case."""

    text: str
    """``ok``; ``refused`` in one line for the user; else what went wrong."""
    cpu_s: float
    """Of processor time; of a case that is several commands the slowest one's."""
    peak_bytes: int

    @property
    def bad(self) -> str:
        """Return what was not as it must be; empty: nothing."""
        if self.text not in ("ok", "refused"):
            return self.text
        if self.peak_bytes > MOST_BYTES:
            return f"{self.peak_bytes / 2**30:.2f} GiB"
        return f"{self.cpu_s:.1f} s" if self.cpu_s > MOST_S else ""

    def tried(self, how: str = "") -> Tried:
        """Return it as a case of a campaign."""
        return Tried([self.bad] if self.bad else [], how, took_s=self.cpu_s)


def here(case: Callable[[], object]) -> Outcome:
    """Run it in this thread, without limits."""
    begun = time.thread_time()
    return Outcome(_said(case)[0], time.thread_time() - begun, 0)


def limited(case: Callable[[], float | None]) -> Outcome:
    """Run it in a forked child, which is ended beyond twice the time or the memory.

    A case that is several commands returns what the slowest of them took, in seconds.
    """
    read, write = os.pipe()
    mapped, resident = _memory()
    pid = os.fork()
    if not pid:
        try:
            gc.freeze()  # what the campaign has read is not this case's to look through
            os.close(read)
            resource.setrlimit(resource.RLIMIT_AS, (mapped + MOST_BYTES + _ROOM_BYTES,) * 2)
            resource.setrlimit(resource.RLIMIT_CPU, (COMMANDS * int(MOST_S),) * 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            text, slowest_s = _said(case)
            took = "" if slowest_s is None else f"{slowest_s}"
            os.write(write, f"{took}\n{text}".encode()[:_TEXT_BYTES])
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        took, _, said = pipe.read().decode("utf-8", "replace").partition("\n")
    _, status, used = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    peak = max(0, used.ru_maxrss * 1024 - resident)
    cpu_s = float(took) if took else used.ru_utime + used.ru_stime
    return Outcome(said or f"exit code {code}", cpu_s, peak)


def _memory() -> tuple[int, int]:
    """(mapped, resident) bytes of this process; a child begins with as much."""
    mapped, resident, *_ = map(int, Path("/proc/self/statm").read_text().split())
    page = resource.getpagesize()
    return mapped * page, resident * page


def _said(case: Callable[[], object]) -> tuple[str, float | None]:
    took = None
    try:
        took = case()
    except UserError as error:
        one_line = "\n" not in str(error) and len(str(error)) <= 400
        return "refused" if one_line else f"not one line: {error!r}", None
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        return where(error), None
    return "ok", took if isinstance(took, float) else None


def where(error: BaseException) -> str:
    """An exception and its innermost place of ours."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "pardbg" in f.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__}: {str(error)[:200]} at {place}"
