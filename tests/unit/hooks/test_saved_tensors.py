"""Activation bytes: what autograd keeps, of every kind of tensor, and what a recomputed forward
keeps instead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils.checkpoint import checkpoint

from pardbg_agent import core, hooks
from pardbg_agent.hooks import context
from pardbg_agent.hooks.memory import saved_tensors
from pardbg_agent.hooks.training import step_phases
from pardbg_agent.wire import Flag, Kind
from tests.distributed.programs.watched import Rank, make_run, read_rank


@pytest.fixture
def c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[core.Core]:
    monkeypatch.setenv("PARDBG", make_run(tmp_path)["PARDBG"])
    hooks.install()
    made = core.ensure()
    made.step = saved_tensors.FIRST
    yield made
    hooks.uninstall()
    core.shutdown()


def rank(c: core.Core) -> Rank:
    assert c.ring.path is not None
    return read_rank(Path(c.ring.path))


def test_two_steps_in_a_row_are_sampled_as_programs_may_alternate() -> None:
    due = [step for step in range(310) if saved_tensors.due(step)]
    assert due == [1, 2, 100, 101, 200, 201, 300, 301]


def test_the_result_of_a_collective_nobody_waited_for_is_counted(c: core.Core) -> None:
    """Four floats inside a wrapper that has no storage of its own; autograd saves it for the
    weight's gradient."""
    weight = torch.nn.Parameter(torch.full((4,), 2.0))
    count = saved_tensors.begin(c, torch.nn.Identity())
    assert count is not None
    out = AsyncCollectiveTensor(torch.ones(4)) * weight
    assert saved_tensors.end(c, count) == 16
    out.sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [1.0] * 4
    assert rank(c).defined("error") == []


def test_a_tensor_that_cannot_be_counted_ends_the_counting_not_the_program(
    c: core.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no storage")

    count = saved_tensors.begin(c, torch.nn.Identity())
    assert count is not None
    monkeypatch.setattr(saved_tensors.Count, "add", broken)
    y = torch.ones(4, requires_grad=True).tanh()
    saved_tensors.end(c, count)
    y.sum().backward()
    assert saved_tensors.begin(c, torch.nn.Identity()) is None
    assert [error["where"] for error in rank(c).defined("error")] == ["saved"]


def checkpointed(c: core.Core, wrap: bool) -> tuple[torch.Tensor, list[Any]]:
    """Two regions of linear, tanh, tanh on 8x4 floats: gradients, activation records."""
    torch.manual_seed(0)
    parts = [
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Tanh())
        for _ in range(2)
    ]
    model = torch.nn.Sequential(*parts)
    x = torch.ones(8, 4, requires_grad=True)
    begun = step_phases.before_forward(c, model)
    out = x
    for part in parts:
        out = checkpoint(part, out, use_reentrant=False) if wrap else part(out)
    step_phases.after_forward(c, begun, 0, False)
    out.sum().backward()
    assert x.grad is not None
    return x.grad, [(r.a, r.b) for r in rank(c).of(Kind.MEMORY, "activations")]


def test_a_recomputed_forward_is_marked_and_its_bytes_come_on_top(c: core.Core) -> None:
    """A region's input is 128 bytes. Inside, autograd keeps both tanhs' outputs: 256 more (the
    linear keeps its input again, and its weight is a parameter). So after the forward 2 x 128 are
    kept, and never more than 256 beside them."""
    grad, activations = checkpointed(c, wrap=True)
    assert activations == [(256, 256), (256, 512)]
    again = rank(c).of(Kind.PHASE, "recompute")
    (backward,) = rank(c).of(Kind.PHASE, "backward")
    assert len(again) == 2 and all(r.flags == Flag.RECOMPUTE for r in again)
    assert backward.t0 < again[0].t0 < again[0].t1 <= again[1].t0 < again[1].t1 < backward.t1
    assert context.of(c).loop.saved is None and context.local().recompute == 0

    kept, activations = checkpointed(c, wrap=False)
    assert torch.equal(grad, kept)
    # x, and four tanhs' outputs: the second region's input is one of them
    assert activations[2:] == [(5 * 128, 5 * 128)]
    assert len(rank(c).of(Kind.PHASE, "recompute")) == 2


def plain_loop(steps: int) -> list[float]:
    """Linear, tanh, linear on 2x4 floats, wrapped in nothing; the losses."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        loss = model(torch.ones(2, 4)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def hooks_on_top() -> Any:
    return saved_tensors._top()


def test_memory_that_was_let_go_counts_for_whom_it_holds_next(c: core.Core) -> None:
    """Backward frees what was saved; what a recomputed forward saves may lie at the same place."""
    place = bytearray(64)
    count = saved_tensors.begin(c, torch.nn.Identity())
    assert count is not None
    saved_tensors.end(c, count)
    first = torch.frombuffer(place, dtype=torch.float32)
    count.add(first)
    beside = count.beside()
    beside.add(first)
    assert (count.num_bytes, beside.num_bytes) == (64, 0), "it is still there"
    del first
    beside = count.beside()
    beside.add(torch.frombuffer(place, dtype=torch.float32))
    assert beside.num_bytes == 64


def test_a_dropped_parameter_s_memory_counts_for_whom_it_holds_next(c: core.Core) -> None:
    """A program may let its model go between two steps (a teacher, the generator of a GAN)."""
    place = bytearray(64)
    model = [torch.frombuffer(place, dtype=torch.float32)]
    count = saved_tensors.begin_without(c, lambda: model)
    assert count is not None
    saved_tensors.end(c, count)
    count.add(model[0])
    assert count.num_bytes == 0
    model.clear()
    count.add(torch.frombuffer(place, dtype=torch.float32))
    assert count.num_bytes == 64


def test_a_model_that_nothing_wraps_is_counted_up_to_its_backward(c: core.Core) -> None:
    """The input, 2x4 floats, and tanh's output, 2x8. Steps 1 and 2 of four are sampled."""
    c.step = 0
    losses = plain_loop(4)
    found = rank(c).of(Kind.MEMORY, "activations")
    assert [(r.step, r.a, r.b) for r in found] == [(1, 96, 96), (2, 96, 96)]
    assert hooks_on_top() is None and context.local().nest.open is None
    hooks.uninstall()
    assert plain_loop(4) == losses


def test_hooks_of_the_programs_own_stay_in_order(c: core.Core) -> None:
    """Its own begin behind ours and are on while backward runs: ours wait for their end."""
    c.step = 0
    plain_loop(1)
    assert context.local().nest.open is not None
    weight = torch.nn.Parameter(torch.ones(4))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        (weight * weight).sum().backward()
        assert context.local().nest.open is not None and hooks_on_top() is not None
    assert weight.grad is not None and weight.grad.tolist() == [2.0] * 4
    first = context.local().nest.open
    (weight * 1).square().sum().backward()  # four floats between the two
    assert context.local().nest.open is not first  # another count, for the next microbatch
    found = rank(c).of(Kind.MEMORY, "activations")
    assert [(r.step, r.a) for r in found] == [(1, 16)]


def test_detaching_leaves_nothing_on_autograd(c: core.Core) -> None:
    c.step = 0
    plain_loop(1)
    assert hooks_on_top() is not None
    hooks.uninstall()
    assert hooks_on_top() is None
