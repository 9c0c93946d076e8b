"""What analysis keeps of a live run is bounded, however long the run is."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.base.asof import LIVE_MEMO_MAX, View
from pardbg.analysis.comm.matching import LAST, collectives
from pardbg.analysis.pipeline import pipeline_steps
from pardbg.analysis.pipeline.pipelines import layouts
from pardbg.store import Store
from pardbg.ui.engine.feed import Analysis
from tests.bench.bench_hours import Feed
from tests.unit.analysis.test_findings_speed import data_parallel
from tests.unit.trace_builder import Trace


def test_the_oldest_values_are_evicted() -> None:
    view = View(Store(), None)
    view.memo("kind", 16).update({n: n for n in range(17)})
    assert list(view.memo("kind", 16)) == list(range(3, 17))  # one beyond, and an eighth of 16


def test_a_live_run_keeps_as_many_values_after_twice_the_steps() -> None:
    """Of each of 1,200 steps there are closed values (collectives, phases); a frame comes every
    20th step, and adds those of its 200 collectives at most."""
    trace, store = Trace(2), Store(live=True)
    most = []
    for step in range(1200):
        for proc in trace.ranks:
            proc.phase("forward", step * 10, step * 10 + 6, step=step)
            proc.collective("world", "all_reduce", step * 10 + 6, step * 10 + 8, step=step)
            proc.step(step, step * 10, step * 10 + 9)
        if step % 20 == 19:
            store.apply_all(trace.flush().messages)
            trace.messages.clear()
            snapshot(store, None)
            most.append(max(len(values) for values in store.memo.values()))
    assert most[30] > LIVE_MEMO_MAX * 3 // 4 and max(most) <= LIVE_MEMO_MAX + LAST


def test_a_snapshot_leaves_no_view_to_the_collector() -> None:
    """Full collections are a minute apart: of many ranks that would be some 100 MB."""
    trace = data_parallel(Trace(4), {1: {"forward": 30}})
    store = trace.store()
    was = gc.isenabled()
    gc.disable()
    try:
        before = {id(one) for one in gc.get_objects() if isinstance(one, View)}
        assert snapshot(store, None).findings and Analysis().findings(store, None)
        assert {id(one) for one in gc.get_objects() if isinstance(one, View)} <= before
    finally:
        if was:
            gc.enable()


def test_a_live_run_keeps_few_large_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 stages, 8 microbatches: 128 actions a step; 70 steps have 8,960."""
    monkeypatch.setattr(pipeline_steps, "_KEPT_ACTIONS", 70 * 128)
    feed, store = Feed(), Store(live=True)
    store.apply_all(feed.definitions)
    for number in range(80):
        store.apply_all(feed.step(number))
        view = View(store, None)
        pipeline_steps.pipeline_step(view, layouts(view)[0], max(0, number - 1))
    assert 35 <= len(store.memo["pipeline"]) <= 71


def arrays(kept: Any) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(kept, np.ndarray):
        yield kept
    elif isinstance(kept, (Mapping, list, tuple)):
        for value in kept.values() if isinstance(kept, Mapping) else kept:
            yield from arrays(value)


def test_no_array_is_kept_of_every_moment() -> None:
    """10 frames, 5 s of a run: whatever is as long as a table is kept once of each, not a frame."""
    feed, store = Feed(), Store(live=True)
    store.apply_all(feed.definitions)
    for number in range(100):
        store.apply_all(feed.step(number))
        if number >= 50 and number % 5 == 0:
            snapshot(store, None, partial=True)
    kept = sum(array.nbytes for array in arrays(store.memo))
    assert kept < 8 * feed.num_records, f"{kept:,} bytes of {feed.num_records:,} records"


@pytest.mark.parametrize(("ranks", "most"), [(2, 2048), (128, 1024), (1024, 400)])
def test_of_many_ranks_fewer_collectives_are_kept(ranks: int, most: int) -> None:
    """128 Ki arrivals, but twice what a snapshot shows, and 2,048 at most."""
    trace = Trace(ranks)
    trace.ranks[0].phase("forward", 0, 1)
    view = View(trace.store(), None)
    view.memo("collectives").update({(n,): None for n in range(most + 1)})
    assert len(view.ranks) == ranks
    collectives(view)
    assert len(view.store.memo["collectives"]) == most - most // 8
