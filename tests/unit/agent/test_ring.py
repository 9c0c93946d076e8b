"""The record ring: what is written is read once, in order, and what is lost is counted."""

from __future__ import annotations

import mmap
import struct
import threading
from pathlib import Path

import pytest

from pardbg_agent import ring as ring_module
from pardbg_agent import wire
from pardbg_agent.ring import Ring, RingError, RingReader


def make(path: Path, capacity: int = 64) -> Ring:
    ring = Ring.create(str(path / "0.host.1.ring"), capacity)
    ring.header(start_ns=5, wall_ns=6, rank=3, world_size=4, pid=7, epoch=1)
    return ring


def write(ring: Ring, count: int, a: int = 0) -> None:
    for _ in range(count):
        ring.record(2, 3, 0, 9, 10, 20, 1, 2, 0, -1, -1, -1, a, 0)


def drain(reader: RingReader, **options: bool) -> list[tuple[int, int]]:
    """(index, number of records) of each slice until there is none."""
    out = []
    while (batch := reader.read(**options)) is not None:
        out.append((batch[0], len(batch[1]) // 64))
    return out


def test_one_record_arrives_as_written(tmp_path: Path) -> None:
    ring = make(tmp_path)
    reader = RingReader.open(str(ring.path))
    ring.record(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)
    batch = reader.read()
    assert batch is not None
    assert batch[0] == 0
    assert wire.RECORD.unpack(batch[1]) == (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 1)
    assert reader.read() is None
    reader.close()


def test_a_float_takes_the_place_of_a(tmp_path: Path) -> None:
    ring = make(tmp_path)
    ring.record_f(8, 7, wire.Flag.FLOAT, 1, 0, 5, 0, 0, 0, -1, -1, -1, 2.5, 0)
    batch = RingReader(ring.buffer).read()
    assert batch is not None
    assert wire.RECORD_F.unpack(batch[1])[12] == 2.5


def test_header_round_trip(tmp_path: Path) -> None:
    ring = make(tmp_path, 100)  # rounded up
    header = RingReader(ring.buffer).header
    assert (header.capacity, header.rank, header.world_size) == (128, 3, 4)
    assert (header.start_ns, header.start_wall_ns, header.pid, header.epoch) == (5, 6, 7, 1)


def test_slices_end_where_the_ring_wraps(tmp_path: Path) -> None:
    ring = make(tmp_path)
    reader = RingReader(ring.buffer)
    write(ring, 40)
    assert drain(reader) == [(0, 40)]
    write(ring, 40)
    # 24 up to the end of the ring's 64, then 16 from its beginning
    assert drain(reader) == [(40, 24), (64, 16)]
    assert reader.lost == 0


def test_a_lapped_reader_counts_what_it_lost(tmp_path: Path) -> None:
    ring = make(tmp_path)
    reader = RingReader(ring.buffer)
    write(ring, 200)
    got = drain(reader)
    # 200 written, 64 kept, 64 // 16 = 4 of those given up as head start: 200 - 64 + 4 = 140
    assert got[0][0] == reader.lost == 140
    assert sum(count for _, count in got) == 60
    assert reader.next == 200


def test_of_a_dead_ring_nothing_is_left_out(tmp_path: Path) -> None:
    ring = make(tmp_path)
    write(ring, 200)
    reader = RingReader(ring.buffer)
    assert drain(reader, final=True) == [(136, 56), (192, 8)]  # 64 of 200, in two pieces
    assert reader.lost == 136


def test_what_was_taken_before_a_rewind_is_not_lost_when_it_is_gone(tmp_path: Path) -> None:
    ring = make(tmp_path)
    reader = RingReader(ring.buffer)
    write(ring, 60)
    drain(reader)
    reader.rewind(0)
    write(ring, 40)  # 0..35 are overwritten now: taken once already
    assert sum(count for _, count in drain(reader)) == 60  # 100 - 60: from 40 on, head start 4
    assert reader.lost == 0


def test_what_was_put_back_comes_again_or_is_lost(tmp_path: Path) -> None:
    ring = make(tmp_path)
    reader = RingReader(ring.buffer)
    write(ring, 60)
    reader.read()
    reader.put_back()
    assert drain(reader) == [(0, 60)]
    write(ring, 4)
    reader.read()
    reader.put_back()
    write(ring, 70)  # overwrites the four, and six more; head start 4
    drain(reader)
    assert reader.lost == 134 - 64 + 4 - 60


def test_a_record_overwritten_while_it_is_copied_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = make(tmp_path)
    reader = RingReader(ring.buffer)
    write(ring, 10)
    committed = reader._committed

    def committed_then_lapped(start: int, limit: int) -> int:
        count = committed(start, limit)
        monkeypatch.undo()
        write(ring, 64, a=1)  # the writer comes round just now
        return count

    monkeypatch.setattr(reader, "_committed", committed_then_lapped)
    batch = reader.read()
    assert batch is not None
    assert batch[0] == reader.lost > 0
    marks = [row[-1] for row in wire.RECORD.iter_unpack(batch[1])]
    assert marks == list(range(batch[0] + 1, batch[0] + 1 + len(marks)))


def test_a_hole_is_waited_for_and_then_skipped(tmp_path: Path) -> None:
    ring = make(tmp_path)
    write(ring, 3)
    ring.take()  # a thread took index 3 and was stopped before it wrote
    write(ring, 2)
    patient = RingReader(ring.buffer)
    assert drain(patient) == [(0, 3)]
    assert patient.lost == 0
    dead = RingReader(ring.buffer)
    assert drain(dead, final=True) == [(0, 3), (4, 2)]
    assert dead.lost == 1


def test_a_hole_that_stays_is_given_up_after_a_time(tmp_path: Path) -> None:
    ring = make(tmp_path)
    ring.take()
    write(ring, 2)
    reader = RingReader(ring.buffer, hole_ns=0)
    assert drain(reader) == [(1, 2)]
    assert reader.lost == 1


def test_a_hole_that_is_filled_is_not_lost(tmp_path: Path) -> None:
    ring = make(tmp_path)
    write(ring, 1)
    index = ring.take()
    write(ring, 1)
    reader = RingReader(ring.buffer)
    assert drain(reader) == [(0, 1)]
    offset = wire.RING_DATA_OFFSET + index * 64
    wire.RECORD.pack_into(ring.buffer, offset, *[0] * 14, index + 1)
    assert drain(reader) == [(1, 2)]
    assert reader.lost == 0


def test_threads_write_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    ring = make(tmp_path, 8192)
    reader = RingReader(ring.buffer)
    threads = [threading.Thread(target=write, args=(ring, 1500, n)) for n in range(4)]
    for thread in threads:
        thread.start()
    rows = []
    while len(rows) < 6000:  # read while they write
        batch = reader.read()
        if batch is not None:
            rows += list(wire.RECORD.iter_unpack(batch[1]))
    for thread in threads:
        thread.join()
    assert [row[-1] for row in rows] == list(range(1, 6001))
    assert [sum(row[12] == n for row in rows) for n in range(4)] == [1500] * 4
    assert reader.lost == 0


def test_values_that_do_not_fit_are_clamped_not_raised(tmp_path: Path) -> None:
    ring = make(tmp_path)
    ring.record(2, 3, 0, 9, 10, 20, -5, 2**40, 70000, -40000, 2, 3, 2**70, "?")  # type: ignore[arg-type]
    batch = RingReader(ring.buffer).read()
    assert batch is not None
    fields = wire.RECORD.unpack(batch[1])
    assert fields[6:10] == (0, 2**32 - 1, 65535, -(2**15))
    assert fields[12:] == (2**63 - 1, 0, 1)


def test_rewind_goes_back_as_far_as_the_ring_does(tmp_path: Path) -> None:
    ring = make(tmp_path)
    reader = RingReader(ring.buffer)
    write(ring, 30)
    drain(reader)
    reader.rewind(10)
    assert drain(reader) == [(10, 20)]
    reader.rewind(99)  # never forward
    assert reader.next == 30
    write(ring, 60)
    drain(reader)
    reader.rewind(0)  # 90 written, 64 kept
    assert reader.next == 26


def test_head_of_a_dead_ring(tmp_path: Path) -> None:
    ring = make(tmp_path)
    assert RingReader(ring.buffer).head() == 0
    write(ring, 150)
    assert RingReader(ring.buffer).head() == 150


@pytest.mark.parametrize(
    ("offset", "raw", "words"),
    [
        (0, b"NOTARING", "not a pardbg ring"),
        (8, struct.pack("<I", 99), "version 99"),
        (16, struct.pack("<I", 1 << 20), "damaged"),
        (16, struct.pack("<I", 63), "damaged"),
    ],
)
def test_damaged_files_are_refused_in_a_line(
    tmp_path: Path, offset: int, raw: bytes, words: str
) -> None:
    ring = make(tmp_path)
    ring.buffer[offset : offset + len(raw)] = raw
    with pytest.raises(RingError, match=words):
        RingReader.open(str(ring.path))


def test_a_short_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.ring"
    path.write_bytes(b"PARDBGR1")
    with pytest.raises(RingError, match="too short"):
        RingReader.open(str(path))


def test_the_file_is_private_and_fully_reserved(tmp_path: Path) -> None:
    stat = Path(str(make(tmp_path).path)).stat()
    assert stat.st_mode & 0o777 == 0o600
    assert stat.st_size == 4096 + 64 * 64
    assert stat.st_blocks * 512 >= stat.st_size  # else a full tmpfs is SIGBUS in the training


def test_status_blocks_are_where_the_wire_says(tmp_path: Path) -> None:
    ring = make(tmp_path)
    status = ring.status
    status.now(7, 1, 2, 3, 4, 50)
    status.op(9, 42, 1, 2, wire.Flag.P2P, 60, 1, 640, 320)
    status.gate(wire.Gate.ACTION, 5, 70)
    status.health(80, 100, 3, 1, 2, 999)
    now = ring_module.stable_fields(ring.buffer, wire.STATUS_NOW, wire.STATUS_NOW_OFFSET)
    assert now == (7, 1, 2, 3, 4, 0, 50)
    op = ring_module.stable_fields(ring.buffer, wire.STATUS_OP, wire.STATUS_OP_OFFSET)
    assert op == (9, 42, 1, 2, 2, 60, 1, 640, 320)
    gate = ring_module.stable_fields(ring.buffer, wire.STATUS_GATE, wire.STATUS_GATE_OFFSET)
    assert gate == (8, 5, 70)
    health = ring_module.stable_fields(ring.buffer, wire.STATUS_HEALTH, wire.STATUS_HEALTH_OFFSET)
    assert health == (80, 100, 3, 1, 2, 999)


@pytest.mark.parametrize(
    ("text", "capacity"), [("1000", 1024), ("1", 64), ("x", 65536), ("999999999", 1 << 22)]
)
def test_capacity_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, text: str, capacity: int
) -> None:
    monkeypatch.setenv("PARDBG_RING", text)
    assert ring_module.capacity_from_env() == capacity


def test_an_off_ring_takes_records_too() -> None:
    ring = Ring.anonymous()
    write(ring, 1000)
    assert ring.path is None
    assert isinstance(ring.buffer, mmap.mmap)
