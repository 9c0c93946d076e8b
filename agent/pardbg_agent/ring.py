"""Ring of records: queue, wire block and black box in one shared-memory file.

Standard library only and free of torch and zmq: the hub reads dead processes' rings with it. One
file per process: ``RING_HEADER`` at 0, the status blocks, then a power-of-two ring of 64-byte
records. A writer takes an index (atomic under the GIL) and writes the whole record with one
``pack_into``, its index + 1 last; that zeroes the slot first, so an unfinished record has no
mark."""

from __future__ import annotations

import contextlib
import functools
import itertools
import mmap
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pardbg_agent import wire
from pardbg_agent.settings import not_understood

DEFAULT_CAPACITY: Final = 65536
ENV_RING: Final = "PARDBG_RING"
_MIN_CAPACITY: Final = 64
_AHEAD: Final = 32
"""Number of records that are checked behind a missing one."""
_MAX_CAPACITY: Final = 1 << 22
_LIMITS: Final = {"B": (0, 255), "H": (0, 65535), "I": (0, 2**32 - 1), "h": (-(2**15), 2**15 - 1)}
_FORMAT: Final = "BBHIqqIIHhhhqq"
_NOW: Final = struct.Struct("<qIIhh4xq")
"""wire.STATUS_NOW with its reserved field left at 0."""

RecordFn = Callable[[int, int, int, int, int, int, int, int, int, int, int, int, int, int], None]
"""(kind, lane, flags, name_id, t0, t1, step, seq, group_id, stage, mb, peer, a, b)"""


def capacity_from_env() -> int:
    """Return the ring's capacity: ``PARDBG_RING`` records, rounded up to a power of two,
    bounded."""
    try:
        wanted = int(os.environ.get(ENV_RING, DEFAULT_CAPACITY))
    except ValueError:
        not_understood(ENV_RING, f"write a number of records; using {DEFAULT_CAPACITY}")
        wanted = DEFAULT_CAPACITY
    return power_of_two(wanted)


def power_of_two(wanted: int) -> int:
    """Return ``wanted`` rounded up to a power of two, within the bounds of a ring's capacity."""
    wanted = min(max(wanted, _MIN_CAPACITY), _MAX_CAPACITY)
    return 1 << (wanted - 1).bit_length()


class Status:
    """Writers of the status blocks: the rank's current state. Each is one ``pack_into``."""

    def __init__(self, buffer: mmap.mmap) -> None:

        def block(layout: struct.Struct, offset: int) -> Callable[..., None]:
            return functools.partial(layout.pack_into, buffer, offset)

        self.now = block(_NOW, wire.STATUS_NOW_OFFSET)
        """(step, phase_id, action_id, stage, mb, since_ns)"""
        self.op = block(wire.STATUS_OP, wire.STATUS_OP_OFFSET)
        """(name_id, seq, group_id, peer, flags, since_ns, open, bytes in, bytes out)"""
        self.newest_op = block(wire.STATUS_OP, wire.STATUS_NEWEST_OFFSET)
        """Like ``op``, for the op issued last while others were open."""
        self.gate = block(wire.STATUS_GATE, wire.STATUS_GATE_OFFSET)
        """(gate class, name_id, since_ns)"""
        self.health = block(wire.STATUS_HEALTH, wire.STATUS_HEALTH_OFFSET)
        """(heartbeat_ns, sent, dropped, errors, level, hook_ns)"""
        self.device = block(wire.STATUS_DEVICE, wire.STATUS_DEVICE_OFFSET)
        """(lead_ns, at_ns, error_ns, left out)"""


def _clamped(fields: tuple[Any, ...]) -> list[int]:
    """Return the fields as integers that fit a record: a record must never fail the training."""
    out = []
    for code, value in zip(_FORMAT, fields, strict=True):
        low, high = _LIMITS.get(code, (-(2**63), 2**63 - 1))
        try:
            number = int(value)
        except (TypeError, ValueError, OverflowError):
            number = 0
        out.append(min(max(number, low), high))
    return out


