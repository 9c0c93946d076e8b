"""A live run looked at while it goes on, and the same run replayed: the same states.

The ranks are real processes with the real agent; a viewer takes what the hub publishes.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from pardbg.analysis.answers.snapshot import Snapshot, snapshot
from pardbg.events.control_codes import Verb
from pardbg.events.control_facts import Level
from pardbg.hub.client import HubControl, LiveSource
from pardbg.session.reader import load
from pardbg.session.rotation import PartLimits
from pardbg.store.store import Store
from tests.distributed.runs import fake_job, started

S = 1_000_000_000
SETTLED_NS = S
"""So long before the newest record of the slowest rank all have come: agents send in order."""


def seen(made: Snapshot) -> Snapshot:
    """Less what is about the viewer and the run's end, and the model: a definition, which holds
    from the begin once it is known."""
    run = replace(made.run, truncated=False)
    return replace(made, revision=0, live=False, t_end_ns=0, run=run)


@pytest.mark.timeout(60)
def test_replay_shows_what_the_live_viewer_saw(tmp_path: Path) -> None:
    session = tmp_path / "s.mcap"
    kept: list[tuple[int, Snapshot]] = []
    with started(fake_job(4, 300, 0.01), session) as handle:
        source, store = LiveSource(handle.run_dir), Store(live=True)
        control = HubControl(handle.run_dir, script=True)
        due = 0.0
        try:
            while not source.finished:
                store.apply_all(source.poll(20))
                if time.monotonic() < due:
                    continue
                due = time.monotonic() + 0.1
                heard = [process.newest_ns or 0 for process in store.procs.values()]
                t_ns = min([store.end_ns, *heard]) - SETTLED_NS
                made = snapshot(store, t_ns)
                if len(made.ranks) == 4 and made.steps:
                    kept.append((t_ns, made))
                    if len(kept) == 3:
                        reply = control.command(Verb.MARK, at_ns=t_ns, text="seen live")
                        assert reply.ok, reply.refusal
        finally:
            control.close()
            source.close()
        assert handle.wait(20) == 0
    assert len(kept) >= 5
    whole = load(session)
    for t_ns, live in kept:
        assert seen(snapshot(whole, t_ns)) == seen(live)
    for t_ns, live in reversed(kept):
        assert seen(snapshot(whole, t_ns)) == seen(live), "and backwards"
    assert [(m.t_ns, m.text) for m in whole.bookmarks.all()] == [(kept[2][0], "seen live")]


@pytest.mark.timeout(60)
def test_the_parts_of_a_recording_hold_every_record_once(tmp_path: Path) -> None:
    """200 steps of two ranks in parts of one second: each step's end is in exactly one part."""
    session = tmp_path / "s.mcap"
    with started(fake_job(2, 200, 0.01), session, limits=PartLimits(0, S, 0)) as handle:
        assert handle.wait(40) == 0
        parts = handle.parts()
    assert len(parts) >= 3
    ended: dict[int, list[int]] = {0: [], 1: []}
    for path in parts:
        store = load(path)
        assert not store.truncated and store.lost(None) == 0
        for rank, process in store.rank_procs(None).items():
            ended[rank] += process.table("step").col("step").tolist()
    assert ended == {0: list(range(200)), 1: list(range(200))}


@pytest.mark.timeout(60)
def test_the_level_is_switched_live_and_goes_back(tmp_path: Path) -> None:
    """At level summary no op is recorded; asked for full for two seconds, ops are, then no more."""
    import os

    session = tmp_path / "s.mcap"
    env = {**os.environ, "PARDBG_LEVEL": "summary"}
    with started(fake_job(2, 400, 0.01), session, env=env) as handle:
        source, store = LiveSource(handle.run_dir), Store(live=True)
        control = HubControl(handle.run_dir, script=True)
        levels: list[int] = []
        asked = False
        try:
            while not source.finished:
                store.apply_all(source.poll(20))
                rows = store.states.ranks(None)[1].values()
                now = {int(row.get("level", -1)) for row in rows}
                if len(rows) == 2 and len(now) == 1 and (level := now.pop()) not in levels[-1:]:
                    levels.append(level)
                store.settle()
                ended = [len(process.table("step")) for process in store.procs.values()]
                if levels == [1] and not asked and len(ended) == 2 and min(ended) >= 20:
                    asked = True
                    reply = control.command(
                        Verb.LEVEL, None, level="full", for_s=2.0, reason="test"
                    )
                    assert reply.ok and reply.data["asked"] == 2
        finally:
            control.close()
            source.close()
        assert handle.wait(30) == 0
    assert levels[:3] == [1, 2, 1], levels
    store = load(session)
    events = [event for _, event in store.controls.last(None, 100)]
    levels_set = [event.fact for event in events if isinstance(event.fact, Level)]
    assert levels_set[:2] == [Level("full", 2, 2_000_000_000, "test"), Level("summary", back=True)]
