"""Numbers on the wire never change their meaning. A failing test here means: bump
PROTOCOL_VERSION, keep a golden file of the old layout in tests/wire, and then change this test."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from pardbg.events.commands import FromHub, FromViewer
from pardbg.events.control_facts import Fact
from pardbg_agent import wire
from pardbg_agent.ctrl.agent_messages import FromAgent, ToAgent


def test_record_layout() -> None:
    assert wire.PROTOCOL_VERSION == 1
    assert wire.RECORD.format == "<BBHIqqIIHhhhqqQ"
    assert wire.RECORD_F.format == "<BBHIqqIIHhhhdqQ"
    # 1+1+2+4 + 8+8 + 4+4 + 2+2+2+2 + 8+8+8 = 64
    assert wire.RECORD.size == wire.RECORD_F.size == wire.RECORD_BYTES == 64
    names = [name for name, _ in wire.RECORD_FIELDS]
    assert names == [
        "kind", "lane", "flags", "name_id", "t0_ns", "t1_ns", "step", "seq", "group_id", "stage",
        "microbatch", "peer", "a", "b", "mark",
    ]  # fmt: skip
    sizes = [int(code.lstrip("<")[1:]) for _, code in wire.RECORD_FIELDS]
    assert sum(sizes) == 64


def test_ring_file_layout() -> None:
    assert wire.MAGIC == b"PARDBGR1"
    assert wire.RING_HEADER.format == "<8sIIQqqiiII"
    assert wire.RING_DATA_OFFSET == 4096
    blocks = [
        (0, wire.RING_HEADER),
        (wire.STATUS_NOW_OFFSET, wire.STATUS_NOW),
        (wire.STATUS_OP_OFFSET, wire.STATUS_OP),
        (wire.STATUS_GATE_OFFSET, wire.STATUS_GATE),
        (wire.STATUS_HEALTH_OFFSET, wire.STATUS_HEALTH),
        (wire.STATUS_DEVICE_OFFSET, wire.STATUS_DEVICE),
        (wire.STATUS_NEWEST_OFFSET, wire.STATUS_OP),
        (wire.RING_DATA_OFFSET, wire.RECORD),
    ]
    assert [offset for offset, _ in blocks] == [0, 1024, 1088, 1152, 1216, 1280, 1344, 4096]
    for (offset, block), (next_offset, _) in pairwise(blocks):
        assert offset + block.size <= next_offset


def test_status_block_layouts() -> None:
    assert wire.STATUS_NOW.format == "<qIIhhiq"
    assert wire.STATUS_OP.format == "<IIHhIqI4xqq"
    assert wire.STATUS_GATE.format == "<IIq"
    assert wire.STATUS_HEALTH.format == "<qQQIIQ"
    assert wire.STATUS_DEVICE.format == "<qqqQ"
    assert wire.FRAME.format == "<HHIQQq"
    assert wire.FRAME.size == 32  # 2+2+4 + 8+8+8


def test_kinds() -> None:
    assert {kind.name: int(kind) for kind in wire.Kind} == {
        "ACTION": 1, "OP_ISSUE": 2, "OP_DONE": 3, "WAIT": 4, "STEP": 5, "PHASE": 6, "SPAN": 7,
        "METRIC": 8, "MEMORY": 9, "HELD": 10, "LOST": 11, "FSDP": 12,
        "PROBE": 13, "SPAN_BEGIN": 14, "PART": 15, "OP_SUM": 16, "CALL_BEGIN": 17, "CALL": 18,
        "DEVICE": 19, "DEVICE_BEGIN": 20,
    }  # fmt: skip
    assert {lane.name: int(lane) for lane in wire.Lane} == {
        "STEP": 0, "PHASE": 1, "COMPUTE": 2, "COMM": 3, "WAIT": 4, "USER": 5, "GATE": 6,
        "COUNTER": 7,
    }  # fmt: skip


def test_flags_and_gates() -> None:
    assert {flag.name: int(flag) for flag in wire.Flag} == {
        "FLOAT": 1, "P2P": 2, "SEND": 4, "DONE_COMPLETED": 8, "DONE_WAITED": 16,
        "DONE_POLLED": 32, "DONE_DEVICE": 64, "FAILED": 128, "ASYNC": 256, "RECOMPUTE": 512,
        "INFERRED": 1024, "PACED": 2048, "OTHER_THREAD": 4096, "DEVICE": 8192,
    }  # fmt: skip
    assert {gate.name: int(gate) for gate in wire.Gate} == {
        "SEND": 1, "RECV": 2, "COLLECTIVE": 4, "ACTION": 8, "STEP": 16, "OPTIMIZER": 32,
        "BREAK": 64, "EXCEPTION": 128, "INSIDE": 256,
    }  # fmt: skip
    assert wire.NONE == -1
    assert wire.NO_GROUP == 65535


def test_message_names() -> None:
    assert {key.name: key.value for key in wire.Key} == {
        "RECORDS": b"R", "DEFINITION": b"D", "OUTPUT": b"O", "CONTROL": b"C", "STATE": b"S",
    }  # fmt: skip
    # The names travel as text: each is its member's name in lower case.
    assert all(member.value == member.name.lower() for member in wire.DefKind)
    assert {"run", "process", "name", "op", "group", "plan", "stage", "model", "clock", "end"} <= {
        kind.value for kind in wire.DefKind
    }
    assert {kind.TAG for kind in (*FromAgent.__args__, *ToAgent.__args__)} >= {
        "hello", "state", "pong", "bye", "done", "stacks", "evaluated", "welcome", "permit", "run",
        "lease", "ping", "where", "level", "breaks", "ask", "delay",
    }  # fmt: skip
    assert {kind.TAG for kind in FromViewer.__args__} == {
        "join", "command", "take", "leave", "lease",
    }  # fmt: skip


def test_lease_is_ten_seconds() -> None:
    assert wire.LEASE_NS == 10 * 10**9


def test_the_protocols_page_names_every_record_and_message() -> None:
    page = (Path(__file__).parents[2] / "docs" / "wire-protocol.md").read_text("utf-8")
    assert [k for k in wire.Kind if f"| `{k.name}` | {k.value} |" not in page] == []
    unions = (FromAgent, ToAgent, FromViewer, FromHub, Fact)
    tags = {kind.TAG for union in unions for kind in union.__args__}
    assert sorted(tag for tag in tags if f"`{tag}" not in page) == []
