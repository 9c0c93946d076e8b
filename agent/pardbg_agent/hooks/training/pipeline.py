"""Pipeline stages and schedules of torch.distributed.pipelining.

All seven schedules compute through the same methods of ``_PipelineStageBase``; those are hooked,
not the schedules' loops.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from statistics import fmean
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import context
from pardbg_agent.hooks.ops import native_way
from pardbg_agent.hooks.patching import Patches, spend, unframed
from pardbg_agent.hooks.training import backward_loss, pipeline_actions
from pardbg_agent.life.late_imports import LateImports
from pardbg_agent.schedule_orders import COMPUTE, Plan, all_forward_all_backward, one_f_one_b
from pardbg_agent.wire import NONE, DefKind

_LABELS: Final = "pipeline.labels"
_ORDERS: Final = {"Schedule1F1B": one_f_one_b, "ScheduleGPipe": all_forward_all_backward}
"""Orders of schedules for which torch before 2.7 has no table."""


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
    for name, letter, verb in (
        ("forward_one_chunk", "F", lambda *_: "F"),
        ("backward_one_chunk", "B", _backward_verb),
        ("backward_weight_one_chunk", "W", lambda stage, *_: "W" if stage.has_backward else None),
        ("perform_reduce_grad", "R", lambda *_: "REDUCE_GRAD"),
    ):
        original = getattr(base, name, None)
        if original is None:  # older torch reduces gradients inside the last backward
            continue
        patches.around(base, name, f"pipeline.{name}", _before(verb), _after)
        native_way.quick(patches, base, name, original, "a", letter, False)
    for name, label, send in (
        ("get_fwd_recv_ops", "F", False),
        ("get_fwd_send_ops", "F", True),
        ("get_bwd_recv_ops", "B", False),
        ("get_bwd_send_ops", "B", True),
    ):
        original = getattr(base, name, None)
        if original is None:
            continue
        patches.set(base, name, _labelled(original, label, send))
        native_way.quick(patches, base, name, original, "m", label, send)


def _hook_schedules(patches: Patches, module: ModuleType) -> None:
    for name in ("PipelineScheduleSingle", "PipelineScheduleMulti"):
        owner = getattr(module, name, None)
        if owner is None:
            continue
        patches.around(owner, "step", "pipeline.step", _before_step,
                       lambda c, made, t1, failed: made.run_ended(t1, failed))  # fmt: skip
    base = module._PipelineSchedule
    original = getattr(base, "_maybe_compute_loss", None)
    if original is not None:
        patches.around(base, "_maybe_compute_loss", "pipeline.loss", _before_loss, _after_loss)
        native_way.quick(patches, base, "_maybe_compute_loss", original, "l", "F", False)
    patches.around(base, "_update_losses", "pipeline.losses", _before_losses)


# -- actions


def _backward_verb(stage: Any, kwargs: Any, args: Any) -> str | None:
    if not stage.has_backward:
        return None
    full = kwargs.get("full_backward", args[1] if len(args) > 1 else True)
    return "B" if full else "I"


def _before(verb_of: Any) -> Any:
    def before(c: _core.Core, stage: Any, *args: Any, **kwargs: Any) -> Any:
        made = pipeline_actions.of(c)
        made.flush()
        verb = verb_of(stage, kwargs, args[1:])
        if verb is None:
            return None
        mb = NONE
        if verb != "REDUCE_GRAD":
            mb = args[0] if args else next(iter(kwargs.values()))
        module = stage.submod if verb == "F" else None
        return made, stage, made.begins(verb, stage.stage_index, mb, module)

    return before


_HELD: Final = next(one for one in _before.__code__.co_consts if isinstance(one, CodeType))


def at_hand(innermost: FrameType | None) -> dict[str, Any]:
    """Return by name the tensors of the action at whose gate this thread waits: its ``input``; for
    a backward also its ``output`` and, except on the last stage, the ``grad`` of that."""
    while innermost is not None and innermost.f_code is not _HELD:
        innermost = innermost.f_back
    if innermost is None:
        return {}
    known = innermost.f_locals
    stage, verb, mb, args = (known[name] for name in ("stage", "verb", "mb", "args"))
    if verb == "F":
        given = args[1] if len(args) > 1 else known["kwargs"].get("args", ())
        return {"input": _one(given if stage.is_first else _received(stage.args_recv_info[mb]))}
    if verb not in ("B", "I"):
        return {}
    output, inputs = stage.fwd_cache[mb]
    grad = {} if stage.is_last else {"grad": _one(_received(stage.grad_recv_info[mb]))}
    return {"input": _one(inputs), "output": _one(output), **grad}


def _received(infos: Iterable[Any]) -> list[Any]:
    return [info.buffer for info in infos if getattr(info, "buffer", None) is not None]


def _one(values: Iterable[Any]) -> Any:
    """Return several values as a tuple, a single one by itself."""
    several = tuple(values)
    return several[0] if len(several) == 1 else several


def _after(c: _core.Core, what: Any, t1: int, failed: bool) -> None:
    made, stage, action = what
    loss_follows = action.verb == "F" and stage.is_last and stage.has_backward
    made.ended(action, t1, failed, stage if loss_follows else None)


def _before_loss(c: _core.Core, schedule: Any, stage: Any, *_: Any, **__: Any) -> Any:
    made = pipeline_actions.of(c)
    return made if made.pending is stage else None


def _after_loss(c: _core.Core, made: Any, t1: int, failed: bool) -> None:
    """End the last stage's forward with its loss: both are compute of that stage."""
    made.loss_computed(t1)


