"""Snapshots of many ranks: what the viewport has is made anew, and equals a whole snapshot's."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from pardbg.analysis.answers import snapshot as snapshots
from pardbg.analysis.answers.snapshot import NO_TRAFFIC, Viewport, snapshot
from pardbg.analysis.base.asof import View
from pardbg.analysis.comm import matching
from pardbg.session.reader import load, open_session
from pardbg.store.intake import TABLE_NAMES
from pardbg.store.source import Message
from pardbg.store.store import Store
from pardbg.ui.engine.cursor import TimeCursor
from pardbg.ui.engine.feed import Analysis, Want
from pardbg.ui.engine.frame_maker import TURNS, FrameMaker
from pardbg.ui.engine.landmarks import Places
from pardbg.ui.engine.loading import Loader
from tests.bench.bench_thousand_ranks import STEP_MS, TP, make

RANKS, STEPS = 256, 3
DRAWN = frozenset(range(40, 60))
ROWS = Viewport(DRAWN, frozenset())
MS = 1_000_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = Path(tmp_path_factory.mktemp("viewport")) / "many.mcap"
    make(path, RANKS, STEPS)
    return load(path)


def moment(store: Store, ms: float) -> int:
    return min(p.started_ns or 0 for p in store.procs.values()) + int(ms * MS)


TIMES = (1.0, STEP_MS + 60, STEP_MS + 150, 2 * STEP_MS - 0.5, 2 * STEP_MS + 45, STEPS * STEP_MS)


@pytest.mark.parametrize("ms", TIMES)
def test_a_search_in_all_ranks_finds_what_one_in_each_does(store: Store, ms: float) -> None:
    view = View(store, moment(store, ms))
    for process in view.ranks.values():
        for name in TABLE_NAMES:
            assert view.visible(process, name) == process.table(name).visible(view.t_ns)


def test_rows_in_the_viewport_are_made_anew_and_no_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(store, moment(store, 450), partial=True)
    whole = snapshot(store, moment(store, 460), partial=True)
    ranks, made = sys.modules["pardbg.analysis.answers.ranks"], []
    real = ranks._row
    monkeypatch.setattr(ranks, "_row", lambda *args: made.append(args[1]) or real(*args))
    near = snapshot(
        store,
        moment(store, 460),
        partial=True,
        viewport=Viewport(DRAWN, frozenset(["traffic"])),
        before=before,
    )
    assert made == sorted(DRAWN)
    changing = ("state", "now", "since_ns", "step", "step_ns", "memory_history", "lag_ns")
    for rank in range(RANKS):
        same = whole if rank in DRAWN else before
        for name in changing:
            assert getattr(near.ranks[rank], name) == getattr(same.ranks[rank], name), name
    assert not near.memory and not near.collectives  # sections that nobody draws are not made
    assert (near.traffic, near.steps, near.loss_history, near.step) == (
        whole.traffic, whole.steps, whole.loss_history, whole.step,
    )  # fmt: skip
    assert whole.ranks[70].lag_ns != before.ranks[70].lag_ns  # so it does say which one it is


def test_a_first_frame_of_thousands_leaves_the_shares_of_steps_to_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "THOUSANDS", RANKS - 1)
    t_ns = moment(store, 2 * STEP_MS + 45)
    first = snapshot(store, t_ns, partial=True)
    whole = snapshot(store, t_ns, before=first)
    assert {row.compute_fraction for row in first.ranks} == {None}
    assert None not in {row.compute_fraction for row in whole.ranks}
    assert [(r.state, r.step_ns, r.memory_bytes) for r in first.ranks] == [
        (r.state, r.step_ns, r.memory_bytes) for r in whole.ranks
    ]


def test_what_changes_where_a_step_ends_is_made_anew_there(store: Store) -> None:
    before = snapshot(store, moment(store, 2 * STEP_MS - 5), partial=True)  # step 1 ends at 399 ms
    t_ns = moment(store, 2 * STEP_MS + 5)
    near = snapshot(store, t_ns, viewport=Viewport(DRAWN), before=before, partial=True)
    whole = snapshot(store, t_ns, partial=True)
    assert len(before.steps) == 1 and len(near.steps) == 2
    assert near.steps == whole.steps and near.loss_history == whole.loss_history
    assert near.collectives == whole.collectives and near.traffic == whole.traffic
    assert [near.memory[rank] for rank in DRAWN] == [whole.memory[rank] for rank in DRAWN]


def test_a_rank_that_ended_is_made_anew_wherever_it_is(store: Store) -> None:
    before = snapshot(store, moment(store, 450), partial=True)
    process = store.procs[before.ranks[200].proc]
    process.ends.append((moment(store, 455), "killed"))
    try:
        near = snapshot(store, moment(store, 460), viewport=ROWS, before=before, partial=True)
    finally:
        process.ends.clear()
    assert near.ranks[200].state == "lost" and near.ranks[199] is before.ranks[199]


def test_a_snapshot_of_a_store_that_grew_is_whole(store: Store) -> None:
    before = snapshot(store, moment(store, 450), partial=True)
    store.revision += 1
    near = snapshot(store, moment(store, 460), viewport=ROWS, before=before, partial=True)
    assert near.ranks == snapshot(store, moment(store, 460), partial=True).ranks


def test_a_live_run_that_grew_is_made_anew_in_the_viewport_alone(tmp_path: Path) -> None:
    """Half of the messages, then all: rows in the viewport are those of a whole snapshot, others as
    they were; sections that are not drawn are empty."""
    steps = 8
    make(tmp_path / "live.mcap", RANKS, steps)
    source = open_session(tmp_path / "live.mcap")
    messages: list[Message] = []
    while not source.finished:
        messages += source.poll(0)
    source.close()
    live = Store(live=True)
    records = [m for m in messages if m.key[:1] == b"R"]
    live.apply_all([m for m in messages if m.key[:1] == b"D" and m not in records[-1:]])
    live.run_ends.clear()
    live.apply_all(records[: 2 * RANKS])
    before = snapshot(live, None)
    live.apply_all(records[2 * RANKS : 3 * RANKS])
    drawn = replace(ROWS, sections=frozenset(("traffic",)))
    one = snapshot(live, None, viewport=drawn, before=before, partial=True)
    assert [row.step for row in (one.ranks[50], one.ranks[100])] == [2, 1]
    assert one.ranks[100] is before.ranks[100] and one.steps[-1].step == 2
    live.apply_all(records[3 * RANKS :])
    more = snapshot(live, None, viewport=drawn, before=one, partial=True)
    whole = snapshot(live, None)
    assert [more.ranks[rank] for rank in DRAWN] == [whole.ranks[rank] for rank in DRAWN]
    assert more.steps == whole.steps and more.step == whole.step == steps - 1
    rows = snapshot(live, None, viewport=ROWS, before=one)
    assert rows.ranks[50] == whole.ranks[50] and rows.ranks[100] is one.ranks[100]
    empty = {"collectives": (), "p2p": (), "traffic": NO_TRAFFIC, "memory": (), "hosts": ()}
    assert rows == replace(whole, ranks=rows.ranks, **empty)


def test_between_two_snapshots_the_drawn_rows_and_what_the_hub_says_move(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record of another rank is read: of rank 50 all but the shares of its newest step are those
    of a whole snapshot; charts and other rows stay; a rank whose process is gone is anew."""
    monkeypatch.setattr(store, "run_ends", [])
    monkeypatch.setattr(store, "live", True)
    before = replace(snapshot(store, None), revision=-1, step=0)
    before = replace(before, ranks=tuple(replace(row, wait_fraction=0.5) for row in before.ranks))
    between, whole = (snapshot(store, None, viewport=ROWS, before=of, partial=of is not None)
                      for of in (before, None))  # fmt: skip
    assert between.ranks[50] == replace(whole.ranks[50], wait_fraction=0.5)
    assert between.ranks[100] is before.ranks[100] and between.steps is before.steps
    assert between.revision == whole.revision and between.step == whole.step
    process = View(store, None).ranks[200]
    process.ends.append((store.end_ns, "killed"))
    try:
        gone = snapshot(store, None, viewport=ROWS, before=before, partial=True)
    finally:
        process.ends.clear()
    assert gone.ranks[200].state == "lost" and gone.ranks[199] is before.ranks[199]


