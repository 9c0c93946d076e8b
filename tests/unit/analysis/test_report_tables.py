"""The parts of a report that split a run up, by hand."""

from __future__ import annotations

import re

import pytest

from pardbg.analysis.answers import report_pipeline
from pardbg.analysis.answers.report import as_json, report
from pardbg.analysis.answers.report_pipeline import bandwidths, rank_overlaps, stage_times
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.steps import StepRow
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.comm.overlap import ops_by_rank, overlaps
from pardbg.analysis.comm.p2p import p2p_rows
from pardbg.analysis.findings.speed.windows import phases_in, window
from pardbg.render.reports.html import page
from pardbg.render.reports.sections import overlap_lines, phase_shares
from pardbg.render.reports.text import text
from pardbg_agent.wire import Flag, Kind, Lane
from tests.report_schema import VALIDATOR
from tests.unit.analysis.test_findings_speed import pipeline
from tests.unit.analysis.test_times import on_device
from tests.unit.trace_builder import MS, Trace


def two_ranks(source: int = Flag.DONE_COMPLETED) -> Trace:
    """Each step of 100 ms on two ranks: an asynchronous all_reduce from 10 (rank 0) and 20 (rank 1)
    to 60, waited for from 50 on; a synchronous one at 70 on rank 0, at 80 on rank 1, done at 90."""
    trace = Trace(2)
    for step in range(17):
        at = 100.0 * step
        for proc in trace.ranks:
            late = 10 * (proc.rank or 0)
            proc.collective("world", "all_reduce", at + 10 + late, at + 60, 4000, step=step,
                            source=source)  # fmt: skip
            proc.wait(at + 50, at + 60, step, p2p=False)
            proc.collective("world", "all_reduce", at + 70 + late, at + 90, 900, step=step, flags=0,
                            source=source)  # fmt: skip
            proc.wait(at + 70 + late, at + 90, step, p2p=False)
            proc.step(step, at, at + 100)
    return trace


def test_communication_beside_compute() -> None:
    """Rank 0: the first op moves 20-60, 10 of it exposed; it waits 10 and is exposed 10 in the
    second. Rank 1: the same without the wait. The other waited for rank 1 in the second alone."""
    rank0, rank1 = rank_overlaps(View(two_ranks().store(), None))
    assert (rank0.exposed_ns, rank0.hidden_ns, rank0.waiting_ns) == (20 * MS, 30 * MS, 10 * MS)
    assert (rank1.exposed_ns, rank1.hidden_ns, rank1.waiting_ns) == (20 * MS, 30 * MS, 0)
    assert (rank0.waited_for_ns, rank1.waited_for_ns) == (0, 10 * MS)


