"""Board in shared memory: the next op of each process of this host, for others to compare.

Each process has one file, ``<proc>.board`` beside its ring. Only it writes there; the others map
it and only read. There is no lock, no rendezvous and no message: a rank *posts* its next op
and then *looks* at the posts of other ranks for the same op. Made with the first post.

A post lies under a key of two numbers, (what, which): a group's hash and the op's seq; the hash of
a p2p edge's side and the message's order; the hash of a set of parameters and the step. The header
gives the job and its restart (epoch): boards of others are ignored.

[Note: mutual visibility] Post, fence, then look: without the fence a processor may read the others'
slots before its own post has left its store buffer. Of two ranks that post at the same time at
least one sees the other, as one of the writes comes first. So a disagreement is always seen by
a rank that has not issued yet, and no rank has to wait for another.

[Note: absence is not evidence] A missing post is no finding: a rank may not have been told to
watch, be on another host, be gone, or its post may be overwritten. Posts of a dead process, and of
two that claim the same rank of a group (indistinguishable jobs), do not count either.

[Note: torn] A slot ends with the checksum of all before it; one that does not fit is read again and
then taken as missing. That is safe: its writer looks after it has written.

[Note: full] Posts live in sets of WAYS slots; (what + which) says which set, so those of one group
push out nothing before SETS * WAYS of them. A full set drops its oldest. Slots keep the whole
key, so two keys of one set are never taken for each other.

The layout, host byte order, all in one page-aligned file::

    0       HEADER: who, and what it watches
    4096    SETS * WAYS slots of SLOT bytes: ops
    ...     AREAS areas of AREA bytes: checksums of up to MAX_SUMS parameters each

[Note: other nodes] Times are CLOCK_MONOTONIC of the host. A rank of another node is there as a copy
(ELSEWHERE), which the node's relay keeps up to date (``pardbg.hub.ranks.boards``): it reads here
what is new, from PLACES. A copy comes a moment late, so of two ranks that post at the same time
neither may see the other: a rank that compares with copies waits for them, AWAY_NS at most; of two
that then find each other the later one is held. Standard library only."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pardbg_agent import identity, wire
from pardbg_agent.tables import c10d_ops

SUFFIX: Final = ".board"
NEW: Final = ".new"
"""Additional suffix of a board in the making."""
MAGIC: Final = b"PARDBGB1"
HEADER: Final = struct.Struct("@8sIIiIQq")
"""magic, slot bytes, pid, rank, kinds (bits of KINDS), job, kernel ticks when the process began.
Then the CRC-32 of these."""
KINDS: Final = {"mismatch": 1, "skew": 2, "diverge": 4}
"""Bits of the watches that a process has."""
ELSEWHERE: Final = 128
"""Further bit: the board is a copy of one on another node; pid and start are the copier's."""
AWAY_NS: Final = 50_000_000
"""Maximum time an op waits for copies of posts by ranks on other nodes."""
_COUNT: Final = struct.Struct("@Q")
_PLACE: Final = struct.Struct("@H")
_COUNT_AT, _PLACES_AT, PLACES = 64, 128, 1024
"""Offsets in the header's page: number of posts ever, then a ring of the newest posts' places."""

SETS: Final = 512
WAYS: Final = 4
SLOT: Final = 128
_DATA: Final = 4096
WHAT: Final = struct.Struct("@BbHiqq16s52s")
"""op (index in OPS), reduce (index of the reduce op, -1 not known), tensors, root or peer, bytes
in, bytes out, dtype, shape."""
_BODY: Final = struct.Struct(f"@QQqiI{WHAT.size}s")
"""Slot: what, which, t_ns (arrival), rank, 1 if held there, WHAT. Then the CRC-32 of these."""
assert _BODY.size + 4 == SLOT
_KEYS: Final = struct.Struct("@" + f"QQ{SLOT - 16}x" * WAYS)
_WHAT_AT: Final = _BODY.size - WHAT.size

AREAS: Final = 8
MAX_SUMS: Final = 1020
AREA: Final = 8192
_AREAS: Final = _DATA + SETS * WAYS * SLOT
_AREA_HEAD: Final = struct.Struct("@QQiI")
"""Head: what, which, number of the watch that has reported already (-1 none), sums. Then their
CRC-32, 4 zero bytes, and the sums (int64)."""
_SUMS_AT: Final = 32
assert _SUMS_AT + 8 * MAX_SUMS <= AREA
SIZE: Final = _AREAS + AREAS * AREA
NUM_PLACES: Final = SETS * WAYS + AREAS
"""Number of slots and areas together."""