def test_whole_frames_of_the_newest_moment_make_all_rows_anew_in_turns(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "run_ends", [])
    maker = FrameMaker(store, Analysis(), TimeCursor(), cast(Loader, None), cast(Places, None))
    first, _ = maker._snapshot(None, Want(viewport=Viewport(DRAWN)), False)
    rows, anew = first, []
    for _ in range(TURNS):
        before, (rows, whole) = rows, maker._snapshot(None, Want(viewport=Viewport(DRAWN)), False)
        pairs = zip(before.ranks, rows.ranks, strict=True)
        anew.append({row.rank for was, row in pairs if row is not was})
        assert whole and anew[-1] >= DRAWN and len(anew[-1]) < RANKS / TURNS + len(DRAWN)
    assert set().union(*anew) == set(range(RANKS))
    past, _ = maker._snapshot(moment(store, 450), Want(viewport=Viewport(DRAWN)), False)
    again, _ = maker._snapshot(None, Want(viewport=Viewport(DRAWN)), False)
    assert again == first != past


@pytest.mark.parametrize("ms", TIMES)
def test_few_rows_give_the_collectives_that_all_give(
    store: Store, ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = matching.collectives(View(store, moment(store, ms)))
    store.memo.clear()
    monkeypatch.setattr(matching, "_FEW", 1 << 40)
    every = matching.collectives(View(store, moment(store, ms)))
    store.memo.clear()
    assert few == every and (ms < STEP_MS or len(few) == matching.LAST)


def test_a_collective_whose_oldest_part_is_cut_off_is_seen_to_be(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = View(store, moment(store, STEP_MS + 60))
    every = matching.collectives(view)
    store.memo.clear()
    # 1 row each: far fewer than the TP ranks of the smallest group
    monkeypatch.setattr(matching, "_FEW", 1)
    assert matching.collectives(View(store, view.t_ns)) == every
    store.memo.clear()
    assert len(every[0].arrivals) >= TP
