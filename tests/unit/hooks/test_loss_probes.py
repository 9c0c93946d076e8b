"""What is told of losses that backward begins from: their targets, and parameters before them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pardbg_agent.hooks.__main__ import missing
from pardbg_agent.wire import Kind
from tests.distributed.programs.watched import read_rank
from tests.unit.hooks.fake_world import fake_world


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fake world of 4 ranks, hooks in place; gives the ring's path."""
    yield from fake_world(tmp_path, monkeypatch)


def told_targets(watched: Path, losses: Sequence[torch.Tensor]) -> list[float]:
    """What is told of the targets of losses, one for each look."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.0)
    for step in range(10 * len(losses)):
        loss = losses[step // 10] if step % 10 == 0 else torch.ones(1, requires_grad=True)
        loss.backward()
        optimizer.step()
    return [r.a for r in read_rank(watched).of(Kind.PROBE) if r.name.startswith("loss by ")]


@pytest.mark.skipif(
    not hasattr(torch._C._autograd.SavedTensor, "data"), reason="this torch does not show them"
)
def test_the_targets_of_a_loss_are_told_where_they_say_anything(watched: Path) -> None:
    """Equal ones by one number; not of one value throughout (a GAN's), nor what hooks packed."""
    out = torch.randn(4, 3, requires_grad=True)
    wanted, other = torch.tensor([0, 2, 1, 0]), torch.tensor([0, 2, 1, 1])
    cross, pair = torch.nn.functional.cross_entropy, torch.nn.functional.mse_loss
    losses = [cross(out, wanted), cross(out + 1, wanted) / 2, cross(out, other)]
    losses.append(pair(out, torch.zeros(4, 3)))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (t,), lambda packed: packed[0]):
        losses.append(cross(out, wanted))
    first, again, third, *none = told_targets(watched, losses)
    assert first == again != third != 0
    assert none == [0, 0]


def test_a_torch_that_does_not_show_targets_is_named_by_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those before 2.10."""

    def told() -> int:
        return sum(one.startswith("targets of losses ") for one in missing())

    kept = torch._C._autograd.SavedTensor
    assert told() == (not hasattr(kept, "data"))
    monkeypatch.delattr(kept, "data", raising=False)
    assert told() == 1


def test_what_was_not_finite_before_the_first_such_loss_is_told_once(watched: Path) -> None:
    model: Any = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        if step == 1:
            with torch.no_grad():
                model[1].weight[0, 3] = float("inf")
        (model(torch.ones(2, 4)).mean() * float("nan" if step == 3 else 1)).backward()
        optimizer.step()
    found = [r for r in read_rank(watched).of(Kind.PROBE) if r.name.startswith("nan parameter")]
    assert [(r.name, r.step, r.seq, r.a) for r in found] == [("nan parameter parameter 2", 1, 1, 1)]
