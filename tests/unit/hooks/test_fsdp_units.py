"""A unit of FSDP2: what watching it costs where nothing times it, and what is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pardbg_agent import core
from pardbg_agent.hooks import context
from pardbg_agent.wire import Kind
from tests.distributed.programs.watched import read_rank
from tests.unit.hooks.fsdp2 import fully_shard


def test_on_the_host_no_hook_looks_at_what_a_unit_computes(watched: Path) -> None:
    """Without a device's clock there is nothing to time: a hook that asked would fail here."""
    net: Any = torch.nn.Sequential(torch.nn.Linear(4, 8))
    fully_shard(net)
    now = core.CURRENT
    assert now is not None and now.device is None
    context.of(now).fsdp_computes = None
    net(torch.ones(2, 4)).sum().backward()
    assert not {"fsdp.forward", "fsdp.backward"} & now.guard.disabled


@pytest.mark.parametrize(("steps_all", "trains_all", "left_out"), [
    (True, True, 0), (False, True, 2), (False, False, 0),
])  # fmt: skip
def test_the_parameters_of_shards_that_an_optimizer_leaves_out_are_counted(
    watched: Path, steps_all: bool, trains_all: bool, left_out: int
) -> None:
    """Of two layers with weight and bias: the second is not stepped, nor trained."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
    net[1].requires_grad_(trains_all)
    fully_shard(net)
    optimizer = torch.optim.SGD((net if steps_all else net[0]).parameters(), lr=0.0)
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    told = f"Linear() parameters(left_out={left_out})"
    found = [r.name for r in read_rank(watched).of(Kind.PROBE) if r.name.startswith("modules ")]
    assert found == [f"modules {told}"]


def test_parameters_of_shards_that_another_optimizer_steps_are_not_left_out(watched: Path) -> None:
    """A matrix optimizer and one for the rest: between them they step all four parameters."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
    fully_shard(net)
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.0) for layer in net]
    net(torch.ones(2, 4)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    found = [r.name for r in read_rank(watched).of(Kind.PROBE) if r.name.startswith("modules ")]
    assert found == ["modules Linear() parameters(left_out=0)"] * 2
