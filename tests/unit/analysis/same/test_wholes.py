"""Parts add up to wholes, or have no known layout; estimates of norms are near."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pardbg.analysis.same.hypotheses import factor
from pardbg.analysis.same.noise import difference, of_update
from pardbg.analysis.same.wholes import Whole, Wholes, overlap, wholes
from pardbg.store.store import Store
from pardbg_agent import wire
from tests.unit.analysis.same.captured import Array, fields, sketch
from tests.unit.trace_builder import Trace

Box = tuple[tuple[int, ...], tuple[int, ...]]


def told(whole: Array, boxes: list[Box], over: list[list[int]] | None = None) -> Wholes:
    """A run in which rank i has the box i of one gradient."""
    trace = Trace(len(boxes))
    for rank, (proc, (offset, size)) in enumerate(zip(trace.ranks, boxes, strict=True)):
        proc.define(
            wire.DefKind.TENSOR, step=0, what="grad", name="w", order=0, dtype="float32",
            over=[rank] if over is None else over[rank], **fields(whole, offset, size),
        )  # fmt: skip
    return wholes(trace.store())


def only(found: Wholes) -> Whole:
    (whole,) = found.tensors.values()
    return whole


def made(whole: Array) -> Whole:
    return only(told(whole, [((0,) * whole.ndim, whole.shape)]))


def cuts(size: int) -> st.SearchStrategy[list[int]]:
    return st.sets(st.integers(1, max(1, size - 1)), max_size=3).map(
        lambda inner: sorted({0, size} | {at for at in inner if at < size})
    )


@st.composite
def grids(draw: st.DrawFn) -> tuple[tuple[int, int], list[Box]]:
    shape = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    rows, columns = draw(cuts(shape[0])), draw(cuts(shape[1]))
    boxes = [
        ((r0, c0), (r1 - r0, c1 - c0))
        for (r0, r1), (c0, c1) in product(pairwise(rows), pairwise(columns))
    ]
    return shape, draw(st.permutations(boxes))


@settings(max_examples=40)
@given(grids(), st.integers(0, 1 << 30), st.integers(1, 2))
def test_boxes_in_two_dimensions_add_up(
    grid: tuple[tuple[int, int], list[Box]], seed: int, replicas: int
) -> None:
    shape, boxes = grid
    whole = np.random.default_rng(seed).normal(size=shape)
    everyone = list(range(len(boxes) * replicas))
    found = only(told(whole, boxes * replicas, [everyone] * len(everyone)))
    assert found.vector == pytest.approx(sketch(whole, shape, (0, 0)), abs=1e-12)
    assert not found.replicas and found.copies == len(boxes) * (replicas - 1)
    if len(boxes) > 1:
        lacking = told(whole, boxes[1:])
        assert list(lacking.unknown.values()) == ["incomplete"] and not lacking.tensors


@settings(max_examples=40)
@given(grids())
def test_cells_of_a_grid_do_not_overlap(grid: tuple[tuple[int, int], list[Box]]) -> None:
    shape, boxes = grid
    assert not overlap(boxes)
    assert overlap([*boxes, ((0, 0), shape)]) is True


def test_layouts_that_are_not_known() -> None:
    whole = np.ones((4, 4))
    left, right = ((0, 0), (4, 2)), ((0, 2), (4, 2))
    assert only(told(whole, [left, right])).count == 16
    assert list(told(whole, [left, ((0, 1), (4, 3))]).unknown.values()) == ["overlap"]
    trace = Trace(2)
    for proc, columns in zip(trace.ranks, (4, 5), strict=True):
        part = np.ones((4, columns))
        proc.define(
            wire.DefKind.TENSOR, step=0, what="grad", name="w", dtype="float32",
            **fields(part, (0, 0), part.shape),
        )  # fmt: skip
    assert list(wholes(trace.store()).unknown.values()) == ["shapes"]
    odd = Trace(1)
    odd.ranks[0].define(
        wire.DefKind.TENSOR, step=0, what="grad", name="w", dtype="float32",
        **{**fields(whole, (0, 0), (4, 4)), "offset": [0, 0, 0]},
    )  # fmt: skip
    assert list(wholes(odd.store()).unknown.values()) == ["place"]


def test_an_empty_shard_and_a_scalar() -> None:
    whole = np.arange(1.0, 4.0)
    assert only(told(whole, [((0,), (2,)), ((2,), (1,)), ((3,), (0,))])).count == 3
    scalar = made(np.array(2.5))
    assert (scalar.count, scalar.norm) == (1, 2.5)


@pytest.mark.parametrize("known", [True, False])
def test_unlike_copies_are_replicas_only_where_it_is_known(known: bool) -> None:
    trace = Trace(3)
    for rank, proc in enumerate(trace.ranks):
        part = np.arange(1.0, 9.0) * (2 if rank == 1 else 1)
        proc.define(
            wire.DefKind.TENSOR, step=0, what="grad", name="w", dtype="float32",
            over=[0, 1, 2] if known else [rank], **fields(part, (0,), (8,)),
        )  # fmt: skip
    found = wholes(trace.store())
    if known:
        assert [rank for rank, _ in only(found).replicas] == [0, 1, 2]
    else:
        assert list(found.unknown.values()) == ["copies"]


@pytest.mark.parametrize("seed", range(20))
def test_the_norm_of_a_difference_is_estimated(seed: int) -> None:
    """256 buckets: a standard deviation of √(1/128) / 2 = 4 %; 20 % are five of them."""
    drawn = np.random.default_rng(seed)
    reference = drawn.normal(size=(64, 64))
    moved = reference * (1 + 1e-3 * drawn.normal(size=reference.shape))
    true = float(np.linalg.norm(moved - reference))
    assert difference(made(reference), made(moved)) == pytest.approx(true, rel=0.2)


@settings(max_examples=40)
@given(st.integers(0, 1 << 30), st.sampled_from([2.0, 0.5, 4.0, 0.25, -1.0, 3.0]))
def test_a_factor_is_found(seed: int, by: float) -> None:
    value = np.random.default_rng(seed).normal(size=(16, 8))
    found = factor(made(value), made(value * by), (4,))
    assert found is not None and found.factor == pytest.approx(by)
    assert found.named == (by != 3.0)
    other = np.random.default_rng(seed + 1).normal(size=(16, 8))
    assert factor(made(value), made(other), (4,)) is None


def test_a_rank_that_tells_a_gradient_twice_has_no_known_one() -> None:
    """Two steps of an optimizer within one training step."""
    found = wholes(gradients([(0, "w", 0, 1.0), (0, "w", 0, 2.0)]))
    assert list(found.unknown.values()) == ["copies"] and not found.tensors


def test_the_order_of_parameters() -> None:
    one = wholes(gradients([(1, "a", 0, 1.0), (0, "b", 1, 1.0), (1, "c", 2, 1.0)]))
    assert one.ordered() == ["a", "b", "c"]
    stages = wholes(gradients([(1, "a", 0, 1.0), (0, "b", 1, 1.0), (0, "c", 0, 1.0)]))
    assert stages.ordered() == ["c", "b", "a"]  # each stage counts from 0


def gradients(told: list[tuple[int, str, int, float]]) -> Store:
    """A run's gradients: (rank, name, order, value)."""
    trace = Trace(2)
    for rank, name, order, value in told:
        trace.ranks[rank].define(
            wire.DefKind.TENSOR, step=0, what="grad", name=name, order=order, dtype="float32",
            over=[0, 1], **fields(np.full(3, value), (0,), (3,)),
        )  # fmt: skip
    return trace.store()


