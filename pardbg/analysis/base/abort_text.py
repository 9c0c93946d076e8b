"""Text that a process printed when it called abort: lines of C++'s terminate handler, glibc,
assert(3), CPython and glog."""

from __future__ import annotations

from typing import Final

from pardbg.analysis.base.asof import View, per_view
from pardbg.events.crash_text import CRASHED, crashed_at
from pardbg.store.definitions import Crash

WITHIN_NS: Final = 5_000_000_000
"""Maximum time between a printed line and the process's end, in ns."""
MAX_LINES: Final = 500
"""Number of newest lines searched: an aborting process prints last, but for its peers."""
MAX_TEXT: Final = 240
_WHAT: Final = "what():"
"""Prefix by which libstdc++'s __verbose_terminate_handler prints the exception's message."""
_BEGINS: Final = (
    "terminate called", "Fatal Python error:", "free(): ", "malloc(): ", "malloc_consolidate(): ",
    "realloc(): ", "munmap_chunk(): ", "double free or corruption", "corrupted size vs.",
    "corrupted double-linked list", "*** stack smashing", "*** buffer overflow", "*** glibc",
)  # fmt: skip
_HOLDS: Final = (": Assertion `", "Check failed: ")


def abort_text(view: View, rank: int, t_ns: int) -> str:
    """Return the reason that a rank printed when it aborted at ``t_ns``, without its runtime's
    phrases; empty: none is known. A line whose rank is not known counts as this rank's."""
    output, found = view.store.output, ""
    end = output.count(view.t_ns)
    for index in range(end - 1, max(-1, end - 1 - MAX_LINES), -1):
        at_ns, (said_rank, _, line) = output.at(index)
        if abs(at_ns - t_ns) > WITHIN_NS or said_rank not in (rank, None):
            continue
        text = line.strip()
        if text.startswith(_WHAT):
            return _cut(text.removeprefix(_WHAT).strip())
        if text.startswith(_BEGINS) or any(words in text for words in _HOLDS):
            found = found or text
    return _cut(found)


@per_view
def crash(view: View, rank: int, t_ns: int) -> Crash | None:
    """Return where a rank was as a signal ended it at ``t_ns``: as its crash file had it, or as
    printed, where the program has Python print crashes; None: neither is known, or several
    crashes were printed. A line whose rank is not known counts as this rank's."""
    if known := view.ranks[rank].crashes:
        return known[0]
    output = view.store.output.last(view.t_ns, MAX_LINES)
    near = (said for at, said in output if abs(at - t_ns) <= WITHIN_NS)
    own = [line for who, _, line in near if who in (rank, None)]
    if sum(line.startswith(CRASHED) for line in own) != 1:
        return None
    frames, current = crashed_at(own)
    return Crash(tuple(frames), not current) if frames else None


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
