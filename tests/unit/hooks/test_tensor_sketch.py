"""Sketches of parts add up to the whole's, whatever the parts; rows have hashes."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pardbg_agent.hooks.comm import groups  # noqa: E402
from pardbg_agent.hooks.watch import tensor_sketch  # noqa: E402
from pardbg_agent.hooks.watch.tensor_sketch import Maps, row_hashes, row_sums, sketch  # noqa: E402
from tests.hook_ways import NATIVE, needs_native  # noqa: E402

SHAPES = ((7,), (6, 5), (4, 3, 5), (1, 9), (33, 2))


def vector(part: torch.Tensor, shape: tuple[int, ...], offset: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(sketch(Maps(), part, shape, offset)["sketch"])


def cut(size: int, draw: random.Random) -> list[tuple[int, int]]:
    """Cut a dimension into up to four parts, some of them empty."""
    at = sorted({0, size, *(draw.randint(0, size) for _ in range(3))})
    return list(itertools.pairwise(at)) + [(size, size)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_boxes_add_up_to_the_whole(shape: tuple[int, ...], seed: int) -> None:
    draw = random.Random(seed)
    whole = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    total, count = np.zeros(256), 0
    for box in itertools.product(*(cut(size, draw) for size in shape)):
        part = whole[tuple(slice(*ends) for ends in box)]
        total += vector(part, shape, tuple(begin for begin, _ in box))
        count += part.numel()
    assert count == whole.numel()
    np.testing.assert_allclose(total, vector(whole, shape, (0,) * len(shape)), atol=1e-12)


def test_partial_sums_and_factors_are_those_of_the_sketches() -> None:
    parts = [torch.randn(40, 3, dtype=torch.float64) for _ in range(4)]
    summed = sum(vector(part, (40, 3), (0, 0)) for part in parts)
    np.testing.assert_allclose(summed, vector(sum(parts), (40, 3), (0, 0)), atol=1e-12)
    np.testing.assert_allclose(vector(parts[0] * -3, (40, 3), (0, 0)) / -3,
                               vector(parts[0], (40, 3), (0, 0)), atol=1e-12)  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_the_norm_of_a_difference_is_about_that_of_the_sketches(seed: int) -> None:
    made = torch.Generator().manual_seed(seed)
    a = torch.randn(300, 70, generator=made, dtype=torch.float64)
    b = a + 1e-3 * torch.randn(300, 70, generator=made, dtype=torch.float64)
    true = float((a - b).norm() / a.norm())
    va, vb = (vector(x, (300, 70), (0, 0)) for x in (a, b))
    assert 0.75 < np.linalg.norm(va - vb) / np.linalg.norm(va) / true < 1.33


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.randn(50, 4, 3)
    before = vector(whole, (50, 4, 3), (0, 0, 0))
    monkeypatch.setattr(tensor_sketch, "_MAPPED", 30)
    monkeypatch.setattr(tensor_sketch, "_SOME", 30)
    np.testing.assert_allclose(vector(whole, (50, 4, 3), (0, 0, 0)), before, atol=1e-12)


def test_what_is_not_finite_is_counted_and_in_no_sum() -> None:
    found = sketch(Maps(), torch.tensor([1.0, float("nan"), -3.0, float("inf")]), (4,), (0,))
    assert (found["count"], found["bad"], found["most"]) == (4, 2, 3.0)
    assert np.isfinite(np.frombuffer(found["sketch"])).all()


@pytest.mark.parametrize("shape", [(), (0,), (0, 3)])
def test_a_number_and_nothing_have_sketches(shape: tuple[int, ...]) -> None:
    found = sketch(Maps(), torch.zeros(shape) + 2, shape, (0,) * len(shape))
    assert found["count"] == (1 if shape == () else 0)
    assert np.abs(np.frombuffer(found["sketch"])).sum() == (2 if shape == () else 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_a_row_has_its_hash_wherever_it_is(dtype: torch.dtype) -> None:
    rows = (torch.randn(12, 5, 2) * 9).to(dtype)
    rows[3] = rows[8]
    found, order = row_hashes(rows).tolist(), torch.randperm(12)
    assert row_hashes(rows[order]).tolist() == [found[at] for at in order]
    assert len(set(found)) == len({tuple(row.flatten().tolist()) for row in rows})
    assert (
        row_hashes(rows[:, :, 0]).tolist() != found
        and len(row_hashes(rows[:, 0, 0]).tolist()) == 12
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bfloat16])
def test_sums_of_a_rows_parts_are_that_of_the_row(dtype: torch.dtype) -> None:
    rows = torch.randint(0, 90, (5, 12), generator=torch.Generator().manual_seed(2)).to(dtype)
    whole = row_sums(rows)
    parts = [rows[:, own] for own in ([0, 1, 2, 9, 10, 11], [5, 4, 3], [6, 7, 8])]  # in any order
    assert torch.equal(sum(map(row_sums, parts), torch.zeros(5, dtype=torch.int64)), whole)
    assert not torch.equal(row_sums(rows + 1), whole)


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_in_cpp_sketches_are_the_same(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    from pardbg_agent.hooks.ops import native_way

    part = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(4)).to(dtype)
    part[1, 2, 3], part[2, 0, 0] = torch.nan, -torch.inf
    place, hashes = ((6, 5, 21), (3, 0, 7)), tensor_sketch.mixed(torch.arange(3))

    def made() -> list[Any]:
        own, seen = tensor_sketch.sketch_rows(Maps(), part.transpose(0, 1), (6, 21), (3, 7))
        assert seen in (None, (float(part[part.isfinite()].abs().max()), 2))
        rows, _ = tensor_sketch.sketch_rows(Maps(), part, (5, 7), (0, 0))
        return [sketch(Maps(), part, *place), own, tensor_sketch.turned(rows, hashes)]

    monkeypatch.setattr(groups.PROCESS, "module", None)
    wanted = made()
    monkeypatch.setenv("PARDBG_NATIVE", NATIVE)
    monkeypatch.setattr(groups.PROCESS, "module", native_way.module())
    found = made()
    assert wanted[0] == found[0] and wanted[0]["bad"] == 2
    torch.testing.assert_close(found[1:], wanted[1:], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(("values", "dtype", "most"), [
    ([True, False], torch.bool, 1), ([-128, 3], torch.int8, 128), ([-2.0, 1.5], torch.float16, 2),
    ([-4.0, 2.0], torch.float8_e4m3fn, 4), ([math.nan, -4.0, math.inf], torch.float32, 4),
])  # fmt: skip
def test_the_largest_magnitude_is_that_of_any_type(
    values: list[float], dtype: torch.dtype, most: float
) -> None:
    found = sketch(Maps(), torch.tensor(values).to(dtype), [len(values)], [0])
    assert (found["most"], found["bad"]) == (most, sum(not math.isfinite(v) for v in values))
