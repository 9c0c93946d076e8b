"""Ranks of tensors that differ: the worst tensor of each block, by rank.

A rank that has the whole of a tensor is judged by its own copy; for a sharded tensor, all ranks
with a part of it share its judgement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pardbg.analysis.same.module_flow import Floor, Judged
from pardbg.analysis.same.wholes import Floats, Part, Whole, Wholes

Told = tuple[str, str, float]
"""(kind, name, noise floors) of a tensor"""


@dataclass(frozen=True, slots=True)
class RankBlocks:
    """Distance of a rank from the reference, by block."""

    rank: int
    floors: tuple[float | None, ...]
    """Largest noise floors of a tensor of each block; None: no tensor of the rank was judged."""


def block_of(name: str) -> str:
    """Return a module's or parameter's block, ``blocks.1``; else its outermost module."""
    parts = name.split(".")
    at = next((at for at, part in enumerate(parts) if part.isdigit()), 0)
    return ".".join(parts[: at + 1])


def by_rank(
    rows: Sequence[Told], parts: Iterable[Part], judged: Iterable[Judged],
    sides: tuple[Wholes, Wholes], floor: Floor,
) -> tuple[tuple[str, ...], tuple[RankBlocks, ...]]:  # fmt: skip
    """Return (blocks in the order of execution, values of each rank). ``rows``: tensors of a step;
    ``parts``: the ranks' parts of them; ``sides``: reference and run; ``floor``: their noise."""
    outs = [n for what, n, _ in rows if what == "out"] or [n for _, n, _ in reversed(rows)]
    blocks = tuple(dict.fromkeys(block_of(name) for name in outs if name))
    holders: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, part in parts:
        holders[part.what, part.name].append(rank)
    own = {(one.run.what, one.reference.name): _of_members(one) for one in judged}
    for key, left in sides[0].tensors.items():
        right = sides[1].tensors.get(key)
        first = key[:2] == (sides[0].steps[0], "grad")
        if first and right is not None and right.replica_vectors:
            replicas = zip((r for r, _ in right.replicas), right.replica_vectors, strict=False)
            own[key[1:]] = _apart(left, replicas, floor(left, right) or 0.0)
    worst: dict[int, dict[str, float]] = defaultdict(dict)
    for what, name, value in rows:
        block, mine = block_of(name), own.get((what, name), {})
        for rank in holders.get((what, name), ()):
            of_rank = worst[rank]
            of_rank[block] = max(of_rank.get(block, 0.0), mine.get(rank, value))
    return blocks, tuple(
        RankBlocks(rank, tuple(worst[rank].get(block) for block in blocks))
        for rank in sorted(worst)
    )


def _of_members(one: Judged) -> dict[int, float]:
    """Return rank -> floors, of ranks that had the same samples and each the whole of a module's
    output or its gradient; empty if the output does not differ."""
    if one.pair is None or one.reading is None or one.level != "red":
        return {}
    reference, scaled = one.pair
    whole = one.reading.groups == 1 and one.reading.how == "whole"
    scale = one.reading.whole.norm / (scaled.norm or 1.0) or 1.0
    noise = one.error * reference.norm / one.floors if one.floors < float("inf") else 0.0
    members = [(rank, vector / scale) for rank, vector in one.reading.members]
    return _apart(reference, members if whole else (), noise)


def _apart(
    reference: Whole, vectors: Iterable[tuple[int, Floats]], noise: float
) -> dict[int, float]:
    return {
        rank: float(np.linalg.norm(vector - reference.vector)) / noise if noise else float("inf")
        for rank, vector in vectors
    }
