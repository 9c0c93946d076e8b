"""What NCCL printed, in traffic, findings and the report."""

from __future__ import annotations

import pytest

from pardbg.analysis.answers.report import as_json, report
from pardbg.analysis.base.asof import View
from pardbg.analysis.comm.traffic import traffic_view
from pardbg.analysis.findings.arbiter import decided
from pardbg.analysis.findings.finding import Candidate
from pardbg.analysis.findings.reported import (
    devices,
    nccl_warnings,
    ras_status,
    readings,
    shared_devices,
)
from pardbg.events.control_events import ControlEvent
from pardbg.events.control_facts import (
    Fact,
)
from pardbg.events.device_facts import DeviceNews, Ras, RasRow
from pardbg.render.reports.text import text
from pardbg_agent import wire
from tests.report_schema import VALIDATOR
from tests.unit.analysis.finding_samples import straggler as straggler_of
from tests.unit.nccl.test_readers import debug_lines
from tests.unit.trace_builder import Trace


def trace(order: list[int] | None) -> Trace:
    """Four ranks, an all_reduce of 4000 bytes each; NCCL's ring, if it says."""
    made = Trace(4)
    if order is not None:
        for line in debug_lines(order):
            made.output(1, line)
    for proc in made.ranks:
        proc.collective("world", "all_reduce", 10, 12, 4000)
        proc.step(0, 0, 20)
    return made


def edges(made: Trace) -> set[tuple[int, int]]:
    return {(edge.src, edge.dst) for edge in traffic_view(View(made.store(), None)).edges}


def test_bytes_are_modelled_along_the_ring_that_nccl_made() -> None:
    assert edges(trace(None)) == {(0, 1), (1, 2), (2, 3), (3, 0)}
    assert edges(trace([0, 2, 1, 3])) == {(0, 2), (2, 1), (1, 3), (3, 0)}


def test_the_report_says_what_nccl_said_and_nothing_without() -> None:
    made = trace([0, 2, 1, 3])
    made.output(2, "n0:1:1 [0] NCCL INFO AllReduce: 4000 Bytes -> Algo RING proto LL "
                "channel{Lo..Hi}={0..1}")  # fmt: skip
    made.define(
        wire.DefKind.NOTE, key="nccl_inspector",
        value=[["world", "AllReduce", 4000, True, 12, 31_000, 0.2]],
    )  # fmt: skip
    told(made, 3, DeviceNews("n0", 3, "H100", (3,), (), 1980, 1980, 60, 97, 690_000, 700_000))
    found = report(made.store())
    said = as_json(found)["nccl"]
    VALIDATOR.validate(as_json(found))
    [comm] = said["communicators"]
    assert comm["ranks"] == [0, 1, 2, 3] and comm["global_ranks"]
    assert comm["rings"][0] == [0, 2, 1, 3]
    assert [choice["algorithm"] for choice, _ in said["choices"]] == ["RING"]
    assert [op["duration_ns"] for op in said["inspected"]] == [31_000]
    assert [one["celsius"] for one in as_json(found)["devices"]] == [60]
    assert "0→2→1→3" in text(found) and "690 of 700 W" in text(found)
    without = report(trace(None).store())
    assert as_json(without)["nccl"] is None and "NCCL" not in text(without)


def test_warnings_that_differ_in_numbers_are_one_finding() -> None:
    made = trace(None)
    for rank in (1, 2):
        made.output(5 + rank, f"n0:{100 + rank}:9 [0] NCCL WARN NET/IB : Got completion "
                    f"from peer 10.0.0.{rank} with status=12")  # fmt: skip
    [found] = nccl_warnings(View(made.store(), None))
    assert found.ranks == (1, 2)


def test_a_warning_is_of_the_process_on_its_own_host() -> None:
    made = Trace(0, {"world": (0, 1)})
    made.ranks = [made.process(rank, pid=100, host=f"n{rank}") for rank in range(2)]
    made.output(5, "n1:100:9 [0] NCCL WARN Cuda failure 'out of memory'")
    made.output(6, "n7:100:9 [0] NCCL WARN another host")
    first, other = nccl_warnings(View(made.store(), None))
    assert (first.ranks, other.ranks) == ((1,), ())


def told(made: Trace, t: float, fact: Fact) -> None:
    fields = {k: v for k, v in ControlEvent(fact).plain().items() if k not in ("n", "t_ns")}
    made.hub(wire.Key.CONTROL, t, **fields)


def test_ras_and_devices_are_findings_while_they_hold() -> None:
    made = trace(None)
    told(made, 30, Ras("2.28.9", 1, (RasRow("0xab", "unresponsive", (2,), True),)))
    told(made, 31, DeviceNews("n0", 3, "H100", (3,), ("hot",), 1005, 1980, 91, ecc_errors=2))
    view = View(made.store(), None)
    [status] = ras_status(view)
    assert status.ranks == (2,) and status.facts.severity() == "warning"
    assert [one.kind for one in devices(view)] == ["device-throttled", "device-error"]
    assert {one.culprits for one in devices(view)} == {(3,)}
    told(made, 40, DeviceNews("n0", 3, "H100", (3,), (), 1980, 1980, 60, ecc_errors=2))
    assert [one.kind for one in devices(View(made.store(), None))] == ["device-error"]


@pytest.mark.parametrize(("ranks", "told_of"), [((3,), set()), ((), {4})])
def test_a_device_of_another_job_is_not_told(ranks: tuple[int, ...], told_of: set[int]) -> None:
    """Of two devices of a host the second one is hot and has no rank on it. In a container no rank
    is known by its pid: then it may be the job's."""
    made = trace(None)
    told(made, 30, DeviceNews("n0", 3, "H100", ranks, (), 1980, 1980, 60))
    told(made, 31, DeviceNews("n0", 4, "H100", (), ("hot",), 1005, 1980, 91))
    found = list(devices(View(made.store(), None)))
    assert {getattr(one.facts, "index", None) for one in found} == told_of


def test_a_reading_is_of_a_device_while_ranks_are_on_it() -> None:
    made = trace(None)
    told(made, 30, DeviceNews("n0", 3, "H100", (), (), 345, 1980, 30))
    assert readings(View(made.store(), None))["n0", 3][1].clock_mhz == 345
    told(made, 31, DeviceNews("n0", 3, "H100", (3,), (), 1005, 1980, 91))
    told(made, 40, DeviceNews("n0", 3, "H100", (), (), 345, 1980, 60))
    assert readings(View(made.store(), None))["n0", 3][1].ranks == (3,)


def test_ranks_on_one_device_are_told_and_no_straggler_is_one_by_itself() -> None:
    made = Trace(0, {"world": (0, 1, 2)})
    for rank in range(3):
        made.process(rank).define(
            wire.DefKind.PROCESS, proc=f"0.host.{100 + rank}", rank=rank, world_size=None, pid=1,
            host="host", epoch=0, start_ns=1, wall_ns=0, device="cuda",
            device_id="GPU-a" if rank < 2 else "GPU-b",
        )  # fmt: skip
    [found] = shared_devices(View(made.store(), None))
    assert found.kind == "device-shared" and found.ranks == (0, 1)
    for culprit, severity in ((1, "info"), (2, "warning")):
        late = Candidate(
            kind="straggler", ranks=(culprit,), culprits=(culprit,), t_ns=1,
            facts=straggler_of("compute", (culprit,)),
        )  # fmt: skip
        severities = {one.kind: one.severity for one in decided([found, late])}
        assert severities == {"device-shared": "info", "straggler": severity}
