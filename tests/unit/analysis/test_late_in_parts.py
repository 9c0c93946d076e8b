"""Ranks that are late to many collectives of a step of 100 ms, on traces typed in by hand."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.analysis.test_findings_speed import STEPS, one, sync, without_load
from tests.unit.facts import facts
from tests.unit.trace_builder import MS, Trace


def in_parts(late: Callable[[int, int], float]) -> Trace:
    """Eight times a step of 100 ms: 6 ms of forward, then an all_reduce that is done 1 ms after the
    last has come, 12 ms after the one before. ``late(rank, op)``: ms more of forward."""
    trace = Trace(3)
    for step in range(STEPS):
        for op in range(8):
            begin = 100.0 * step + 12 * op
            came = [begin + 6 + late(rank, op) for rank in range(3)]
            for proc, at in zip(trace.ranks, came, strict=True):
                proc.phase("forward", begin, at, step)
                sync(proc, at, max(came) + 1, step)
                proc.phase("forward", max(came) + 1, begin + 12, step)
        for proc in trace.ranks:
            proc.step(step, 100.0 * step, 100.0 * step + 100)
    return trace


def test_a_little_late_to_each_of_many_ops_is_late() -> None:
    """As in tensor parallelism: 4 ms of 100 are nothing, eight times 4 ms are."""
    finding = one(in_parts(lambda rank, op: 4.0 * (rank == 1)), "straggler")
    assert finding.culprits == (1,) and finding.ranks == (0, 2)
    assert facts(finding, "num_late", "num_steps", "by_ns") == (12, 12, 32 * MS)
    assert facts(finding, "cause", "cause_ns") == ("compute", 32 * MS)
    assert finding.cost_ns_per_step == 32 * MS


def test_ranks_that_are_late_in_turn_disturb_each_other() -> None:
    assert without_load(in_parts(lambda rank, op: 4.0 * (rank == op % 3))) == []


def test_one_delay_at_many_ops_counts_once() -> None:
    """Rank 1 is 6 ms late to four asynchronous ops, and nobody waits for one before 50."""
    trace = Trace(3)
    for step in range(STEPS):
        begin = 100.0 * step
        for proc in trace.ranks:
            for op in range(4):
                at = begin + 10 + 10 * op + 6 * (proc.rank == 1)
                proc.collective("world", "all_reduce", at, begin + 50, 1000, step=step)
            proc.wait(begin + 50, begin + 51, step, p2p=False)
            proc.step(step, begin, begin + 100)
    assert without_load(trace) == []
