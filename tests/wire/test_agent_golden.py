"""The bytes of protocol version 1 as the agent makes them. Each golden value is written out field
by field, by hand. A test that fails here means another protocol version: keep these, add new."""

from __future__ import annotations

from pathlib import Path

import msgpack

from pardbg_agent import wire
from pardbg_agent.ctrl.codec import encode
from pardbg_agent.defs import Defs
from pardbg_agent.op_table import OpTable
from pardbg_agent.ring import Ring
from pardbg_agent.wire import DefKind, Flag, Gate, Kind, Lane


def hexed(*fields: str) -> bytes:
    """Fields in hex, one string each, as they lie in memory (little-endian)."""
    return bytes.fromhex("".join(fields))


RECORD = hexed(
    "02",  # kind: OP_ISSUE
    "03",  # lane: COMM
    "0601",  # flags: P2P 2 + SEND 4 + ASYNC 256 = 0x0106
    "09000000",  # name 9
    "00f2052a01000000",  # t0 5 000 000 000 = 0x12a05f200
    "01f2052a01000000",  # t1, 1 ns later
    "80000000",  # step 128
    "2a000000",  # seq 42
    "0300",  # group 3
    "0200",  # stage 2
    "ffff",  # microbatch -1
    "0300",  # peer 3
    "0000040000000000",  # a: 262 144
    "feffffffffffffff",  # b: -2
    "0100000000000000",  # mark: index 0 + 1
)

METRIC = hexed(
    "08", "07", "0100", "05000000",  # METRIC, COUNTER, FLOAT, name 5
    "0000000000000000", "0a00000000000000",  # t0, t1 10
    "00000000", "00000000", "ffff", "ffff", "ffff", "ffff",  # step, seq, no group, none, none, none
    "0000000000000440",  # a: 2.5 as float64
    "0000000000000000", "0200000000000000",  # b, mark 2
)  # fmt: skip

HEADER = hexed(
    "5041524442475231",  # PARDBGR1
    "01000000", "40000000", "4000000000000000",  # version 1, 64 bytes a record, 64 records
    "0500000000000000", "0600000000000000",  # monotonic and wall start
    "03000000", "04000000", "07000000", "01000000",  # rank, world size, pid, epoch
)  # fmt: skip

FRAME = hexed(
    "0100", "0000", "02000000",  # version 1, no flags, 2 records
    "00ca9a3b00000000",  # the first is record 1 000 000 000
    "1100000000000000", "6300000000000000",  # 17 dropped so far, sent at 99 ns
)  # fmt: skip


def make(path: Path) -> Ring:
    ring = Ring.create(str(path / "0.h.1.ring"), 64)
    ring.header(start_ns=5, wall_ns=6, rank=3, world_size=4, pid=7, epoch=1)
    flags = Flag.P2P | Flag.SEND | Flag.ASYNC
    t0 = 5_000_000_000
    ring.record(Kind.OP_ISSUE, Lane.COMM, flags, 9, t0, t0 + 1, 128, 42, 3, 2, -1, 3, 262_144, -2)
    ring.record_f(
        Kind.METRIC, Lane.COUNTER, Flag.FLOAT, 5, 0, 10, 0, 0, wire.NO_GROUP, -1, -1, -1, 2.5, 0
    )
    return ring


def test_records(tmp_path: Path) -> None:
    data = Path(str(make(tmp_path).path)).read_bytes()
    assert data[4096:4160] == RECORD
    assert data[4160:4224] == METRIC
    assert not any(data[4224:])


def test_ring_header(tmp_path: Path) -> None:
    data = Path(str(make(tmp_path).path)).read_bytes()
    assert data[: len(HEADER)] == HEADER
    assert len(data) == 4096 + 64 * 64


def test_status_blocks(tmp_path: Path) -> None:
    ring = make(tmp_path)
    ring.status.now(128, 1, 2, 3, 4, 5)
    ring.status.op(9, 42, 3, -1, Flag.ASYNC, 6, 2, 7, 8)
    ring.status.gate(Gate.ACTION, 7, 8)
    ring.status.health(9, 10, 11, 12, 2, 13)
    data = Path(str(ring.path)).read_bytes()
    now = hexed(
        "8000000000000000", "01000000", "02000000", "0300", "0400", "00000000", "0500000000000000"
    )
    op = hexed(
        "09000000", "2a000000", "0300", "ffff", "00010000", "0600000000000000", "02000000",
        "00000000", "0700000000000000", "0800000000000000",
    )  # fmt: skip
    gate = hexed("08000000", "07000000", "0800000000000000")
    health = hexed(
        "0900000000000000", "0a00000000000000", "0b00000000000000", "0c000000", "02000000",
        "0d00000000000000",
    )  # fmt: skip
    assert data[1024 : 1024 + len(now)] == now
    assert data[1088 : 1088 + len(op)] == op
    assert data[1152 : 1152 + len(gate)] == gate
    assert data[1216 : 1216 + len(health)] == health


def test_frame_head() -> None:
    assert wire.FRAME.pack(1, 0, 2, 1_000_000_000, 17, 99) == FRAME


def test_a_name_definition() -> None:
    defs = Defs()
    defs.name("F")
    # fixmap of 3; "k": "name"; "id": 1; "s": "F"
    assert defs.payloads == [hexed("83", "a16b", "a46e616d65", "a26964", "01", "a173", "a146")]


def test_the_definitions_file(tmp_path: Path) -> None:
    path = tmp_path / "p.defs"
    defs = Defs(str(path))
    defs.put(DefKind.NOTE, key="paced", value=True)
    payload = hexed("83", "a16b", "a46e6f7465", "a36b6579", "a57061636564", "a576616c7565", "c3")
    assert path.read_bytes() == hexed("19000000") + payload  # 1 + 2 + 5 + 4 + 6 + 6 + 1 = 25 bytes


def test_what_state_says_of_ops() -> None:
    ops = OpTable(lambda *_: None, lambda *_: None)
    ops.issued("pp", 2, "send", 4, True, True, 3, 7, 9, 1000)
    ops.issued("dp", 1, "all_reduce", 41, False, False, -1, 0, 8, 2000)
    said = msgpack.unpackb(msgpack.packb(encode(ops.snapshot())))
    assert said == {
        "open": [
            {
                "group": "pp",
                "op": "send",
                "seq": 4,
                "peer": 3,
                "send": True,
                "tag": 7,
                "since_ns": 1000,
            },
            {"group": "dp", "op": "all_reduce", "seq": 41, "since_ns": 2000},
        ],
        "issued": {"dp": 42},
        "p2p": [[["pp", 3, 7, True], 1]],
    }