OPS: Final = ("?", *c10d_ops.KINDS)
_OP_CODES: Final = {op: code for code, op in enumerate(OPS)}
_TRIES: Final = 3
_SETTLED_NS: Final = 100_000_000
"""Age from which a directory's mtime is trusted: it has the kernel tick's grain."""


class Post(NamedTuple):
    """Op that one rank is about to issue."""

    rank: int
    t_ns: int
    """Arrival time at the op, in ns."""
    op: str
    reduce: int
    """Index in the list of reduce ops; -1: not known (ops that C++ issues)."""
    tensors: int
    """Number of tensors that the bytes belong to; 0: more than the shape tells."""
    peer: int
    """Global rank of the root or the peer; -1: none."""
    in_bytes: int
    out_bytes: int
    dtype: str
    shape: str
    """Shape as text: ``4, 256``."""
    held: bool = False
    """Whether a watch stopped the rank there: it has not issued the op."""


def hash64(*parts: object) -> int:
    """Return a 64-bit hash of a name, equal in all processes."""
    text = "\0".join(map(str, parts)).encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def pack_what(
    op: str, reduce: int, tensors: int, peer: int, in_bytes: int, out_bytes: int, dtype: str,
    shape: str,
) -> bytes:  # fmt: skip
    """Return a post's bytes; values too large for their field are cut or clamped."""
    return WHAT.pack(
        _OP_CODES.get(op, 0), max(-1, min(reduce, 127)), max(0, min(tensors, 65535)), peer,
        in_bytes, out_bytes, dtype.encode("ascii", "replace")[:16],
        shape.encode("ascii", "replace")[:52],
    )  # fmt: skip


def post_of(rank: int, t_ns: int, packed: bytes, held: bool = False) -> Post:
    """Return the Post of bytes that `pack_what` returned."""
    code, reduce, tensors, peer, in_bytes, out_bytes, dtype, shape = WHAT.unpack(packed)
    op = OPS[code] if code < len(OPS) else OPS[0]
    return Post(
        rank, t_ns, op, reduce, tensors, peer, in_bytes, out_bytes, _text(dtype), _text(shape), held
    )


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("ascii", "replace")


class Posts:
    """Board of this process, with its own posts."""

    def __init__(self, buffer: mmap.mmap, path: str, job: int, rank: int) -> None:
        self.path, self.job, self.rank = path, job, rank
        self._buffer = buffer
        self._kinds = 0
        self._started = int(identity.started(os.getpid()) or 0)
        self._count = 0
        self._ages = [0] * (SETS * WAYS)
        """Number of the post in each slot; 0: empty."""
        self._keys: list[tuple[int, int] | None] = [None] * (SETS * WAYS)
        self._areas = self._written = 0
        self._lock = threading.Lock()
        self._write_header()

    @classmethod
    def create(cls, path: str, job: int, rank: int) -> Posts:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of an earlier process with this number
        hidden = path + NEW  # not mapped by others before its header is written
        fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, SIZE)
            board = cls(mmap.mmap(fd, SIZE), path, job, rank)
            os.rename(hidden, path)
        except OSError:
            os.unlink(hidden)
            raise
        finally:
            os.close(fd)
        return board

    def identify(self, rank: int, kinds: int) -> None:
        """Write rank and watches into the header, if they changed."""
        if rank != self.rank or kinds != self._kinds:
            self.rank, self._kinds = rank, kinds
            self._write_header()

    def end(self) -> None:
        """End a copy whose process has ended: it does not count any more."""
        self._started = -1
        self._write_header()

    def _write_header(self) -> None:
        kinds, rank = self._kinds, self.rank
        head = HEADER.pack(MAGIC, SLOT, os.getpid(), rank, kinds, self.job, self._started)
        self._buffer[: len(head) + 4] = head + _crc(head)

    def post(self, what: int, which: int, t_ns: int, packed: bytes, held: bool = False) -> None:
        """Post an op for other ranks to see. ``packed``: result of pack_what."""
        body = _BODY.pack(what, which, t_ns, self.rank, held, packed)
        self.write(self._slot(what, which), body + _crc(body))

    def _slot(self, what: int, which: int) -> int:
        first = _set_of(what, which) * WAYS
        key = (what, which)
        ages = self._ages[first : first + WAYS]
        same = self._keys[first : first + WAYS]
        slot = first + (same.index(key) if key in same else ages.index(min(ages)))
        self._count += 1
        self._ages[slot], self._keys[slot] = self._count, key
        return slot

    def post_sums(self, what: int, which: int, told: int, sums: Sequence[int]) -> None:
        """Post checksums (at most MAX_SUMS) of one set of parameters at one step. ``told``: the
        number of the watch that has already reported a difference; -1: none."""
        numbers = struct.pack(f"@{len(sums)}q", *sums)
        head = _AREA_HEAD.pack(what, which, told, len(sums))
        self.write(SETS * WAYS + self._areas, head + _crc(head + numbers) + b"\0\0\0\0" + numbers)
        self._areas = (self._areas + 1) % AREAS

    def write(self, place: int, raw: bytes) -> None:
        """Write the bytes of a slot or, from SETS * WAYS on, of an area; then note the place."""
        at, size = _span(place)
        self._buffer[at : at + min(size, len(raw))] = raw[:size]
        _PLACE.pack_into(self._buffer, _PLACES_AT + 2 * (self._written % PLACES), place)
        self._written += 1
        _COUNT.pack_into(self._buffer, _COUNT_AT, self._written)
        self._fence()

    def _fence(self) -> None:
        """Make earlier writes visible before any later read. A lock's atomic instruction is a fence
        on x86; on ARM64 the second round takes the word that the first one released, so it comes
        after it, and all reads after that. 0.1 us."""
        for _ in range(2):
            with self._lock:
                pass


