"""What adapters share: a made-up framework's functions as runs, actions and phases."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from pardbg_agent import core
from pardbg_agent.hooks import context, frameworks
from pardbg_agent.hooks.comm import groups
from pardbg_agent.hooks.frameworks import colossalai, deepspeed, megatron, seam
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.hooks.training import backward_loss
from pardbg_agent.schedule_orders import Plan, interleaved, one_f_one_b
from pardbg_agent.wire import Kind
from tests.distributed.programs.watched import read_rank
from tests.unit.hooks.fake_world import fake_world


def forward_step(model: Any, x: Any, *, mb: int) -> Any:
    return model(x).sum()


def backward_step(loss: Any) -> None:
    loss.backward()


def made() -> ModuleType:
    """A framework that calls its two functions through its module; two microbatches a run."""
    framework = ModuleType("framework")
    framework.forward_step, framework.backward_step = forward_step, backward_step  # type: ignore[attr-defined]

    def run(model: Any, group: Any) -> None:
        for mb in range(2):
            loss = framework.forward_step(model, torch.ones(1, 2), mb=mb)
            framework.backward_step(loss)

    framework.run = run  # type: ignore[attr-defined]
    return framework


def begins(c: core.Core, actions: Any, given: seam.Given) -> Plan | None:
    seam.begin(actions, given["group"])
    return seam.plan_on(given["group"], "Made 1F1B", 2, one_f_one_b)


def forward(actions: Any, given: seam.Given) -> seam.What:
    return "F", actions.of_run.stage, given["mb"], given["model"]


def backward(actions: Any, given: seam.Given) -> seam.What:
    seam.keep_loss(actions, given["loss"])
    return "B", actions.of_run.stage, actions.next_mb("B", actions.of_run.stage), None


@pytest.fixture
def ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fake world of 2 ranks, hooks in place; gives the ring's path."""
    yield from fake_world(tmp_path, monkeypatch, 2)


def run(ranks: list[int]) -> None:
    """One run on a group of these ranks, which end a step."""
    patches, group = Patches(), dist.new_group(ranks)
    framework = made()
    seam.hook_run(patches, framework, "run", "made.run", begins, seam.report_mean)
    seam.hook_action(patches, framework, "forward_step", "made.forward", forward)
    seam.hook_action(patches, framework, "backward_step", "made.backward", backward)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        framework.run(model, group)
        optimizer.step()
    finally:
        patches.undo()
    assert core.CURRENT is not None and core.CURRENT.guard.disabled == set()


def seen(path: Path) -> tuple[list[str], list[str]]:
    """(names of actions, names of phases), in order."""
    rank = read_rank(path)
    actions = [f"{r.stage}{r.name}{r.mb}" for r in rank.of(Kind.ACTION)]
    return actions, [r.name for r in rank.of(Kind.PHASE)]


def test_two_ranks_are_a_pipeline(ring: Path) -> None:
    """This is the last stage: each microbatch goes forward and back."""
    run([0, 1])
    assert seen(ring) == (["1F0", "1B0", "1F1", "1B1"], ["pipeline", "optimizer"])


def test_one_rank_is_none_but_has_phases(ring: Path) -> None:
    """Gradient accumulation of two microbatches; the schedule's loss is still known."""
    run([1])
    actions, phases = seen(ring)
    assert actions == []
    assert phases == ["forward", "backward", "forward", "backward", "optimizer"]
    losses = [r for r in read_rank(ring).of(Kind.METRIC) if r.name == "loss"]
    assert len(losses) == 1


def test_an_evaluations_loss_is_no_steps(ring: Path) -> None:
    """Megatron's forward-only runs between two steps report theirs as the others do."""
    c = core.ensure()
    with torch.no_grad():
        backward_loss.log_losses(c, [torch.tensor(9.0)], c.step, sum)
    backward_loss.log_losses(c, [torch.tensor(1.0)], c.step, sum)
    assert [r.a for r in read_rank(ring).of(Kind.METRIC) if r.name == "loss"] == [1.0]