class Ring:
    """Writing side of a ring. ``record`` and ``record_f`` are closures without attribute
    look-ups."""

    def __init__(self, buffer: mmap.mmap, capacity: int, path: str | None) -> None:
        self.buffer = buffer
        self.capacity = capacity
        self.path = path
        """Path of the ring file; None: anonymous memory (the agent is off)."""
        self.status = Status(buffer)
        self.take: Callable[[], int] = itertools.count().__next__
        """Returns the index of the next record. Replaced where records are written in C++ too."""
        self.record: RecordFn = self._writer(wire.RECORD)
        self.record_f: Callable[..., None] = self._writer(wire.RECORD_F)
        """``record`` with ``a`` a float; pass Flag.FLOAT in flags."""

    @classmethod
    def create(cls, path: str, capacity: int) -> Ring:
        """Create the file, 0600, with its space reserved: a full tmpfs must fail here, as an
        OSError, and not as SIGBUS in the training."""
        capacity = power_of_two(capacity)
        size = wire.RING_DATA_OFFSET + capacity * wire.RECORD_BYTES
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
            buffer = mmap.mmap(fd, size)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(fd)
        return cls(buffer, capacity, path)

    @classmethod
    def anonymous(cls) -> Ring:
        """Return a ring without readers, for the hooks to write into while the agent is off."""
        size = wire.RING_DATA_OFFSET + _MIN_CAPACITY * wire.RECORD_BYTES
        return cls(mmap.mmap(-1, size), _MIN_CAPACITY, None)

    def header(
        self, *, start_ns: int, wall_ns: int, rank: int, world_size: int, pid: int, epoch: int
    ) -> None:
        """Write the header; again when the rank becomes known."""
        wire.RING_HEADER.pack_into(
            self.buffer, 0, wire.MAGIC, wire.PROTOCOL_VERSION, wire.RECORD_BYTES, self.capacity,
            start_ns, wall_ns, rank, world_size, pid, epoch,
        )  # fmt: skip

    def newest(self) -> int:
        """Return the index after the newest committed record (reads every mark)."""
        end = wire.RING_DATA_OFFSET + self.capacity * wire.RECORD_BYTES
        return max(memoryview(self.buffer)[wire.RING_DATA_OFFSET : end].cast("Q")[7::8].tolist())

    def span_ended(
        self, kind: int, lane: int, flags: int, name_id: int, t0: int, t1: int, step: int,
        stage: int, mb: int, a: int, phase_id: int,
    ) -> None:  # fmt: skip
        """Write the record of an ended action or phase; set the status back to ``phase_id``."""
        self.record(
            kind, lane, flags, name_id, t0, t1, step, 0, wire.NO_GROUP, stage, mb, wire.NONE, a, 0
        )
        self.status.now(step, phase_id, 0, wire.NONE, wire.NONE, t1)

    def _writer(self, layout: struct.Struct) -> Callable[..., None]:
        pack, buffer, ring = layout.pack_into, self.buffer, self
        mask, base = self.capacity - 1, wire.RING_DATA_OFFSET
        exact = wire.RECORD.pack_into

        def record(
            kind: int, lane: int, flags: int, name_id: int, t0: int, t1: int, step: int, seq: int,
            group_id: int, stage: int, mb: int, peer: int, a: Any, b: int,
        ) -> None:  # fmt: skip
            i = ring.take()
            try:
                pack(buffer, base + ((i & mask) << 6), kind, lane, flags, name_id, t0, t1, step,
                     seq, group_id, stage, mb, peer, a, b, i + 1)  # fmt: skip
            except (struct.error, TypeError, OverflowError):
                fields = _clamped((kind, lane, flags & ~wire.Flag.FLOAT, name_id, t0, t1, step,
                                   seq, group_id, stage, mb, peer, a, b))  # fmt: skip
                exact(buffer, base + ((i & mask) << 6), *fields, i + 1)

        return record


@dataclass(frozen=True, slots=True)
class Header:
    """Decoded RING_HEADER."""

    capacity: int
    start_ns: int
    start_wall_ns: int
    rank: int
    world_size: int
    pid: int
    epoch: int


class RingError(Exception):
    """File that is not a ring of this version. One line."""


