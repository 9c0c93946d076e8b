"""Ranks that have parts of each row, as in context parallelism, have the reference's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pardbg.analysis.same.beginnings import inputs, sharing
from pardbg.analysis.same.wholes import Wholes

Sums = Mapping[int, Sequence[int]]
WHOLE: Sums = {0: (10, 20, 30, 40)}
MOST = (1 << 63) - 1


def side(sums: Sums, *groups: tuple[int, ...]) -> Wholes:
    """Rows' hashes are unlike on every rank but for equal sums: a hash of the row is the sum."""
    rows = frozenset(value for own in sums.values() for value in own)
    of_ranks = {rank: tuple(own) for rank, own in sums.items()}
    return Wholes(
        {}, {(0, "grad", "w"): "place"}, {0: {"0": rows}}, {0: {"0": of_ranks}},
        frozenset(groups), False, {},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sums", "groups", "found"),
    [
        ({0: (1, 2, 3, 4), 1: (9, 18, 27, 36)}, [(0, 1)], [(0, 1)]),
        ({0: (1, 2, 3, 4), 1: (9, 18, 27, 35)}, [(0, 1)], []),
        ({0: (1, 2, 3), 1: (9, 18, 27)}, [(0, 1)], []),  # a row is missing
        ({0: (1, 2, 3, 4), 1: (9, 18, 27)}, [(0, 1)], []),
        # two groups have half the rows each; the groups across have no whole row
        ({0: (1, 2), 1: (9, 18), 2: (3, 4), 3: (27, 36)}, [(0, 1), (2, 3), (0, 2), (1, 3)],
         [(0, 1), (2, 3)]),
        # two groups have all rows, as with tensor parallelism beside it
        ({0: (1, 2, 3, 4), 1: (1, 2, 3, 4), 2: (9, 18, 27, 36), 3: (9, 18, 27, 36)},
         [(0, 1), (2, 3), (0, 2), (1, 3)], [(0, 2), (1, 3)]),
        ({0: (1, 2, 3, 4), 1: (9, 18, 27, 36), 2: (5, 5, 5, 5)}, [(0, 1), (0, 1, 2)], []),
        ({0: (10, 20), 1: (30, 40)}, [(0, 1)], []),  # whole rows
    ],
)  # fmt: skip
def test_parts_of_rows_add_up(
    sums: Sums, groups: list[tuple[int, ...]], found: list[tuple[int, ...]]
) -> None:
    a, b = side(WHOLE, (0,)), side(sums, *groups)
    assert list(sharing(a, b, 0, "0")) == found
    same = bool(found) or {n for own in sums.values() for n in own} == set(WHOLE[0])
    assert inputs(a, b) == (True, None if same else 0)


def test_sums_wrap_as_those_of_64_bits() -> None:
    a, b = side({0: (-(1 << 63),)}, (0,)), side({0: (MOST,), 1: (1,)}, (0, 1))
    assert sharing(a, b, 0, "0") == ((0, 1),)
