"""What one rank does otherwise than the others, from the whole of what they issue."""

from __future__ import annotations

from typing import Any

import pytest

from pardbg.lab.rehearse.differences import differences
from tests.unit.rehearse.test_order import SUM, SUM_SOME, rank_of

CAST = ("broadcast", 0)
USUAL = (SUM, CAST, SUM_SOME, SUM, CAST)
"""Of ranks 0 and 1; the second group is theirs."""


def found(*calls: tuple[Any, ...], rank: int = 1) -> list[tuple[str, int, str, int]]:
    """(kind, rank, op, seq) where one of four ranks issues these, the others the usual ones."""
    alone = (SUM, CAST, SUM, CAST)
    ranks = {0: USUAL, 1: USUAL, 2: alone, 3: alone, rank: calls}
    made = differences(rank_of(r, *ranks[r], world=4) for r in ranks)
    return [(one.kind, one.rank, one.call.what[0], one.call.seq) for one in made]


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (USUAL, []),
        ((SUM, SUM_SOME, SUM, CAST), [("skipped-op", 1, "broadcast", 1)]),
        ((SUM, CAST, SUM_SOME, SUM), [("skipped-op", 1, "broadcast", 3)]),
        ((SUM, CAST, CAST, SUM_SOME, SUM, CAST), [("extra-op", 1, "broadcast", 2)]),
        ((CAST, SUM, SUM_SOME, SUM, CAST), [("op-order", 1, "broadcast", 0)]),
    ],
)
def test_one_rank_of_a_group(calls: tuple[Any, ...], said: list[Any]) -> None:
    assert found(*calls) == said


def test_a_call_on_a_wrong_group_is_one_fault() -> None:
    # Rank 2 of a world of three pairs: what the group of 0 and 1 does tells who is right.
    ranks = [rank_of(r, SUM, SUM_SOME, CAST, world=3) for r in (0,)]
    ranks += [rank_of(1, SUM_SOME, SUM_SOME, CAST, world=3), rank_of(2, SUM, CAST, world=3)]
    (one,) = differences(ranks)
    assert (one.kind, one.rank) == ("skipped-op", 1)  # two in a group: nobody knows the extra one


def test_the_order_of_two_groups() -> None:
    many = [(SUM, SUM_SOME, CAST)] * 2 + [(SUM_SOME, SUM, CAST)]
    made = differences(rank_of(r, *calls, some=(0, 1, 2)) for r, calls in enumerate(many))
    assert [(one.kind, one.rank, one.call.group) for one in made] == [("op-order", 2, "some")]


def test_pairs_that_play_the_same_role_tell_which_order_is_usual() -> None:
    many = [(SUM, SUM_SOME), (SUM, SUM_SOME), (SUM_SOME, SUM), (SUM, SUM_SOME)]
    pairs = [(0, 2), (1, 3), (0, 2), (1, 3)]
    made = differences(rank_of(r, *calls, world=4, some=pairs[r]) for r, calls in enumerate(many))
    assert [(one.kind, one.rank) for one in made] == [("op-order", 2)]


def test_half_against_half_names_nobody() -> None:
    two = [rank_of(0, SUM, SUM_SOME, world=2), rank_of(1, SUM_SOME, SUM, world=2)]
    assert differences(two) == []


def test_a_rank_that_failed_left_nothing_out() -> None:
    ranks = [rank_of(r, *(USUAL if r < 2 else (SUM,)), world=4) for r in range(3)]
    ranks[2].code = 1
    assert differences(ranks) == []


def ring(rank: int, far: int = 1) -> list[tuple[Any, ...]]:
    step = [("send", (rank + far) % 5), ("recv", (rank - 1) % 5), SUM]
    return [("send", (rank + 1) % 5), ("recv", (rank - 1) % 5), SUM, *step]


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (ring(2, far=2), ("wrong-peer", 2, "to rank 4")),
        ([*ring(2)[:3], *ring(2)[4:]], ("skipped-op", 2, "to rank 3")),
        ([*ring(2)[:4], *ring(2)[5:]], ("skipped-op", 2, "from rank 1")),
    ],
)
def test_messages_beside_those_of_ranks_that_do_the_same(
    calls: list[tuple[Any, ...]], said: tuple[str, int, str]
) -> None:
    ranks = [rank_of(r, *(calls if r == 2 else ring(r)), world=5) for r in range(5)]
    (one,) = differences(ranks)
    assert (one.kind, one.rank, one.call.label) == said