# -- p2p labels


def _labelled(original: Any, label: str, send: bool) -> Any:
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


def _define(c: _core.Core, x: context.Context, schedule: Any) -> list[str]:
    stages = stages_of(schedule)
    plan = definition(schedule, pipeline_actions.group_key(stages[0].group))
    planned = pipeline_actions.of(c).define(plan) if plan.order else []
    for stage in stages:
        c.defs.put(
            DefKind.STAGE, stage=stage.stage_index, rank=c.identity.rank,
            num_stages=stage.num_stages,
            parameters=sum(p.numel() for p in stage.submod.parameters()),
        )  # fmt: skip
    x.schedules.setdefault(schedule, {})[schedule._has_backward] = planned
    return planned


def _before_losses(c: _core.Core, schedule: Any, *_: Any, **__: Any) -> None:
    """Log the mean loss over the microbatches, on the last stage; never waits for a device. A
    program whose gradients the schedule does not scale has divided the losses (torchtitan): log
    their sum, unless there are replicas, by whose number it may have divided them, too."""
    losses = schedule._internal_losses
    if (
        not getattr(schedule, "_has_backward", True)
        or not losses
        or not all(backward_loss.is_one_number(loss) for loss in losses)
    ):
        return
    scaled = getattr(schedule, "scale_grads", True)
    if scaled or stages_of(schedule)[0].group.size() >= c.identity.world_size:
        backward_loss.log_losses(c, losses, c.step, fmean if scaled else sum)


# -- a schedule's plan as text, from torch's own tables


def texts(actions: Any) -> list[str]:
    """Return one rank's compute actions in order, in text form; an overlapped pair stays one entry,
    ``(0F7;7B3)OVERLAP_F_B``."""
    out: list[str] = []
    for action in actions or ():
        if action is None:
            continue
        overlapped = getattr(action, "sub_actions", None)  # not there before torch 2.9
        if overlapped is not None:
            parts = texts(overlapped)
            out.append(f"({';'.join(parts)}){_verb(action)}")
        elif _verb(action) in COMPUTE:
            out.append(f"{action.stage_index}{_verb(action)}{action.microbatch_index}")
    return out


def _verb(action: Any) -> str:
    """Return ``F``, ``B``, ``I``, ``W`` …: torch's enumeration value, its text before 2.9."""
    kind = action.computation_type
    return kind.value if isinstance(kind.value, str) else str(kind)


def plan_of(schedule: Any) -> tuple[dict[int, list[str]], str]:
    """Return (planned actions by pipeline rank, source) of a schedule object; no actions if it has
    none."""
    num_microbatches = int(schedule._n_microbatches)
    if not schedule._has_backward:
        return {}, "schedule"
    # The table that the runtime walks through, after lowering (it may merge I and W into B).
    table = getattr(schedule, "pipeline_order_with_comms", None)
    table = table or getattr(schedule, "pipeline_order", None)
    if not table and hasattr(schedule, "_get_pipeline_order"):
        table = schedule._get_pipeline_order()
    order = {int(rank): texts(actions) for rank, actions in (table or {}).items()}
    known = _ORDERS.get(type(schedule).__name__)
    if known is not None:
        count = int(schedule._num_stages)
        right = {s: known(s, count, num_microbatches) for s in range(count)}
        return right, "schedule" if order in ({}, right) else "corrected"
    return order, "schedule"


def stages_of(schedule: Any) -> list[Any]:
    """Return the schedule's stages on this rank."""
    stages = getattr(schedule, "_stages", None)
    return list(stages) if stages else [schedule._stage]


def definition(schedule: Any, group_key: str) -> Plan:
    """Return a schedule object's plan."""
    stage = stages_of(schedule)[0]
    ranks = pipeline_actions.ranks_of(stage.group)
    order, source = plan_of(schedule)
    return Plan(
        schedule=type(schedule).__name__,
        ranks=ranks,
        num_stages=int(stage.num_stages),
        num_microbatches=int(schedule._n_microbatches),
        order={ranks[r]: actions for r, actions in order.items() if r < len(ranks)},
        source=source,
        group=group_key,
        # A layer sleeps to pace compute, as in pardbg.lab.recipes.
        paced=any(
            type(m).__name__ == "Paced" for s in stages_of(schedule) for m in s.submod.modules()
        ),
    )
