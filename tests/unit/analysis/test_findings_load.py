"""What the host's load explains, and for how long."""

from __future__ import annotations

import pytest

from tests.unit.analysis.test_findings_speed import STEPS, data_parallel, found, one, sync
from tests.unit.facts import facts
from tests.unit.trace_builder import MS, Trace


@pytest.mark.parametrize(
    ("load", "severity"), [(100, "warning"), (140, "warning"), (150, "info"), (400, "info")]
)
def test_host_code_that_is_late_on_an_overloaded_host_is_a_note(load: int, severity: str) -> None:
    """30 ms, and nothing is known of the time without a core: where three threads want two cores,
    it may be that."""
    trace = data_parallel(Trace(3), {1: {"host": 30}})
    trace.state(100 * STEPS, **{p.proc: {"load": load} for p in trace.ranks})
    finding = one(trace, "straggler")
    assert (finding.severity, finding.culprits) == (severity, (1,))
    assert facts(finding, "cause") == "host"


@pytest.mark.parametrize(("begins", "severity"), [(1, "warning"), (8, "info"), (14, "info")])
def test_what_a_load_made_late_is_its_doing_after_it_has_gone(begins: int, severity: str) -> None:
    """A load of four threads per core, from this step on for two; the last twelve are judged."""
    trace = data_parallel(Trace(3), {1: {"host": 30}})
    for step, load in ((0, 50), (begins, 400), (begins + 2, 120)):
        trace.state(100 * step, **{p.proc: {"load": load} for p in trace.ranks})
    finding = one(trace, "straggler")
    assert (finding.severity, finding.culprits) == (severity, (1,))


def test_an_overloaded_host_is_a_finding() -> None:
    """Four threads want each core. What data make late stays a warning."""
    trace = data_parallel(Trace(3), {1: {"data": 30}})
    trace.state(100 * STEPS, **{p.proc: {"load": 400} for p in trace.ranks})
    kinds = {f.kind: f for f in found(trace)}
    assert set(kinds) == {"host-overloaded", "straggler"}
    finding = kinds["host-overloaded"]
    assert (finding.severity, finding.culprits, finding.ranks) == ("info", (), (0, 1, 2))
    assert facts(finding, "num_ranks", "load") == (3, 4.0)
    assert kinds["straggler"].severity == "warning"


@pytest.mark.parametrize(("load", "severity"), [(100, "warning"), (400, "info")])
def test_waits_that_are_longer_on_an_overloaded_host_are_a_note(load: int, severity: str) -> None:
    """An op before is over for rank 1 30 ms later than for the others: its backend's threads want
    cores, too."""
    trace = Trace(3)
    for step in range(STEPS):
        begin = 100.0 * step
        for proc in trace.ranks:
            late = 30 * (proc.rank == 1)
            sync(proc, begin + 10, begin + 12 + late, step)
            sync(proc, begin + 20 + late, begin + 60, step)
            proc.step(step, begin, begin + 90)
    trace.state(100 * STEPS, **{p.proc: {"load": load} for p in trace.ranks})
    finding = one(trace, "straggler")
    assert (finding.severity, finding.culprits) == (severity, (1,))
    assert facts(finding, "cause") == "communication"


@pytest.mark.parametrize(("more", "severity"), [(0, "info"), (14, "info"), (30, "warning")])
def test_compute_that_a_rank_has_no_more_of_on_an_overloaded_host_is_a_note(
    more: int, severity: str
) -> None:
    """Its forward takes 30 ms longer by the clock, and runs for so many ms longer: what runs beside
    it takes the rest. No longer ready without a core: a core that two threads share counts as
    one."""
    trace = data_parallel(Trace(3), {1: {"forward": 30}})
    for step in range(STEPS + 1):
        ran = {p.proc: (52 + more * (p.rank == 1)) * MS * step for p in trace.ranks}
        trace.state(100 * step, **{
            proc: {"load": 400, "scheduled": [ns, 10 * MS * step]} for proc, ns in ran.items()
        })  # fmt: skip
    finding = one(trace, "straggler")
    assert (finding.severity, finding.culprits) == (severity, (1,))
    assert facts(finding, "cause") == "compute"
