"""Ranks of the processes that NCCL names."""

from __future__ import annotations

import pytest

from pardbg.nccl.named_ranks import ranks_of

TWO = [(0, "n0", 100), (1, "n0", 101), (2, "n1", 100), (3, "n1", 102)]


@pytest.mark.parametrize(
    ("told", "processes", "ranks"),
    [
        # Both hosts have a process 100.
        ([("n1", 100)], TWO, {("n1", 100): 2}),
        ([("n0", 100), ("n1.cluster", 102)], TWO, {("n0", 100): 0, ("n1.cluster", 102): 3}),
        # Of a host that is not ours; and a child of a rank's.
        ([("n9", 101), ("n0", 555)], TWO, {}),
        # RAS has addresses: one of them has a pid that is on one host alone.
        ([("10.0.0.1", 100), ("10.0.0.1", 101), ("10.0.0.2", 102)], TWO,
         {("10.0.0.1", 100): 0, ("10.0.0.1", 101): 1, ("10.0.0.2", 102): 3}),
        ([("10.0.0.1", 100)], TWO, {}),
        ([("10.0.0.1", 101), ("10.0.0.2", 101)], TWO, {}),
        # Two containers that call themselves by their host's name.
        ([("n0", 7), ("n0", 8)], [(0, "n0", 7), (1, "n0", 7), (2, "n0", 8)], {("n0", 8): 2}),
        # PARDBG_HOST gave the one host another name.
        ([("gpu17", 5)], [(0, "secret", 5), (1, "secret", 6)], {("gpu17", 5): 0}),
    ],
)  # fmt: skip
def test_ranks(
    told: list[tuple[str, int]], processes: list[tuple[int, str, int]],
    ranks: dict[tuple[str, int], int],
) -> None:  # fmt: skip
    assert ranks_of(told, processes) == ranks