def test_a_call_that_overlaps_two_actions(ring: Path) -> None:
    """Megatron's combined_1f1b: warm-up has a forward alone, cool-down a backward; of stage 1."""
    module = ModuleType("combined_1f1b")

    def combined_forward_backward_step(f_model: Any, b_model: Any, **_: Any) -> None:
        pass

    module.combined_forward_backward_step = combined_forward_backward_step  # type: ignore[attr-defined]
    framework = ModuleType("framework")

    def run(group: Any) -> None:
        step = module.combined_forward_backward_step
        step(True, None, current_microbatch=0, f_model_chunk_id=0)
        step(True, True, current_microbatch=1, f_model_chunk_id=0)
        step(None, b_model=True)

    framework.run = run  # type: ignore[attr-defined]
    patches = Patches()
    seam.hook_run(patches, framework, "run", "made.run", begins)
    megatron.hook_combined(patches, module)
    try:
        framework.run(dist.new_group([0, 1]))
    finally:
        patches.undo()
    assert seen(ring) == (["1F0", "1F1", "1B0", "1B1"], ["pipeline"])
    pair = [r for r in read_rank(ring).of(Kind.ACTION) if (r.name, r.mb) in (("F", 1), ("B", 0))]
    assert max(r.t0 for r in pair) < min(r.t1 for r in pair)


def test_the_plan_of_overlapped_pairs() -> None:
    """2 chunks on the last of 2 ranks, 2 microbatches: one forward more before the first pair."""
    order = interleaved(1, 2, 2, 2)
    assert order == ["1F0", "1F1", "3F0", "3B0", "3F1", "3B1", "1B0", "1B1"]
    assert megatron.overlapped(order, 3) == [
        "1F0", "1F1", "3F0", "(3F1;3B0)OVERLAP_F_B", "3B1", "1B0", "1B1",
    ]  # fmt: skip


@pytest.mark.parametrize("hook", frameworks.ADAPTERS.values())
def test_every_adapter_is_there(hook: str) -> None:
    name, _, function = hook.partition(".")
    assert callable(getattr(importlib.import_module(f"{frameworks.__name__}.{name}"), function))


def test_groups_that_a_module_keeps_in_a_dict_are_named(ring: Path) -> None:
    """As deepspeed.utils.groups does for experts."""
    module: Any = ModuleType("groups_of_experts")
    module.EXPERTS = {}

    def create(size: int) -> None:
        module.EXPERTS[f"ep_size_{size}"] = dist.new_group([0, 1])

    module.create, patches = create, Patches()
    frameworks._name_groups(patches, "", "create", {"EXPERTS": "ep"}, module)
    module.create(2)
    patches.undo()
    known = groups.group_of(context.of(core.ensure()), module.EXPERTS["ep_size_2"])
    assert (known.axis, known.ranks) == ("ep", (0, 1))


def test_a_new_default_group_makes_names_mean_nothing(ring: Path) -> None:
    """torch numbers groups from the start again: the new one of that number is no tp."""
    groups.name_axes(SimpleNamespace(tp_group=dist.new_group([0, 1])), {"tp_group": "tp"})
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    assert groups.group_of(context.of(core.ensure()), dist.new_group([0, 1])).axis is None


class ZeroBubbleVPipeScheduler:
    """ColossalAI's, as far as it is called: its nodes come by keyword."""

    num_microbatch = 1

    def __init__(self, group: Any) -> None:
        mesh = SimpleNamespace(get_group_along_axis=lambda axis: group)
        self.stage_manager = SimpleNamespace(pg_mesh=mesh, pipeline_axis=0, stage=1)
        row = [SimpleNamespace(type=verb, chunk=chunk, minibatch=0)
               for verb, chunk in (("F", 0), ("F", 1), ("B", 1), ("W", 1))]  # fmt: skip
        self.schedules = [row, row]

    def forward_backward_step(self, optimizer: Any) -> None:
        for node in self.schedules[1]:
            step = {"F": self.schedule_f, "B": self.schedule_b, "W": self.schedule_w}[node.type]
            step(scheduled_node=node, model_chunk_id=node.chunk)

    def schedule_f(self, scheduled_node: Any, model_chunk_id: int) -> None:
        self.forward_step(model_chunk_id)

    def schedule_b(self, scheduled_node: Any, model_chunk_id: int) -> None:
        self.backward_b_step(model_chunk_id)

    def schedule_w(self, scheduled_node: Any, model_chunk_id: int) -> None:
        pass

    def forward_step(self, model_chunk_id: int) -> None:
        pass

    def backward_b_step(self, model_chunk_id: int) -> None:
        pass


