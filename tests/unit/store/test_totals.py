"""Sums of ops per kind: what is beyond the kinds that are told apart counts under nobody's name."""

from __future__ import annotations

import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.store import totals
from pardbg.store.totals import OTHER
from tests.unit.trace_builder import Trace

KINDS = 4


def test_more_kinds_than_are_told_apart_have_a_row_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0 sends 100 bytes to each of the ranks 1 to 6; four kinds are told apart, so 200 bytes
    are nobody's: the edge 0 → 4 has its own 100 and not 300, and 0 → 5 and 0 → 6 are not made up.
    """
    monkeypatch.setattr(totals, "_MAX_CODES", KINDS)
    trace = Trace(7)
    proc = trace.ranks[0]
    for peer in range(1, 7):
        proc.p2p("world", peer, True, peer, None)
    store = trace.store()
    store.settle()
    sums = next(p for p in store.procs.values() if p.rank == 0).totals("issue_p2p")
    found = {key: (number, size) for key, number, size in sums.as_of(6)}
    assert found.pop(OTHER) == (2, 200) and sums.overflowed
    assert {key.peer: value for key, value in found.items()} == dict.fromkeys(range(1, 5), (1, 100))
    shown = snapshot(store, None).traffic
    assert {(e.src, e.dst): e.bytes for e in shown.edges} == {(0, p): 100 for p in range(1, 5)}
    assert {(op, number, size) for _, op, number, size, _ in shown.ops} == {
        ("send", 4, 400), ("other ops", 2, 200)
    }  # fmt: skip
