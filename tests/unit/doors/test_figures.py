"""The figures that are exported: bounds, clocks, names, the page and the dashboard about them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from opentelemetry.semconv._incubating.attributes import hw_attributes
from opentelemetry.semconv._incubating.metrics import hw_metrics
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pardbg.analysis.base.asof import View
from pardbg.doors.exporter import Exporter
from pardbg.doors.run_figures import (
    FAMILIES,
    MAX_LABEL,
    MAX_RANKS,
    MAX_SERIES,
    OWN,
    Row,
    figures,
    size_range,
)
from pardbg.events.control_events import ControlEvent
from pardbg.events.device_facts import DeviceNews
from pardbg.session.reader import load
from pardbg.store.store import Store
from pardbg_agent import wire
from tests.unit.trace_builder import Trace, ns, one_f_one_b

ROOT = Path(__file__).parents[3]
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "reduce")


def made(store: Store) -> dict[str, list[Row]]:
    return {family.name: list(rows) for family, rows in figures(View(store, None))}


def scraped(store: Store) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The series as Prometheus reads them."""
    exporter = Exporter.__new__(Exporter)
    exporter._store, exporter._made, exporter._made_s = store, (), 0.0
    exporter._make()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(exporter)
    found = [
        ((sample.name, tuple(sorted(sample.labels.items()))), sample.value)
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    ]
    series = dict(found)
    assert len(series) == len(found), "a series is there twice"
    return series


def crowd(ranks: int) -> Trace:
    """A run that has as many of everything as it can: groups, ops, sizes, phases, findings."""
    names = ["long" * 99 + end for end in "ab"] + [f"g{n}\n\"'" for n in range(12)]
    groups = {name: range(ranks) for name in (*names, "world")}
    trace = Trace(ranks, groups)
    trace.plan("1F1B", one_f_one_b(ranks, 4), 4)
    for proc in trace.ranks:
        late = proc.rank or 0
        for step in range(3):
            t = 100.0 * step
            for n in range(20):
                proc.phase(f"phase {n}", t + n, t + n + 1, step)
            for n, key in enumerate(groups):
                for m, op in enumerate(OPS):
                    at = t + 30 + n + m / 10
                    apart = late / (500 if "long" in key else 1000)  # costs most
                    proc.collective(key, op, at + apart, at + 0.5, 1 << (m + n), step=step)
            proc.metric("loss", t + 90, float("nan"), step)
            proc.memory("total", t + 91, 1000 + late)
            proc.memory("parameters", t + 91, 100)
            proc.step(step, t, t + 99, 1000)
    for number in range(40):
        proc = trace.ranks[number % ranks]
        proc.define(wire.DefKind.EXCEPTION, type=f"Error{number}", text="x", t_ns=ns(290))
    return trace


@pytest.mark.parametrize("ranks", [MAX_RANKS, MAX_RANKS + 2])
def test_series_are_bounded_whatever_the_job_does(ranks: int) -> None:
    store = crowd(ranks).store(live=True)
    series = scraped(store)
    assert 100 < len(series) <= MAX_SERIES
    assert sum(family.most for family in (*FAMILIES, *OWN)) <= MAX_SERIES
    stalled = [labels for name, labels in series if name == "pardbg_rank_stalled_seconds"]
    assert len(stalled) == min(ranks, MAX_RANKS)
    assert max(len(value) for _, labels in series for _, value in labels) == MAX_LABEL
    assert not [v for _, labels in series for _, v in labels if not v.isprintable()]
    for family, rows in figures(View(store, None)):
        assert len(rows) <= family.most
        assert {len(labels) for labels, _ in rows} == {len(family.labels)}


def test_figures_are_those_of_the_recording() -> None:
    found = made(load(ROOT / "sessions" / "1f1b.mcap"))
    (step,) = found["pardbg_step_seconds"]
    assert step == (("host",), pytest.approx(0.440674, abs=1e-5))
    bubbles = {labels[1]: value for labels, value in found["pardbg_bubble_ratio"]}
    assert bubbles["bound"] == pytest.approx(3 / 11) and bubbles["measured"] > bubbles["bound"]
    assert found["pardbg_step"] == [((), 8)]
    assert "pardbg_finding" not in found and found["pardbg_findings"][0] == (("error",), 0)


def test_a_finding_names_its_culprit() -> None:
    found = made(load(ROOT / "sessions" / "fault-missing-rank.mcap"))
    assert (("missing-rank", "error", "2"), 1) in found["pardbg_finding"]
    cycle = made(load(ROOT / "sessions" / "fault-p2p-cycle.mcap"))
    assert (("p2p-cycle", "error", "1-3"), 1) in cycle["pardbg_finding"]
    assert (("error",), 1) in found["pardbg_findings"]


