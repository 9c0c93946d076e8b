"""Checks: strict grammar, values worked out by hand, and what is missing fails."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from pardbg.analysis.answers.checks import parse, run, show
from pardbg.analysis.answers.metrics import METRICS
from pardbg.errors import UserError
from pardbg.render.reports.verdicts import check_lines, junit, metric_list
from pardbg.store.store import Store
from tests.unit.analysis.same import captured
from tests.unit.analysis.test_schedule import two_ranks
from tests.unit.trace_builder import Trace


def steps_of(*durations: float, held: bool = False) -> Store:
    """One rank's steps, ms; with ``held`` the debugger held the last one."""
    trace = Trace(2)
    for proc in trace.ranks:
        begin = 0.0
        for step, length in enumerate(durations):
            proc.step(step, begin, begin + length)
            proc.phase("data", begin, begin + length / 4, step)
            # rank 1 arrives 1 ms after rank 0; both complete 2 ms after rank 1
            proc.collective("world", "all_reduce", begin + (proc.rank or 0), begin + 3, 2_000_000,
                            step=step)  # fmt: skip
            proc.metric("loss", begin + length, 5.0 - step, step)
            begin += length
        if held:
            proc.held(begin - 1, begin)
        proc.memory("rss", begin, 100 << 20)
    trace.end(500)
    return trace.store()


def measured(store: Store, text: str, skip: int = 0) -> tuple[bool, float | None]:
    (result,) = run(store, [parse(text)], skip)
    return result.ok, result.measured


@pytest.mark.parametrize(
    ("text", "ok", "value"),
    [
        ("step<50ms", True, 30e6),  # the median of 10, 20, 30, 40, 100
        ("step_ms<50", True, 30e6),
        ("step_us.max<=100000us", True, 100e6),
        ("step.p50 < 0.03s", False, 30e6),
        ("step<=0.03s", True, 30e6),
        ("step.mean==40ms", True, 40e6),
        # between the 4th (40) and the 5th (100): place 4 * 0.95 = 3.8 -> 40 + 0.8 * 60
        ("step.p95<89ms", True, 88e6),
        ("step.first>10ms", False, 10e6),
        ("step.count>=5", True, 5),
        ("steps==5", True, 5),
        ("phase[data].max<=25ms", True, 25e6),
        ("skew<5ms", True, 1e6),
        ("skew[all_reduce]<1ms", False, 1e6),
        ("skew[world/all_reduce].max<=1ms", True, 1e6),
        ("transfer.max<=2ms", True, 2e6),
        # 2 (n-1)/n = 1 for two ranks; 2 MB in 2 ms
        ("busbw>=1GB/s", True, 1.0),
        ("busbw>999MB/s", True, 1.0),
        ("memory<=100MiB", True, 100 << 20),
        ("memory[rss]<105MB", True, 100 << 20),
        ("loss<2", True, 1.0),
        ("loss.first<2", False, 5.0),
        ("ranks!=2", False, 2),
        ("exit_code==0", True, 0),
        ("no-mismatch", True, 0),
        ("no-missing", True, 0),
        ("no-drops", True, 0),
        ("no-findings:error", True, 0),
    ],
)
def test_checks(text: str, ok: bool, value: float) -> None:
    store = steps_of(10, 20, 30, 40, 100)
    found, number = measured(store, text)
    assert number == pytest.approx(value)
    assert found is ok


def test_first_steps_and_held_ones_can_be_left_out() -> None:
    assert measured(steps_of(900, 20, 30), "step.max<50ms", skip=1) == (True, 30e6)
    assert measured(steps_of(10, 20, 90, held=True), "step.max<50ms") == (True, 20e6)
    # all were held: then all count, less the 1 ms that each was held
    assert measured(steps_of(90, held=True), "step.max<50ms") == (False, 89e6)


@pytest.mark.parametrize(
    "text", ["bubble<99%", "busbw[broadcast]>0GB/s", "idle[nothing]<99%", "memory[gradients]<9GB"]
)
def test_what_the_session_lacks_fails(text: str) -> None:
    (result,) = run(steps_of(10, 20), [parse(text)])
    assert not result.ok and result.measured is None
    assert result.text.startswith("this session has no ")