class Sums(NamedTuple):
    """Checksums of one rank."""

    told: int
    values: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Peer:
    """Board of another process, mapped."""

    path: str
    buffer: mmap.mmap
    ring: mmap.mmap | None
    """First page of the process's ring file, which has its status blocks."""
    pid: int = 0
    rank: int = wire.NONE
    kinds: int = 0
    job: int = 0
    started: int = 0

    def find(self, what: int, which: int) -> bytes | None:
        """Return the slot of this key; None if it is absent or being written."""
        at = _DATA + _set_of(what, which) * WAYS * SLOT
        for _ in range(_TRIES):
            keys = _KEYS.unpack_from(self.buffer, at)
            for way in range(WAYS):
                if keys[2 * way] == what and keys[2 * way + 1] == which:
                    break
            else:
                return None
            slot = self.buffer[at + way * SLOT : at + (way + 1) * SLOT]
            # The key is checked again in the copy: the slot may have been reused by then.
            if slot[-4:] == _crc(slot[:-4]) and _BODY.unpack_from(slot)[:2] == (what, which):
                return slot
        return None

    def sums(self, what: int, which: int) -> Sums | None:
        for area in range(AREAS):
            at = _AREAS + area * AREA
            for _ in range(_TRIES):
                head = self.buffer[at : at + _SUMS_AT]
                key_what, key_which, told, count = _AREA_HEAD.unpack_from(head)
                if (key_what, key_which) != (what, which) or count > MAX_SUMS:
                    break
                numbers = self.buffer[at + _SUMS_AT : at + _SUMS_AT + 8 * count]
                size = _AREA_HEAD.size
                if head[size : size + 4] == _crc(head[:size] + numbers):
                    return Sums(told, struct.unpack(f"@{count}q", numbers))
        return None

    def news(self, since: int) -> tuple[int, dict[int, bytes]]:
        """Return (number of posts ever, place -> bytes of the posts after the first ``since``).
        Left out: a post being written, as it is noted again, and one no longer among PLACES."""
        (count,) = _COUNT.unpack_from(self.buffer, _COUNT_AT)
        found = {}
        for number in range(max(since, count - PLACES), count):
            (place,) = _PLACE.unpack_from(self.buffer, _PLACES_AT + 2 * (number % PLACES))
            if place in found or place >= NUM_PLACES:
                continue
            at, size = _span(place)
            if size == AREA:
                size = _SUMS_AT + 8 * min(_AREA_HEAD.unpack_from(self.buffer, at)[3], MAX_SUMS)
            found[place] = self.buffer[at : at + size]
        return count, found

    def refresh(self) -> bool:
        """Read the header again: rank and kinds may be new. False: not a board of ours."""
        for _ in range(_TRIES):
            raw = self.buffer[: HEADER.size + 4]
            if raw[-4:] == _crc(raw[:-4]):
                break
        else:
            return bool(self.pid)  # as before
        magic, slot, self.pid, self.rank, self.kinds, self.job, self.started = HEADER.unpack_from(
            raw
        )
        return bool(magic == MAGIC and slot == SLOT)

    def alive(self) -> bool:
        return identity.started(self.pid) == str(self.started)

    def gate(self) -> tuple[bool, int]:
        if self.ring is None:
            return False, 0
        return gate_of(self.ring)

    def close(self) -> None:
        self.buffer.close()
        if self.ring is not None:
            self.ring.close()


