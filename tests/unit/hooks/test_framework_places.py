"""What Megatron's attributes say of a tensor's place, and of a layer's number."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from pardbg_agent.hooks.watch import tensor_sketch
from pardbg_agent.hooks.watch.framework_places import (
    flat_fragment,
    layer_names,
    megatron_place,
    tensor_parallel,
)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Rank [in tensor parallelism, in expert parallelism] of two each, to be changed."""
    state, ranks = ModuleType("megatron.core.parallel_state"), [0, 0]
    for at, of in enumerate(("tensor_model", "expert_model")):
        setattr(state, f"get_{of}_parallel_world_size", lambda: 2)
        setattr(state, f"get_{of}_parallel_rank", lambda at=at: ranks[at])
    monkeypatch.setitem(sys.modules, state.__name__, state)
    yield ranks


def cut(whole: torch.Tensor, dim: int, at: int, blocks: int) -> nn.Parameter:
    pieces = [block.chunk(2, dim)[at] for block in whole.chunk(blocks, dim)]
    mine = nn.Parameter(torch.cat(pieces, dim))
    mine.tensor_model_parallel = True  # type: ignore[attr-defined]
    mine.partition_dim, mine.partition_stride = dim, blocks  # type: ignore[attr-defined]
    return mine


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("blocks", [1, 2])
def test_parts_of_blocks_add_up_to_the_whole(rank: list[int], dim: int, blocks: int) -> None:
    whole = torch.randn(8, 12, generator=torch.Generator().manual_seed(1))
    maps = tensor_sketch.Maps()
    total = torch.zeros(256, dtype=torch.float64)
    for at in range(2):
        rank[0] = at
        mine = cut(whole, dim, at, blocks)
        placed = megatron_place(mine, mine.detach())
        assert placed is not None and placed.shape == [8, 12]
        if placed.blocks is None:
            sketch = tensor_sketch.sketch(maps, mine, placed.shape, placed.offset)["sketch"]
        else:
            sketch = tensor_sketch.sliced(maps, mine, *placed.blocks)
        total += torch.frombuffer(bytearray(sketch), dtype=torch.float64)
    wanted = tensor_sketch.sketch(maps, whole, [8, 12], [0, 0])["sketch"]
    torch.testing.assert_close(total, torch.frombuffer(bytearray(wanted), dtype=torch.float64))


def test_what_no_framework_says_is_not_known(rank: list[int]) -> None:
    assert megatron_place(nn.Parameter(torch.ones(2)), torch.ones(2)) is None
    assert tensor_parallel() == (2, 0)
    del sys.modules["megatron.core.parallel_state"]
    assert tensor_parallel() is None


@dataclass
class Address:
    start: int
    numel: int


@dataclass
class Mapping:
    """What DeepSpeed notes at a parameter of which an optimizer's flat tensor has a part."""

    hp_fragment: torch.Tensor
    lp_fragment_address: Address
    hp_fragment_address: Address


def test_a_part_of_a_flat_tensor_has_its_gradient_and_its_place() -> None:
    """The flat one begins with the last two of six elements."""
    flat, other = torch.arange(8.0), torch.zeros(8)
    flat.grad = flat * 10
    parameter = nn.Parameter(torch.zeros(2, 3))
    assert flat_fragment(parameter, [flat]) is None
    parameter._hp_mapping = Mapping(  # type: ignore[attr-defined]
        flat.narrow(0, 0, 2), Address(4, 2), Address(0, 2)
    )
    found = flat_fragment(parameter, [other, flat])
    assert found is not None
    part, placed = found
    assert part.tolist() == [0, 1] and part.grad.tolist() == [0, 10]
    assert (placed.shape, placed.offset) == ([6], [4])
    assert flat_fragment(parameter, [other]) is None


class Layer(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.layer_number = number
        self.mlp = nn.Module()
        self.mlp.local_experts = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)])


def test_layers_and_experts_have_their_numbers_in_the_whole_model(rank: list[int]) -> None:
    rank[1] = 1
    root = nn.Module()
    root.layers = nn.ModuleList([Layer(3), Layer(4)])  # the second stage's, from 1
    known_as = layer_names(root)
    assert known_as("layers.0") == "layers.2"
    assert known_as("layers.1.mlp.local_experts.1.weight") == "layers.3.mlp.local_experts.3.weight"
    assert known_as("norm.weight") == "norm.weight"


class Gathering:
    """What DeepSpeed's ZeRO 3 keeps of parameters: elements 4 to 7 of a group's flat tensor."""

    def __init__(self, flat: torch.Tensor) -> None:
        self.fp32_partitioned_groups_flat = [torch.zeros(1), flat]
        self.grad_position = {7: [1, 4, 4]}

    @staticmethod
    def get_param_id(parameter: Any) -> int:
        return 7


@pytest.mark.parametrize(("at", "own"), [(0, [4, 5, 6, 7]), (1, [4, 5]), (2, [])])
def test_a_part_that_zero_3_gathers_has_no_padding(
    at: int, own: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six elements on three ranks, four each."""
    monkeypatch.setattr("torch.distributed.get_rank", lambda group: at)
    flat = torch.arange(8.0)
    flat.grad = flat * 10
    parameter: Any = nn.Parameter(torch.empty(0))
    parameter.ds_tensor, parameter.ds_numel, parameter.ds_process_group = flat[4:], 6, None
    assert flat_fragment(parameter, [flat]) is None
    parameter._z3_optimizer = Gathering(flat)
    found = flat_fragment(parameter, [torch.zeros(8), flat])
    assert found is not None
    part, placed = found
    assert part.tolist() == own and part.grad.tolist() == [10 * n for n in own]
    assert (placed.shape, placed.offset) == ([6], [min(4 * at, 6)])
    assert flat_fragment(parameter, [torch.zeros(8)]) is None
