"""Collectives as columns: what is said of one that all issued alike is what a close look finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.comm.gathered import Gathered
from pardbg.analysis.comm.matching import collectives, match
from pardbg.session.reader import load
from tests.unit.trace_builder import MS, Trace, ns

SESSIONS = Path(__file__).parents[3] / "sessions"


@pytest.mark.parametrize("name", ["3d", "hsdp", "moe", "fault-kill"])
def test_columns_say_what_a_close_look_finds(name: str) -> None:
    store = load(SESSIONS / f"{name}.mcap")
    late = store.begin_ns + (store.end_ns - store.begin_ns) * 9 // 10
    for view in (View(store, None), View(store, late)):
        found = Gathered(view, 0)
        everything = found.last(None)
        alike = [at for at in everything if found.alike[at]]
        looked = {
            at: match(view, parts, found.reached(at))
            for at, parts in found.parts(everything).items()
        }
        assert len(alike) > 10 and all(looked[at].verdict == "matched" for at in alike)
        assert collectives(view, None) == tuple(looked[at] for at in everything)


def test_of_a_few_more_is_to_be_looked_at() -> None:
    """Groups of two ranks, and one of rank 2 alone, which is left out. In ``a`` the second op
    differs in size; in ``b`` the first is not complete on rank 2, and rank 1 has not issued the
    second."""
    trace = Trace(3)
    trace.groups |= {"a": (0, 1), "b": (1, 2), "alone": (2,)}
    zero, one, two = trace.ranks
    for proc, late, num_bytes in ((zero, 0, 1000), (one, 2, 2000)):
        proc.collective("a", "all_reduce", 1 + late, 5)
        proc.collective("a", "all_reduce", 6 + late, 9, num_bytes)
    one.collective("b", "all_gather", 10, 14)
    two.collective("b", "all_gather", 11, None)
    two.collective("b", "all_gather", 12, None)
    two.collective("alone", "all_reduce", 13, 14)
    trace.end(20)
    view = View(trace.store(), None)
    found = Gathered(view, 0)
    places = found.last(None)
    keys = [(0, "a", 0), (0, "a", 1), (0, "b", 0), (0, "b", 1)]
    assert [found.key(at) for at in places] == keys
    assert [bool(found.alike[at]) for at in places] == [True, False, False, False]
    assert found.span(places[0]) == (ns(1), ns(5)) and found.last(1) == places[-1:]
    assert found.reached(places[2]) == {1: 0, 2: 1} and found.reached(places[0]) == {0: 1, 1: 1}
    (facts,) = found.facts(places[:1])
    assert facts[6:] == (1, (2 * MS, 2 * MS, 2 * MS))  # last rank; skew, wait, 5 - 3 ms
    parts = found.parts(places[2:3])[places[2]]
    assert [(i.rank, i.t0_ns, i.done_ns) for i in parts.values()] == [
        (1, ns(10), ns(14)), (2, ns(11), None),
    ]  # fmt: skip
    assert collectives(View(Trace(2).store(), None)) == ()
