"""Collectives and p2p ops matched over ranks: verdicts and figures worked out by hand."""

from __future__ import annotations

import pytest

from pardbg.analysis.answers.snapshot import Snapshot, snapshot
from pardbg.analysis.comm.matching import busbw_factor
from pardbg.analysis.comm.op_rows import CollectiveRow, P2PRow
from pardbg.analysis.comm.traffic import ring_bytes
from pardbg.store import Store
from pardbg_agent import wire
from pardbg_agent.wire import Flag
from tests.unit.facts import facts
from tests.unit.trace_builder import MS, Proc, Trace, ns


def look(trace: Trace, t_ms: float | None = None) -> Snapshot:
    return snapshot(trace.store(), None if t_ms is None else ns(t_ms))


def only(trace: Trace, t_ms: float | None = None) -> CollectiveRow:
    (row,) = look(trace, t_ms).collectives
    return row


def test_arrival_skew_wait_transfer_busbw() -> None:
    trace = Trace(4)
    # Arrivals at 1, 2, 4, 3 ms; all complete by 6 ms.
    for proc, t0, done in zip(trace.ranks, (1, 2, 4, 3), (5.8, 6, 5.9, 5.9), strict=True):
        proc.collective("world", "all_reduce", t0, done, 4_000_000)
    row = only(trace)
    assert row.verdict == "matched"
    assert (row.skew_ns, row.last_rank) == (3 * MS, 2)
    assert row.wait_ns == (3 + 2 + 0 + 1) * MS
    assert row.transfer_ns == 2 * MS
    # 4 MB in 2 ms is 2 GB/s; times 2(n-1)/n = 1.5.
    assert row.busbw_gbps == pytest.approx(3.0)
    assert row.detail == "rank 2 last by 3 ms, transfer 2 ms"


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("all_to_all", 0.75),
        ("broadcast", 1.0), ("reduce", 1.0), ("send", 1.0), ("barrier", None),
    ],
)  # fmt: skip
def test_busbw_factors_of_nccl_tests(op: str, factor: float | None) -> None:
    assert busbw_factor(op, 4) == factor


@pytest.mark.parametrize("other", ("all_reduce", "all_gather"))
def test_of_an_op_whose_definition_was_lost_nobody_knows_what_it_says(other: str) -> None:
    """Rank 1's was; ranks 0 and 2 are set against each other all the same."""
    trace = Trace(3)
    for proc, op in zip(trace.ranks, ("all_reduce", "all_reduce", other), strict=True):
        proc.collective("world", op, 1, 3)
    trace.flush()
    lost = wire.Key.DEFINITION.value + trace.ranks[1].proc.encode()
    store = Store()
    store.apply_all(m for m in trace.messages if m.key != lost or b"all_reduce" not in m.payload)
    (row,) = snapshot(store, None).collectives
    assert row.verdict == ("matched" if other == "all_reduce" else "op mismatch")
    assert 1 not in row.culprits


def test_sources_of_completion_are_not_mixed() -> None:
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, 3, source=Flag.DONE_COMPLETED)
    trace.ranks[1].collective("world", "all_reduce", 1, 4, source=Flag.DONE_WAITED)
    row = only(trace)
    assert (row.verdict, row.transfer_ns, row.busbw_gbps) == ("matched", None, None)
    assert [a.source for a in row.arrivals] == ["completed", "waited"]


def both(trace: Trace, **of_last: object) -> None:
    """The same all_reduce on all ranks, but for what the last one does differently."""
    for proc in trace.ranks:
        said: dict[str, object] = {"op": "all_reduce", "num_bytes": 1000}
        if proc is trace.ranks[-1]:
            said |= of_last
        op, num_bytes = str(said.pop("op")), said.pop("num_bytes")
        proc.collective("world", op, 1, None, num_bytes, **said)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("difference", "verdict", "detail"),
    [
        ({"op": "broadcast", "reduce": ""}, "op mismatch",
         "rank 2: broadcast; ranks 0,1: all_reduce sum"),
        ({"reduce": "max"}, "op mismatch", "rank 2: all_reduce max; ranks 0,1: all_reduce sum"),
        ({"dtype": "float16"}, "dtype mismatch", "rank 2: float16; ranks 0,1: float32"),
        ({"num_bytes": 2000}, "size mismatch", "rank 2: 2 kB; ranks 0,1: 1 kB"),
        ({"num_bytes": 1001}, "size mismatch", "rank 2: 1,001 B; ranks 0,1: 1,000 B"),
    ],
)  # fmt: skip
def test_mismatches(difference: dict[str, object], verdict: str, detail: str) -> None:
    trace = Trace(3)
    both(trace, **difference)
    row = only(trace)
    assert (row.verdict, row.detail, row.culprits) == (verdict, detail, (2,))
    assert row.busbw_gbps is None
    (finding,) = look(trace).findings
    assert (finding.severity, finding.culprits) == ("error", (2,))
    assert finding.kind == verdict.replace(" ", "-")


