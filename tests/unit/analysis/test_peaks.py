"""Where a rank's most activations were, and who waited for whom: times in ms, by hand."""

from __future__ import annotations

from pardbg.analysis.answers.report import as_json, report
from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.pipeline.critical_path import MicrobatchWait
from pardbg.analysis.pipeline.in_flight import peaks
from pardbg.render.pages.memory import memory
from pardbg.render.reports.text import text
from tests.unit.trace_builder import MS, Trace, one_f_one_b

ROWS = {
    0: [("0F0", 0, 1), ("0F1", 1, 2), ("0B0", 4, 6), ("0B1", 7, 9)],
    1: [("1F0", 1, 2), ("1B0", 2, 4), ("1F1", 4, 5), ("1B1", 5, 7)],
}
"""1F1B of two stages and two microbatches. Rank 0 waits for 1B0 from 2 to 4 and for 1B1 from 6 to
7; rank 1 never waits once it has begun."""


def two_stages(*, split: bool = False) -> Trace:
    trace = Trace(2)
    trace.plan("Schedule1F1B", one_f_one_b(2, 2), 2)
    for step in range(2):
        for proc in trace.ranks:
            for action, t0, t1 in ROWS[proc.rank or 0]:
                begin = 10.0 * step
                kind = action.replace("B", "I") if split else action
                proc.action(kind, begin + t0, begin + t1 - 0.5 * split, step)
                if split and "B" in action:
                    proc.action(action.replace("B", "W"), begin + t1 - 0.5, begin + t1, step)
            proc.memory("rss", 10 * step + 9, 1 << 20)
            proc.step(step, 10 * step, 10 * step + 9.5)
    return trace


def test_the_forward_that_makes_the_peak_is_named() -> None:
    """Rank 0 has 0F0 and 0F1 in flight from 2 ms on; rank 1 never more than one."""
    last = snapshot(two_stages().store(), None).pipeline
    assert last is not None and last.last_complete is not None
    found = peaks(last.last_complete)
    assert [(rank, p.action, p.in_flight) for rank, p in found.items()] == [
        (0, "0F1", ("0F0", "0F1")), (1, "1F0", ("1F0",)),
    ]  # fmt: skip
    assert found[0].text == ("peak after 0F1 of step 1: 2 microbatches in flight (0F0 … 0F1)")


def test_a_split_backward_keeps_its_activations_until_w() -> None:
    """As above: each W ends where the B did, before the next forward ends."""
    last = snapshot(two_stages(split=True).store(), None).pipeline
    assert last is not None and last.last_complete is not None
    assert [(p.action, len(p.in_flight)) for p in peaks(last.last_complete).values()] == [
        ("0F1", 2), ("1F0", 1),
    ]  # fmt: skip


def test_the_report_says_who_waited_for_whom_and_where_the_peak_was() -> None:
    made = report(two_stages().store())
    said = as_json(made)
    assert said["pipeline"]["waits"] == [
        {"rank": 0, "action": "0B0", "producer": "1B0", "producer_rank": 1, "wait_ns": 2 * MS,
         "num_steps": 2},
        {"rank": 0, "action": "0B1", "producer": "1B1", "producer_rank": 1, "wait_ns": 1 * MS,
         "num_steps": 2},
    ]  # fmt: skip
    lines = text(made).splitlines()
    assert "longest waits of a step: rank 0's 0B0 2 ms for 1B0 on rank 1" in lines
    assert "most in flight (step 1): rank 0 after 0F1 (2), rank 1 after 1F0 (1)" in lines
    assert MicrobatchWait(**said["pipeline"]["waits"][0]).producer == "1B0"


def test_the_memory_page_says_where_the_peak_was() -> None:
    made = snapshot(two_stages().store(), None)
    assert made.pipeline is not None and made.pipeline.last_complete is not None
    picture = memory(made, 150, 40, peaks=peaks(made.pipeline.last_complete))
    shown = ["".join(run.text for run in line) for line in picture.body]
    assert any("peak after 0F1 of step 1: 2 microbatches in flight" in line for line in shown)
