"""ColossalAI's pipeline schedules: 1F1B, interleaved, zero bubble V.

The zero-bubble scheduler's nodes say chunk and microbatch, but wait for their input before they
compute: the action is the compute inside. The others' are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

from pardbg_agent import core as _core
from pardbg_agent.hooks.frameworks.seam import Given, What, hook_action, hook_run, report_loss
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.hooks.training import pipeline_actions, step_phases
from pardbg_agent.hooks.training.pipeline_actions import Actions, group_key, ranks_of
from pardbg_agent.schedule_orders import Plan, by_rank, interleaved, one_f_one_b


@dataclass(slots=True)
class _Run:
    stage: int
    num_stages: int
    is_v: bool = False
    node: Any = None
    """The zero-bubble schedule's node that is being run."""
    splits: bool = False
    """Backward is split: an I and a W."""
    num_chunks: int = 1
    losses: list[float] = field(default_factory=list)
    """Of the last stage's microbatches, each divided by their number."""


def _hook_plain(patches: Patches, module: ModuleType) -> None:
    schedule = module.OneForwardOneBackwardSchedule
    hook_run(patches, schedule, "forward_backward_step", "colossalai.run", _plain, _log_loss)
    _hook_steps(patches, schedule, "backward_step")


def _hook_interleaved(patches: Patches, module: ModuleType) -> None:
    schedule = module.InterleavedSchedule
    hook_run(patches, schedule, "forward_backward_step", "colossalai.run", _interleaved, _log_loss)
    _hook_steps(patches, schedule, "backward_step")


def _hook_zero_bubble(patches: Patches, module: ModuleType) -> None:
    schedule = module.ZeroBubbleVPipeScheduler
    hook_run(patches, schedule, "forward_backward_step", "colossalai.run", _zero_bubble, _log_loss)
    _hook_steps(patches, schedule, "backward_b_step")
    for name in ("schedule_f", "schedule_b"):
        patches.around(schedule, name, "colossalai.node", _before_node, _nothing)
    hook_action(patches, schedule, "schedule_w", "colossalai.weight", _weight)


def _hook_steps(patches: Patches, schedule: Any, backward: str) -> None:
    hook_action(patches, schedule, "forward_step", "colossalai.forward", _forward)
    hook_action(patches, schedule, backward, "colossalai.backward", _backward)


# -- runs


def _begin(made: Actions, given: Given) -> tuple[Any, tuple[int, ...]]:
    """(pipeline group, its ranks) of a run that begins."""
    manager = given["self"].stage_manager
    group = manager.pg_mesh.get_group_along_axis(manager.pipeline_axis)
    ranks = ranks_of(group)
    made.of_run = _Run(int(manager.stage), len(ranks))
    return group, ranks


def _plain(c: _core.Core, made: Actions, given: Given) -> Plan:
    group, ranks = _begin(made, given)
    number = _number(given["self"], "num_microbatches")
    order = by_rank(ranks, lambda stage: one_f_one_b(stage, len(ranks), number))
    order = order if _trains(given) and number else {}
    return Plan("ColossalAI 1F1B", ranks, len(ranks), number, order, group=group_key(group))


def _interleaved(c: _core.Core, made: Actions, given: Given) -> Plan:
    group, ranks = _begin(made, given)
    number, chunks = _number(given["self"], "num_microbatch"), int(given["self"].num_model_chunks)
    made.of_run.num_chunks = chunks
    order = by_rank(ranks, lambda rank: interleaved(rank, len(ranks), number, chunks))
    order = order if _trains(given) and number else {}
    name, stages = "ColossalAI Interleaved1F1B", len(ranks) * chunks
    return Plan(name, ranks, stages, number, order, group=group_key(group))


def _zero_bubble(c: _core.Core, made: Actions, given: Given) -> Plan:
    group, ranks = _begin(made, given)
    made.of_run.is_v = True
    number, tables = _number(given["self"], "num_microbatch"), given["self"].schedules
    order = {}
    if _trains(given) and len(tables) == len(ranks):
        made.of_run.splits = any(node.type == "W" for node in tables[made.of_run.stage])
        order = by_rank(ranks, lambda stage: _nodes(tables[stage], stage, len(ranks)))
    return Plan("ColossalAI ZBVZeroBubble", ranks, 2 * len(ranks), number, order,
                group=group_key(group))  # fmt: skip


def _nodes(table: Sequence[Any], stage: int, num_stages: int) -> list[str]:
    """A stage's own table; its B is the gradient of the input alone."""
    verbs = {"F": "F", "B": "I", "W": "W"}
    return [
        f"{_virtual(node.chunk, stage, num_stages)}{verbs[node.type]}{node.minibatch}"
        for node in table
        if node.type in verbs
    ]


def _virtual(chunk: int, stage: int, num_stages: int) -> int:
    """The second chunk runs back through the ranks."""
    return 2 * num_stages - 1 - stage if chunk else stage


def _number(schedule: Any, name: str) -> int:
    """Microbatches; a schedule that is given their size counts them when it has a batch."""
    return int(getattr(schedule, name, None) or 0)


def _trains(given: Given) -> bool:
    return given.get("optimizer") is not None


# -- actions


def _before_node(c: _core.Core, *_: Any, scheduled_node: Any = None, **__: Any) -> None:
    run = pipeline_actions.of(c).of_run
    if run is not None:
        run.node = scheduled_node


def _nothing(*_: Any) -> None:
    """Never comes."""


def _of_node(made: Actions, verb: str) -> What:
    run = made.of_run
    stage = _virtual(run.node.chunk, run.stage, run.num_stages)
    return verb, stage, int(run.node.minibatch), None


def _forward(made: Actions, given: Given) -> What:
    run = made.of_run
    if run.is_v and run.node is not None:
        return _of_node(made, "F")
    stage = int(given.get("model_chunk_id") or 0) * run.num_stages + run.stage
    return "F", stage, made.next_mb("F", stage), None


def _backward(made: Actions, given: Given) -> What | None:
    run = made.of_run
    loss: Any = given.get("output_obj")
    if step_phases.is_plain_scalar(loss):
        run.losses.append(loss.item())
    if run.is_v and run.node is not None:
        return _of_node(made, "I" if run.splits else "B")
    planned = made.next_planned("B")
    if planned is None and run.num_chunks > 1:
        return None  # nothing says whose it is
    stage, mb = planned or (run.stage, made.next_mb("B", run.stage))
    return "B", stage, mb, None


def _weight(made: Actions, given: Given) -> What | None:
    made.of_run.node = given.get("scheduled_node")
    return None if made.of_run.node is None else _of_node(made, "W")


def _log_loss(c: _core.Core, made: Actions) -> None:
    """The mean over the microbatches, where the last stage is."""
    if made.of_run.losses:
        report_loss(c, made, sum(made.of_run.losses))


MODULES: Final = {
    "colossalai.pipeline.schedule.one_f_one_b": _hook_plain,
    "colossalai.pipeline.schedule.interleaved_pp": _hook_interleaved,
    "colossalai.pipeline.schedule.zero_bubble_pp": _hook_zero_bubble,
}