class RingReader:
    """Reader of contiguous raw slices of a live or a dead ring, oldest first, which counts lost
    records. One reader per consumer; it never writes."""

    def __init__(self, buffer: mmap.mmap | bytes, *, hole_ns: int = 200_000_000) -> None:
        self.header = parse_header(buffer)
        self.next = 0
        """Index of the next record to take."""
        self.lost = 0
        """Records overwritten (or never committed) before they were read."""
        self._newest = 0
        """Highest value of ``next`` so far."""
        self._before = 0, 0
        self._hole_ns = hole_ns
        self._hole = (-1, 0)
        self._capacity = self.header.capacity
        self.buffer = buffer
        self._data = memoryview(buffer)[wire.RING_DATA_OFFSET :]
        end = self._capacity * wire.RECORD_BYTES
        self._marks = self._data[:end].cast("Q")[7::8]

    @classmethod
    def open(cls, path: str) -> RingReader:
        """Map a ring file. Raises RingError or OSError."""
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < wire.RING_DATA_OFFSET + wire.RECORD_BYTES:
                raise RingError(f"{path}: not a ring file (too short)")
            buffer = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        return cls(buffer)

    def close(self) -> None:
        self._marks.release()
        self._data.release()
        if isinstance(self.buffer, mmap.mmap):
            self.buffer.close()

    def read(self, limit: int = 4096, *, final: bool = False) -> tuple[int, bytes] | None:
        """Return (index of the first, raw records) or None if no new record is committed.

        ``final``: the writer is dead or quiet, so a hole will not be filled: skip it at once."""
        while True:
            start = self.next & (self._capacity - 1)
            count = self._committed(start, min(limit, self._capacity - start))
            if count:
                raw = bytes(self._data[start * 64 : (start + count) * 64])
                # Copied, then checked again: records that are still marked were not overwritten.
                if self._same(start, count):
                    first = self.next
                    self._before = first, self._newest
                    self._move(first + count)
                    return first, raw
                self._skip_lapped(start, final)
            elif not self._step_over(start, final):
                return None

    def head(self) -> int:
        """Return the index after the newest committed record (reads every mark)."""
        return max(self._marks.tolist())

    def head_from(self, known: int) -> int:
        """Return ``head()`` faster, from an index that the ring is known to have reached."""
        while True:
            at = known % self._capacity
            marks = self._marks[at : at + _AHEAD].tolist()
            newest = max(marks, default=0)
            if newest <= known:
                return known
            if newest > known + len(marks):
                return self.head()  # lapped
            known = newest

    def put_back(self) -> None:
        """Make the last slice, which could not be used, the next one that ``read`` returns."""
        self.next, self._newest = self._before

    def rewind(self, index: int) -> None:
        """Take records again from ``index`` on (or from the oldest that still exists)."""
        self.next = max(0, min(index, self.next), self.next - self._capacity)

    def _same(self, start: int, count: int) -> bool:
        expected = range(self.next + 1, self.next + 1 + count)
        return self._marks[start : start + count].tolist() == list(expected)

    def _committed(self, start: int, limit: int) -> int:
        """Return the number of contiguous committed records from ``next`` on."""
        done, marks = 0, self._marks
        while done < limit:
            size = min(256 if done else 16, limit - done)
            found = marks[start + done : start + done + size].tolist()
            wanted = self.next + done + 1
            if found != list(range(wanted, wanted + size)):
                for mark in found:
                    if mark != self.next + done + 1:
                        return done
                    done += 1
            done += size
        return done

    def _step_over(self, start: int, final: bool) -> bool:
        """Move past a lap or a hole at an uncommitted slot; return whether ``next`` moved."""
        mark = self._marks[start]
        if mark == self.next + 1:
            return True  # committed meanwhile
        if mark > self.next + 1:
            self._skip_lapped(start, final)
            return True
        if not self._later_committed():
            return False
        now = time.monotonic_ns()
        if not final:
            if self._hole[0] != self.next:
                self._hole = (self.next, now)
            if now - self._hole[1] < self._hole_ns:
                return False  # its writer may just have lost the GIL
        self._move(self.next + 1, lost=True)
        return True

    def _later_committed(self) -> bool:
        first = (self.next + 1) & (self._capacity - 1)
        found = self._marks[first : first + _AHEAD].tolist()  # at the ring's end: fewer
        return max(found, default=0) > self.next + 1

    def _skip_lapped(self, start: int, final: bool) -> None:
        """Move to the oldest record that still exists, and count the lost ones.

        A live writer gets a head start, or it would overwrite the next record to read."""
        mask, marks = self._capacity - 1, self._marks
        newest = marks[start]
        if newest <= self.next + 1:  # being rewritten right now: judge by the head
            newest = self.head()
        else:
            low, high = 0, self._capacity - 1  # marks rise by one up to the head: bisect for it
            while low < high:
                middle = (low + high + 1) // 2
                if marks[(start + middle) & mask] == newest + middle:
                    low = middle
                else:
                    high = middle - 1
            newest += low
        oldest = newest - self._capacity + (0 if final else self._capacity // 16)
        self._move(max(self.next + 1, oldest), lost=True)

    def _move(self, index: int, *, lost: bool = False) -> None:
        """Go on at ``index``. Records taken before a ``rewind`` do not count as lost."""
        if lost:
            self.lost += max(0, index - max(self.next, self._newest))
        self.next = index
        self._newest = max(self._newest, index)


def parse_header(buffer: mmap.mmap | bytes) -> Header:
    """Check and decode RING_HEADER. Raises RingError."""
    fields = wire.RING_HEADER.unpack_from(buffer, 0)
    magic, version, record_bytes, capacity, start_ns, wall_ns, rank, world, pid, epoch = fields
    if magic != wire.MAGIC:
        raise RingError("not a pardbg ring")
    if version != wire.PROTOCOL_VERSION or record_bytes != wire.RECORD_BYTES:
        raise RingError(f"ring of protocol version {version}, this is {wire.PROTOCOL_VERSION}")
    fits = wire.RING_DATA_OFFSET + capacity * wire.RECORD_BYTES <= len(buffer)
    if capacity == 0 or capacity & (capacity - 1) or not fits:
        raise RingError(f"ring header is damaged (capacity {capacity})")
    return Header(capacity, start_ns, wall_ns, rank, world, pid, epoch)


def stable_fields(buffer: mmap.mmap | bytes, layout: struct.Struct, offset: int) -> tuple[Any, ...]:
    """Return a status block as read the same twice running (its writer may be at work)."""
    seen = layout.unpack_from(buffer, offset)
    for _ in range(8):
        again = layout.unpack_from(buffer, offset)
        if again == seen:
            break
        seen = again
    return seen
