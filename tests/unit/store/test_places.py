"""Members of groups made by hand, by the places that they say; worked out by hand."""

from __future__ import annotations

from random import Random

import msgpack
import pytest

from pardbg.store import Store
from pardbg.store import store as stores
from pardbg.store.source import Message


def said(rank: int, place: int, key: str = "g", size: int = 3, number: int = 1) -> list[Message]:
    proc = b"D0.host.%d" % (100 + rank)
    process = {"k": "process", "rank": rank, "world_size": 8}
    group = {
        "k": "group", "id": number, "key": key, "name": "Made", "ranks": [], "place": place,
        "size": size, "backend": "gloo",
    }  # fmt: skip
    return [Message(proc, msgpack.packb(one), 5) for one in (process, group)]


def members(store: Store, number: int = 1) -> dict[int, tuple[int, ...]]:
    return {p.rank: p.groups[number].ranks for p in store.procs.values() if p.rank is not None}


@pytest.mark.parametrize("seed", range(6))
def test_members_are_known_once_all_places_are_full(seed: int) -> None:
    told = [(4, 0), (7, 2), (1, 1)]
    Random(seed).shuffle(told)
    store = Store()
    for at, (rank, place) in enumerate(told):
        store.apply_all(said(rank, place))
        assert not at or members(store)[told[0][0]] == ((4, 1, 7) if at == 2 else ())
    assert set(members(store).values()) == {(4, 1, 7)}
    assert [group.ranks for group in store.groups.values()] == [(4, 1, 7)]
    assert len({process.groups[1].key for process in store.procs.values()}) == 1


@pytest.mark.parametrize(
    "told",
    [
        [(0, 0), (1, 1)],  # one is still to come
        [(0, 0), (1, 1), (2, 1)],
        [(0, 0), (1, 1), (2, 2), (3, 0)],  # also where all places were full before
        [(0, 0), (1, 1), (2, 3)],  # there are three places
        [(0, -1), (1, 1), (2, 2)],
    ],
)
def test_else_nobody_is_matched_with_anybody(told: list[tuple[int, int]]) -> None:
    store = Store()
    for rank, place in told:
        store.apply_all(said(rank, place))
    assert set(members(store).values()) == {()} and not store.groups
    assert len({process.groups[1].key for process in store.procs.values()}) == len(told)


def test_what_places_take_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that says places without end is refused in time: 40 of some 200 bytes fit."""
    monkeypatch.setattr(stores, "_MAX_DEFINITION_BYTES", 20_000)
    store = Store()
    for place in range(400):
        store.apply_all(said(0, place, size=1000))
    assert store.refused["definitions"] > 200
    assert sum(map(len, store._places._members.values())) < 200


def test_said_again_and_made_anew() -> None:
    store = Store()
    for rank, place in ((0, 0), (2, 1), (0, 0)):
        store.apply_all(said(rank, place, "g1", 2))
    for rank, place in ((0, 0), (2, 1), (3, 2)):
        store.apply_all(said(rank, place, "g2", 3, 2))
    assert [group.ranks for group in store.groups.values()] == [(0, 2), (0, 2, 3)]
