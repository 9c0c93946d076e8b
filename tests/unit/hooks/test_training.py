"""Steps, phases, losses, memory and sampled activations, in one process without a group."""

from __future__ import annotations

import gc
import random
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import pardbg_agent
from pardbg_agent import core, hooks, identity, schedule_orders
from pardbg_agent.hooks import context
from pardbg_agent.hooks.memory import saved_tensors
from pardbg_agent.hooks.patching import Patches, around
from pardbg_agent.hooks.training import pipeline, step_phases
from pardbg_agent.hooks.training.cycle import Cycle
from pardbg_agent.wire import Flag, Gate, Kind
from tests.distributed.programs.watched import Rank, make_run, read_rank


@pytest.fixture
def c(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[core.Core]:
    """Hooks in place, and a Core, as after the first group."""
    monkeypatch.setenv("PARDBG", make_run(tmp_path)["PARDBG"])
    hooks.install()
    yield core.ensure()
    hooks.uninstall()
    core.shutdown()


def rank(c: core.Core) -> Rank:
    assert c.ring.path is not None
    return read_rank(Path(c.ring.path))


def phases(c: core.Core) -> list[tuple[int, str, bool]]:
    """(step, phase, inferred) by begin."""
    found = sorted(rank(c).of(Kind.PHASE), key=lambda r: r.t0)
    return [(r.step, r.name, bool(r.flags & Flag.INFERRED)) for r in found]


def net() -> torch.nn.Sequential:
    """4*8 + 8 + 8 + 1 = 49 parameters, 196 bytes."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def test_a_plain_loop_has_steps_phases_and_losses(c: core.Core) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for (x,) in DataLoader(TensorDataset(torch.randn(4, 4)), batch_size=2):
        loss = model(x).square().mean()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    round_of = [("data", False), ("forward", True), ("backward", False), ("optimizer", False)]
    assert phases(c) == [(step, *phase) for step in (0, 1) for phase in round_of]
    steps = rank(c).of(Kind.STEP)
    assert [s.step for s in steps] == [0, 1] and steps[1].t0 == steps[0].t1
    assert all(s.a > 0 and s.b > 0 for s in steps)  # the hooks' own cost
    assert [r.a for r in rank(c).of(Kind.METRIC, "loss")] == losses


def test_gradients_accumulate_within_a_step(c: core.Core) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for _ in range(3):
            model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    backwards = [p for p in phases(c) if p[1] == "backward"]
    assert backwards == [(0, "backward", False)] * 3 + [(1, "backward", False)] * 3


def test_the_loss_of_a_step_is_what_its_gradients_belong_to(c: core.Core) -> None:
    """Three microbatches of 0.25, 0.5 and 1.5, twice: their mean, 0.75, at the end of each."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for _ in range(2):
        for share in (0.25, 0.5, 1.5):
            (weight * share).sum().backward()
        optimizer.step()
    said = [(r.step, r.a) for r in rank(c).of(Kind.METRIC, "loss")]
    assert said == [(0, 0.25), (0, 0.375), (0, 0.75), (1, 0.25), (1, 0.375), (1, 0.75)]


def test_losses_that_are_divided_by_their_number_are_added(c: core.Core) -> None:
    """Losses of 1, 2 and 3, a third of each: 2. The division by 5 of the next step is no share of
    three: mean of 0.2, 0.4 and 0.6. A division by 1 after it (Accelerate's own) hides nothing."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for divisor in (3, 5):
        for loss in (1.0, 2.0, 3.0):
            ((weight * loss).sum() / divisor / 1).backward()
        optimizer.step()
    said = {r.step: r.a for r in rank(c).of(Kind.METRIC, "loss")}
    assert said == {0: pytest.approx(2.0), 1: pytest.approx(0.4)}


def test_an_epochs_last_step_may_have_fewer_microbatches(c: core.Core) -> None:
    """Accelerate's way: 1 and 3, halved, are 2; the 5 left over, halved, too, is 5, not 2.5."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for step in ((1.0, 3.0), (5.0,), (2.0, 4.0)):
        for loss in step:
            ((weight * loss).sum() / 2).backward()
        optimizer.step()
    said = {r.step: r.a for r in rank(c).of(Kind.METRIC, "loss")}
    assert said == {0: 2.0, 1: 5.0, 2: 3.0}


def test_the_last_microbatch_may_come_in_the_optimizers_closure(c: core.Core) -> None:
    """Lightning's way: the backward of the last microbatch runs inside optimizer.step()."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)

    def microbatch(loss: float) -> torch.Tensor:
        made = (weight * loss).sum() / 2
        made.backward()
        return made

    microbatch(1.0)
    optimizer.step(lambda: microbatch(3.0))
    assert [r.a for r in rank(c).of(Kind.METRIC, "loss")][-1] == 2.0


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.375, 0.375, 0.25)])
def test_all_microbatches_may_come_in_the_optimizers_closure(
    c: core.Core, shares: tuple[float, ...]
) -> None:
    """Composer's way: the closure clears the gradients and runs them all, each weighed by its part
    of the batch. Losses of 1, 2 (and 3): 0.5 + 1, or 0.375 + 0.75 + 0.75; so it is where the
    closure runs more than once."""
    weight = torch.nn.Parameter(torch.ones(1))
    for optimizer in (
        torch.optim.SGD([weight], lr=0.0),
        torch.optim.LBFGS([weight], lr=0.0, max_iter=3, tolerance_change=-1.0),
    ):

        def closure(optimizer: torch.optim.Optimizer = optimizer) -> float:
            optimizer.zero_grad()
            for number, share in enumerate(shares, 1):
                (weight * number).sum().mul_(share).backward()
            return 1.0

        optimizer.step(closure)
        said = [r.a for r in rank(c).of(Kind.METRIC, "loss")]
        assert said[-1] == sum(number * share for number, share in enumerate(shares, 1))
    assert len(said) > 2 * len(shares)  # LBFGS evaluated it more than once


def test_a_second_backward_fails_as_without_hooks_and_the_next_loss_is_seen(c: core.Core) -> None:
    """As in a notebook's cell that is run again."""
    model, x = net(), torch.randn(4, 4)
    loss = (model(x) / 4).pow(2).mean() / 2
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    model(x).pow(2).mean().backward()
    assert [name for _, name, _ in phases(c)].count("backward") == 3


def test_a_share_of_all_ranks_tokens_is_no_loss(
    c: core.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchtitan's chunks of a microbatch, divided by the tokens of all ranks."""
    monkeypatch.setitem(sys.modules, "torchtitan.components.loss", sys)
    weight = torch.nn.Parameter(torch.ones(1))
    (weight.sum() / 64).backward()
    assert rank(c).of(Kind.METRIC, "loss") == []
    assert "backward" in [name for _, name, _ in phases(c)]


def test_a_step_that_only_makes_an_optimizers_state_is_none(c: core.Core) -> None:
    """What a checkpoint's load does before it fills the state in."""
    from torch.distributed.checkpoint import state_dict

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    state_dict._init_optim_state(optimizer)
    assert optimizer.state and rank(c).of(Kind.STEP) == []
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert [r.step for r in rank(c).of(Kind.STEP)] == [0]


def test_a_scaled_loss_is_shown_as_it_was(c: core.Core) -> None:
    weight = torch.nn.Parameter(torch.full((1,), 3.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    weight.sum().backward()
    assert [r.a for r in rank(c).of(Kind.METRIC, "loss")] == [3.0, 3.0]


def test_a_backward_in_two_parts_is_of_one_microbatch(c: core.Core) -> None:
    """Zero bubble by hand: from the same scalar for the input, later for the weights."""
    weight, x = torch.nn.Parameter(torch.full((1,), 3.0)), torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    losses = [(weight * x * n).sum() / 2 for n in (1, 3)]  # 3 / 2 and 9 / 2
    for loss in losses:
        loss.backward(inputs=[x], retain_graph=True)
    for loss in losses:
        loss.backward(inputs=[weight])
    optimizer.step()
    assert [r.a for r in rank(c).of(Kind.METRIC, "loss")][-1] == 6.0


def test_a_closure_that_comes_again_adds_nothing_up(c: core.Core) -> None:
    weight = torch.nn.Parameter(torch.full((1,), 3.0))
    optimizer = torch.optim.LBFGS([weight], lr=0.0, max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (weight * weight).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert {r.a for r in rank(c).of(Kind.METRIC, "loss")} == {9.0}


def test_the_first_round_ends_when_all_optimizers_have_stepped(c: core.Core) -> None:
    weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    generator, discriminator = (torch.optim.SGD([weight], lr=0.0) for weight in weights)
    for _ in range(2):
        for optimizer in (discriminator, generator):
            optimizer.step()
    assert [s.step for s in rank(c).of(Kind.STEP)] == [0, 1]


@pytest.mark.parametrize("idle", [True, False])
def test_an_optimizer_that_never_has_a_gradient_is_told(c: core.Core, idle: bool) -> None:
    """As one made of parameters whose gradients a wrapper keeps elsewhere (Megatron's main_grad);
    a first step without any, for a scheduler's sake, is none of that."""
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.Adam([weight])
    for step in range(3):
        if step and not idle:
            weight.sum().backward()
        optimizer.step()
    assert [model["idle"] for model in rank(c).defined("model")] == [True, False][: 2 - idle]


def test_an_outer_optimizer_that_steps_now_and_then_costs_no_step(c: core.Core) -> None:
    """DiLoCo: an outer one over the same parameters, every 4 steps of the inner one."""
    weight = torch.nn.Parameter(torch.ones(1))
    inner, outer = (torch.optim.SGD([weight], lr=0.0) for _ in range(2))
    for step in range(12):
        inner.step()
        if step % 4 == 3:
            outer.step()
    assert [s.step for s in rank(c).of(Kind.STEP)] == list(range(12))


def test_one_that_comes_in_every_fifth_round_costs_one_step() -> None:
    """WGAN: the critic in each iteration, the generator in every fifth, from the first one on."""
    critic, generator = object.__new__(torch.optim.SGD), object.__new__(torch.optim.SGD)
    cycle = Cycle()
    cycle.to_come.update((critic, generator))
    ended = []
    for at in range(20):
        ended.append(cycle.stepped(critic))
        if at % 5 == 0:
            ended[-1] |= cycle.stepped(generator)
    assert ended == [True, False, *[True] * 18]


def test_an_optimizer_that_never_steps_costs_one_step_at_most() -> None:
    used, unused = object.__new__(torch.optim.SGD), object.__new__(torch.optim.SGD)
    cycle = Cycle()
    cycle.to_come.update((used, unused))
    assert [cycle.stepped(used) for _ in range(3)] == [False, True, True]


def test_the_last_of_several_optimizers_ends_the_step() -> None:
    """G D G D …: unknown in the first round, from then on D ends it."""
    g, d = object.__new__(torch.optim.SGD), object.__new__(torch.optim.SGD)
    cycle = Cycle()
    assert [cycle.stepped(o) for o in (g, d, g, d, g, d)] == [True, True, False, True, False, True]


def test_a_second_stage_with_an_optimizer_of_its_own_has_steps() -> None:
    """A A B B C C, twice, all of them still there (folds): each is a step. A round in which B comes
    twice after A is none of that: C ends it."""
    a, b, c = (torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]) for _ in range(3))
    cycle = Cycle()
    assert [cycle.stepped(o) for o in (a, a, b, b, c, c) * 2] == [True] * 12
    cycle = Cycle()
    cycle.to_come.update((a, b, c))
    assert [cycle.stepped(o) for o in (a, b, b, c) * 3] == [False, False, False, True] * 3


def test_an_optimizer_that_joins_later_ends_the_round() -> None:
    """D D, then D G D G …: one step too many when G comes for the first time. Of A B C, whose A is
    skipped once (an overflow), C ends the round all the same."""
    d, g, c = (torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]) for _ in range(3))
    cycle = Cycle()
    ends = [cycle.stepped(o) for o in (d, d, d, g, d, g, d, g)]
    assert ends == [True, True, True, True, False, True, False, True]
    cycle = Cycle()
    cycle.to_come.update((d, g, c))
    assert [cycle.stepped(o) for o in (d, g, c, d, g, c, g, c)] == [False, False, True] * 2 + [
        False, True,
    ]  # fmt: skip


def test_one_optimizer_ends_each_step() -> None:
    optimizer = object.__new__(torch.optim.SGD)
    cycle = Cycle()
    assert [cycle.stepped(optimizer) for _ in range(3)] == [True] * 3


def test_an_optimizer_that_is_alone_is_no_other_case() -> None:
    """Rounds of one optimizer are told without a look at them: never otherwise than with it."""
    for seed in range(200):
        draw = random.Random(seed)
        known = [torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]) for _ in range(3)]
        short, whole = Cycle(), Cycle()
        for _ in range(20):
            one = draw.choice(known)
            if draw.random() < 0.1:
                short.to_come.add(one)
                whole.to_come.add(one)
            for _ in range(draw.choice((1, 1, 4))):
                assert short.stepped(one) == whole._stepped(one), seed