@pytest.mark.parametrize(("sharded", "waiting"), [(False, 10 * MS), (True, 0)])
def test_on_a_device_no_wait_of_the_host_exposes_an_op(sharded: bool, waiting: int) -> None:
    """The stream stands in the synchronous op: rank 0 waits 70-80, and 80-90 is exposed. A sharded
    unit's ops are on other streams: its waits say when the computing one stood (50-60, in the first
    op)."""
    trace = on_device(two_ranks(Flag.DONE_DEVICE))
    for proc in trace.ranks:
        proc.record(Kind.DEVICE, 0, 1, lane=Lane.USER)
        for at in range(0, 1700, 100) if sharded else ():
            name = proc.name("layers.0 wait unshard")
            proc.record(Kind.FSDP, at + 50, at + 60, name, lane=Lane.COMM, step=at // 100)
    view = View(trace.store(), None)
    rank0, rank1 = rank_overlaps(view)
    assert (rank0.exposed_ns, rank0.hidden_ns, rank0.waiting_ns) == (10 * MS, 40 * MS, waiting)
    assert (rank1.exposed_ns, rank1.hidden_ns, rank1.waiting_ns) == (10 * MS, 40 * MS, 0)
    assert rank0.is_bound and rank1.is_bound
    assert any("≥ 10" in line and "≤ 40" in line for line in overlap_lines((rank0,)))
    found = phases_in(view, 0, (trace_ns(0), trace_ns(100)))
    assert found["communication"] == (10 if sharded else 20) * MS


def test_a_devices_own_wait_for_an_asynchronous_op_is_exposed() -> None:
    """As on the CPU: the computing stream stands from 50 to the first op's end at 60. Rank 1's gets
    there when the op is over: it stands in the synchronous one alone."""
    trace = on_device(two_ranks(Flag.DONE_DEVICE))
    for proc in trace.ranks:
        for at in range(0, 1700, 100):
            begin = 50 if proc.rank == 0 else 60
            proc.record(Kind.DEVICE, at + begin, at + 60, lane=Lane.WAIT, step=at // 100)
    rank0, rank1 = rank_overlaps(View(trace.store(), None))
    assert (rank0.exposed_ns, rank0.hidden_ns, rank0.waiting_ns) == (20 * MS, 30 * MS, 10 * MS)
    assert (rank1.exposed_ns, rank1.hidden_ns, rank1.waiting_ns) == (10 * MS, 40 * MS, 0)
    assert not rank0.is_bound and not rank1.is_bound


def test_a_ddp_backward_waits_unseen_at_its_end() -> None:
    """An op that C++ issued at 30 and that is done at 60; the backward runs to 60. What the host
    does after it issued its last op is waiting for it: 30.01 to 60."""
    trace = Trace(2)
    for proc in trace.ranks:
        proc.phase("backward", 10, 60)
        proc.collective("world", "all_reduce", 30, 60)
        proc.step(0, 0, 100)
    view = View(trace.store(), None)
    span = (trace_ns(0), trace_ns(100))
    (part,) = overlaps(view, 0, {0: span}, {0: ops_by_rank(collectives(view))[0]})
    assert part.exposed_ns == pytest.approx(30 * MS, abs=0.02 * MS)


def trace_ns(ms: float) -> int:
    from tests.unit.trace_builder import ns

    return ns(ms)


def test_bandwidth_by_size_class() -> None:
    """4000 B take 60 - 20 = 40 ms, 900 B take 10: classes up to 4096 and 1024. busbw of two
    ranks = 2 (n-1)/n = 1 times bytes/time."""
    small, large = bandwidths(collectives(View(two_ranks().store(), None)))
    assert (small.up_to_bytes, small.number, small.transfer_ns) == (1024, 17, 10 * MS)
    assert (large.up_to_bytes, large.number, large.transfer_ns) == (4096, 17, 40 * MS)
    assert large.busbw_gbps == 4000 / (40 * MS)


def test_a_receiver_waits_for_the_late_sender() -> None:
    """Rank 0 is ready at 10 and 50; rank 1's messages leave at 5 and 45, rank 2's at 40 and 80."""
    trace = Trace(3)
    for at in (0, 40):
        for rank, sent in ((1, 5), (2, 40)):
            trace.ranks[rank].p2p("world", 0, True, at + sent, at + sent + 1)
            trace.ranks[0].p2p("world", rank, False, at + 10, at + max(sent, 10) + 1)
    rows = p2p_rows(View(trace.store(), None))
    waits = {of.name: of.wait_ns for of in report_pipeline.by_edge(rows)}
    assert waits == {("1", "0"): 0, ("2", "0"): 30 * MS}


def test_stage_times_and_the_whole_report() -> None:
    store = pipeline((5, 15)).store()
    made = report(store)
    data = as_json(made)
    VALIDATOR.validate(data)
    rows = {(r["stage"], r["kind"]): r for r in data["pipeline"]["stages"]}
    assert rows[1, "F"] == {
        "stage": 1, "kind": "F", "rank": 1, "number": 17 * 4, "median_ns": 15 * MS,
        "low_ns": 15 * MS, "high_ns": 15 * MS,
    }  # fmt: skip
    path = data["pipeline"]["critical_path"]
    # 5 in, 8 x 15 on rank 1, 5 out
    assert (path["compute_ns"], path["tensor_ns"], path["host_ns"]) == (130 * MS, 0, 0)
    assert [r["compute_ns"] for r in path["ranks"]] == [10 * MS, 120 * MS]
    assert "compute 100% (rank 1 92%, rank 0 8%)" in text(made)


def test_nothing_is_nothing() -> None:
    view = View(Trace(2).store(), None)
    assert window(view) is None and rank_overlaps(view) == () == bandwidths(collectives(view))
    assert stage_times([]) == ()


def test_of_many_ranks_the_culprits_rows_are_among_those_shown() -> None:
    """64 ranks, of which 50 is killed: 31 of the first ones and that one, in order."""
    trace = Trace(64)
    for proc in trace.ranks:
        proc.step(0, 0, 1)
        proc.memory("parameters", 1, 1 << 20)
    trace.define_end(trace.ranks[50], 2, "killed")
    trace.end(3, code=1)
    lines = text(report(trace.store())).split("\n")
    for title in ("── Ranks ", "── Memory "):
        at = next(i for i, line in enumerate(lines) if line.startswith(title))
        more = lines.index("… and 32 more ranks (--json has all)", at)
        shown = [int(line.split()[0]) for line in lines[at + 2 : more]]
        assert shown == [*range(31), 50]


def test_of_many_ranks_the_pages_rows_and_pictures_have_the_culprit_and_who_came_last() -> None:
    """128 ranks: 100 is killed, 101 comes last; 62 of the others, the first ones."""
    trace = Trace(128)
    for proc in trace.ranks:
        late = 9 if proc.rank == 101 else 0
        proc.step(0, 0, 90)
        proc.memory("parameters", 1, 1 << 20)
        proc.collective("world", "all_reduce", 10 + late, 30, 4000)
    trace.define_end(trace.ranks[100], 92, "killed")
    trace.end(93, code=1)
    made = page(report(trace.store()), "s.mcap")
    table = made[made.index("<h2>Ranks") :]
    assert [int(n) for n in re.findall(r'<tr><td class="l">(\d+)<', table)] == [*range(63), 100]
    memory = made.index("<h2>Memory")
    assert ">rank 100<" in made[memory:] and ">rank 63<" not in made[memory:]
    assert ">rank 101<" in made[:memory] and "last once" in made[:memory]


def test_text_and_page_say_the_same_of_a_phase() -> None:
    """5 of 10 ms, then 9 of 90: 14 of 100 ms in forward (not 30%, the mean of 50% and 10%)."""
    trace = Trace(1)
    for step, (begin, end, forward) in enumerate(((0, 10, 5), (10, 100, 9))):
        trace.ranks[0].phase("forward", begin, begin + forward, step)
        trace.ranks[0].step(step, begin, end)
    made = report(trace.store())
    assert any(line.split()[:2] == ["forward", "14.0%"] for line in text(made).split("\n"))
    assert "mean over ranks: forward 14.0%" in page(made, "s.mcap")


def test_of_many_ranks_those_most_waited_for_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 ranks; 39 comes last to each all_reduce, 39 x 10 ms of waiting a step; 38 never."""
    trace = Trace(40)
    for step in range(17):
        at = 100.0 * step
        for proc in trace.ranks:
            late = 10 * (proc.rank == 39)
            proc.collective("world", "all_reduce", at + 10 + late, at + 60, 4000, step=step)
            proc.wait(at + 10 + late, at + 60, step, p2p=False)
            proc.step(step, at, at + 100)
    made = report(trace.store())
    assert made.overlap[-1].waited_for_ns == 39 * 10 * MS and not made.overlap[-1].is_most
    lines = text(made).split("\n")
    at = next(i for i, line in enumerate(lines) if line.startswith("rank   exposed"))
    shown = [int(line.split()[0]) for line in lines[at + 1 : at + 33]]
    assert shown == [*range(31), 39] and lines[at + 33] == "… and 8 more ranks, less waited for"
    monkeypatch.setattr(report_pipeline, "MAX_RANKS", 4)
    assert [row.rank for row in rank_overlaps(View(trace.store(), None))] == [0, 1, 2, 39]


def test_phases_add_up_with_what_is_in_none_of_them() -> None:
    """Two steps of 100: forward 30 + 20, backward 100, seven more phases of 2 each. The seven
    largest are told; 50 + 100 + 5 x 2 of 200 are in them."""
    small = {f"p{i}": 2 for i in range(7)}
    steps = [
        StepRow(0, 100, None, {"forward": 30, "backward": 50, **small}),
        StepRow(1, 100, None, {"forward": 20, "backward": 50}),
    ]
    shares = phase_shares(steps)
    assert shares[:2] == [("backward", 0.5), ("forward", 0.25)] and len(shares) == 8
    assert shares[-1] == ("other", pytest.approx(0.2))
    assert phase_shares([StepRow(0, 10, None, {"step": 10})]) == [("step", 1.0)]
    assert phase_shares([]) == []
