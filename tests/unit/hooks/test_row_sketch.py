"""Sketches of activations: however samples and slices are divided, they add up to the same."""

from __future__ import annotations

import pytest
import torch

from pardbg_agent.hooks.watch.row_sketch import (
    WHOLE,
    Cut,
    by_sample,
    row_sketches,
    samples_at,
)
from pardbg_agent.hooks.watch.tensor_sketch import Maps, row_hashes

ROWS = 12
SHAPES = [(8,), (4, 6), (2, 3, 4), ()]


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def sketch(
    rows: torch.Tensor, inputs: torch.Tensor, first: int = 0, cut: Cut = WHOLE
) -> torch.Tensor:
    return row_sketches(Maps(), rows, samples_at(row_hashes(inputs), first), cut)[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_ranks_and_microbatches_add_up_whatever_rows_they_have(
    shape: tuple[int, ...], seed: int
) -> None:
    inputs, rows = drawn(ROWS, 5, seed=seed), drawn(ROWS, *shape, seed=seed + 100)
    whole = sketch(rows, inputs)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed))
    parts = [sketch(rows[at], inputs[at])[0] for at in order.split([1, 4, 7])]
    assert torch.allclose(sum(parts, torch.zeros(())), whole[0], atol=1e-12)
    chunks = [sketch(rows[at : at + 3], inputs[:3], at)[1] for at in range(0, ROWS, 3)]
    assert torch.allclose(sum(chunks, torch.zeros(())), whole[1], atol=1e-12)


@pytest.mark.parametrize(("dim", "parts"), [(0, 2), (0, 4), (1, 2), (1, 3)])
def test_slices_of_rows_add_up(dim: int, parts: int) -> None:
    inputs, rows = drawn(ROWS, 5), drawn(ROWS, 4, 6, seed=1)
    slices = [
        sketch(part, inputs, cut=Cut(dim, parts, at))
        for at, part in enumerate(rows.chunk(parts, dim + 1))
    ]
    assert torch.allclose(sum(slices, torch.zeros(())), sketch(rows, inputs), atol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_the_size_of_a_difference_is_told(seed: int) -> None:
    inputs, rows = drawn(ROWS, 5, seed=seed), drawn(ROWS, 40, seed=seed + 50)
    change = drawn(ROWS, 40, seed=seed + 99) * 1e-3
    told = (sketch(rows + change, inputs) - sketch(rows, inputs)).norm(dim=1)
    assert told.tolist() == pytest.approx([float(change.norm())] * 2, rel=0.3)


def test_an_error_that_all_rows_have_is_not_cancelled() -> None:
    inputs = drawn(ROWS, 5)
    same = torch.ones(ROWS, 40)
    assert float(sketch(same, inputs)[0].norm()) == pytest.approx(float(same.norm()), rel=0.5)


def test_what_is_not_finite_counts_as_zero() -> None:
    inputs, rows = drawn(ROWS, 5), drawn(ROWS, 8, seed=1)
    holes = rows.clone()
    holes[2, 3], holes[4, 5] = float("nan"), float("inf")
    rows[2, 3] = rows[4, 5] = 0
    assert torch.equal(sketch(holes, inputs), sketch(rows, inputs))


def test_a_row_too_large_for_a_kept_map_adds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, rows = drawn(3, 5), drawn(3, 64, 32, seed=1)
    kept = sketch(rows, inputs)
    monkeypatch.setattr("pardbg_agent.hooks.watch.tensor_sketch._MAPPED", 100)
    monkeypatch.setattr("pardbg_agent.hooks.watch.tensor_sketch._SOME", 300)
    assert torch.allclose(sketch(rows, inputs), kept, atol=1e-12)


def test_kept_maps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pardbg_agent.hooks.watch.tensor_sketch._MAPS", 100)
    maps, samples = Maps(), samples_at(row_hashes(drawn(2, 5)), 0)
    for size in (30, 40, 50, 60):
        row_sketches(maps, drawn(2, size), samples, WHOLE)
    assert sum(len(buckets) for buckets, _ in maps._kept.values()) <= 100


@pytest.mark.parametrize(("shape", "expected"), [
    ((6, 4, 3), (6, 4, 3)), ((4, 6, 3), (6, 4, 3)), ((24, 3), (6, 4, 3)), ((6,), (6,)),
    ((5, 3), None), ((), None), ((12,), (6, 2)),
])  # fmt: skip
def test_rows_of_samples_are_found(
    shape: tuple[int, ...], expected: tuple[int, ...] | None
) -> None:
    found = by_sample(torch.zeros(shape), 6)
    assert (None if found is None else tuple(found.shape)) == expected
