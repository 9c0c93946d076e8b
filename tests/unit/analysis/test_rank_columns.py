"""Tables of all ranks as columns: the rows that a loop over ranks would find, and no such loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pardbg.analysis.answers.snapshot import EVERYTHING, Viewport, snapshot
from pardbg.analysis.base import rank_columns
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.losses import losses_by_step
from pardbg.analysis.base.rank_columns import Columns
from pardbg.analysis.base.steps import step_rows
from pardbg.session.reader import load
from pardbg.store.store import Store
from pardbg.store.table import Table
from tests.bench.bench_thousand_ranks import STEP_MS, make
from tests.unit.trace_builder import MS, Trace, ns

RANKS = rank_columns.MANY
NAMES = ("step", "t1_ns", "b")


def uneven(*, alike: int = 1, falling: bool = True, live: bool = False) -> Store:
    """Of every ``alike`` ranks the n-th few end n % 5 steps of 10 ms, none later than the one
    before; those of the fifth few may have falling numbers."""
    trace = Trace(RANKS)
    for rank, proc in enumerate(trace.ranks):
        number = rank // alike % 5
        for i in range(number):
            proc.step(10 - i if falling and number == 4 else i, i * 10.0, i * 10.0 + 9)
    return trace.store(live=live)


def each(view: View, begins: list[int], ends: list[int]) -> Columns:
    """Rows of steps, rank by rank."""
    tables = [process.table("step") for process in view.ranks.values()]
    found: Columns = {
        name: np.concatenate(
            [t.col(name)[a:b] for t, a, b in zip(tables, begins, ends, strict=True)]
        )
        for name in NAMES
    }
    counts = [max(b - a, 0) for a, b in zip(begins, ends, strict=True)]
    return {"who": np.repeat(np.arange(len(tables)), counts)} | found


def same(one: Columns, other: Columns) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[n], other[n]) for n in one)


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("alike", [1, 3, 7])
def test_rows_are_those_of_each_rank(alike: int, falling: bool, live: bool) -> None:
    """At first by slices of the ranks' tables, then from columns of all; of a live run, where ranks
    that do the same lie side by side, always by slices. At 25 ms a rank has ended two steps at
    most."""
    store = uneven(alike=alike, falling=falling, live=live)
    View(store, ns(35)).all("step")
    for t_ms in (35, 25, 9, 0):
        view = View(store, ns(t_ms))
        rows = view.all("step")
        assert rows._kept == (t_ms != 35 and not live)
        tables = [process.table("step") for process in view.ranks.values()]
        seen = [table.visible(view.t_ns) for table in tables]
        assert rows.counts.tolist() == seen
        late = [max(0, n - 1) for n in seen]
        assert same(rows.take(NAMES, np.maximum(rows.counts - 1, 0)), each(view, late, seen))
        newest = [int(t.col("t1_ns")[n - 1]) for t, n in zip(tables, seen, strict=True) if n]
        assert rows.newest("t1_ns").tolist() == newest
        before = [int(t.when[:n].searchsorted(ns(19))) for t, n in zip(tables, seen, strict=True)]
        assert rows.before(ns(19)).tolist() == before
        found = rows.of_steps(NAMES, 1, 9)
        parts = [t.step_rows(1, 9, n) for t, n in zip(tables, seen, strict=True)]
        assert found["who"].tolist() == [who for who, part in enumerate(parts) for _ in part]
        steps = [s for t, part in zip(tables, parts, strict=True) for s in t.col("step")[part]]
        assert found["step"].tolist() == steps


def test_columns_are_not_kept_of_a_store_that_has_changed() -> None:
    store = uneven()
    View(store, ns(35)).all("step")
    first = View(store, ns(25)).joined("step")
    assert View(store, ns(5)).joined("step") is first
    store.revision += 1
    assert View(store, ns(5)).joined("step") is not first


def test_phases_of_many_ranks_one_of_which_has_one_in_another() -> None:
    """All ranks: forward 0-4, optimizer 4-9 ms; on rank 3 a forward 5-7 lies inside the
    optimizer's. Mean of forward: (63 x 4 + 4 + 2) / 64 = 258 / 64 ms; of optimizer: (63 x 5 + 3) /
    64 = 318 / 64 ms."""
    trace = Trace(RANKS)
    for rank, proc in enumerate(trace.ranks):
        proc.phase("forward", 0, 4)
        if rank == 3:
            proc.phase("forward", 5, 7)
        proc.phase("optimizer", 4, 9)
        proc.metric("loss", 8, float(rank))
        proc.step(0, 0, 10)
    (row,) = step_rows(View(trace.store(), ns(11)))
    assert row.duration_ns == 10 * MS
    wanted = {"forward": 258 * MS / 64, "optimizer": 318 * MS / 64}
    assert row.phases == {name: round(value) for name, value in wanted.items()}
    assert row.loss == 31.5  # (0 + 63) / 2


def test_a_loss_before_the_next_steps_first_work_is_the_ended_steps() -> None:
    """Each rank logs loss k at 10 k + 11 ms, as step k + 1 has begun and its forward has not."""
    trace = Trace(RANKS)
    for proc in trace.ranks:
        for k in range(3):
            proc.phase("forward", 10 * k + 2, 10 * k + 8, k)
            proc.step(k, 10 * k, 10 * k + 10)
            proc.metric("loss", 10 * k + 11, float(k), k + 1)
    store = trace.store()
    for t_ms in (35, 34):  # by slices, then from columns of all
        assert losses_by_step(View(store, ns(t_ms)), 0, 2) == {0: 0.0, 1: 1.0, 2: 2.0}
        store.memo.pop("losses")


@pytest.mark.timeout(120)
def test_a_moved_cursor_reads_no_table_of_ranks_out_of_sight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a step's end, with eight ranks in sight: no more is read of 512 ranks than of
    256."""
    reads = []
    real = Table.col
    monkeypatch.setattr(Table, "col", lambda self, name: reads.append(0) or real(self, name))
    counts = []
    for num_ranks in (256, 512):
        make(path := tmp_path / f"{num_ranks}.mcap", num_ranks, 4)
        store = load(path)
        begin = min(p.started_ns or 0 for p in store.procs.values())
        made = None
        for ms in (1.2, 2.2, 3.2):
            drawn = EVERYTHING if made is None else Viewport(frozenset(range(8)), frozenset())
            reads.clear()
            t_ns = begin + int(ms * STEP_MS * 1e6)
            made = snapshot(store, t_ns, viewport=drawn, before=made, partial=True)
        counts.append(len(reads))
    assert counts[1] == counts[0], counts


def test_a_rank_s_last_step_time_is_that_of_the_header_after_a_hold() -> None:
    """Step 0 of 100 ms, free; step 1 of 1,120 ms, of them 1,000 held: 120 ms."""
    trace = Trace(2)
    for proc in trace.ranks:
        proc.step(0, 0, 100)
        proc.held(200, 1200)
        proc.step(1, 100, 1220)
    now = snapshot(trace.store(), ns(1230))
    assert [rank.step_ns for rank in now.ranks] == [(100 * MS, 120 * MS)] * 2
    assert now.step_ns == 120 * MS