class PeerPosts:
    """Boards of the job's other processes on this host, found as they appear."""

    def __init__(self, folder: str, own: Posts) -> None:
        self._folder, self._own = folder, own
        self._known: dict[str, Peer] = {}
        self._foreign: set[str] = set()
        """Boards of other jobs or epochs."""
        self._changed_ns = -1

    def of(self, ranks: Iterable[int], complete: int) -> list[Peer]:
        """Return the boards of these ranks, without our own. If fewer than ``complete`` are known,
        the directory is searched for new ones."""
        found = self._of(ranks)
        if len(found) < complete and self._look():
            found = self._of(ranks)
        return found

    def _of(self, ranks: Iterable[int]) -> list[Peer]:
        return [other for other in self._known.values() if other.rank in ranks]

    def all(self) -> Iterator[Peer]:
        yield from list(self._known.values())

    def refresh(self) -> None:
        """Read the headers again, and drop boards of ended processes."""
        for path, other in list(self._known.items()):
            if not other.refresh() or not other.alive():
                self._known.pop(path).close()
                self._foreign.add(path)

    def _look(self) -> bool:
        changed = os.stat(self._folder).st_mtime_ns
        if changed == self._changed_ns:
            return False
        if time.time_ns() - changed > _SETTLED_NS:
            self._changed_ns = changed
        before = len(self._known)
        for entry in os.scandir(self._folder):
            path = entry.path
            if not path.endswith(SUFFIX) or path == self._own.path:
                continue
            if path not in self._known and path not in self._foreign:
                self._meet(path)
        self.refresh()
        return len(self._known) != before

    def _meet(self, path: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            buffer = map_file(path, SIZE)
            peer = Peer(path, buffer, None)
            if not peer.refresh() or peer.job != self._own.job or not peer.alive():
                buffer.close()
                self._foreign.add(path)
                return
            with contextlib.suppress(OSError, ValueError):
                peer.ring = map_file(path.removesuffix(SUFFIX) + ".ring", wire.RING_DATA_OFFSET)
            self._known[path] = peer


def waited(found: Iterable[Peer], there: Callable[[Peer], object]) -> int:
    """Wait until ``there`` for each of these boards, AWAY_NS at most, if one of them is on another
    node. Return the wait in ns; 0: all are on this node."""
    left, begun = list(found), time.monotonic_ns()
    if not any(other.kinds & ELSEWHERE for other in left):
        return 0
    while (left := [other for other in left if not there(other)]) and (
        time.monotonic_ns() - begun < AWAY_NS
    ):
        time.sleep(0.0005)
    return time.monotonic_ns() - begun


def moved(place: int, raw: bytes, by_ns: int) -> bytes:
    """Return a slot with its time moved to another clock; areas and invalid slots as they are."""
    if place >= SETS * WAYS or not by_ns or raw[-4:] != _crc(raw[:-4]) or len(raw) != SLOT:
        return raw
    what, which, t_ns, *rest = _BODY.unpack(raw[:-4])
    body = _BODY.pack(what, which, t_ns + by_ns, *rest)
    return body + _crc(body)


def gate_of(ring: Any) -> tuple[bool, int]:
    """Return whether the rank is held at a gate, and since when (ns, its own clock)."""
    gate, _, since_ns = wire.STATUS_GATE.unpack_from(ring, wire.STATUS_GATE_OFFSET)
    return bool(gate), int(since_ns)


def posts(found: Iterable[Peer], what: int, which: int) -> dict[int, Post] | None:
    """Return the posts under a key by rank. None: a rank appears twice, so two jobs have the same
    names and nothing can be compared."""
    out: dict[int, Post] = {}
    for other in found:
        slot = other.find(what, which)
        if slot is None:
            continue
        _, _, t_ns, rank, held, packed = _BODY.unpack_from(slot)
        if rank in out:
            return None
        out[rank] = post_of(rank, t_ns, packed, bool(held))
    return out


def same(slot: bytes, packed: bytes) -> bool:
    """Return whether a slot has exactly these bytes: the quick test."""
    return slot[_WHAT_AT : _WHAT_AT + WHAT.size] == packed


def _span(place: int) -> tuple[int, int]:
    if place < SETS * WAYS:
        return _DATA + place * SLOT, SLOT
    return _AREAS + (place - SETS * WAYS) * AREA, AREA


def _set_of(what: int, which: int) -> int:
    return (what + which) % SETS


def _crc(raw: bytes) -> bytes:
    return zlib.crc32(raw).to_bytes(4, "little")


def map_file(path: str, size: int) -> mmap.mmap:
    """Map a file read-only. Raises ValueError if it is shorter than ``size``."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ)
    finally:
        os.close(fd)