def test_who_differs_is_said_when_it_is_known() -> None:
    """Of three ranks two have called the op, each with another dtype: the third one decides. After
    a second without it, or where the op before has told, that is not waited for."""
    trace = Trace(3)
    for proc, dtype in zip(trace.ranks[1:], ("float32", "int32"), strict=True):
        proc.collective("world", "all_reduce", 1, None, dtype=dtype)
    trace.ranks[0].phase("data", 0, 1500)
    assert look(trace, 500).findings == ()
    assert [f.culprits for f in look(trace, 1400).findings if f.severity == "error"] == [()]
    # Where three threads share a core it takes three times as long to come.
    trace.state(1300, **{trace.ranks[1].proc: {"load": 300}})
    assert not any(f.severity == "error" for f in look(trace, 1400).findings)
    trace = Trace(3)
    for _ in range(2):
        for proc, dtype in zip(trace.ranks, ("float32", "float32", "int32"), strict=True):
            proc.collective("world", "all_reduce", 1, 2, dtype=dtype)
    for proc, dtype in zip(trace.ranks[1:], ("float32", "int32"), strict=True):
        proc.collective("world", "all_reduce", 3, None, dtype=dtype)
    (finding,) = (f for f in look(trace, 1400).findings if f.severity == "error")
    assert finding.culprits == (2,) and finding.seq == 0


def test_root_mismatch() -> None:
    trace = Trace(3)
    for proc, root in zip(trace.ranks, (0, 0, 1), strict=True):
        proc.collective("world", "broadcast", 1, None, reduce="", root=root)
    row = only(trace)
    assert (row.verdict, row.culprits) == ("root mismatch", (2,))


def test_sizes_that_may_differ() -> None:
    trace = Trace(2)
    # Uneven all_gather: 100 + 300 in, 400 out on both; all_to_all with splits; scatter from 0.
    for proc, share in zip(trace.ranks, (100, 300), strict=True):
        proc.collective("world", "all_gather", 1, 2, share, 400, reduce="")
        proc.collective("world", "all_to_all", 3, 4, share, 400 - share, reduce="")
    trace.ranks[0].collective("world", "scatter", 5, 6, 400, 200, reduce="", root=0)
    trace.ranks[1].collective("world", "scatter", 5, 6, 0, 200, reduce="", root=0)
    assert [row.verdict for row in look(trace).collectives] == ["matched"] * 3


def test_missing_rank() -> None:
    trace = Trace(3)
    for proc in trace.ranks[:2]:
        proc.collective("world", "all_reduce", 1, None)
    trace.ranks[2].phase("data", 0, 6000)  # rank 2 loads data for 6 s
    early = only(trace, 500)
    assert (early.verdict, early.missing, early.skew_ns) == ("incomplete", (2,), None)
    late = only(trace, 4000)
    assert (late.verdict, late.missing, late.culprits) == ("missing rank", (2,), (2,))
    assert [a.issued_ns for a in late.arrivals] == [ns(1), ns(1), None]
    assert look(trace, 500).findings == ()
    (finding,) = look(trace, 4000).findings
    assert (finding.kind, finding.ranks, finding.culprits) == ("missing-rank", (0, 1), (2,))
    assert finding.severity == "warning"  # it may still come


