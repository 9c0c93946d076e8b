"""Ranks begin with another run's parameters, whatever parts either has of them."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pardbg_agent.hooks.watch import initial_values
from pardbg_agent.hooks.watch.initial_values import InitialValues, Piece
from pardbg_agent.hooks.watch.tensor_names import Named
from pardbg_agent.wire import LAYOUT

pytestmark = pytest.mark.timeout(60)
Box = tuple[list[int], list[int]]


def named(part: torch.Tensor, axes: list[tuple[int, int]] | None = None) -> Named:
    return Named(0, "w", part, [], 0, axes or [])


def filled(part: torch.Tensor, pieces: list[Piece], axes: list[tuple[int, int]]) -> bool:
    values = InitialValues("", "x")
    values.remove()
    values._known = {"w": pieces}
    return values._fill(named(part, axes))


@st.composite
def grids(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Box]:
    """Boxes that make up a whole of that shape."""
    inner = [draw(st.sets(st.integers(1, n - 1), max_size=2)) for n in shape]
    edges = [sorted({0, n} | cuts) for n, cuts in zip(shape, inner, strict=True)]
    return [
        ([low for low, _ in box], [high - low for low, high in box])
        for box in product(*(list(pairwise(along)) for along in edges))
    ]


def part_of(whole: torch.Tensor, box: Box) -> torch.Tensor:
    return whole[tuple(slice(o, o + n) for o, n in zip(*box, strict=True))].clone()


@settings(max_examples=50)
@given(st.data(), st.integers(0, 1 << 20))
def test_every_cut_is_filled_from_every_other(data: st.DataObject, seed: int) -> None:
    shape = 5, 6
    whole = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    written, wanted = data.draw(grids(shape)), data.draw(grids(shape))
    pieces = [Piece(list(shape), box[0], part_of(whole, box)) for box in written * 2]  # replicas
    for box in wanted:
        part = torch.zeros(box[1])
        setattr(part, LAYOUT, (shape, box[0]))
        assert filled(part, pieces, [])
        assert torch.equal(part, part_of(whole, box))
    # without one of the boxes something of the whole is not known, and nothing is changed
    part = torch.zeros(shape)
    assert not filled(part, pieces[1 : len(written)], [])
    assert not part.any()


@pytest.mark.parametrize(("axes", "dim", "at"), [([(2, 1)], 0, 1), ([(3, 0), (2, 0)], 1, 0)])
def test_a_slice_that_nobody_states_is_that_of_the_only_group_that_fits(
    axes: list[tuple[int, int]], dim: int, at: int
) -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    wanted = whole.chunk(2, dim)[at]
    part = torch.zeros_like(wanted)
    assert filled(part, [Piece([4, 6], [0, 0], whole)], axes)
    assert torch.equal(part, wanted)


@pytest.mark.parametrize(("dtype", "of", "eps"), [
    (torch.float32, "own", 2.0**-23), (torch.bfloat16, "own", 2.0**-7),
    (torch.float32, "bfloat16", 2.0**-7),
])  # fmt: skip
def test_noise_is_a_rounding_up_or_down(dtype: torch.dtype, of: str, eps: float) -> None:
    values = torch.randn(4000, generator=torch.Generator().manual_seed(2)).to(dtype)
    moved = initial_values.moved(values, "w", of)
    shares = (moved.double() / values.double() - 1) / eps
    assert moved.dtype is dtype and float(shares.abs().max()) <= 2.01  # one ulp or two
    assert abs(float(shares.mean())) < 0.1 and float(shares.abs().mean()) > 0.5
    assert torch.equal(moved, initial_values.moved(values, "w", of))
    assert torch.equal(initial_values.moved(values, "w", ""), values)


def test_a_flat_piece_is_filled_from_a_whole() -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    part = torch.zeros(5)
    setattr(part, LAYOUT, ((24,), (7,)))
    assert filled(part, [Piece([4, 6], [0, 0], whole)], [])
    assert part.tolist() == [7, 8, 9, 10, 11]


def test_two_groups_that_fit_leave_it_alone() -> None:
    part = torch.zeros(2, 6)
    assert not filled(part, [Piece([4, 6], [0, 0], torch.ones(4, 6))], [(2, 1), (2, 0)])
    assert not part.any()


def test_a_model_is_written_once_and_read_before_its_first_forward(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = nn.Linear(2, 3), nn.Linear(2, 3)
    named_first = [Named(at, n, p, [], 0, []) for at, (n, p) in enumerate(first.named_parameters())]
    written = [
        (one.name, list(one.tensor.shape), [0] * one.tensor.dim(), one.tensor.detach().clone())
        for one in named_first
    ]
    torch.save(written, tmp_path / "rank-0-0.pt")
    values = InitialValues("", str(tmp_path))
    values.remove()
    values._known = initial_values.read(tmp_path)
    for at, (name, p) in enumerate(second.named_parameters()):
        assert values._fill(Named(at, name, p, [], 0, []))
    assert torch.equal(first.weight, second.weight) and torch.equal(first.bias, second.bias)
    assert not capsys.readouterr().err


def test_names_that_two_models_have_are_left_alone() -> None:
    one, other, third = (torch.zeros(1) for _ in range(3))
    parameters = [Named(0, "w", one, [], 0, []), Named(0, "w", other, [], 1, []),
                  Named(1, "v", third, [], 1, [])]  # fmt: skip
    assert [found.name for found in initial_values.plain(parameters)] == ["v"]
