"""What the store takes, counts and refuses."""

from __future__ import annotations

import random

import msgpack
import numpy as np
import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.memory import failed_requests
from pardbg.events.decode import RECORD_DTYPE, Malformed, decode_map, frame_head, taken
from pardbg.store import Limits, Store
from pardbg.store import store as stores
from pardbg.store.intake import TABLE_NAMES
from pardbg.store.source import Message
from pardbg.store.table import COLUMNS
from pardbg_agent import wire
from pardbg_agent.wire import Flag, Kind
from tests.unit.facts import facts
from tests.unit.trace_builder import Trace, batch, ns


def records(first: int, count: int, kind: int = Kind.SPAN) -> list[bytes]:
    """Records number ``first``.., each 1 ms long, one after the other."""
    return [
        wire.RECORD.pack(
            kind, 5, 0, 0, ns(i), ns(i + 1), 0, 0, wire.NO_GROUP, -1, -1, -1, 0, 0, i + 1
        )
        for i in range(first, first + count)
    ]


def feed(store: Store, first: int, count: int, proc: str = "0.host.1", **kwargs: int) -> None:
    payload = batch(first, records(first, count, **kwargs))
    store.apply(Message(b"R" + proc.encode(), payload, ns(first + count)))


def begins(store: Store, proc: str = "0.host.1") -> list[int]:
    store.settle()
    return [int(t) for t in store.procs[proc].table("span").col("t0_ns")]


def test_overlap_is_taken_once_and_gaps_are_counted() -> None:
    store = Store()
    feed(store, 0, 4)
    feed(store, 2, 4)  # 2 and 3 come again
    feed(store, 0, 3)  # nothing new at all
    feed(store, 9, 1)  # 6, 7 and 8 are lost
    assert begins(store) == [ns(i) for i in (0, 1, 2, 3, 4, 5, 9)]
    assert store.lost(None) == 3
    assert store.lost(ns(5)) == 0  # as of before the gap was seen


def test_names_are_found_by_their_heads_as_they_come() -> None:
    """A name is looked for before it is known, and a number gets another name."""
    store = Store()
    feed(store, 0, 1)
    process = store.procs["0.host.1"]
    for number, name, found in (
        (3, "loss by Mean", "loss by Mean"),
        (4, "loss", "loss by Mean"),
        (3, "loss by Sum", "loss by Sum"),
    ):
        process.define_name(number, name)
        assert process.names_with("loss by ", "modes") == {3: found}
    assert process.ids("loss") == [4]


def test_a_late_viewer_has_lost_nothing() -> None:
    store = Store(live=True)
    feed(store, 1000, 5)
    assert store.lost(None) == 0
    assert store.procs["0.host.1"].missed_before == 1000


def test_what_the_rank_says_it_dropped_counts() -> None:
    store = Store()
    store.apply(Message(b"R0.host.1", batch(7, records(7, 2), dropped=7), ns(9)))
    assert store.lost(None) == 7


def test_a_process_that_attaches_again_starts_over() -> None:
    trace = Trace(1)
    proc = trace.ranks[0]
    proc.step(0, 0, 1)
    proc.flush()
    proc.define(wire.DefKind.PROCESS, rank=0, start_ns=ns(5))
    proc.index = 0
    proc.step(1, 5, 6)
    store = trace.store()
    store.settle()
    assert list(store.procs[proc.proc].table("step").col("step")) == [0, 1]
    assert store.lost(None) == 0


def test_records_out_of_order_are_sorted_by_when_they_become_visible() -> None:
    trace = Trace(1)
    proc = trace.ranks[0]
    for t0, t1 in ((0, 10), (2, 3), (4, 20), (5, 6)):
        proc.wait(t0, t1)
        proc.flush()
    store = Store()
    for message in trace.messages:
        store.apply(message)
        store.settle()
    table = store.procs[proc.proc].table("wait")
    assert [int(t) - ns(0) for t in table.when] == [3_000_000, 6_000_000, 10_000_000, 20_000_000]
    assert [table.visible(ns(t)) for t in (0, 3, 9, 10, 99)] == [0, 1, 2, 3, 4]


