"""What analysis keeps of a live run is bounded, however long the run is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.base.asof import View
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.pipeline import pipeline_steps
from pardbg.analysis.pipeline.pipelines import layouts
from pardbg.store import Store
from tests.bench.bench_hours import Feed
from tests.unit.trace_builder import Trace


def test_the_older_half_goes() -> None:
    view = View(Store(), None)
    view.memo("kind", 4).update({n: n for n in range(5)})
    assert list(view.memo("kind", 4)) == [2, 3, 4]


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
            snapshot(store, None, deep=False)
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
    assert len(view.store.memo["collectives"]) == most + 1 - (most + 1) // 2
