"""On a CUDA device `watch diverge` sums there, and fetches all sums at once."""

from __future__ import annotations

import weakref

import pytest

torch = pytest.importorskip("torch")

from pardbg_agent.hooks.watch import diverge  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_sums_are_those_of_the_host() -> None:
    sizes = ((3, 5), (8,), (), (1 << 20,))
    kinds = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
    host = [torch.randn(size).to(kind) for size, kind in zip(sizes, kinds, strict=True)]
    there = [torch.nn.Parameter(t.cuda()) for t in host]
    named = tuple((weakref.ref(p), str(i)) for i, p in enumerate(there))
    with torch.no_grad():
        found = diverge._sums(diverge.Replica("", (0,), named), gradients=False)
        assert found == [int(diverge.bits_sum(t)) for t in host]
    assert diverge._sums(diverge.Replica("", (0,), named), gradients=True) == [
        diverge._NOTHING
    ] * len(host)