def test_nodes_given_by_keyword_say_stage_and_microbatch(ring: Path) -> None:
    """On rank 1 of 2 in a V: chunk 0 is stage 1, chunk 1 stage 2; the loss is elsewhere."""
    patches, module = Patches(), ModuleType("zero_bubble_pp")
    scheduler = type("Mine", (ZeroBubbleVPipeScheduler,), dict(vars(ZeroBubbleVPipeScheduler)))
    module.ZeroBubbleVPipeScheduler = scheduler  # type: ignore[attr-defined]
    colossalai.hook_zero_bubble(patches, module)
    try:
        scheduler(dist.new_group([0, 1])).forward_backward_step(optimizer=object())
    finally:
        patches.undo()
    assert seen(ring)[0] == ["1F0", "2F0", "2I0", "2W0"]


@pytest.mark.parametrize("by_name", [False, True])
def test_deepspeeds_loss_is_the_one_that_is_given(ring: Path, by_name: bool) -> None:
    """Also by name, though its wrapper has none: 3, of which a quarter is scaled by 8 inside."""

    def hidden(*args: Any, **kwargs: Any) -> None:
        """As DeepSpeed's instrument_w_nvtx makes of backward(self, loss, …)."""
        (kwargs["loss"] if kwargs else args[1]).div(4).mul(8).backward()

    module: Any = ModuleType("deepspeed.runtime.engine")
    module.DeepSpeedEngine = type("DeepSpeedEngine", (), {"backward": hidden})
    patches, c, weight = Patches(), core.ensure(), torch.nn.Parameter(torch.ones(1))
    deepspeed.hook_backward(patches, module)
    loss = (weight * 3).sum()
    engine = module.DeepSpeedEngine()
    engine.backward(loss=loss) if by_name else engine.backward(loss)
    patches.undo()
    assert c.guard.disabled == set()
    assert [r.a for r in read_rank(ring).of(Kind.METRIC, "loss")] == [3.0]


class DeepSpeedZeroOptimizer:
    """DeepSpeed's, as far as it is called: it steps its optimizer once for each group."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.overflow, self.groups = optimizer, False, optimizer.param_groups

    def step(self) -> None:
        if self.overflow:
            return
        for group in self.groups:
            self.optimizer.param_groups = [group]
            self.optimizer.step()
        self.optimizer.param_groups = []


def test_groups_of_parameters_stepped_one_after_the_other_are_one_step(ring: Path) -> None:
    """With and without weight decay, as Transformers' Trainer has them: 3 steps, of which one
    overflows."""
    module: Any = ModuleType("deepspeed.runtime.zero.stage_1_and_2")
    kind = type("DeepSpeedZeroOptimizer", (), dict(vars(DeepSpeedZeroOptimizer)))
    module.DeepSpeedZeroOptimizer, patches, c = kind, Patches(), core.ensure()
    deepspeed.hook_zero(patches, module)
    decayed, bias = torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(2))
    adam = torch.optim.Adam([{"params": [decayed], "weight_decay": 0.1}, {"params": [bias]}])
    zero = kind(adam)
    for overflow in (False, True, False):
        (decayed.sum() + bias.sum()).backward()
        zero.overflow = overflow
        zero.step()
    patches.undo()
    assert c.guard.disabled == set()
    rank = read_rank(ring)
    assert [r.name for r in rank.of(Kind.PHASE)].count("optimizer") == 3
    assert len(rank.of(Kind.STEP)) == 2
    # Adam's two states of both groups and 4 bytes of each step count, 56, for 24 of parameters.
    for name, num_bytes in (("optimizer", 56), ("parameters", 24)):
        assert rank.of(Kind.MEMORY, name)[-1].a == num_bytes