def test_the_clock_offset_is_added_when_records_are_applied() -> None:
    trace = Trace(1)
    proc = trace.ranks[0]
    proc.wait(0, 1)
    proc.flush()
    trace.define(wire.DefKind.CLOCK, proc=proc.proc, offset_ns=-1000, error_ns=50, t_ns=ns(1))
    proc.wait(1, 2)
    proc.flush()
    trace.define(wire.DefKind.CLOCK, proc=proc.proc, offset_ns=-1020, error_ns=50, t_ns=ns(2))
    proc.wait(2, 3)
    store = trace.store()
    store.settle()
    # What came before anything was known of the clock is moved by the first offset.
    told = [ns(1) - 1000, ns(2) - 1000, ns(3) - 1020]
    assert [int(t) for t in store.procs[proc.proc].table("wait").when] == told
    assert snapshot(store, None).ranks[0].clock_error_ns == 50


def test_unknown_kinds_and_messages_are_counted() -> None:
    store = Store()
    feed(store, 0, 3, kind=200)
    store.apply(Message(b"Zwhat", b"", 0))
    store.apply(Message(b"D0.host.1", msgpack.packb({"k": "from the future"}), 0))
    store.settle()
    assert store.unknown == 3 + 1 + 1


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"short",
        batch(0, records(0, 2))[:-1],
        wire.FRAME.pack(wire.PROTOCOL_VERSION, 0, 1 << 31, 0, 0, 0),
        wire.FRAME.pack(wire.PROTOCOL_VERSION + 1, 0, 0, 0, 0, 0),
        wire.FRAME.pack(wire.PROTOCOL_VERSION, 0, 0, 1 << 63, 0, 0),
    ],
)
def test_malformed_records_are_counted_never_raised(payload: bytes) -> None:
    with pytest.raises(Malformed):
        frame_head(payload)
    store = Store()
    store.apply(Message(b"R0.host.1", payload, 0))
    assert store.malformed == 1
    snapshot(store, None)


def test_records_never_written_or_with_nonsense_times_are_left_out() -> None:
    good = records(0, 1)[0]
    torn = records(1, 1)[0][:-8] + bytes(8)
    backwards = wire.RECORD.pack(7, 5, 0, 0, ns(9), ns(2), 0, 0, 0, -1, -1, -1, 0, 0, 3)
    store = Store()
    store.apply(Message(b"R0.host.1", batch(0, [good, torn, backwards]), ns(1)))
    assert begins(store) == [ns(0)]
    assert store.unknown == 2


def test_a_wild_clock_does_not_move_the_runs_end() -> None:
    wild = wire.RECORD.pack(7, 5, 0, 0, ns(0), 1 << 61, 0, 0, 0, -1, -1, -1, 0, 0, 1)
    store = Store()
    store.apply(Message(b"R0.host.1", batch(0, [wild]), ns(1)))
    assert store.end_ns <= ns(1) + 10_000_000_000


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\xdf\xff\xff\xff\xff", b"\x81" * 100_000]
)
def test_bad_maps(payload: bytes) -> None:
    with pytest.raises(Malformed):
        decode_map(payload)