@pytest.mark.parametrize(("share", "count", "wanted"), [
    # float32: no element of a million is so small, or few are: a tenth of the update
    (1e-7, 32, 0.1), (1e-6, 1 << 20, 0.1),
    # bfloat16: 0.28 of 32 elements turn, ceil(0.28 + 3 sqrt(0.28)) = 2 may: 2 sqrt(2 / 32) = 0.5
    (0.0175, 32, 0.5),
    # a fifth of 10,000: 1000 + 3 sqrt(1000) = 1095: 2 sqrt(0.1095)
    (0.2, 10_000, 0.6618),
])  # fmt: skip
def test_signs_of_tiny_gradients_explain_a_share_of_an_update(
    share: float, count: int, wanted: float
) -> None:
    assert of_update(share, count) == pytest.approx(wanted, abs=1e-4)


def summed(parts: list[tuple[int, int, Array]]) -> Wholes:
    """A run in which rank i has (which, of how many, values) of the summands of one gradient."""
    trace = Trace(len(parts))
    for proc, (which, count, values) in zip(trace.ranks, parts, strict=True):
        proc.define(
            wire.DefKind.TENSOR, step=0, what="grad", name="w", order=0, dtype="float32",
            over=list(range(len(parts))), summand=[which, count],
            **fields(values, (0,), values.shape),
        )  # fmt: skip
    return wholes(trace.store())


def test_summands_add_up() -> None:
    """Two of them on four ranks, each on two; they are no replicas of each other."""
    one, other = np.arange(6.0), np.array([5.0, -1.0, 0.0, 2.0, 0.0, 1.0])
    whole = only(summed([(0, 2, one), (1, 2, other), (0, 2, one), (1, 2, other)]))
    assert whole.vector == pytest.approx(sketch(one + other, (6,), (0,)), abs=1e-12)
    assert (whole.count, whole.replicas) == (6, ())


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([(0, 2, 1.0), (0, 2, 1.0)], "incomplete"),
        ([(0, 2, 1.0), (1, 2, 1.0), (1, 2, 3.0)], "copies"),
    ],
)
def test_summands_of_which_one_is_missing_or_unlike(
    parts: list[tuple[int, int, float]], why: str
) -> None:
    found = summed([(which, count, np.full(3, value)) for which, count, value in parts])
    assert list(found.unknown.values()) == [why] and not found.tensors
