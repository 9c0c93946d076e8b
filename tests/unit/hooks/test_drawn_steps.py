"""Training steps drawn from a seed, seen in C++ where they are like the ones before them, and by
Python alone: phases, losses and steps are the same, and so is what the hooks keep."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import pardbg_agent
from pardbg_agent import core
from pardbg_agent.control.watches import NO_WATCHES, Watches
from pardbg_agent.ctrl.agent_messages import Watch
from pardbg_agent.hooks import context
from pardbg_agent.hooks.memory import usage
from pardbg_agent.hooks.training import step_phases
from pardbg_agent.settings import FULL, SUMMARY
from pardbg_agent.wire import Kind
from tests.distributed.programs.watched import read_rank
from tests.hook_ways import NATIVE, needs_native
from tests.unit.hooks.fake_world import fake_world
from tests.unit.hooks.fsdp2 import fully_shard

NUM, SEEDS = 60, 12
SEEN = (Kind.PHASE, Kind.METRIC, Kind.STEP, Kind.FSDP)

LOOP = (
    "phase", "forward_seen", "begun", "wrapped", "saved", "num_schedules", "gathered_bytes",
)  # fmt: skip
NEST = (
    "action", "pipeline", "backward", "forward", "open", "optimizer", "inside", "initializing",
)  # fmt: skip
STATE = ("recompute", "fsdp", "counting", "unscaled")

Odd = Callable[["Program"], None]


class Still(torch.optim.SGD):
    """Leaves parameters as they are. The fake backend of older releases (2.8's) does not write what
    reduce-scatter gives, so that a step with such gradients may make all of them NaN."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        with torch.enable_grad():
            return None if closure is None else closure()


class Program:
    """A model, its optimizer, and what a step may be made of."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        torch.manual_seed(0)
        self.net: Any = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
        wrapped = draw.choice(("", "ddp", "fsdp2"))
        if wrapped == "ddp":
            self.net = DistributedDataParallel(self.net)
            self.net.require_backward_grad_sync = False  # the fake backend averages nothing
        elif wrapped == "fsdp2":
            for part in (*self.net, self.net):
                fully_shard(part, reshard_after_forward=draw.random() < 0.5)
        made = Still if wrapped == "fsdp2" else torch.optim.SGD
        self.optimizer = made(self.net.parameters(), lr=1e-8)
        self.others: list[torch.optim.Optimizer] = []

    def loss(self) -> Any:
        return self.net(torch.full((2, 4), self.draw.random())).square().mean()

    def end(self) -> None:
        for optimizer in (self.optimizer, *self.others):
            optimizer.step()
        self.optimizer.zero_grad()

    def step(self) -> None:
        self.loss().backward()
        self.end()


def accumulates(p: Program) -> None:
    number, divides = p.draw.randrange(2, 4), p.draw.random() < 0.5
    for _ in range(number):
        loss = p.loss()
        (loss / number if divides else loss).backward()
    p.end()


def twice_from_one_scalar(p: Program) -> None:
    loss = p.loss()
    loss.backward(retain_graph=True)
    time.sleep(20e-6)  # well over the least that counts as a forward between two backwards
    loss.backward()
    p.end()


def in_the_closure(p: Program) -> None:
    def closure() -> Any:
        loss = p.loss()
        loss.backward()
        return loss

    p.optimizer.step(closure)


def evaluates(p: Program) -> None:
    with torch.no_grad():
        p.loss()
    p.step()


def backward_fails(p: Program) -> None:
    loss = p.loss()
    loss.register_hook(lambda _: 1 / 0)
    with suppress(ZeroDivisionError):
        loss.backward()
    p.step()


def forward_fails(p: Program) -> None:
    with suppress(RuntimeError):
        p.net(torch.zeros(2, 3))
    p.step()


def optimizer_fails(p: Program) -> None:
    def fails() -> Any:
        raise ValueError

    with suppress(ValueError):
        p.optimizer.step(fails)
    p.step()


def another_optimizer(p: Program) -> None:
    if not p.others:
        p.others.append(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0))
    p.step()


def the_other_one_goes(p: Program) -> None:
    p.others.clear()
    p.step()


def from_a_vector(p: Program) -> None:
    out = p.net(torch.ones(2, 4))
    out.backward(torch.ones_like(out))
    p.end()


def by_name(p: Program) -> None:
    torch.autograd.backward(tensors=p.loss())
    p.end()


def recomputes(p: Program) -> None:
    inner = p.net.module if isinstance(p.net, DistributedDataParallel) else p.net
    out = checkpoint(inner, torch.ones(2, 4, requires_grad=True), use_reentrant=True)
    out.square().mean().backward()
    p.end()


def scaled(p: Program) -> None:
    torch.amp.GradScaler("cpu").scale(p.loss()).backward()
    p.end()


def as_an_integer_says(p: Program) -> None:
    (p.loss() * torch.tensor(2)).backward()
    p.end()


def logs(p: Program) -> None:
    pardbg_agent.log(loss=p.draw.random())
    p.step()


def watched_for_a_while(p: Program) -> None:
    assert core.CURRENT is not None
    core.CURRENT.watch(Watches([Watch(1, p.draw.choice(("nan", "diverge")), 0.0)]))
    p.step()
    core.CURRENT.watch(NO_WATCHES)


def summed_up_for_a_while(p: Program) -> None:
    assert core.CURRENT is not None
    core.CURRENT.set_level(SUMMARY)
    loss = p.loss()
    if p.draw.random() < 0.5:
        core.CURRENT.set_level(FULL)
    loss.backward()
    p.end()
    core.CURRENT.set_level(FULL)


ODD: tuple[Odd, ...] = (
    accumulates, twice_from_one_scalar, in_the_closure, evaluates, backward_fails, forward_fails,
    optimizer_fails, another_optimizer, the_other_one_goes, from_a_vector, by_name, recomputes,
    scaled, as_an_integer_says, logs, watched_for_a_while, summed_up_for_a_while,
)  # fmt: skip


@contextmanager
def rank(
    way: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, core.Core]]:
    folder.mkdir()
    monkeypatch.setenv("PARDBG_HOOKS", way)
    monkeypatch.setenv("PARDBG_NATIVE", NATIVE)
    world = fake_world(folder, monkeypatch)
    path = next(world)
    assert core.CURRENT is not None
    try:
        yield path, core.CURRENT
    finally:
        next(world, None)


def said_of(seed: int, path: Path, c: core.Core) -> tuple[list[Any], list[Any]]:
    """What is recorded of the program drawn from ``seed``, and what is kept at its end."""
    draw = random.Random(seed)
    program = Program(draw)
    some = draw.sample(ODD, 5)
    for _ in range(NUM):
        draw.choice(some)(program) if draw.random() < 0.2 else program.step()
    x = context.of(c)
    local = context.local()
    state = [(name, getattr(local, name)) for name in STATE]
    state += [(name, getattr(local.nest, name)) for name in NEST]
    records = [
        (r.kind, r.name, r.step, int(r.flags), r.stage, r.mb, r.peer, r.group,
         *((r.a, r.b) if r.kind != Kind.STEP else ()))
        for r in read_rank(path).records
        if r.kind in SEEN
    ]  # fmt: skip
    known = [c.step, c.loss, len(x.optimizers), c.guard.errors]
    return records, [*known, *(getattr(x.loop, name) for name in LOOP), *state]


@needs_native
@pytest.mark.parametrize("seed", range(SEEDS))
def test_native_steps_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(usage, "TOTAL_EVERY_NS", 1 << 62)  # what ends in C++ is no chance
    found = []
    for way in ("native", "dispatcher"):
        with rank(way, tmp_path / way, monkeypatch) as (path, c):
            found.append(said_of(seed, path, c))
            spans = [r for r in read_rank(path).records if r.kind in (Kind.PHASE, Kind.STEP)]
            assert all(0 < r.t0 <= r.t1 for r in spans)
            steps = [r for r in spans if r.kind == Kind.STEP]
            assert all(a.t1 == b.t0 for a, b in itertools.pairwise(steps))
            assert all(r.a > 0 and r.b > 0 for r in steps)
    (cpp, kept), (python, same) = found
    assert len(cpp) > 3 * NUM and cpp == python
    assert kept == same


@needs_native
@pytest.mark.parametrize("seed", range(4))
def test_native_steps_that_are_alike_end_without_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """But for the first three, every tenth, and those at whose end something is read."""
    monkeypatch.setattr(usage, "TOTAL_EVERY_NS", 1 << 62)
    ended: list[int] = []
    leave = step_phases._leave
    monkeypatch.setattr(
        step_phases, "_leave", lambda c, *more: (ended.append(c.step), leave(c, *more))
    )
    with rank("native", tmp_path / "run", monkeypatch):
        program = Program(random.Random(seed))
        for _ in range(35):
            program.step()
        assert ended == [0, 1, 2, 10, 20, 30]
        monkeypatch.setattr(usage, "TOTAL_EVERY_NS", 0)
        for _ in range(5):  # 40 ends in Python, and says that the next one must be looked at
            program.step()
        for _ in range(5):
            program.step()
    assert ended == [0, 1, 2, 10, 20, 30, 40, 41, 42, 43, 44]