def test_the_programs_own_steps_take_over(c: core.Core) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for n in (10, 11):
        pardbg_agent.step(n - 1)
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        optimizer.step()
    assert [s.step for s in rank(c).of(Kind.STEP)] == [9, 10]


def test_gates_stand_before_the_optimizer_and_after_the_step(
    c: core.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, str]] = []

    def wait(gate: int, describe: str, facts: object = None, look: object = None) -> int:
        asked.append((gate, describe))
        return 0

    monkeypatch.setattr(c.gate, "closed", True)
    monkeypatch.setattr(c.gate, "wait", wait)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    assert asked == [(Gate.OPTIMIZER, "optimizer.step 0"), (Gate.STEP, "step 1")]


def test_memory_is_exact(c: core.Core) -> None:
    """49 float32 parameters: 196 bytes, as many gradients; Adam keeps two of each and a 4-byte
    step count for each of the 4 parameters: 2*196 + 4*4 = 408."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    found = {r.name: r.a for r in rank(c).of(Kind.MEMORY)}
    rss, _ = found.pop("rss"), found.pop("limit", None)  # a limit where a cgroup sets one
    assert found == {"parameters": 196, "gradients": 196, "optimizer": 408}
    assert rss == pytest.approx(identity.resident_bytes(), rel=0.2)
    (model_def,) = rank(c).defined("model")
    assert (model_def["zero"], model_def["shards"], model_def["parameters_bytes"]) == (0, 1, 196)


def test_saved_activations_are_counted_once_and_without_parameters(c: core.Core) -> None:
    """Saved for backward: the input 2x4 (32 bytes), tanh's output 2x8 (64 bytes, which the next
    layer saves again). The two weights are parameters."""
    c.step = saved_tensors.FIRST
    model = net()
    x = torch.randn(2, 4)
    count = saved_tensors.begin(c, model)
    assert count is not None
    out = model(x)
    assert saved_tensors.end(c, count) == 32 + 64
    plain = net()
    plain(x).sum().backward()
    out.sum().backward()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)


def test_sampling_keeps_no_graph_alive(c: core.Core) -> None:
    """tanh saves its own output: returned as it is, it would hold its node, and the node it."""
    c.step = saved_tensors.FIRST
    gc.disable()
    try:
        count = saved_tensors.begin(c, torch.nn.Identity())
        assert count is not None
        y = torch.randn(4, requires_grad=True).tanh()
        saved_tensors.end(c, count)
        alive = weakref.ref(y)
        del y, count
        assert alive() is None
    finally:
        gc.enable()


def test_writing_to_a_saved_tensor_still_fails(c: core.Core) -> None:
    c.step = saved_tensors.FIRST
    count = saved_tensors.begin(c, torch.nn.Identity())
    assert count is not None
    y = torch.randn(4, requires_grad=True).tanh()
    saved_tensors.end(c, count)
    y.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_programs_that_forbid_saved_tensor_hooks_run_and_end_the_sampling(c: core.Core) -> None:
    c.step = saved_tensors.FIRST
    count = saved_tensors.begin(c, torch.nn.Identity())
    assert count is not None
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        pass
    saved_tensors.end(c, count)
    assert saved_tensors.begin(c, torch.nn.Identity()) is None


def test_the_programs_own_saved_tensor_hooks_end_where_it_ends_them(c: core.Core) -> None:
    """A count that begins inside the program's own context and outlives it would be what the
    context takes off: the program's hooks would stay on autograd for good."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(saved_tensors.FIRST + 3):  # with sampled steps among them
        packed: list[Any] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, p=packed: p.append(t) or t,
                                                      lambda t: t):  # fmt: skip
            model(torch.randn(2, 2)).square().sum().backward()
        assert packed
        del packed[:]
        model(torch.randn(2, 2)).square().sum()
        assert not packed, "outside its context nothing of the program's is called"
        optimizer.step()
        optimizer.zero_grad()
    step_phases.stop_counting()
    assert saved_tensors._top() is None


