"""Two runs by step: the same place of the same step, whatever each took."""

from __future__ import annotations

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.render.draw.cells import plain
from pardbg.render.frame.beside import between, differences
from pardbg.session.navigation.replay import Aligned, aligned, place_on_steps
from pardbg.store.store import Store
from tests.unit.trace_builder import Trace, ns


def run(first: int, steps: int, each: float, begin: float = 0) -> Store:
    """Steps ``first`` to ``first + steps - 1`` of ``each`` ms, from ``begin`` on."""
    trace = Trace(2)
    for at in range(steps):
        for proc in trace.ranks:
            t0 = begin + at * each
            proc.phase("forward", t0, t0 + each / 2, first + at)
            proc.memory("rss", t0 + each / 2, round(each) << 20)
            proc.step(first + at, t0, t0 + each)
    return trace.store()


def test_a_place_in_a_step_is_the_same_place_in_the_other_runs_step() -> None:
    """100 ms steps beside 150 ms ones that begin at 40: 30 % into step 3 is 345 + 40 - … = 40 +
    3 · 150 + 0.3 · 150 = 535 ms."""
    ours, theirs = run(0, 6, 100), run(0, 6, 150, begin=40)
    assert aligned(ours, ns(330), theirs) == Aligned(ns(535), "step 3")
    assert aligned(ours, ns(400), theirs) == Aligned(ns(640), "step 3"), "a step's end is its end"
    assert aligned(theirs, ns(535), ours) == Aligned(ns(330), "step 3"), "and back"


def test_steps_that_the_other_run_has_not_are_said() -> None:
    ours, theirs = run(0, 6, 100), run(2, 2, 100)
    assert aligned(ours, ns(50), theirs) == Aligned(ns(100), "step 2", "it has no step 0")
    assert aligned(ours, ns(590), theirs) == Aligned(ns(200), "step 3", "it has no step 5")


def test_without_steps_the_time_from_the_begin_counts() -> None:
    trace = Trace(1)
    trace.ranks[0].phase("forward", 0, 500)
    assert aligned(run(0, 2, 100), ns(120), trace.store()) == Aligned(ns(120), "time")
    assert aligned(trace.store(), ns(9999), run(0, 2, 100)).t_ns == ns(200), "its end at most"


def test_differences_are_marked_by_sign_and_said_in_figures() -> None:
    """100 → 150 ms a step: +50 %. 100 → 150 MiB, too."""
    ours, theirs = snapshot(run(0, 3, 100), None), snapshot(run(0, 3, 150), None)
    said = [plain(part) for part in differences(ours, theirs)]
    assert said == ["step 100 ms → 150 ms ▲ +50.0%", "memory 100 MiB → 150 MiB ▲ +50.0%"]
    back = [plain(part) for part in differences(theirs, ours)]
    assert back[0] == "step 150 ms → 100 ms ▼ −33.3%"
    same = [plain(part) for part in differences(ours, ours)]
    assert same[0] == "step 100 ms ≈ 100 ms"
    text = plain(between(ours, theirs, "slow.mcap", "step 2", "", 100))
    assert text.startswith("── B slow.mcap at step 2  step 100 ms → 150 ms") and len(text) == 100


def test_a_time_has_a_place_on_the_axis_of_steps() -> None:
    """Steps 2 to 4 of 100 ms, from 40 ms on: 165 ms is a quarter into step 3."""
    store = run(2, 3, 100, begin=40)
    assert place_on_steps(store, ns(165)) == 3.25
    assert place_on_steps(store, ns(39)) is None, "before the first one"
    assert place_on_steps(store, ns(9999)) == 5, "the end of the last"
    assert place_on_steps(Trace(1).store(), ns(5)) is None, "nobody counts"
