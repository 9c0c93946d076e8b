"""Several pipelines in one run, and ranks that hand a batch on without any schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pardbg.analysis.answers.report import as_json, report
from pardbg.analysis.answers.snapshot import snapshot
from pardbg_agent import wire
from tests.unit.trace_builder import MS, Proc, Trace, ns


def mesh_of_four() -> Trace:
    """dp × pp: pipelines of ranks 0-1 and 2-3, one microbatch, F 1 ms, B 2 ms; the second one's
    backward of stage 0 takes 4 ms.

    ms   0  1  2     4        6     8
    r0   F0 .......  B0 ....
    r1      F0 B0    .......
    r2   F0 .......  B0 ............
    """
    trace = Trace(4, {"pp0": (0, 1), "pp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3)})
    for proc, pp, dp in zip(trace.ranks, ("pp0", "pp0", "pp1", "pp1"), ("dp0", "dp1") * 2,
                            strict=True):  # fmt: skip
        group(proc, 1, dp, "dp", trace.groups[dp])
        group(proc, 2, pp, "pp", trace.groups[pp])
        a, b = trace.groups[pp]
        proc.define(
            wire.DefKind.PLAN, schedule="Schedule1F1B", group=pp, ranks=[a, b], num_stages=2,
            num_microbatches=1, num_virtual=1, source="corrected", paced=False,
            order={str(a): ["0F0", "0B0"], str(b): ["1F0", "1B0"]},
        )  # fmt: skip
        if proc.rank == a:
            proc.action("0F0", 0, 1)
            proc.action("0B0", 4, 6 if pp == "pp0" else 8)
        else:
            proc.action("1F0", 1, 2)
            proc.action("1B0", 2, 4)
        proc.step(0, 0, 9)
    return trace


def group(proc: Proc, number: int, key: str, axis: str, ranks: Sequence[int]) -> None:
    proc.define(wire.DefKind.GROUP, id=number, key=key, name=axis, axis=axis, ranks=list(ranks),
                backend="gloo")  # fmt: skip


def test_pipelines_are_called_by_their_place_on_the_mesh() -> None:
    shown = snapshot(mesh_of_four().store(), None)
    assert [(name.label, name.ranks) for name in shown.pipelines] == [
        ("dp=0", (0, 1)), ("dp=1", (2, 3))
    ]  # fmt: skip
    # busy 3 + 3 of 2 x 6 ms; 5 + 3 of 2 x 8 ms
    bubbles = [name.bubble_fraction for name in shown.pipelines]
    assert bubbles == pytest.approx([0.5, 0.5])
    assert shown.pipeline is not None and shown.pipeline.index == 0


def test_an_axis_that_flattens_others_is_not_told_twice() -> None:
    """torchtitan's dp_shard, dp and dp_shard_cp are the same ranks; its world is dp x pp."""
    trace = mesh_of_four()
    for proc, dp in zip(trace.ranks, ("dp0", "dp1") * 2, strict=True):
        group(proc, 3, f"f{dp}", "dp_flat", trace.groups[dp])
    labels = [name.label for name in snapshot(trace.store(), None).pipelines]
    assert labels == ["dp=0", "dp=1"]


def test_the_pipeline_of_a_rank_is_the_one_shown() -> None:
    store = mesh_of_four().store()
    shown = snapshot(store, None, rank=3).pipeline
    assert shown is not None and shown.index == 1 and shown.step is not None
    assert [row.rank for row in shown.step.ranks] == [2, 3]
    assert shown.step.t1_ns == ns(8)
    other = snapshot(store, None, rank=77).pipeline  # of no pipeline: the first one
    assert other is not None and other.index == 0


def test_the_report_lists_all_and_details_the_first() -> None:
    made = as_json(report(mesh_of_four().store()))
    assert [row["rank"] for row in made["pipeline"]["steps"][0]["ranks"]] == [0, 1]
    assert made["pipelines"] == [
        {"label": "dp=0", "ranks": [0, 1], "num_steps": 1, "bubble_fraction": pytest.approx(0.5)},
        {"label": "dp=1", "ranks": [2, 3], "num_steps": 1, "bubble_fraction": pytest.approx(0.5)},
    ]


