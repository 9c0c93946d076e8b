"""Parameters that are cut by hand are put together as the reference has them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from pardbg.analysis.same.beginnings import in_place
from pardbg.analysis.same.wholes import Wholes, wholes
from pardbg_agent import wire
from tests.unit.analysis.same.captured import Array, fields, sketch
from tests.unit.trace_builder import Trace

pytestmark = pytest.mark.timeout(60)
WHOLE = np.random.default_rng(3).normal(size=(4, 6))


def cut(mine: Array, dim: int, parts: int, at: int) -> dict[str, Any]:
    shape = tuple(n * (parts if d == dim else 1) for d, n in enumerate(mine.shape))
    offset = tuple(n * at if d == dim else 0 for d, n in enumerate(mine.shape))
    return {"cut": [dim, parts, at], "sketch": sketch(mine, shape, offset).tobytes()}


def run(told: list[Array], axes: list[list[tuple[int, int]]]) -> Any:
    """Ranks that have an initial parameter each, which looks whole, and their groups."""
    trace = Trace(len(told))
    for rank, (proc, mine) in enumerate(zip(trace.ranks, told, strict=True)):
        for what in ("init", "grad"):
            proc.define(
                wire.DefKind.TENSOR, step=0, what=what, name="w", order=0, dtype="float32",
                over=[rank], **fields(mine, (0,) * mine.ndim, mine.shape),
                cuts=[cut(mine, d, n, at) for d in range(mine.ndim) for n, at in axes[rank]],
            )  # fmt: skip
    return trace.store()


def beside(whole: Array, told: list[Array], axes: list[list[tuple[int, int]]]) -> Wholes:
    begun = {"w": wholes(run([whole], [[]])).tensors[0, "init", "w"]}
    return wholes(run(told, axes), None, (), partial(in_place, begun=begun))


@pytest.mark.parametrize("dim", [0, 1])
def test_the_references_shape_says_what_is_cut(dim: int) -> None:
    found = beside(WHOLE, np.split(WHOLE, 2, dim), [[(2, 0)], [(2, 1)]])
    for what in ("init", "grad"):
        whole = found.tensors[0, what, "w"]
        assert whole.shape == (4, 6)
        assert whole.vector == pytest.approx(sketch(WHOLE, (4, 6), (0, 0)), abs=1e-12)


def test_of_two_groups_of_one_size_the_values_tell() -> None:
    """Ranks 0 to 3 are (dp, tp) = (0, 0) (0, 1) (1, 0) (1, 1); the slices are tp's."""
    halves = np.split(WHOLE, 2, 0)
    axes = [[(2, rank // 2), (2, rank % 2)] for rank in range(4)]
    found = beside(WHOLE, [halves[rank % 2] for rank in range(4)], axes)
    whole = found.tensors[0, "grad", "w"]
    assert whole.vector == pytest.approx(sketch(WHOLE, (4, 6), (0, 0)), abs=1e-12)
    assert whole.copies == 2 and not whole.replicas


def test_replicas_of_a_slice_that_drift_are_seen() -> None:
    halves = np.split(WHOLE, 2, 0)
    store_axes = [[(2, rank % 2)] for rank in range(4)]
    told = [halves[0], halves[1], halves[0] * 2, halves[1]]
    assert beside(WHOLE, told, store_axes).unknown[0, "grad", "w"] == "copies"


def test_what_does_not_fit_stays_unknown() -> None:
    found = beside(WHOLE, [WHOLE[:3], WHOLE[1:]], [[(2, 0)], [(2, 1)]])
    assert found.unknown[0, "grad", "w"] == "copies"
