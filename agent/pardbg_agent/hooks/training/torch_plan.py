"""A schedule's plan as text: compute actions per global rank, from torch's own tables."""

from __future__ import annotations

from typing import Any

import torch.distributed.distributed_c10d as c10d

from pardbg_agent.schedule_orders import COMPUTE, Plan, one_f_one_b


def texts(actions: Any) -> list[str]:
    """Compute actions of one rank in order, text form; an overlapped pair stays one entry,
    ``(0F7;7B3)OVERLAP_F_B``."""
    out: list[str] = []
    for action in actions or ():
        if action is None:
            continue
        if action.sub_actions is not None:
            parts = texts(action.sub_actions)
            out.append(f"({';'.join(parts)}){action.computation_type.value}")
        elif action.computation_type.value in COMPUTE:
            out.append(f"{action.stage_index}{action.computation_type.value}"
                       f"{action.microbatch_index}")  # fmt: skip
    return out


def plan_of(schedule: Any) -> tuple[dict[int, list[str]], str]:
    """Return (planned actions by pipeline rank, source) of a schedule object; empty if it has
    none."""
    num_microbatches = int(schedule._n_microbatches)
    if not schedule._has_backward:
        return {}, "schedule"
    # What the runtime really walks through, after lowering (it may merge I and W into B).
    table = getattr(schedule, "pipeline_order_with_comms", None)
    table = table or getattr(schedule, "pipeline_order", None)
    if not table and hasattr(schedule, "_get_pipeline_order"):
        table = schedule._get_pipeline_order()
    order = {int(rank): texts(actions) for rank, actions in (table or {}).items()}
    if type(schedule).__name__ == "Schedule1F1B":
        count = int(schedule._num_stages)
        right = {s: one_f_one_b(s, count, num_microbatches) for s in range(count)}
        return right, "schedule" if right == order else "corrected"
    return order, "schedule"


def stages_of(schedule: Any) -> list[Any]:
    """Return the schedule's stages on this rank."""
    stages = getattr(schedule, "_stages", None)
    return list(stages) if stages else [schedule._stage]


def definition(schedule: Any, group_key: str) -> Plan:
    """Return a schedule object's plan."""
    stage = stages_of(schedule)[0]
    group = stage.group or c10d._get_default_group()
    ranks = tuple(c10d.get_process_group_ranks(group))
    order, source = plan_of(schedule)
    return Plan(
        schedule=type(schedule).__name__,
        ranks=ranks,
        num_stages=int(stage.num_stages),
        num_microbatches=int(schedule._n_microbatches),
        order={ranks[r]: actions for r, actions in order.items() if r < len(ranks)},
        source=source,
        group=group_key,
        paced=any(is_paced(s.submod) for s in stages_of(schedule)),
    )


def is_paced(module: Any) -> bool:
    """Return whether a layer sleeps to pace compute (as in pardbg.recipes)."""
    return any(
        getattr(m, "pardbg_paced", False) or type(m).__name__ == "Paced" for m in module.modules()
    )