def test_a_rank_whose_ops_are_not_recorded_is_not_missing() -> None:
    """From 1 ms on rank 2 says that its ops are only counted."""
    trace = Trace(3)
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 0.1, 0.2)
    for proc in trace.ranks[:2]:
        proc.collective("world", "all_reduce", 0.9, None)
    quiet = trace.ranks[2]
    quiet.define(wire.DefKind.PROCESS, rank=2, unrecorded=[[ns(1), 0], "x", [1]])
    quiet.phase("data", 1, 4000)
    row = look(trace, 4000).collectives[-1]
    assert (row.seq, row.verdict, row.missing) == (1, "incomplete", ())
    assert look(trace, 4000).findings == ()
    quiet.define(wire.DefKind.PROCESS, rank=2, unrecorded=[[ns(0.3), ns(0.4)]])
    trace.flush()
    assert look(trace, 4000).collectives[-1].missing == (2,), "recorded again since 0.4 ms"


def test_a_rank_that_died_is_an_error() -> None:
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, None)
    trace.ranks[1].phase("data", 0, 1)
    trace.flush()
    trace.define_end(trace.ranks[1], 2, "killed")
    found = {f.kind: f for f in look(trace, 900).findings}
    assert found["rank-lost"].culprits == (1,)
    assert found["rank-lost"].severity == "error"
    assert "Rank 0 waits for it" in found["rank-lost"].text


def test_incomplete() -> None:
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, 3)
    trace.ranks[1].collective("world", "all_reduce", 1, 5)
    row = only(trace, 4)  # rank 1 completes at 5
    assert (row.verdict, row.detail) == ("incomplete", "not complete on rank 1")
    assert only(trace, 5).verdict == "matched"
    assert only(trace, 4).verdict == "incomplete"


def test_as_of_is_the_same_after_looking_at_the_end() -> None:
    """Closed rows are kept; a cursor before their completion must not see them closed."""
    trace = Trace(2)
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 1, 3)
    store = trace.store()
    assert snapshot(store, None).collectives[0].verdict == "matched"
    assert snapshot(store, ns(2)).collectives[0].verdict == "incomplete"
    assert snapshot(store, ns(0.5)).collectives == ()


def test_lost_records_do_not_make_a_rank_missing() -> None:
    trace = Trace(2)
    for i in range(3):
        for proc in trace.ranks:
            proc.collective("world", "all_reduce", 10 * i, 10 * i + 1)
            if i == 1 and proc is trace.ranks[1]:
                proc.lose()
            else:
                proc.flush()
    trace.ranks[0].phase("data", 30, 3000)
    rows = look(trace).collectives
    assert [r.verdict for r in rows] == ["matched", "incomplete", "matched"]
    assert rows[1].detail == "rank 1 not recorded"
    assert look(trace).dropped_records == 2


def test_epochs_are_not_matched_with_each_other() -> None:
    trace = Trace(1)
    trace.ranks[0].collective("world", "all_reduce", 1, 2)
    again = trace.process(0, epoch=1, pid=900, start=10)
    again.collective("world", "all_reduce", 11, 12)
    trace.flush()
    again.flush()
    shown = look(trace)
    assert [r.arrivals[0].issued_ns for r in shown.collectives] == [ns(11)]
    assert [r.pid for r in shown.ranks] == [900]
    before = look(trace, 2)
    assert [r.arrivals[0].issued_ns for r in before.collectives] == [ns(1)]


def exchange(sender: Proc, receiver: Proc, t_send: float, t_recv: float, done: float) -> None:
    assert sender.rank is not None and receiver.rank is not None
    sender.p2p("world", receiver.rank, True, t_send, done, stage=0, mb=4, label="F")
    receiver.p2p("world", sender.rank, False, t_recv, done, stage=1, mb=4, label="F")


def test_p2p_pairs_by_order_on_the_edge() -> None:
    trace = Trace(2)
    exchange(*trace.ranks, 1, 3, 4)
    exchange(*trace.ranks, 2, 5, 6)
    rows = look(trace).p2p
    assert [(r.src, r.dst, r.order, r.verdict) for r in rows] == [
        (0, 1, 0, "matched"), (0, 1, 1, "matched"),
    ]  # fmt: skip
    assert [(r.send_ns, r.recv_ns, r.done_ns) for r in rows] == [
        (ns(1), ns(3), ns(4)), (ns(2), ns(5), ns(6)),
    ]  # fmt: skip
    assert rows[0].label == "F4"