def test_devices_have_the_names_of_opentelemetry() -> None:
    trace = Trace(2)
    trace.ranks[0].step(0, 0, 999)
    for index in range(9):
        news = DeviceNews("n0", index, "H100", (index,) if index != 2 else (), (), 1005, 1980, 61,
                          97, 690_500, 700_000, ecc_errors=3)  # fmt: skip
        plain = ControlEvent(news).plain()
        del plain["t_ns"]
        trace.hub(wire.Key.CONTROL, 100 + index, **plain)
    found = made(trace.store())
    utilization = found["hw_gpu_utilization_ratio"]
    assert [labels[1] for labels, _ in utilization] == [*"01345678"]  # 2 is not in use
    assert utilization[0] == (("n0", "0", "H100", "gpu", "general"), 0.97)
    assert found["hw_temperature_celsius"][0] == (("n0", "0", "H100", "temperature"), 61)
    assert found["hw_power_watts"][0] == (("n0", "0", "H100", "gpu"), 690.5)
    assert found["hw_errors_total"][0] == (("n0", "0", "H100", "gpu", "ecc_uncorrected"), 3)


def test_they_are_those_of_the_semantic_conventions() -> None:
    names = {value for name, value in vars(hw_metrics).items() if name.startswith("HW_")}
    keys = {value for name, value in vars(hw_attributes).items() if name.startswith("HW_")}
    of_devices = [family for family in FAMILIES if family.otel]
    assert len(of_devices) == 4 and {family.otel for family in of_devices} <= names
    labels = {label for family in of_devices for label in family.otlp_labels}
    assert labels - {"host.name", "error.type"} <= keys


def stands() -> Trace:
    """Rank 1 has not come to the all_reduce that rank 0 is in since ms 1000."""
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1000, None)
    trace.ranks[1].step(0, 0, 999)
    op = {"open_op": "all_reduce world #0", "open_since_ns": ns(1000), "heartbeat_ns": ns(5900)}
    states = {trace.ranks[0].proc: op, trace.ranks[1].proc: {"heartbeat_ns": ns(5900)}}
    trace.flush()
    trace.state(6000, **states)
    return trace


def test_a_rank_stalls_from_when_it_is_in_its_op() -> None:
    found = made(stands().store(live=True))
    stalled = {labels[0]: value for labels, value in found["pardbg_rank_stalled_seconds"]}
    assert stalled == {"0": 5.0, "1": 0.0}


def test_of_launches_no_duration_is_exported() -> None:
    trace = crowd(4)
    assert {"pardbg_step_seconds", "pardbg_bus_bandwidth_gbs"} <= made(trace.store()).keys()
    for proc in trace.ranks:
        proc.define(wire.DefKind.PROCESS, proc=proc.proc, rank=proc.rank, device="cuda")
    found = made(trace.store())
    assert not {family.name for family in FAMILIES if family.of_speed} & found.keys()
    ((labels, _),) = found["pardbg_run_info"]
    assert labels[-1] == "unknown"
    assert {"pardbg_memory_bytes", "pardbg_step", "pardbg_findings"} <= found.keys()


def test_of_nothing_nothing_is_said() -> None:
    found = made(Store(live=True))
    ((labels, _),) = found["pardbg_run_info"]
    assert labels[-1] == "unknown" and labels[-2] == ""
    assert not {"pardbg_step", "pardbg_loss", "pardbg_memory_bytes"} & found.keys()


def test_size_classes_are_written_as_the_inspector_writes_ranges() -> None:
    sizes = {1: "1-1B", 4: "2-4B", 1024: "512-1024B", 2048: "1-2KB", 1 << 21: "1-2MB",
             1 << 27: "64-128MB", 1 << 33: "4-8GB"}  # fmt: skip
    assert {size: size_range(size) for size in sizes} == sizes


def test_the_page_has_each_figure() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8").splitlines()
    for one in (*FAMILIES, *OWN):
        labels = ", ".join(f"`{label}`" for label in one.labels) or "–"
        row = f"| `{one.name}` | {one.kind} | {labels} | {one.most} | {one.meaning} |"
        assert row in page, row


def test_the_dashboard_asks_for_figures_that_there_are() -> None:
    dashboard = json.loads((ROOT / "docs" / "grafana.json").read_text("utf-8"))
    names = {family.name for family in (*FAMILIES, *OWN)}
    asked = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", ())]
    named = {name for expr in asked for name in re.findall(r"\b(?:pardbg|nccl)_\w+", expr)}
    assert len(asked) >= 10 and named <= names
    assert len(named) >= len(names) // 2
