"""A schedule's plan as text: compute actions per global rank, from torch's own tables."""

from __future__ import annotations

from typing import Any

import torch.distributed.distributed_c10d as c10d

COMPUTE = ("F", "B", "I", "W")


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


def one_by_one(order: list[str]) -> list[str]:
    """The actions of a rank's plan, a pair as its two."""
    out: list[str] = []
    for entry in order:
        out += entry[1 : entry.index(")")].split(";") if entry.startswith("(") else [entry]
    return out


def one_f_one_b(stage: int, num_stages: int, num_microbatches: int) -> list[str]:
    """What Schedule1F1B runs on a stage: warm-up forwards, then one backward, one forward each,
    then the backwards that are left. Its own table lists the last stage wrongly (F1..Fm)."""
    warmup = min(num_microbatches, num_stages - stage)
    order = [f"{stage}F{mb}" for mb in range(warmup)]
    for mb in range(num_microbatches):
        order.append(f"{stage}B{mb}")
        if warmup + mb < num_microbatches:
            order.append(f"{stage}F{warmup + mb}")
    return order


def plan_of(schedule: Any) -> tuple[dict[int, list[str]], str]:
    """(planned actions by pipeline rank, source) of a schedule object; empty if it has none."""
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
    """The schedule's stages on this rank."""
    stages = getattr(schedule, "_stages", None)
    return list(stages) if stages else [schedule._stage]


def definition(schedule: Any, group_key: str) -> tuple[dict[str, Any], list[str]]:
    """(fields of PLAN, this rank's planned actions one by one)."""
    stage = stages_of(schedule)[0]
    group = stage.group or c10d._get_default_group()
    ranks = c10d.get_process_group_ranks(group)
    order, source = plan_of(schedule)
    by_rank = {str(ranks[r]): actions for r, actions in order.items() if r < len(ranks)}
    fields = {
        "schedule": type(schedule).__name__,
        "group": group_key,
        "ranks": ranks,
        "num_stages": int(stage.num_stages),
        "num_microbatches": int(schedule._n_microbatches),
        "num_virtual": max(1, int(stage.num_stages) // len(ranks)),
        "order": by_rank,
        "source": source,
        "paced": any(is_paced(s.submod) for s in stages_of(schedule)),
    }
    return fields, one_by_one(by_rank.get(str(ranks[stage.group_rank]), []))


def is_paced(module: Any) -> bool:
    """Does a layer sleep to pace compute (pardbg.recipes does)?"""
    return any(
        getattr(m, "pardbg_paced", False) or type(m).__name__ == "Paced" for m in module.modules()
    )