def test_p2p_orders_in_the_tail_count_from_the_runs_start() -> None:
    trace = Trace(2)
    for i in range(1500):
        exchange(*trace.ranks, 3 * i, 3 * i + 1, 3 * i + 2)
    rows: tuple[P2PRow, ...] = look(trace).p2p
    assert len(rows) == 200
    assert [r.order for r in rows] == list(range(1300, 1500))
    assert {r.verdict for r in rows} == {"matched"}


def test_p2p_after_lost_records_is_paired_within_the_step() -> None:
    trace = Trace(2)
    sender, receiver = trace.ranks
    for step in range(4):
        sender.p2p("world", 1, True, 10 * step, 10 * step + 2, step=step)
        receiver.p2p("world", 0, False, 10 * step + 1, 10 * step + 2, step=step)
        if step == 1:
            sender.lose()
        sender.flush()
        receiver.flush()
    rows = look(trace).p2p
    assert [r.verdict for r in rows] == ["matched", "incomplete", "matched", "matched"]
    assert rows[2].send_ns == ns(20) and rows[2].recv_ns == ns(21)


def test_p2p_verdicts() -> None:
    trace = Trace(2)
    trace.ranks[0].p2p("world", 1, True, 1, None, 100)
    trace.ranks[1].p2p("world", 0, False, 1, None, 200)
    assert look(trace).p2p[0].verdict == "size mismatch"
    lonely = Trace(2)
    lonely.ranks[0].p2p("world", 1, True, 1, None)
    lonely.ranks[1].phase("data", 0, 5000)
    assert look(lonely, 10).p2p[0].verdict == "incomplete"
    assert look(lonely, 5000).p2p[0].verdict == "missing rank"


def test_observed_and_modelled_traffic() -> None:
    trace = Trace(4)
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 1, 2, 1000)
        proc.collective("world", "all_gather", 3, 4, 250, 1000, reduce="")
    exchange(trace.ranks[1], trace.ranks[2], 5, 5, 6)
    traffic = look(trace).traffic
    modelled = {(e.src, e.dst): e.bytes for e in traffic.edges if e.source == "modelled"}
    # Per ring link: 2·3/4·1000 for the all_reduce and 3/4·1000 for the all_gather.
    assert modelled == dict.fromkeys([(0, 1), (1, 2), (2, 3), (3, 0)], 2250)
    observed = {(e.src, e.dst): e.bytes for e in traffic.edges if e.source == "observed"}
    assert observed == {(1, 2): 100}
    assert [(g.name, g.num_ops, g.bytes) for g in traffic.groups] == [("world", 3, 2100)]


def test_broadcast_and_scatter_go_out_from_the_root() -> None:
    """900 B from rank 1 to each other; then rank 0 scatters 900 B, 300 to each."""
    trace = Trace(3)
    for proc in trace.ranks:
        proc.collective("world", "broadcast", 1, 2, 900, root=1)
        proc.collective("world", "scatter", 3, 4, 900 if proc.rank == 0 else 0, 300, root=0)
    modelled = {(e.src, e.dst): e.bytes for e in look(trace).traffic.edges}
    assert modelled == {(1, 0): 900, (1, 2): 900, (0, 1): 300, (0, 2): 300}


def test_ring_bytes() -> None:
    assert ring_bytes("all_reduce", 800, 4) == 1200
    assert ring_bytes("all_gather", 800, 4) == ring_bytes("reduce_scatter", 800, 4) == 600
    assert ring_bytes("broadcast", 800, 4) == ring_bytes("all_reduce", 800, 1) == 0


def test_a_straggler_is_last_again_and_again() -> None:
    trace = Trace(3)
    for i in range(20):
        for proc in trace.ranks:
            late = 40 if proc.rank == 1 else 0
            for at in (41, 43):  # two buckets a step: who is late is late in both
                proc.collective("world", "all_reduce", 100 * i + late, 100 * i + at, step=i)
    (finding,) = look(trace).findings
    assert (finding.kind, finding.culprits, finding.severity) == ("straggler", (1,), "warning")
    assert facts(finding, "num_late", "num_steps", "by_ns") == (12, 12, 40 * MS)