def hand_on(swapped: bool = False, waits: bool = True) -> Trace:
    """Two ranks without a schedule; ``swapped``: rank 1 has the first layers.

    ms      0       1      2         4     5        7
    first   F ......send   recv of the gradient ....B from 5 to 7
    second  recv .. F from 1 to 2, B from 2 to 4, send
    Forward is inferred: on the first from 0 to 5, on the second from 0 to 2.
    """
    trace = Trace(2)
    first, second = reversed(trace.ranks) if swapped else trace.ranks
    a, b = first.rank or 0, second.rank or 0
    first.p2p("world", b, True, 1, 1.1)
    first.p2p("world", b, False, 1.1, 5)
    if waits:
        first.wait(1.1, 5)
        second.wait(0.1, 1)
    first.phase("forward", 0, 5)
    first.phase("backward", 5, 7)
    second.p2p("world", a, False, 0.1, 1)
    second.phase("forward", 0, 2)
    second.phase("backward", 2, 4)
    second.p2p("world", a, True, 4, 5)
    for proc in trace.ranks:
        proc.step(0, 0, 8)
    return trace


@pytest.mark.parametrize("swapped", [False, True])
def test_ranks_that_hand_a_batch_on_are_a_chain(swapped: bool) -> None:
    shown = snapshot(hand_on(swapped).store(), None).pipeline
    assert shown is not None and shown.step is not None
    assert (shown.source, shown.schedule, shown.num_stages) == ("chain", "", 2)
    first, second = shown.step.ranks
    assert (first.rank, second.rank) == ((1, 0) if swapped else (0, 1))
    assert [(a.text, a.t0_ns, a.t1_ns) for a in first.actions] == [
        ("0F0", ns(0), ns(1)), ("0B0", ns(5), ns(7))
    ]  # fmt: skip
    assert [(a.text, a.t0_ns, a.t1_ns) for a in second.actions] == [
        ("1F0", ns(1), ns(2)), ("1B0", ns(2), ns(4))
    ]  # fmt: skip
    # The first one's gap of 4 ms: until 4 the gradient does not exist, then it is on its way.
    assert first.idle_ns["dependency"] == 3 * MS
    assert first.idle_ns["communication"] == MS
    assert shown.step.bound_fraction == 0.5 and shown.step.implied_fraction is None


def test_a_message_is_there_when_the_device_has_it_not_when_the_host_goes_on() -> None:
    """Hosts are through with their waits for receives at once; the devices are as above."""
    trace = hand_on(waits=False)
    for proc, seq, posted in zip(trace.ranks, (1, 0), (1.1, 0.1), strict=True):
        proc.define(wire.DefKind.PROCESS, proc=proc.proc, rank=proc.rank, device="cuda")
        proc.record(wire.Kind.DEVICE, 0, 0.1, lane=wire.Lane.USER)
        proc.record(wire.Kind.WAIT, posted, posted + 0.1, lane=wire.Lane.WAIT, seq=seq,
                    flags=wire.Flag.P2P, group_id=proc.group("world"))  # fmt: skip
    shown = snapshot(trace.store(), None).pipeline
    assert shown is not None and shown.step is not None
    first, second = shown.step.ranks
    assert ms(first.actions) == [("0F0", 0, 1), ("0B0", 5, 7)]
    assert ms(second.actions) == [("1F0", 1, 2), ("1B0", 2, 4)]


def by_hand(trace: Trace, a: int, b: int, inferred: bool = True) -> None:
    """1F1B of two ranks and three microbatches, no schedule object.

    ms   0   1   2   3   4   5   6   7   8   9   10  11  12
    a    F0  F1  ......  B0  F2  ....B1  ........B2           (waits for gradients are dots)
    b    ..  F0  B0  F1  B1  ....F2  B2
    A send is issued 0.1 ms before the millisecond ends, which takes 0.01 ms.
    """
    first, second = trace.ranks[a], trace.ranks[b]
    for begin, end in ((0, 0.9), (1, 1.9), (5, 5.9)):
        first.p2p("world", b, True, end, begin + 1)
    for posted, there in ((2, 4), (6, 7), (8, 9)):
        first.p2p("world", b, False, posted, there)
        first.wait(posted, there)
    if inferred:
        first.phase("forward", 0, 4)  # it lies around the wait
    for begin, end in ((4, 5), (7, 8), (9, 10)):
        first.phase("backward", begin, end)
    for posted, there in ((0, 1), (3, 3.1), (5, 6)):
        second.p2p("world", a, False, posted, there)
        second.wait(posted, there)
    for begin, end in ((2, 2.9), (4, 4.9), (7, 7.9)):
        second.phase("backward", begin, end)
        second.p2p("world", a, True, end, end + 0.1)
    for proc in (first, second):
        proc.step(0, 0, 12)


