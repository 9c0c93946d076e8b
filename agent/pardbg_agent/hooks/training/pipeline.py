"""Pipeline stages and schedules of torch.distributed.pipelining.

All seven schedules compute through the same methods of ``_PipelineStageBase``; those are hooked,
not the schedules' loops.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Final

import torch.distributed.distributed_c10d as c10d

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import context
from pardbg_agent.hooks.comm import groups
from pardbg_agent.hooks.context import local
from pardbg_agent.hooks.memory import saved_tensors, usage
from pardbg_agent.hooks.patching import LateImports, Patches, wait_gate
from pardbg_agent.hooks.training import step_phases, torch_plan
from pardbg_agent.hooks.watch import slow
from pardbg_agent.wire import NO_GROUP, NONE, DefKind, Flag, Gate, Kind, Lane

_LABELS: Final = "pipeline.labels"
_ACTION, _COMPUTE, _FAILED = int(Kind.ACTION), int(Lane.COMPUTE), int(Flag.FAILED)

_pending: Any = None
"""A last stage's forward whose loss is still to be computed: (stage, fields of its record)."""


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


def _before(verb_of: Any, sampled: bool) -> Any:
    def before(c: _core.Core, stage: Any, *args: Any, **kwargs: Any) -> Any:
        if _pending is not None:
            _flush(c)
        verb = verb_of(stage, kwargs, args[1:])
        if verb is None:
            return None
        mb = NONE
        if verb != "REDUCE_GRAD":
            mb = args[0] if args else next(iter(kwargs.values()))
        index = stage.stage_index
        if c.gate.closed:
            known = {"action": verb, "stage": index, "mb": None if mb < 0 else mb}
            coming = text(index, verb, mb)
            look = None
            if c.watches.slow is not None:
                look = functools.partial(slow.comes, c, (index, verb), lambda: coming)
            wait_gate(c, Gate.ACTION, coming, lambda: known, look)
        name = c.defs.name(verb)
        counted = sampled and saved_tensors.due(c.step)
        count = saved_tensors.begin(c, stage.submod) if counted else None
        t0 = now_ns()
        c.status.now(c.step, context.of(c).phase, name, index, mb, t0)
        local().action += 1
        return stage, verb, name, index, mb, t0, count

    return before


def _after(c: _core.Core, what: Any, t1: int, failed: bool) -> None:
    global _pending
    stage, verb, name, index, mb, t0, count = what
    local().action -= 1
    num_bytes = saved_tensors.end(c, count) if count is not None else 0
    c.status.now(c.step, context.of(c).phase, 0, NONE, NONE, t1)
    record = [
        _ACTION, _COMPUTE, _FAILED if failed else 0, name, t0, t1, c.step, 0, NO_GROUP, index, mb,
        NONE, num_bytes, 0,
    ]  # fmt: skip
    if verb == "F" and stage.is_last and stage.has_backward and not failed:
        _pending = (stage, record)
    else:
        c.record(*record)
    if count is not None:
        usage.counted(index, num_bytes)
    if c.watches.memory is not None and not failed:
        usage.chunk(c, index, verb)
    if c.watches.slow is not None:
        slow.action_ended(c, index, verb, text(index, verb, mb), t0, t1)
    if verb != "REDUCE_GRAD" and not failed:
        c.pipeline.done.append(text(index, verb, mb))


def text(stage: int, verb: str, mb: int) -> str:
    """``2B5``; without a microbatch ``2REDUCE_GRAD``."""
    return f"{stage}{verb}{mb if mb >= 0 else ''}"


def _flush(c: _core.Core) -> None:
    """Write a last stage's forward that no loss followed."""
    global _pending
    if _pending is not None:
        record, _pending = _pending[1], None
        c.record(*record)


def _before_loss(c: _core.Core, schedule: Any, stage: Any, *_: Any, **__: Any) -> Any:
    return stage if _pending is not None and _pending[0] is stage else None


def _after_loss(c: _core.Core, stage: Any, t1: int, failed: bool) -> None:
    """The last stage's forward ends with its loss: both are compute of that stage."""
    if _pending is not None:
        _pending[1][5] = t1
    _flush(c)


# -- p2p labels


def _labelled(original: Any, label: str, send: bool) -> Any:
    """The method; the ops it prepares are known by stage and microbatch when they are issued."""

    @functools.wraps(original)
    def prepared(self: Any, mb: int) -> Any:
        ops = original(self, mb)
        c = _core.CURRENT
        if not ops or c is None or not c.level or _LABELS in c.guard.disabled:
            return ops
        begun = now_ns()
        try:
            labels, known = context.of(c).labels, (label, self.stage_index, mb)
            for op in ops:
                labels[(op.tensor.data_ptr(), send)] = known
        except Exception as error:  # noqa: BLE001 - the guard
            c.guard.failed(_LABELS, error)
        c.hook_ns += now_ns() - begun
        c.hook_calls += 1
        return ops

    return prepared


# -- schedules


def _before_step(c: _core.Core, schedule: Any, *_: Any, **__: Any) -> Any:
    x = context.of(c)
    x.labels.clear()
    step_phases.schedule_begins(c, x)
    usage.schedule_begins()
    planned = x.schedules.get(schedule, {}).get(schedule._has_backward)
    if planned is None:
        planned = _define(c, x, schedule)
    c.pipeline.plan = planned
    c.pipeline.done = []
    t0 = now_ns()
    step_phases.phase_begins(c, x, "pipeline", t0)
    local().pipeline += 1
    return t0


def _after_step(c: _core.Core, t0: int, t1: int, failed: bool) -> None:
    _flush(c)
    local().pipeline -= 1
    step_phases.phase_ends(c, context.of(c), "pipeline", t0, t1, failed)
    step_phases.schedule_ended(c)


def _define(c: _core.Core, x: context.Context, schedule: Any) -> list[str]:
    """PLAN and STAGE definitions, once per schedule object."""
    stages = torch_plan.stages_of(schedule)
    pg = stages[0].group or c10d._get_default_group()
    fields, planned = torch_plan.definition(schedule, groups.group_of(x, pg).key)
    if fields["order"]:
        c.defs.put(DefKind.PLAN, **fields)
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
        step_phases.log_loss(c, sum(loss.item() for loss in losses) / len(losses))
    return None


def _after_losses(c: _core.Core, what: Any, t1: int, failed: bool) -> None:
    return None