def test_a_wrapper_passes_results_errors_and_its_own_failures(c: core.Core) -> None:
    class Owner:
        def run(self, x: int) -> int:
            return 10 // x

    seen: list[Any] = []
    patches = Patches()
    patches.around(
        Owner, "run", "owner", lambda c, self, x: x, lambda c, x, t, bad: seen.append((x, bad))
    )
    assert Owner().run(5) == 2
    with pytest.raises(ZeroDivisionError):
        Owner().run(0)
    assert seen == [(5, False), (0, True)]
    patches.undo()
    assert "around" not in Owner.run.__qualname__
    broken = around(lambda x: x + 1, "broken", lambda c, x: 1 / 0, lambda *_: None)
    assert [broken(1), broken(2)] == [2, 3]
    assert c.guard.errors == 1 and "broken" in c.guard.disabled


def test_the_plan_of_one_f_one_b_has_its_first_forward() -> None:
    """p = 3, m = 4 by hand."""
    plan = schedule_orders.one_f_one_b
    assert plan(0, 3, 4) == ["0F0", "0F1", "0F2", "0B0", "0F3", "0B1", "0B2", "0B3"]
    assert plan(2, 3, 4) == ["2F0", "2B0", "2F1", "2B1", "2F2", "2B2", "2F3", "2B3"]


def test_plan_texts_are_compute_actions_and_a_pair_is_one_entry_until_taken_apart() -> None:
    from torch.distributed.pipelining import schedules

    if not hasattr(schedules, "REDUCE_GRAD"):
        pytest.skip("torch has no overlapped pairs (2.9), or no such action (2.10)")
    names = "0UNSHARD", "0F1", "(0F2;3B0)OVERLAP_F_B", "1SEND_F0", "0REDUCE_GRAD"
    texts = pipeline.texts([*map(schedules._Action.from_str, names), None])
    assert texts == ["0F1", "(0F2;3B0)OVERLAP_F_B"]
    assert schedule_orders.one_by_one(texts) == ["0F1", "0F2", "3B0"]


def test_a_context_belongs_to_one_core(c: core.Core) -> None:
    assert context.of(c) is context.of(c)
    other: Any = SimpleNamespace(context=None)
    assert context.of(other) is not context.of(c)
    assert context.of(other).core is other and context.of(c).core is c
