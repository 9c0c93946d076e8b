"""Of a run on a device the host's times say nothing about speed, and a poll bounds a completion."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pardbg.analysis.answers.checks import parse, run
from pardbg.analysis.answers.metrics import METRICS
from pardbg.analysis.answers.report import as_json, report
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.times import times
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.analysis.comm.p2p import p2p_rows
from pardbg.analysis.findings import findings
from pardbg.analysis.pipeline.mesh import pipeline_names
from pardbg.analysis.pipeline.pipeline_steps import pipeline_view
from pardbg.analysis.whatif.answer import WhatIf, whatif
from pardbg_agent import wire
from pardbg_agent.wire import Flag, Lane
from tests.report_schema import VALIDATOR
from tests.unit.analysis.test_findings_speed import data_parallel, dp_groups, pipeline
from tests.unit.analysis.test_schedule import two_ranks
from tests.unit.trace_builder import MS, Trace, ns


def on_device(trace: Trace) -> Trace:
    for proc in trace.ranks:
        proc.define(wire.DefKind.PROCESS, proc=proc.proc, rank=proc.rank, device="cuda")
    return trace


def one_all_reduce(source: int) -> Trace:
    """Issued at 1 and 3 ms, complete at 5 and 9 ms."""
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, 5, source=source)
    trace.ranks[1].collective("world", "all_reduce", 3, 9, source=source)
    return trace


def row_of(trace: Trace) -> CollectiveRow:
    (row,) = collectives(View(trace.store(), None))
    return row


def test_a_polled_completion_bounds_the_transfer_and_is_no_bandwidth() -> None:
    """From the last arrival (3) to the last poll that saw it (9): at most 6 ms."""
    row = row_of(one_all_reduce(Flag.DONE_POLLED))
    assert (row.transfer_ns, row.transfer_most_ns, row.busbw_gbps) == (None, 6 * MS, None)
    assert (row.skew_ns, row.last_rank) == (2 * MS, 1)
    row = row_of(one_all_reduce(Flag.DONE_COMPLETED))
    assert (row.transfer_ns, row.transfer_most_ns) == (6 * MS, None)


def test_hosts_that_run_ahead_have_no_last_one() -> None:
    row = row_of(on_device(one_all_reduce(Flag.DONE_POLLED)))
    assert (row.skew_ns, row.wait_ns, row.last_rank) == (None, None, None)
    assert (row.transfer_ns, row.transfer_most_ns) == (None, 6 * MS)
    assert [a.issued_ns is not None for a in row.arrivals] == [True, True]


def test_an_op_by_the_hosts_clock_says_so_beside_devices_times() -> None:
    """Each rank's step is on the device from 10 to 20 ms; the op's times are its launch's."""
    plain, trace = one_all_reduce(Flag.DONE_COMPLETED), one_all_reduce(Flag.DONE_COMPLETED)
    for proc in on_device(trace).ranks:
        proc.record(wire.Kind.STEP, 1, 2, lane=Lane.STEP, flags=Flag.DEVICE)
        proc.record(wire.Kind.DEVICE, 10, 20, lane=Lane.STEP, a=9 * MS)
    assert times(View(trace.store(), None)) == "device"
    assert row_of(trace).detail == f"host: {row_of(plain).detail}"


def test_a_message_that_a_poll_saw_has_no_transfer() -> None:
    trace = Trace(2)
    for proc, peer, send in ((trace.ranks[0], 1, True), (trace.ranks[1], 0, False)):
        flags = Flag.P2P | (Flag.SEND if send else 0)
        common = {"seq": 0, "group_id": proc.group("world"), "peer": peer, "a": 9, "b": 9}
        op = proc.op("send" if send else "recv")
        proc.record(wire.Kind.OP_ISSUE, 1, 1.1, op, flags=flags, **common)
        proc.record(wire.Kind.OP_DONE, 1, 5, op, flags=flags | Flag.DONE_POLLED, **common)
    (row,) = p2p_rows(View(trace.store(), None))
    assert (row.verdict, row.transfer_ns, row.moving_ns, row.polled) == (
        "matched", None, 4 * MS, True,
    )  # fmt: skip


SLOW: dict[str, Callable[[], Trace]] = {
    "straggler": lambda: data_parallel(Trace(4), {2: {"forward": 30}}),
    "group": lambda: dp_groups(4, 2, 30),
    "pipeline": lambda: pipeline((2, 8)),
}


@pytest.mark.parametrize("name", SLOW)
def test_nobody_is_blamed_by_the_order_of_hosts(name: str) -> None:
    assert findings(View(SLOW[name]().store(), None))
    assert findings(View(on_device(SLOW[name]()).store(), None)) == ()


