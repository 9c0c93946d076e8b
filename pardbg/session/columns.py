"""Records as columns: small where neighbours are alike, and back again bit for bit.

A record says little that the one before it of the same kind did not say. So each field becomes a
column of differences, the rows of one process and kind beside each other, and each column is
stored byte by byte: all lowest bytes, all next ones, as many as the largest number needs. What
is left is mostly zeros, which zstd takes away; docs/session-format.md has the layout. Sums wrap
at 64 bits, so that a record of nonsense comes back as it was, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pardbg.events.decode import RECORD_DTYPE
from pardbg_agent.wire import Flag, Kind

PLAIN: Final = (
    "name_id", "lane", "flags", "group_id", "stage", "microbatch", "peer", "step", "seq", "a", "b",
)  # fmt: skip
"""Fields stored as differences to the row before, by process and kind."""
Ints = NDArray[np.int64]
Rows = NDArray[np.intp]


class Bytes:
    """Reads sections one after the other; ValueError where they end too early."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def rest(self) -> int:
        """Return the number of bytes not yet taken."""
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if not 0 <= count <= self.rest:
            raise ValueError("a section longer than what is there")
        self._at += count
        return self._data[self._at - count : self._at]

    def column(self, count: int) -> Ints:
        """Return the numbers that ``planes`` stored."""
        width = self.take(1)[0]
        if width > 8:
            raise ValueError("a column of more than 8 bytes")
        stored = np.frombuffer(self.take(width * count), np.uint8).reshape(width, count)
        folded = np.zeros(count, np.uint64)
        for place, plane in enumerate(stored):  # one or two, mostly
            folded |= plane.astype(np.uint64) << np.uint64(8 * place)
        back: Ints = (folded >> np.uint64(1)).view(np.int64) ^ -(folded & np.uint64(1)).view(
            np.int64
        )
        return back


def planes(values: Ints) -> bytes:
    """Return how many bytes wide, then the values folded (0, -1, 1, -2 … as 0, 1, 2, 3 …), plane by
    plane from the lowest byte."""
    folded = ((values << 1) ^ (values >> 63)).view(np.uint64)
    width = (int(folded.max()).bit_length() + 7) // 8 if len(folded) else 0
    each = folded.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)
    return bytes((width,)) + each[:, :width].T.tobytes()


def changes(values: NDArray[Any]) -> Ints:
    """Differences to the one before, the first one's to 0."""
    wide: Ints = values.astype(np.int64)
    made = wide.copy()
    made[1:] -= wide[:-1]
    return made


def summed(differences: Ints) -> Ints:
    """Undo ``changes``."""
    total: Ints = np.cumsum(differences, dtype=np.int64)
    return total


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Rows of OP_DONE, and of each the OP_ISSUE of the same process, group, sequence and P2P."""

    done: Rows
    issue: Rows


def pack(records: NDArray[Any], procs: NDArray[Any]) -> bytes:
    """Records (RECORD_DTYPE), those of each process together; ``procs``: its number, per record."""
    kinds = records["kind"]
    order = _by_kind(kinds, procs)
    rows = {name: records[name][order] for name in ("t0_ns", "t1_ns", *PLAIN)}
    spans = rows["t1_ns"] - rows["t0_ns"]
    pairs = _pairs(kinds[order], procs[order], rows)
    spans[pairs.done] = rows["t0_ns"][pairs.done] - rows["t0_ns"][pairs.issue]
    marks = changes(records["mark"].view(np.int64)) - 1
    return b"".join((
        kinds.tobytes(), planes(marks), planes(changes(records["t1_ns"])),
        *(planes(changes(rows[name])) for name in PLAIN), planes(spans),
    ))  # fmt: skip


def unpack(data: Bytes, procs: NDArray[Any]) -> NDArray[Any]:
    """Undo ``pack``. Raises ValueError."""
    count = len(procs)
    kinds = np.frombuffer(data.take(count), np.uint8)
    records = np.empty(count, RECORD_DTYPE)
    records["kind"] = kinds
    records["mark"] = summed(data.column(count) + 1).view(np.uint64)
    records["t1_ns"] = summed(data.column(count))
    order = _by_kind(kinds, procs)
    rows: dict[str, NDArray[Any]] = {}
    for name in PLAIN:
        rows[name] = summed(data.column(count)).astype(RECORD_DTYPE[name])
        records[name][order] = rows[name]
    spans = data.column(count)
    begins = records["t1_ns"][order] - spans
    pairs = _pairs(kinds[order], procs[order], rows)
    begins[pairs.done] = begins[pairs.issue] + spans[pairs.done]
    records["t0_ns"][order] = begins
    return records


def _by_kind(kinds: NDArray[Any], procs: NDArray[Any]) -> Rows:
    """Order of the rows by process and kind, else as they came."""
    return np.argsort(procs.astype(np.uint32) << 8 | kinds, kind="stable")


def _pairs(kinds: NDArray[Any], procs: NDArray[Any], rows: dict[str, NDArray[Any]]) -> _Pairs:
    """An op's begin is in both of its records: the second one need not say it again.

    Which rows belong together may be wrong for nonsense; it is the same both ways, so it holds."""
    p2p = ((rows["flags"] & np.uint16(Flag.P2P)) != 0).astype(np.uint64)
    which = rows["seq"].astype(np.uint64) | p2p << np.uint64(32)
    which |= rows["group_id"].astype(np.uint64) << np.uint64(33)
    which ^= procs.astype(np.uint64) << np.uint64(49)
    issued = np.flatnonzero(kinds == Kind.OP_ISSUE)
    done = np.flatnonzero(kinds == Kind.OP_DONE)
    if not len(issued) or not len(done):
        return _Pairs(done[:0], issued[:0])
    issued = issued[np.argsort(which[issued], kind="stable")]
    at = np.searchsorted(which[issued], which[done], side="right") - 1
    found = issued[np.maximum(at, 0)]
    same = which[found] == which[done]
    return _Pairs(done[same], found[same])
