"""What is a hang, for those who act on it: in recordings of every recipe and fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from pardbg.analysis.answers.hang import hung
from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.base.asof import View
from pardbg.session.reader import load, open_session
from pardbg.store.store import Store

SESSIONS = sorted((Path(__file__).parents[3] / "sessions").glob("*.mcap"))
HANGS = {
    "fault-gil-hold": (2,), "fault-group-order": (2,), "fault-mismatch-op": (2,),
    "fault-mismatch-root": (2,), "fault-missing-rank": (2,), "fault-p2p-cycle": (1, 2, 3),
    "fault-unpaired-recv": (2,), "fault-unpaired-send": (2,),
}  # fmt: skip
"""Those in which ranks stand still for more than 3 s, and the culprits. Not here: gloo ends a job
whose ranks bring other sizes, torchrun one of whose ranks has died."""
MOMENTS = 24


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: str(path.stem))
def test_hangs_are_those_that_stand(path: Path) -> None:
    store = load(path)
    whole = View(store, None)
    length = whole.end_ns - whole.begin_ns
    views = (View(store, whole.begin_ns + length * i // MOMENTS) for i in range(1, MOMENTS + 1))
    named = {one.culprits for view in views for one in hung(view, view.t_ns - 3_000_000_000)}
    assert named == ({HANGS[path.stem]} if path.stem in HANGS else set())


@pytest.mark.parametrize("name", sorted(HANGS.keys() - {"fault-gil-hold"}))  # it goes on: a note
def test_a_partial_frame_of_a_live_run_says_what_holds_it_up(name: str) -> None:
    """The same as the whole one of that moment, and nothing of a recording."""
    (path,) = (path for path in SESSIONS if path.stem == name)
    source, store, messages, told = open_session(path), Store(live=True), [], set()
    while not source.finished:
        messages += source.poll(0)
    source.close()
    for at in range(0, len(messages), 6):
        store.apply_all(messages[at : at + 6])
        for one in snapshot(store, None, partial=True).findings:
            whole = snapshot(store, None).findings
            assert (one.kind, one.culprits) in {(f.kind, f.culprits) for f in whole}
            told.add(one.culprits)
    assert HANGS[name] in told
    assert not snapshot(load(path), None, partial=True).findings
