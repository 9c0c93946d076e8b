"""The model, its stages, its batches and its pace, in this process."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from pardbg.lab.recipes.data import Text
from pardbg.lab.recipes.model import Block, gpt, loss, stage
from pardbg.lab.recipes.paced import Paced
from pardbg.lab.recipes.shape import share

CPU = torch.device("cpu")


def test_shares_cover_the_blocks_in_order() -> None:
    # 8 blocks over 3 stages: 3 + 3 + 2
    assert [share(i, 3, 8) for i in range(3)] == [slice(0, 3), slice(3, 6), slice(6, 8)]
    assert [share(i, 8, 8) for i in range(8)] == [slice(i, i + 1) for i in range(8)]
    assert share(0, 1, 8) == slice(0, 8)


@pytest.mark.parametrize("num_stages", [1, 3, 4, 8])
def test_stages_one_after_the_other_are_the_whole_model(num_stages: int) -> None:
    whole = gpt(seed=0)
    tokens, _ = Text(0, CPU).batch(0)
    x = tokens[:2]
    for index in range(num_stages):
        x = stage(whole, index, num_stages)(x)
    assert torch.equal(x, whole(tokens[:2]))


def test_the_size_that_the_texts_name() -> None:
    # block: 2 norms 256 + qkv 12,480 + out 4,160 + mlp 33,088 = 49,984
    # 8 blocks 399,872 + embeddings 20,480 + norm 128 + scores 16,384 = 436,864
    assert sum(p.numel() for p in gpt(0).parameters()) == 436_864


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    text = Text(0, CPU)
    tokens, targets = text.batch(5)
    assert tokens.shape == targets.shape == (16, 64)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    torch.rand(3)  # what else is drawn does not move it
    assert torch.equal(Text(0, CPU).batch(5)[0], tokens)
    assert not torch.equal(text.batch(6)[0], tokens)
    assert not torch.equal(Text(1, CPU).batch(5)[0], tokens)


def test_pace_changes_no_number() -> None:
    tokens, targets = Text(0, CPU).batch(0)
    results = []
    for pace_ms in (0.0, 0.1):
        model = gpt(0, pace_ms)
        error = loss(model(tokens[:2]), targets[:2])
        error.backward()
        results.append([error, *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_pace_sleeps_in_forward_and_twice_in_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("pardbg.lab.recipes.paced.time.sleep", slept.append)
    x = torch.ones(2, requires_grad=True)
    y = Paced(4.0)(x)
    assert slept == [0.004]
    y.sum().backward()
    assert slept == [0.004, 0.008]
    assert torch.equal(x.grad, torch.ones(2))


def test_a_block_sleeps_apart_for_its_input_and_for_its_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One pace forward; backward one for the input's gradient, I, and one for the weights', W."""
    slept: list[float] = []
    monkeypatch.setattr("pardbg.lab.recipes.paced.time.sleep", slept.append)
    block = Block(4.0)
    x = torch.ones(1, 2, 64, requires_grad=True)
    y = block(x)
    assert slept == [0.004]
    _, groups = stage_backward_input([y], [torch.ones_like(y)], [x], block.parameters())
    assert slept == [0.004] * 2
    stage_backward_weight(block.parameters(), groups)
    assert slept == [0.004] * 3
    block(x).sum().backward()  # both at once
    assert slept == [0.004] * 6
