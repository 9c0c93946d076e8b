"""Collectives as columns: what is said of one that all issued alike is what a close look finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.comm.collective_columns import IssuedCollectives, of_rows
from pardbg.analysis.comm.matching import collectives, match, matched_in
from pardbg.session.reader import load
from tests.unit.trace_builder import MS, Trace, ns

SESSIONS = Path(__file__).parents[3] / "sessions"


@pytest.mark.parametrize("name", ["3d", "hsdp", "moe", "fault-kill"])
def test_columns_say_what_a_close_look_finds(name: str) -> None:
    store = load(SESSIONS / f"{name}.mcap")
    late = store.begin_ns + (store.end_ns - store.begin_ns) * 9 // 10
    for view in (View(store, None), View(store, late)):
        found = IssuedCollectives(view, 0)
        everything = found.last(None)
        alike = [at for at in everything if found.alike[at]]
        looked = {
            at: match(view, parts, found.reached(at))
            for at, parts in found.parts(everything).items()
        }
        assert len(alike) > 10 and all(looked[at].verdict == "matched" for at in alike)
        assert collectives(view, None) == tuple(looked[at] for at in everything)


@pytest.mark.parametrize("name", ["3d", "hsdp", "moe", "fault-small-messages"])
def test_columns_of_a_window_are_those_of_its_rows(name: str) -> None:
    """Whichever way they come: from the ops of all ranks, or from rows."""
    store = load(SESSIONS / f"{name}.mcap")
    view = View(store, None)
    rows = [row for row in collectives(view, None) if row.verdict == "matched"]
    steps = sorted({row.step or 0 for row in rows if len(row.arrivals) > 1})[1:-1]
    rows = [row for row in rows if row.step in steps]
    found, again = matched_in(view, 0, steps, 1 << 20), of_rows([r.step or 0 for r in rows], rows)
    assert len(found) > 10
    assert found.rows(range(len(found))) == again.rows(range(len(again)))
    for column in again.of.keys() - {"group", "op"}:
        assert found.of[column].tolist() == again.of[column].tolist(), column
    for column, values in again.parts.items():
        assert found.parts[column].tolist() == values.tolist(), column
    assert [found.ops[op] for op in found.of["op"]] == [again.ops[op] for op in again.of["op"]]
    same = set(zip(found.of["group"].tolist(), again.of["group"].tolist(), strict=True))
    assert len(same) == len({of for of, _ in same}) == len({of for _, of in same})
    for at in range(len(found)):  # sorted: of 4 the second, of 5 the third
        issued = sorted(found.row(at).issued.values())
        assert found.half_ns()[at] == issued[(len(issued) - 1) // 2]


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
    found = IssuedCollectives(view, 0)
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


@pytest.mark.parametrize(("second", "cut"), [(None, False), (30, True)])
def test_who_has_not_come_yet_is_told_from_who_came_before(second: float | None, cut: bool) -> None:
    """Read from 40 ms on, when rank 0 issues the second op: rank 1 hangs, or issued it at 30 ms."""
    trace = Trace(2)
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 1, 2)
    trace.ranks[0].collective("world", "all_reduce", 50, None)
    if second is not None:
        trace.ranks[1].collective("world", "all_reduce", second, None)
    found = IssuedCollectives(View(trace.store(), ns(100)), ns(40))
    (place,) = found.last(None)
    assert found.cut(place) is cut
