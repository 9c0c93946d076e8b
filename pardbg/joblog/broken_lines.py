"""What belongs together over several lines: a line of c10d that a terminal or a viewer broke, and
what follows the first line of a C++ exception or of NCCL's error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pardbg.joblog import origins
from pardbg.joblog.origins import Origin

NEAR: Final = 8
"""Lines, at most, that belong to one."""
_HEAD: Final = re.compile(rb"ProcessGroup\w+\.cpp:\d+\]")
_PART: Final = re.compile(rb"atchdog|WorkNCCL\(|nqueued(?: NCCL)? work")
_WHAT: Final = re.compile(r"\s*what\(\):\s*(?P<text>.*)")
_LAST: Final = re.compile(r"\s*Last error:\s*(?P<text>.*)")
_NCCL: Final = re.compile(r"NCCL error(?: in)?:\s*(?:\S+\.cpp:\d+, )?(?P<text>[^,(]+)")


def unbroken(block: bytes, start: int, end: int, before: Origin) -> tuple[Origin, str] | None:
    """Return the line of c10d that ``block[start:end]`` is a part of. None: it is a whole line."""
    if not (_HEAD.search(block, start, end) or _PART.search(block, start, end)):
        return None
    head, parts = start, 0
    while not _HEAD.search(block, head, end):
        if head == 0 or parts == NEAR or not _bare(block[head:end], before):
            return None
        head, parts = block.rfind(b"\n", 0, head - 1) + 1, parts + 1
    lines: list[bytes] = []
    at = head
    while at < len(block) and len(lines) <= NEAR:
        stop = block.find(b"\n", at) + 1 or len(block)
        line = block[at:stop]
        if lines and not (line.strip() and _bare(line, before)):
            break
        lines.append(line.rstrip(b"\r\n"))
        at = stop
    whole = b"".join(lines).decode(errors="replace")
    return origins.split(whole, before) if len(lines) > 1 else None


def _bare(line: bytes, before: Origin) -> bool:
    """Return whether a line has no prefix of its own."""
    text = line.split(b"\n", 1)[0].decode(errors="replace").rstrip("\r")
    return origins.split(text, before)[1] == text


def told_of(text: str, block: bytes, end: int, origin: Origin, before: Origin) -> str:
    """Return what an exception says, in short: of a C++ one its ``what()``, of NCCL's the kind of
    error and its last error. ``text``: of its first line, which ends at ``end``."""
    said = list(_following(block, end, origin, before))
    what = next((m["text"] for one in said if (m := _WHAT.match(one))), text)
    nccl = _NCCL.search(what)
    if nccl is None:
        return what
    for number, one in enumerate(said):
        if found := _LAST.match(one):
            last = found["text"] or "".join(said[number + 1 : number + 2])
            return f"NCCL: {nccl['text'].strip()}: {last.strip()}"
    return what


def _following(block: bytes, at: int, origin: Origin, before: Origin) -> Iterator[str]:
    """Return the next lines of one process, without prefixes."""
    for _ in range(NEAR):
        end = block.find(b"\n", at) + 1 or len(block)
        if at >= len(block):
            return
        of, text = origins.split(block[at:end].decode(errors="replace"), before)
        if of.process == origin.process or of == before:
            yield text
        at = end
