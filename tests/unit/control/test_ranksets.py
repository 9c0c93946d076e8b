"""Rank sets: text in, ranks out, one line for what makes no sense."""

from __future__ import annotations

import pytest

from pardbg.control.language.ranksets import Known, RankFacts, resolve, unseen
from pardbg.errors import UserError

KNOWN = Known(
    ranks={
        0: RankFacts(0, "n0", (0,), held=True),
        1: RankFacts(1, "n0", (1,), waiting=True),
        2: RankFacts(2, "n1", (2,), held=True),
        3: RankFacts(3, "n1", (3, 7)),
    },
    axes={"tp": [(0, 1), (2, 3)]},
)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        (None, (0, 1, 2, 3)),
        ("", (0, 1, 2, 3)),
        ("all", (0, 1, 2, 3)),
        ("0", (0,)),
        ("0-3", (0, 1, 2, 3)),
        ("0,2", (0, 2)),
        ("2-3, 0", (0, 2, 3)),
        ("stage=7", (3,)),
        ("stage=0-1", (0, 1)),
        ("host=n1", (2, 3)),
        ("held", (0, 2)),
        ("waiting", (1,)),
        ("tp=0", (0, 2)),
        ("tp=1,0", (0, 1, 3)),
        ("rank=3", (3,)),
    ],
)
def test_a_set_names_its_ranks(text: str | None, ranks: tuple[int, ...]) -> None:
    assert resolve(text, KNOWN) == ranks


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("culprits", "unknown rank set 'culprits': use 0, 0-3"),
        ("4", "no rank 4; ranks are 0–3"),
        ("3-0", "unknown rank set"),
        ("-1", "unknown rank set"),
        ("stage=9", "no rank is in 'stage=9' now"),
        ("stage=x", "'stage=' wants a number"),
        ("host=n7", "no host 'n7'; hosts are n0, n1"),
        ("pp=0", "unknown axis 'pp' in 'pp=0'; axes seen: tp"),
        ("0" * 2000, "longer than 1000"),
        ("0,,1", "unknown rank set"),
    ],
)
def test_what_makes_no_sense_is_one_line(text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(text, KNOWN)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_before_any_rank_is_there_numbers_are_known() -> None:
    assert unseen(None) == unseen("all") == ()
    assert unseen("0-1,3") == (0, 1, 3) and unseen("rank=2") == (2,)
    for text in ("stage=2", "held", "tp=0", "x", "0-999999"):
        with pytest.raises(UserError, match="no rank yet: say numbers"):
            unseen(text)
