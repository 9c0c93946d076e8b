"""Capturing tensors leaves compiled modules as they are, and takes its hooks away."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.modules import module as modules

from pardbg_agent import core
from pardbg_agent.hooks.watch import activation_capture
from pardbg_agent.hooks.watch.tensor_capture import Capture, _keywords
from tests.unit.hooks.recorded import rank

pytestmark = pytest.mark.timeout(120)
Backend = Callable[[Any, Any], Any]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x))


@pytest.fixture
def capture() -> Iterator[Capture]:
    gc.collect()  # compiled modules of other tests
    made = Capture(range(1))
    yield made
    for handle in made.handles:
        handle.remove()
    assert not modules._global_forward_pre_hooks


@pytest.fixture
def compiled() -> Iterator[tuple[list[int], Backend]]:
    counts: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        counts.append(len(inputs))
        return graph.forward

    yield counts, backend
    torch._dynamo.reset()


def inner(backend: Backend) -> nn.Module:
    net = nn.Sequential(Layer(), nn.Linear(4, 4))
    net[0].compile(backend=backend)
    return net


def outer(backend: Backend) -> Any:
    return torch.compile(Layer(), backend=backend)


def test_without_a_compiled_module_all_calls_are_seen(capture: Capture) -> None:
    nn.Sequential(nn.Linear(4, 4))(torch.zeros(2, 4))
    assert len(modules._global_forward_pre_hooks) == 1


def test_nothing_is_left_in_modules_that_are_copied_or_saved(capture: Capture) -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    net(torch.zeros(2, 4))
    assert all(not m._forward_pre_hooks and not m._forward_hooks for m in net.modules())


@pytest.mark.parametrize("made", [inner, outer])
def test_a_compiled_module_is_compiled_once(
    capture: Capture, compiled: tuple[list[int], Backend], made: Callable[[Backend], nn.Module]
) -> None:
    counts, backend = compiled
    net = made(backend)
    for _ in range(3):
        net(torch.zeros(2, 4))
    assert len(counts) == 1
    assert not modules._global_forward_pre_hooks, "what all modules call would be compiled"
    assert len(net._forward_pre_hooks) == 1


class Named(nn.Module):
    def forward(self, *, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return tokens


def test_keyword_arguments_are_seen() -> None:
    found: list[Any] = []
    hook = modules.register_module_forward_pre_hook(
        lambda module, args: found.append(_keywords(sys._getframe(1)))
    )
    try:
        tokens = torch.zeros(2, 4)
        Named()(tokens=tokens, mask=None)
    finally:
        hook.remove()
    assert list(found[0]) == ["tokens", "mask"] and found[0]["tokens"] is tokens


class Gathers(nn.Module):
    """Puts out what a functional collective is to fill."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.mesh = nn.Linear(4, 4), init_device_mesh("cpu", (4,))

    def forward(self, x: torch.Tensor) -> Any:
        later = AsyncCollectiveTensor(self.inner(x).detach())
        return DTensor.from_local(later, self.mesh, [Replicate()], run_check=False)


@pytest.mark.parametrize(("num_open", "told"), [(1, {"0.inner"}), (0, {"0.inner", "0"})])
def test_what_a_collective_still_fills_is_not_read(
    capture: Capture, watched: Path, monkeypatch: pytest.MonkeyPatch, num_open: int, told: set[str]
) -> None:
    c = core.CURRENT
    assert c is not None
    monkeypatch.setattr(type(c.ops), "num_open", num_open)
    monkeypatch.setattr(activation_capture, "PATIENCE_S", 0.01)
    net = nn.Sequential(Gathers(), nn.Identity())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.ones(2, 4))
    net[0].inner(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    outs = {d["name"] for d in rank(watched).defined("tensor") if d["what"] == "out"}
    assert told <= outs and ("0" in outs) == ("0" in told)
