"""Search for the lines of a block that contain one of many needles, in one pass over its bytes.

``bytes.find`` needs a pass per needle. Here the search is for the three bytes of each needle that
are rarest in logs: a table of pairs of bytes that begin such a part, and, for these few, a second
table of pairs that end one. Only where both match, needles are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

PART: Final = 4
_COMMON: Final = b" e0ta1oinsr2lhd3cu4mp5f6g7w8y9b:_.-/,=[]()vkINFO|"
"""Bytes of logs, in order of frequency."""
_FREQUENT: Final = (b"memory", b"NCCL", b" error: ", b"Process", b"collective", b"signal")
"""Words frequent in healthy logs: of a needle with such a word the rest is searched."""


class Needles:
    """Searcher for ``needles`` of at least three bytes."""

    def __init__(self, needles: Sequence[bytes]) -> None:
        self._begun: dict[bytes, list[tuple[int, bytes]]] = {}
        self._begins, self._ends = (np.zeros(1 << 16, np.bool_) for _ in range(2))
        for needle in needles:
            at = max(range(max(1, len(needle) - PART + 1)), key=lambda i: _rarity(needle[i:]))
            part = needle[at : at + PART]
            self._begun.setdefault(part[:2], []).append((at, needle))
            self._begins[part[0] | part[1] << 8] = True
            if len(part) == PART:
                self._ends[part[2] | part[3] << 8] = True
            else:
                self._ends[part[2] :: 1 << 8] = True

    def lines(self, block: bytes) -> list[int]:
        """Return the begins of the lines that contain a needle, in order."""
        starts: list[int] = []
        end = 0
        for place in self._places(block):
            if place >= end and self._is_at(block, place):
                starts.append(block.rfind(b"\n", 0, place) + 1)
                end = block.find(b"\n", place) + 1 or len(block)
        return starts

    def _places(self, block: bytes) -> list[int]:
        """Return the places that may be a needle's part."""
        found = []
        for at in range(min(2, len(block))):
            pairs = np.frombuffer(block, "<u2", (len(block) - at) // 2, at)
            found.append(np.flatnonzero(self._begins.take(pairs)) * 2 + at)
        begun = np.sort(np.concatenate(found)) if found else np.zeros(0, np.intp)
        each = np.frombuffer(block + b"\0" * PART, np.uint8)
        third, fourth = (each[begun + at].astype(np.uint16) for at in (2, 3))
        places: list[int] = begun[self._ends.take(third | fourth << 8)].tolist()
        return places

    def _is_at(self, block: bytes, place: int) -> bool:
        return any(
            place >= at and block.startswith(needle, place - at)
            for at, needle in self._begun[block[place : place + 2]]
        )


def _rarity(text: bytes) -> int:
    """Return the rarity in logs of the part at the text's begin."""
    if any(text[:PART] in word for word in _FREQUENT):
        return 0
    ranks = [_COMMON.find(one) for one in text[:PART]]
    return sum(rank if rank >= 0 else len(_COMMON) for rank in ranks)