def ms(actions: Sequence[Any]) -> list[tuple[str, float, float]]:
    return [(s.text, (s.t0_ns - ns(0)) / MS, (s.t1_ns - ns(0)) / MS) for s in actions]


def test_microbatches_passed_on_by_hand_are_counted() -> None:
    trace = Trace(2)
    by_hand(trace, 0, 1)
    shown = snapshot(trace.store(), None).pipeline
    assert shown is not None and shown.step is not None
    assert (shown.num_stages, shown.num_microbatches) == (2, 3)
    first, second = shown.step.ranks
    assert ms(first.actions) == [
        ("0F0", 0, 0.9), ("0F1", 0.91, 1.9), ("0B0", 4, 5), ("0F2", 5, 5.9), ("0B1", 7, 8),
        ("0B2", 9, 10),
    ]  # fmt: skip
    assert ms(second.actions) == [
        ("1F0", 1, 2), ("1B0", 2, 2.9), ("1F1", 3.1, 4), ("1B1", 4, 4.9), ("1F2", 6, 7),
        ("1B2", 7, 7.9),
    ]  # fmt: skip
    # 1F1B: two microbatches are in flight on the first stage, one on the last.
    assert (first.max_in_flight, second.max_in_flight) == (2, 1)
    assert shown.step.bound_fraction == pytest.approx(1 / 4)


def test_a_first_forward_whose_begin_nobody_saw_keeps_its_number() -> None:
    """Nothing comes before the first send of a run: 0F0 is not there, 0F1 is not called so."""
    trace = Trace(2)
    by_hand(trace, 0, 1, inferred=False)
    shown = snapshot(trace.store(), None).pipeline
    assert shown is not None and shown.step is not None
    forwards = [action for action in ms(shown.step.ranks[0].actions) if "F" in action[0]]
    assert forwards == [("0F1", 0.91, 1.9), ("0F2", 5, 5.9)]
    # Its bubble would be too large by a forward: no figure is made of it.
    assert not shown.step.complete and shown.last_complete is None


def test_replicas_that_pass_microbatches_on_are_a_pipeline_each() -> None:
    trace = Trace(4)
    by_hand(trace, 0, 2)
    by_hand(trace, 1, 3)
    made = snapshot(trace.store(), None, rank=3)
    assert [names.ranks for names in made.pipelines] == [(0, 2), (1, 3)]
    assert made.pipeline is not None and made.pipeline.num_microbatches == 3


def test_a_ring_is_no_pipeline_and_says_why() -> None:
    """Three ranks pass blocks around inside forward and backward, as ring attention does."""
    trace = Trace(3)
    for proc in trace.ranks:
        rank = proc.rank or 0
        for begin in (0.2, 2.2):
            proc.p2p("world", (rank + 1) % 3, True, begin, begin + 0.1)
            proc.p2p("world", (rank - 1) % 3, False, begin, begin + 0.5)
            proc.wait(begin, begin + 0.5)
        proc.phase("forward", 0, 2)
        proc.phase("backward", 2, 4)
        proc.step(0, 0, 5)
    made = snapshot(trace.store(), None)
    assert made.pipeline is None
    assert made.no_pipeline == "ranks 0–2 pass messages in a ring or a web, not in a line"


def test_forwards_at_the_same_time_are_no_chain() -> None:
    """A ring inside backward, as in ddp-ring: both forwards begin before anything is received."""
    trace = Trace(2)
    for proc in trace.ranks:
        other = 1 - (proc.rank or 0)
        proc.phase("forward", 0, 2)
        proc.p2p("world", other, True, 3, 3.5)
        proc.p2p("world", other, False, 3, 4)
        proc.phase("backward", 2, 5)
        proc.step(0, 0, 6)
    assert snapshot(trace.store(), None).pipeline is None


def test_a_rank_without_a_forward_breaks_the_chain() -> None:
    """A parameter server: the worker receives from it, but it computes nothing."""
    trace = Trace(2)
    server, worker = trace.ranks
    worker.p2p("world", 0, False, 0, 1)
    worker.phase("forward", 1, 2)
    worker.phase("backward", 2, 3)
    worker.p2p("world", 0, True, 3, 4)
    server.p2p("world", 1, True, 0, 1)
    server.p2p("world", 1, False, 1, 4)
    server.phase("optimizer", 4, 5)
    for proc in trace.ranks:
        proc.step(0, 0, 6)
    assert snapshot(trace.store(), None).pipeline is None
