"""Pipeline stages and schedules of torch.distributed.pipelining.

All seven schedules compute through the same methods of ``_PipelineStageBase``; those are hooked,
not the schedules' loops.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Final

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import context
from pardbg_agent.hooks.patching import Patches, spend, unframed
from pardbg_agent.hooks.training import pipeline_actions, step_phases, torch_plan
from pardbg_agent.life.late_imports import LateImports
from pardbg_agent.wire import NONE, DefKind

_LABELS: Final = "pipeline.labels"


def install(patches: Patches, late: LateImports) -> None:
    """Hook stages and schedules as soon as the program imports them."""
    late.when_imported(
        "torch.distributed.pipelining.stage", functools.partial(_hook_stages, patches)
    )
    late.when_imported(
        "torch.distributed.pipelining.schedules", functools.partial(_hook_schedules, patches)
    )


def _hook_stages(patches: Patches, module: ModuleType) -> None:
    base = module._PipelineStageBase
    for name, verb, first in (
        ("forward_one_chunk", _forward_verb, "forward"),
        ("backward_one_chunk", _backward_verb, ""),
        ("backward_weight_one_chunk", _weight_verb, ""),
        ("perform_reduce_grad", _reduce_verb, ""),
    ):
        patches.around(base, name, f"pipeline.{name}", _before(verb, bool(first)), _after)
    for name, label, send in (
        ("get_fwd_recv_ops", "F", False),
        ("get_fwd_send_ops", "F", True),
        ("get_bwd_recv_ops", "B", False),
        ("get_bwd_send_ops", "B", True),
    ):
        patches.set(base, name, _labelled(getattr(base, name), label, send))


def _hook_schedules(patches: Patches, module: ModuleType) -> None:
    for owner in (module.PipelineScheduleSingle, module.PipelineScheduleMulti):
        patches.around(owner, "step", "pipeline.step", _before_step, _after_step)
    base = module._PipelineSchedule
    patches.around(base, "_maybe_compute_loss", "pipeline.loss", _before_loss, _after_loss)
    patches.around(base, "_update_losses", "pipeline.losses", _before_losses, _after_losses)


# -- actions


def _forward_verb(stage: Any, kwargs: Any, args: Any) -> str | None:
    return "F"


def _backward_verb(stage: Any, kwargs: Any, args: Any) -> str | None:
    if not stage.has_backward:
        return None
    full = kwargs.get("full_backward", args[1] if len(args) > 1 else True)
    return "B" if full else "I"


def _weight_verb(stage: Any, kwargs: Any, args: Any) -> str | None:
    return "W" if stage.has_backward else None


def _reduce_verb(stage: Any, kwargs: Any, args: Any) -> str | None:
    return "REDUCE_GRAD"


def _before(verb_of: Any, forward: bool) -> Any:
    def before(c: _core.Core, stage: Any, *args: Any, **kwargs: Any) -> Any:
        made = pipeline_actions.of(c)
        made.flush()
        verb = verb_of(stage, kwargs, args[1:])
        if verb is None:
            return None
        mb = NONE
        if verb != "REDUCE_GRAD":
            mb = args[0] if args else next(iter(kwargs.values()))
        module = stage.submod if forward else None
        return made, stage, made.begins(verb, stage.stage_index, mb, module)

    return before


def _after(c: _core.Core, what: Any, t1: int, failed: bool) -> None:
    made, stage, action = what
    loss_follows = action.verb == "F" and stage.is_last and stage.has_backward
    made.ended(action, t1, failed, stage if loss_follows else None)


def _before_loss(c: _core.Core, schedule: Any, stage: Any, *_: Any, **__: Any) -> Any:
    made = pipeline_actions.of(c)
    return made if made.pending is stage else None


def _after_loss(c: _core.Core, made: Any, t1: int, failed: bool) -> None:
    """The last stage's forward ends with its loss: both are compute of that stage."""
    made.loss_computed(t1)


# -- p2p labels


def _labelled(original: Any, label: str, send: bool) -> Any:
    """The method; the ops it prepares are known by stage and microbatch when they are issued."""

    @unframed
    @functools.wraps(original)
    def prepared(self: Any, mb: int) -> Any:
        ops = original(self, mb)
        c = _core.CURRENT
        if not ops or c is None or not c.level or _LABELS in c.guard.disabled:
            return ops
        begun = now_ns()
        c.guard.call(_LABELS, _label, c, ops, send, (label, self.stage_index, mb))
        spend(c, begun)
        return ops

    return prepared


def _label(c: _core.Core, ops: Any, send: bool, known: tuple[str, int, int]) -> None:
    labels = context.of(c).labels
    for op in ops:
        labels[(op.tensor.data_ptr(), send)] = known


# -- schedules


def _before_step(c: _core.Core, schedule: Any, *_: Any, **__: Any) -> Any:
    x, made = context.of(c), pipeline_actions.of(c)
    planned = x.schedules.get(schedule, {}).get(schedule._has_backward)
    if planned is None:
        planned = _define(c, x, schedule)
    made.run_begins(planned)
    return made


def _after_step(c: _core.Core, made: Any, t1: int, failed: bool) -> None:
    made.run_ended(t1, failed)


def _define(c: _core.Core, x: context.Context, schedule: Any) -> list[str]:
    """PLAN and STAGE definitions, once per schedule object."""
    stages = torch_plan.stages_of(schedule)
    plan = torch_plan.definition(schedule, pipeline_actions.group_key(stages[0].group))
    planned = pipeline_actions.of(c).define(plan) if plan.order else []
    for stage in stages:
        c.defs.put(
            DefKind.STAGE, stage=stage.stage_index, rank=c.identity.rank,
            num_stages=stage.num_stages,
            parameters=sum(p.numel() for p in stage.submod.parameters()),
        )  # fmt: skip
    x.schedules.setdefault(schedule, {})[schedule._has_backward] = planned
    return planned


def _before_losses(c: _core.Core, schedule: Any, *_: Any, **__: Any) -> Any:
    """The mean over the microbatches, where the last stage is; never waits for a device."""
    losses = schedule._internal_losses
    if losses and all(step_phases.is_plain_scalar(loss) for loss in losses):
        step_phases.log_loss(c, sum(loss.item() for loss in losses) / len(losses), c.step)
    return None


def _after_losses(c: _core.Core, what: Any, t1: int, failed: bool) -> None:
    return None