def test_ranks_that_take_turns_in_being_last_are_no_stragglers() -> None:
    trace = Trace(3)
    for i in range(30):
        for proc in trace.ranks:
            late = 40 if proc.rank == i % 3 else 0
            proc.collective("world", "all_reduce", 100 * i + late, 100 * i + 41)
    assert look(trace).findings == ()


def test_how_late_a_rank_came_is_told_without_its_holds() -> None:
    trace = Trace(2)
    r0, r1 = trace.ranks
    # Rank 0 comes at 1 ms and waits. Rank 1 is held from 2 to 102, comes at 104; done at 106.
    r0.collective("world", "all_reduce", 1, 106)
    r0.wait(1.01, 106, p2p=False)
    r1.held(2, 102)
    r1.collective("world", "all_reduce", 104, 106)
    row = only(trace)
    assert (row.skew_ns, row.wait_ns, row.last_rank, row.transfer_ns) == (3 * MS, 3 * MS, 1, 2 * MS)
    assert row.detail == "rank 1 last by 3 ms, transfer 2 ms"
    assert [(a.came_ns, a.left_ns) for a in row.arrivals] == [(ns(1), ns(6)), (ns(4), ns(6))]


def test_a_wait_that_nobody_saw_for_a_held_rank_is_no_transfer() -> None:
    """DDP waits for its ops in C++. Rank 1 is held from 2 to 102, comes at 104; done at 106."""
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, 106)
    trace.ranks[1].held(2, 102)
    trace.ranks[1].collective("world", "all_reduce", 104, 106)
    row = only(trace)
    assert (row.skew_ns, row.last_rank, row.transfer_ns) == (3 * MS, 1, 2 * MS)


def test_a_rank_that_is_held_is_not_missing() -> None:
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, None)
    trace.ranks[1].held(2, 4000)
    row = only(trace, 4001)
    assert (row.verdict, row.missing) == ("incomplete", (1,))


def test_a_message_is_told_without_the_holds_of_its_ends() -> None:
    trace = Trace(2)
    r0, r1 = trace.ranks
    # The receive stands from 1; the sender is held from 2 to 52, sends at 54. The receiver is held
    # from 55 to 56 and has it at 57.
    r0.held(2, 52)
    r1.p2p("world", 0, False, 1, 57)
    r0.p2p("world", 1, True, 54, 57)
    r1.held(55, 56)
    (row,) = look(trace).p2p
    assert (row.waited_ns, row.moving_ns, row.transfer_ns) == (3 * MS, 2 * MS, 2 * MS)


def test_who_is_held_by_the_debugger_is_no_straggler() -> None:
    trace = Trace(2)
    for i in range(20):
        for proc in trace.ranks:
            late = 40 if proc.rank == 1 else 0
            if late:
                proc.held(100 * i, 100 * i + 39)
            proc.collective("world", "all_reduce", 100 * i + late, 100 * i + 41)
    assert look(trace).findings == ()


def test_restarted_workers_are_named_as_such() -> None:
    """Epoch 1 is torchelastic's first restart; a run without one says nothing."""
    trace = Trace(0)
    for rank in range(2):
        trace.process(rank, epoch=0)
    assert [f.kind for f in snapshot(trace.store(), None).findings if f.kind == "restarted"] == []
    for rank in range(2):
        trace.process(rank, epoch=1)
    found = [f for f in snapshot(trace.store(), None).findings if f.kind == "restarted"]
    assert len(found) == 1 and "restarted once" in found[0].text


def test_an_edge_has_a_course_over_the_window() -> None:
    """The window's 2 s are 24 bins of 83.3 ms; the last ends at 3000 ms."""
    trace = Trace(2)
    r0, r1 = trace.ranks
    r0.p2p("world", 1, True, 2990, 2995, 1000)
    r1.p2p("world", 0, False, 2985, 2995, 1000)
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 2000, 2010, 400)
    edges = {(e.src, e.dst, e.source): e for e in look(trace, 3000).traffic.edges}
    sent, ring = edges[0, 1, "observed"].course, edges[0, 1, "modelled"].course
    assert sent[-1] == pytest.approx(1000 * 12, rel=0.01) and sum(sent[:-1]) == 0
    # 2(n-1)/n of 400 bytes; issued 1000 ms into the window: bin 12.
    assert ring.index(max(ring)) in (11, 12) and max(ring) == pytest.approx(400 * 12, rel=0.01)
