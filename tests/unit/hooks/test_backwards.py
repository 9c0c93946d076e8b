"""What is told of each backward: gradients that it adds to though a step was taken by them, and its
loss where there is no optimizer. In one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from pardbg_agent.hooks import kept_gradients
from pardbg_agent.hooks.watch import probes
from pardbg_agent.wire import Kind
from tests.distributed.programs.watched import read_rank
from tests.unit.hooks.fake_world import fake_world

LAST = 2 * probes.EVERY + 3
"""Steps are looked at after 0, 10 and 20; after the first it is not known yet that there is one
optimizer alone."""
Loop = Callable[[torch.nn.Module, torch.optim.Optimizer], None]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(probes, "FREE_NS", 60_000_000_000)
    yield from fake_world(tmp_path, monkeypatch)


def backward(net: torch.nn.Module) -> None:
    net(torch.ones(3, 4)).sum().backward()


def never_clears(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    backward(net)
    optimizer.step()


def accumulates_and_never_clears(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        backward(net)
    optimizer.step()


def accumulates(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        backward(net)
    optimizer.step()
    optimizer.zero_grad()


def looks_before_it_clears(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A backward of its own, for a log, adds to what the step left; then all is cleared."""
    backward(net)
    optimizer.zero_grad(set_to_none=False)
    backward(net)
    optimizer.step()


def clears_by_none(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    backward(net)
    optimizer.zero_grad()
    backward(net)
    optimizer.step()


def added(path: Path) -> list[int]:
    return [r.step for r in read_rank(path).of(Kind.PROBE) if r.name == "gradients added"]


@pytest.mark.parametrize(
    ("loop", "steps"),
    [
        (never_clears, [10, 20]),
        (accumulates_and_never_clears, [10, 20]),
        (accumulates, []),
        (looks_before_it_clears, []),
        (clears_by_none, []),
    ],
)
def test_what_a_step_takes_along_of_the_one_before(
    watched: Path, loop: Loop, steps: list[int]
) -> None:
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(LAST):
        loop(net, optimizer)
    assert added(watched) == steps
    assert not kept_gradients.followed()


def test_gradients_that_are_copied_into_a_kept_tensor_are_not_added_to(watched: Path) -> None:
    """The optimizer steps float32 copies, as of a model in bfloat16."""
    net = torch.nn.Linear(4, 2)
    copies = [torch.nn.Parameter(p.detach().clone()) for p in net.parameters()]
    optimizer = torch.optim.SGD(copies, lr=0.1)
    for _ in range(LAST):
        net.zero_grad()
        backward(net)
        for copy, p in zip(copies, net.parameters(), strict=True):
            assert p.grad is not None
            if copy.grad is None:
                copy.grad = p.grad.clone()
            copy.grad.copy_(p.grad)
        optimizer.step()
    assert added(watched) == []


def test_optimizers_that_take_turns_clear_their_own(watched: Path) -> None:
    """A GAN: the maker's backward adds to the critic's gradients, which the critic clears before
    its own."""
    critic, maker = torch.nn.Linear(4, 1), torch.nn.Linear(2, 4)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (critic, maker)]
    for _ in range(LAST):
        for net, optimizer in zip((critic, maker), optimizers, strict=True):
            made = critic(maker(torch.ones(3, 2))).mean()
            optimizer.zero_grad(set_to_none=False)
            (made if net is critic else -made).backward()
            optimizer.step()
    assert added(watched) == []


def cleared(path: Path) -> list[int]:
    return [r.step for r in read_rank(path).of(Kind.PROBE) if r.name == "cleared again"]


def test_gradients_that_are_cleared_twice_and_nothing_between(watched: Path) -> None:
    """An iteration that ends before its backward; then one that ends behind it, which is none."""
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for iteration in range(14):
        optimizer.zero_grad()
        if iteration == 5:
            continue
        backward(net)
        if iteration != 9:
            optimizer.step()
    assert cleared(watched) == [5]


def test_optimizers_that_clear_in_turns_clear_once_each(watched: Path) -> None:
    nets = [torch.nn.Linear(4, 2) for _ in range(2)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    for iteration in range(6):
        for optimizer in optimizers:
            optimizer.zero_grad()
        if iteration == 3:
            continue
        (nets[0](torch.ones(1, 4)) + nets[1](torch.ones(1, 4))).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert cleared(watched) == [3, 3]


def test_a_program_that_always_clears_twice_has_the_first_told(watched: Path) -> None:
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(kept_gradients.MAX_CLEARED + 5):
        optimizer.zero_grad()
        backward(net)
        optimizer.step()
        optimizer.zero_grad()
    assert len(cleared(watched)) == kept_gradients.MAX_CLEARED


def test_without_an_optimizer_each_loss_is_its_own_backwards(watched: Path) -> None:
    """Which of them are one step's is not known, and their mean would be of all so far."""
    weight = torch.ones(1, requires_grad=True)
    for value in (4.0, 2.0, 1.0):
        (weight * value).sum().backward()
    assert [r.a for r in read_rank(watched).of(Kind.METRIC, "loss")] == [4.0, 2.0, 1.0]


def doubled(net: torch.nn.Module) -> None:
    """As a sum over two ranks does, of which torch counts no change."""
    for p in net.parameters():
        assert p.grad is not None
        p.grad.data.mul_(2)


@pytest.mark.parametrize(
    ("after", "clears", "late"),
    [
        (doubled, "optimizer", [0, 10, 20]),
        (doubled, "model", [0, 10, 20]),
        (doubled, "twice", [0, 10, 20]),
        (doubled, "before a sum", []),
        (lambda net: None, "twice", []),
        (lambda net: [p.grad.zero_() for p in net.parameters()], "optimizer", []),
    ],
)
def test_gradients_that_change_after_the_step_are_late(
    watched: Path, after: Callable[[torch.nn.Module], object], clears: str, late: list[int]
) -> None:
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(LAST):
        backward(net)
        optimizer.step()
        if clears == "before a sum":
            optimizer.zero_grad(set_to_none=False)
        after(net)
        (net if clears == "model" else optimizer).zero_grad(set_to_none=clears != "twice")
        if clears == "twice":
            optimizer.zero_grad()
    found = [r for r in read_rank(watched).of(Kind.PROBE) if r.name == "gradients late"]
    assert [r.step for r in found] == late
