"""On a CUDA device gradients are looked at, inputs of ops are not; memory is the allocator's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from pardbg_agent import core  # noqa: E402
from tests.unit.hooks.test_watches import c, hits, watch  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
__all__ = ["c"]


def test_a_gradient_on_the_device_is_named(c: core.Core) -> None:
    watch(c, "nan")
    model = torch.nn.Linear(2, 3, bias=False, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.weight.grad = torch.tensor([[0.0, 0.0], [float("nan"), 0.0], [0.0, 0.0]], device="cuda")
    ((text, coming),) = hits(c, optimizer.step)
    assert coming == "optimizer.step 0"
    assert text == ("1 of 6 values is not finite (1 NaN; the first at 2) in the gradient of weight")


def test_memory_is_what_the_allocator_gave_out(c: core.Core) -> None:
    watch(c, "memory", torch.cuda.memory_allocated() + (1 << 20))
    weight = torch.nn.Parameter(torch.zeros(1 << 20, device="cuda"))  # 4 MiB
    weight.grad = torch.zeros_like(weight)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    ((text, _),) = hits(c, optimizer.step)
    assert "MiB allocated, more than" in text