def test_launches_have_no_bubble() -> None:
    view = View(two_ranks().store(), None)
    host = pipeline_view(view)
    assert host is not None and host.bubble_history and not host.times
    assert isinstance(whatif(view), WhatIf)
    view = View(on_device(two_ranks()).store(), None)
    shown = pipeline_view(view)
    assert shown is not None and shown.step is not None and shown.times == "host"
    assert (shown.step.bubble_fraction, shown.step.implied_fraction) == (None, None)
    assert shown.step.bound_fraction == host.step.bound_fraction if host.step else False
    assert shown.bubble_history == ()
    assert [rank.idles for rank in shown.step.ranks] == [(), ()]
    assert [[a.text for a in rank.actions] for rank in shown.step.ranks] == [
        [a.text for a in rank.actions] for rank in (host.step.ranks if host.step else ())
    ]
    assert [one.bubble_fraction for one in pipeline_names(view)] == [None]
    assert isinstance(whatif(view), str)


def test_the_report_says_whose_times_they_are() -> None:
    for trace, whose in ((two_ranks(), ""), (on_device(two_ranks()), "host")):
        said = as_json(report(trace.store()))
        VALIDATOR.validate(said)
        assert said["run"]["times"] == whose
        assert (said["pipeline"]["bubble_fraction"] is None) == (whose == "host")
        assert (said["pipeline"]["stages"] == []) == (whose == "host")


@pytest.mark.parametrize("name", sorted(name for name, m in METRICS.items() if m.of_speed))
def test_no_check_of_speed_passes_by_the_hosts_clock(name: str) -> None:
    units = {"time": "h", "fraction": "%", "rate": "GB/s"}
    which = {"phase": "[forward]", "idle": "[host]"}.get(name, "")
    checks = [parse(f"{name}{which}<{10**6}{units[METRICS[name].unit]}"), parse("ranks==2")]
    of_speed, other = run(on_device(two_ranks()).store(), checks)
    assert (of_speed.ok, of_speed.measured) == (False, None)
    assert other.ok


@pytest.mark.parametrize(
    ("gap", "whose"),
    [
        ([1, 2], "device"), ([90, 0], "device"),
        ([1, 50], "host"), ([25, 0], "host"), ([30, 45], "host"),
    ],
)  # fmt: skip
def test_rows_of_a_lower_level_are_not_taken_for_the_devices(gap: list[int], whose: str) -> None:
    """A step on the device from 10 to 20 ms, one of level summary until 40. Level off before the
    first of them has no rows; what comes after the last is not there yet."""
    trace = on_device(Trace(1))
    (proc,) = trace.ranks
    proc.record(wire.Kind.STEP, 1, 2, lane=Lane.STEP, flags=Flag.DEVICE)
    proc.record(wire.Kind.DEVICE, 10, 20, lane=Lane.STEP, a=9 * MS)
    proc.record(wire.Kind.STEP, 30, 40, lane=Lane.STEP, step=1)
    gaps = [[ns(gap[0]), gap[1] and ns(gap[1])]]
    proc.define(wire.DefKind.PROCESS, proc=proc.proc, rank=proc.rank, unrecorded=gaps)
    assert times(View(trace.store(), None)) == whose


def test_launches_of_whatever_step_lie_beside_the_devices_times() -> None:
    """Launched at ms 1 and 2, run from 10 to 40; the next step's forward is launched at 12."""
    trace = on_device(Trace(1))
    trace.plan("Schedule1F1B", {0: ["0F0", "0B0"]}, 1)
    (proc,) = trace.ranks
    common = {"lane": Lane.COMPUTE, "stage": 0, "mb": 0}
    for kind, t0, begin, end in (("F", 1, 10, 20), ("B", 2, 20, 40)):
        proc.record(wire.Kind.ACTION, t0, t0 + 1, proc.name(kind), flags=Flag.DEVICE, **common)
        proc.record(wire.Kind.DEVICE, begin, end, proc.name(kind), a=(begin - t0) * MS, **common)
    proc.record(wire.Kind.ACTION, 12, 13, proc.name("F"), flags=Flag.DEVICE, step=1, **common)
    shown = pipeline_view(View(trace.store(), None))
    assert shown is not None and shown.times == "device" and shown.step is not None
    assert [(a.text, a.t0_ns) for a in shown.step.ranks[0].actions] == [
        ("0F0", ns(10)), ("0B0", ns(20)),
    ]  # fmt: skip
    assert [(a.text, a.t0_ns) for a in shown.launches[0]] == [("0F0", ns(12))]
    shown = pipeline_view(View(two_ranks().store(), None))
    assert shown is not None and shown.launches == {}