def test_garbage_never_raises() -> None:
    """Definitions and hub messages with fields of any type, and pure noise."""
    rng = random.Random(1)
    odd = [
        None, -1, 1 << 63, 0.5, "x", b"y", [], [1, None], {}, {"a": 1}, True, "9" * 50,
        "²", "٣", "１", "", " 1", "0x1", "1_0", "-0", float("nan"), float("inf"), -(1 << 63),
        "0.h.²", ["²"], {"²": "3"},
        {"①": ["F0"], "9" * 5000: 1},
    ]  # fmt: skip
    keys = [
        "k", "id", "s", "op", "rank", "ranks", "order", "proc", "t_ns", "n", "key", "root",
        "num_stages", "offset_ns", "stage", "zero", "mode", "held", "lease_ns", "event", "text",
        "where", "reason", "code", "start_ns", "schedule", "group", "source", "stacks",
    ]  # fmt: skip
    procs = [b"", b"0.h.1", "².h.²".encode()]
    kinds = [kind.value for kind in wire.DefKind]
    store = Store()
    for _ in range(3000):
        values = {key: rng.choice(odd) for key in rng.sample(keys, 8)}
        values["k"] = rng.choice(kinds)
        if rng.random() < 0.2:
            values["event"] = "stall"
        key = rng.choice([b"D", b"O", b"C", b"S", b"R"]) + rng.choice(procs)
        payload = msgpack.packb(values) if rng.random() < 0.9 else rng.randbytes(40)
        store.apply(Message(key, payload, rng.randrange(1 << 40)))
    feed(store, 0, 10, proc="0.h.1")
    for kind in range(16):
        feed(store, 10 + kind, 1, proc="0.h.2", kind=kind)
    for t in (None, 0, ns(3), 1 << 61):
        snapshot(store, t)


def test_hub_messages_that_come_twice_are_taken_once() -> None:
    trace = Trace(0)
    for t in range(3):
        trace.output(t, f"line {t}")
    store = Store()
    store.apply_all(trace.messages + trace.messages[1:])
    assert len(store.output) == 3


def test_output_read_again_after_a_hub_restart_is_taken_once() -> None:
    trace = Trace(0)
    for off in (10, 20, 10, 20, 30):
        trace.hub(wire.Key.OUTPUT, off, rank=None, stream="stdout", text=f"to {off}", off=off)
    store = trace.store()
    assert [store.output.at(i)[1][2] for i in range(len(store.output))] == [
        "to 10", "to 20", "to 30",
    ]  # fmt: skip


