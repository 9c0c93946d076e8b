"""Names of what no module's parameter is: buffers, and tensors that the program names."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pardbg_agent
from pardbg_agent.hooks.watch.tensor_names import Models, place


class Statistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.inner = nn.Module()
        self.inner.module = nn.BatchNorm1d(4)


def test_buffers_of_floating_point_are_those_of_the_optimizers_models() -> None:
    gc.collect()
    made, other = Statistics(), Statistics()
    found = Models().buffers([made.linear.weight])
    assert [(one.name, one.order) for one in found] == [
        ("inner.running_mean", 0), ("inner.running_var", 1),  # and a count, which is no float
    ]  # fmt: skip
    assert found[0].tensor is made.inner.module.running_mean
    assert not Models().buffers([torch.zeros(1)]) and other.linear is not None


@pytest.mark.parametrize(("graded", "ran", "names"), [
    ((), (0,), []), ((), (0, 1), ["1.weight", "1.bias"]), (("weight",), (0,), ["1.weight"]),
])  # fmt: skip
def test_copies_are_what_the_program_computes_with_and_does_not_step(
    graded: tuple[str, ...], ran: tuple[int, ...], names: list[str]
) -> None:
    """A rank of a pipeline keeps the whole model, and computes and steps its first layer; with the
    second one it computes where that was called, or got a gradient."""
    gc.collect()
    whole = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for name in graded:
        whole[1].get_parameter(name).grad = torch.zeros_like(whole[1].get_parameter(name))
    models = Models()
    stepped = set(map(id, whole[0].parameters()))
    found = models.used(stepped, {models.number(whole)}, {id(whole[at]) for at in ran})
    assert [one.name for one in found] == names


def test_what_ddp_leaves_alone_is_no_replica() -> None:
    """As experts are, of which each rank has its own."""
    gc.collect()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["1.weight"])
        ddp = DistributedDataParallel(model)
        named = Models().named(list(ddp.parameters()))
        assert [(one.name, one.over) for one in named] == [
            ("0.weight", [0]), ("0.bias", [0]), ("1.weight", []),
        ]  # fmt: skip
    finally:
        dist.destroy_process_group()


def test_an_optimizers_own_tensor_has_the_name_that_the_program_tells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.collect()
    monkeypatch.setenv("PARDBG_TENSORS", "0-1")
    model: Any = nn.Sequential(nn.Linear(3, 2), *[nn.Linear(2, 2) for _ in range(40)])
    shards = [nn.Parameter(torch.zeros(3)) for _ in range(3)]
    pardbg_agent.layout(shards[0], (6,), (3,), "module.0.weight")
    pardbg_agent.layout(shards[1], (2,), (0,), "0.bias")
    models = Models()
    found = models.named(shards)
    assert [(one.name, one.order) for one in found] == [("0.weight", 0), ("0.bias", 1)]
    assert {one.model for one in found} == {models.number(model)}
    assert place(shards[0], shards[0], shards[0]).offset == [3]