def test_a_bubble_that_is_just_at_its_limit() -> None:
    # two_ranks: 0.4 of the window is idle, and 40 % is not exact in binary
    store = two_ranks().store()
    assert measured(store, "bubble<=40%") == (True, pytest.approx(0.4))
    assert measured(store, "bubble<40%")[0] is False
    assert measured(store, "bubble==40%")[0] is True
    # the causes add up to it
    causes = ("warmup", "dependency", "communication", "host", "cooldown")
    shares = [measured(store, f"idle[{cause}]<=40%")[1] for cause in causes]
    assert sum(share or 0 for share in shares) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bubble<12", "needs a unit: %"),
        ("bubble<12ms", "no unit 'ms' for bubble"),
        ("step<4", "needs a unit: ns"),
        ("step_ms<4s", "two units"),
        ("loss_ms<4", "is not a time"),
        ("speed<4", "no metric 'speed'"),
        ("step.p0<4ms", "no aggregate 'p0'"),
        ("step.p100<4ms", "no aggregate 'p100'"),
        ("step.count<4ms", "plain number"),
        ("step[x]<4ms", "nothing to select"),
        ("phase<4ms", "say which one"),
        ("no-bugs", "no check 'no-bugs'"),
        ("no-mismatch:error", "takes no 'error'"),
        ("no-findings:bad", "no severity 'bad'"),
        ("findings[typo]==0", "no severity 'typo'"),
        ("step<4ms; rm", "cannot read"),
        ("step=4ms", "cannot read"),
        ("step<nan ms", "cannot read"),
        ("", "cannot read"),
        ("x" * 300, "300 characters"),
    ],
)
def test_what_is_no_check(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        parse(text)
    assert "\n" not in str(error.value)


def test_a_line_each_and_junit() -> None:
    results = run(steps_of(10, 20), [parse(t) for t in ("step<1s", "bubble<9%")])
    assert check_lines(results) == [
        "ok    step<1s    measured 15 ms (p50 of 2 steps)",
        "FAIL  bubble<9%  this session has no bubble",
    ]
    suite = ElementTree.fromstring(junit(results, 'a"<b>.mcap'))[0]
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert suite[0].find("failure") is None
    failure = suite[1].find("failure")
    assert failure is not None and failure.get("message") == "this session has no bubble"
    assert [case.get("name") for case in suite] == ["step<1s", "bubble<9%"]


def test_values_in_words_and_the_list() -> None:
    assert [show(0.1234, "fraction"), show(3.5, "number"), show(float("nan"), "number")] == [
        "12.34%", "3.5", "NaN",
    ]  # fmt: skip
    assert "step.p95" in metric_list() and "busbw[…]" in metric_list()


def test_every_metric_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "check.md").read_text(encoding="utf-8")
    for metric in METRICS.values():
        assert f"| `{metric.name}{'[…]' if metric.filter else ''}` |" in page
        assert metric.doc in page


@pytest.mark.parametrize(("by", "ok"), [(1.0, True), (2.0, False)])
def test_the_same_computation_as_a_references(by: float, ok: bool) -> None:
    made = captured.changed(captured.run(2, 3), lambda grad: grad * by)
    store = made.store()
    store.reference = captured.run().store()
    (result,) = run(store, [parse("same<10floors")])
    assert result.ok is ok and result.measured is not None
    assert (result.measured < 1) is ok


def test_what_cannot_be_compared_fails_and_replicas_need_no_reference() -> None:
    check = parse("same<10floors")
    other = captured.run()
    other.inputs = {0: [99]}
    for reference in (other.store(), captured.run(steps=0).store()):
        store = captured.run(2, 3).store()
        store.reference = reference
        (result,) = run(store, [check])
        assert not result.ok and result.measured is None
    (alone,) = run(captured.run(2, 3).store(), [check])
    assert alone.ok and alone.measured == 0