def test_live_memory_is_bounded_and_sums_go_on() -> None:
    trace = Trace(2)
    for i in range(3000):
        for proc in trace.ranks:
            proc.collective("world", "all_reduce", i, i + 0.5, 100, step=i // 10)
        if i % 100 == 99:
            trace.flush()
    limits = Limits(500, 1 << 62, 10, 10, 10)
    store = Store(limits, live=True)
    for message in trace.messages:
        store.apply(message)
        store.settle()
    table = store.procs[trace.ranks[0].proc].table("issue")
    assert 500 <= len(table) <= 625
    assert table.base + len(table) == 3000
    shown = snapshot(store, None)
    assert shown.traffic.groups[0].num_ops == 3000
    assert shown.traffic.groups[0].bytes == 300_000
    whole = snapshot(trace.store(), None)
    assert shown.collectives == whole.collectives
    assert [(e.src, e.dst, e.bytes, e.num_ops) for e in shown.traffic.edges] == [
        (e.src, e.dst, e.bytes, e.num_ops) for e in whole.traffic.edges
    ]


def test_many_processes_of_a_live_run_share_what_is_kept() -> None:
    """32 keep 64 Ki records of a kind, 33 half of that, 512 4 Ki, more 320; of a file all is
    kept."""
    many = {n: Limits.live().rows(n) for n in (1, 32, 33, 64, 65, 512, 513, 4096)}
    assert many == {1: 65536, 32: 65536, 33: 32768, 64: 32768, 65: 16384, 512: 4096, 513: 320,
                    4096: 320}  # fmt: skip
    assert Limits.file().rows(1024) is None
    store = Store(Limits(8192, 1 << 62, 10, 10, 10), live=True)
    feed(store, 0, 10_000)
    assert len(begins(store)) == 10_000  # a quarter more, at times
    for number in range(2, 35):
        feed(store, 0, 1, f"0.host.{number}")
    feed(store, 10_000, 1)
    assert begins(store) == [ns(i) for i in range(10_001 - 4096, 10_001)]


@pytest.mark.parametrize(
    ("ops", "kept"),
    [
        (10, 512),  # the last 51 steps
        (50, 1600),  # 32 steps
        (400, 4096),  # 10 steps: no more is kept of so many processes
    ],
)
def test_the_newest_steps_are_kept_beyond_the_limit(ops: int, kept: int) -> None:
    trace = Trace(1)
    for step in range(60):
        for i in range(ops):
            t = 1000 * step + i
            trace.ranks[0].collective("world", "all_reduce", t, t + 0.5, 100, step=step)
        trace.flush()
    store = Store(Limits(512, 1 << 62, 10, 10, 10), live=True)
    for message in trace.messages:
        store.apply(message)
        store.settle()
    table = store.procs[trace.ranks[0].proc].table("issue")
    assert kept <= len(table) <= max(kept + kept // 4, 33 * ops)
    assert table.base + len(table) == 60 * ops


def test_of_what_comes_once_a_step_more_steps_are_kept() -> None:
    """A leak shows over hundreds of steps, however many processes there are."""
    trace = Trace(1)
    for step in range(2000):
        trace.ranks[0].step(step, 10 * step, 10 * step + 9)
        if step % 50 == 49:
            trace.flush()
    store = Store(Limits(64, 1 << 62, 10, 10, 10), live=True)
    for message in trace.messages:
        store.apply(message)
        store.settle()
    process = store.procs[trace.ranks[0].proc]
    assert 1024 <= len(process.table("step")) <= 1280
    process.keep(1500)
    assert process.table("step").limit == 1500
    process.keep(64)
    assert process.table("step").limit == 1024


def test_records_beyond_the_limit_are_refused_and_said() -> None:
    store = Store(Limits(None, 5, 10, 10, 10))
    feed(store, 0, 4)
    feed(store, 4, 4)
    assert len(begins(store)) == 4
    assert store.lost(None) == 4
    (found,) = (f for f in snapshot(store, None).findings if f.kind == "records-dropped")
    assert (found.ranks, facts(found, "number")) == ((), 4)


def test_appending_in_any_order_keeps_columns_together() -> None:
    """Rows stay whole when insertions move them: each row's a says its t1."""
    rng = np.random.default_rng(3)
    trace = Trace(1)
    proc = trace.ranks[0]
    for t in rng.permutation(400):
        proc.record(Kind.SPAN, 0, float(t), step=int(t), a=int(t))
        if rng.random() < 0.1:
            proc.flush()
    store = Store()
    for message in trace.flush().messages:
        store.apply(message)
        store.settle()
    table = store.procs[proc.proc].table("span")
    assert len(table) == 400
    assert [int(a) for a in table.col("a")] == list(range(400))
    assert table.step_sorted


def test_rows_are_taken_as_numpy_takes_them() -> None:
    some = np.frombuffer(bytes(range(256)) * 3, RECORD_DTYPE)  # 12 records, no two alike bytes
    rows = np.array([7, 0, 7, 11])
    assert taken(some, rows).tobytes() == some[rows].tobytes()
    assert taken(some[::2], np.array([3])).tobytes() == some[6:7].tobytes()
    assert len(taken(some, rows[:0])) == 0


def test_what_came_of_many_is_moved_as_of_each() -> None:
    """Processes with records of every kind, p2p and not, out of order, some unknown or malformed,
    and clocks told in between: moved all at once, or message by message, and in parts of a few
    bytes."""
    for seed in range(12):
        draw, trace = random.Random(seed), Trace(5, {"world": range(5)})
        for _ in range(60):
            proc = draw.choice(trace.ranks)
            t0 = draw.randrange(1000)
            kind, flags = draw.choice((*Kind, 200)), draw.choice((0, Flag.P2P))
            proc.record(
                kind, t0, t0 + draw.randrange(-2, 50), draw.randrange(3), flags=int(flags),
                step=draw.randrange(4), seq=draw.randrange(9), group_id=draw.randrange(3),
            )  # fmt: skip
            if draw.random() < 0.3:
                proc.flush()
            if draw.random() < 0.1:
                trace.define(
                    wire.DefKind.CLOCK, proc=proc.proc, offset_ns=draw.randrange(10**9),
                    error_ns=draw.randrange(100), t_ns=ns(t0),
                )  # fmt: skip
        at_once, by_one = trace.store(), Store()
        for message in trace.messages:
            by_one.apply(message)
            by_one.settle()
        at_once.settle()
        for proc, one in by_one.procs.items():
            other = at_once.procs[proc]
            told = ("num_records", "malformed", "unknown", "first_ns", "newest_ns", "started_ns")
            assert [getattr(one, name) for name in told] == [getattr(other, name) for name in told]
            assert one.undefined_groups == other.undefined_groups
            for name in TABLE_NAMES:
                mine, theirs = one.table(name), other.table(name)
                assert mine.longest_ns == theirs.longest_ns, (seed, name)
                assert mine.step_sorted == theirs.step_sorted, (seed, name)
                for column, _ in COLUMNS:
                    assert (mine.col(column) == theirs.col(column)).all(), (seed, name, column)


def test_definitions_are_bounded_by_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of 1,000 ranks takes some 50 kB however often it is defined: 100 kB hold one."""
    monkeypatch.setattr(stores, "_MAX_DEFINITION_BYTES", 100_000)
    store = Store()
    for number in range(40):
        said = {"k": "group", "id": 1, "key": "g", "ranks": list(range(1000)), "backend": "gloo"}
        store.apply(Message(b"D0.host.%d" % number, msgpack.packb(said), 5))
    assert not store.refused and len(store.procs) == 40
    assert len({id(process.groups[1].ranks) for process in store.procs.values()}) == 1
    for number in range(40):
        said = {"k": "note", "key": f"n{number}", "value": [{}] * 500}
        store.apply(Message(b"D", msgpack.packb(said), 5))
    assert len(store.notes) < 3 and store.refused["definitions"] > 37


def test_a_live_viewer_keeps_a_time_of_each_kind_and_a_least_number() -> None:
    """A record a millisecond: of 60,000 those of 8 s, of 4,096 at least; sums of all of them."""
    store = Store(Limits(1 << 16, 1 << 62, 10, 10, 10, keep_ns=ns(8000) - ns(0)))
    sizes = []
    for first in range(0, 60_000, 500):
        feed(store, first, 500)
        store.settle()
        sizes.append(len(store.procs["0.host.1"].table("span")))
    assert max(sizes) <= 10_500 and min(sizes[30:]) >= 8000
    rare = Store(Limits(1 << 16, 1 << 62, 10, 10, 10, keep_ns=1))
    for first in range(0, 10_000, 500):
        feed(rare, first, 500)
        rare.settle()
    table = rare.procs["0.host.1"].table("span")
    assert 4096 <= len(table) <= 5620 and table.base + len(table) == 10_000


def test_what_failed_after_the_last_record_is_seen_at_the_end() -> None:
    """A rank that is killed as it has run out of memory leaves no later record."""
    trace = Trace(1)
    (proc,) = trace.ranks
    proc.step(0, 0, 10)
    asked = {"asked": 900, "limit": 1000, "allocated": 500, "frames": []}
    proc.define(wire.DefKind.OUT_OF_MEMORY, t_ns=ns(20), device="cuda:0", **asked)
    store = trace.store()
    assert store.end_ns == ns(20)
    (found,) = failed_requests(View(store, None))
    assert found.t_ns == ns(20)


def test_how_long_a_rank_has_waited_is_what_the_hub_said_last() -> None:
    trace = Trace(1)
    store = Store()
    for stood_ns in (0, 2_000_000_000, 0):
        trace.hub(wire.Key.STATE, 1, stood_ns=stood_ns, hub="h", ranks={"p": {"step": 1}})
        store.apply(trace.messages[-1])
        assert store.states.stood_ns == stood_ns
    assert store.states.ranks(None)[1] == {"p": {"step": 1}}
