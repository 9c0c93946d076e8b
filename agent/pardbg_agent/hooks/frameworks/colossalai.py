"""ColossalAI's pipeline schedules (1F1B, interleaved, zero bubble V) and its ZeRO 1 and 2.

The zero-bubble scheduler's nodes give chunk and microbatch, but wait for their input before they
compute: the action is the compute inside. In the other schedules, microbatches are counted."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any, Final

from pardbg_agent import core as _core
from pardbg_agent.hooks.frameworks import seam
from pardbg_agent.hooks.frameworks.seam import Given, What, hook_action, hook_run
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.hooks.training import pipeline_actions, step_phases
from pardbg_agent.hooks.training.pipeline_actions import Actions
from pardbg_agent.schedule_orders import Plan, interleaved, one_f_one_b

_VERBS: Final = {"F": "F", "B": "I", "W": "W"}
"""Verbs of ColossalAI's node types: B of the zero-bubble table is backward-input only."""


def hook_plain(patches: Patches, module: ModuleType) -> None:
    _hook(patches, module.OneForwardOneBackwardSchedule, _plain, "backward_step")


def hook_interleaved(patches: Patches, module: ModuleType) -> None:
    _hook(patches, module.InterleavedSchedule, _interleaved, "backward_step")


def hook_zero_bubble(patches: Patches, module: ModuleType) -> None:
    schedule = module.ZeroBubbleVPipeScheduler
    _hook(patches, schedule, _zero_bubble, "backward_b_step")
    for name in ("schedule_f", "schedule_b"):
        patches.around(schedule, name, "colossalai.node", _before_node)
    hook_action(patches, schedule, "schedule_w", "colossalai.weight", _weight)


def hook_zero(patches: Patches, module: ModuleType) -> None:
    """Hook LowLevelZeroPlugin's optimizer, which gathers the parameters in its own step()."""
    step_phases.hook_wrapper(patches, module.LowLevelZeroOptimizer)


def _hook(patches: Patches, schedule: Any, begins: Any, backward: str) -> None:
    hook_run(patches, schedule, "forward_backward_step", "colossalai.run", begins, seam.report_sum)
    hook_action(patches, schedule, "forward_step", "colossalai.forward", _forward)
    hook_action(patches, schedule, backward, "colossalai.backward", _backward)


# -- runs


def _begin(made: Actions, given: Given) -> Any:
    manager = given["self"].stage_manager
    group = manager.pg_mesh.get_group_along_axis(manager.pipeline_axis)
    seam.begin(made, group, manager.stage)
    return group


def _plain(c: _core.Core, made: Actions, given: Given) -> Plan | None:
    number = _number(given["self"], "num_microbatches")
    row = one_f_one_b if _trains(given) else None
    return seam.plan_on(_begin(made, given), "ColossalAI 1F1B", number, row)


def _interleaved(c: _core.Core, made: Actions, given: Given) -> Plan | None:
    number, chunks = _number(given["self"], "num_microbatch"), int(given["self"].num_model_chunks)
    row = partial(interleaved, num_chunks=chunks)
    name = "ColossalAI Interleaved1F1B"
    group = _begin(made, given)
    return seam.plan_on(group, name, number, row if _trains(given) else None, chunks)


def _zero_bubble(c: _core.Core, made: Actions, given: Given) -> Plan | None:
    group = _begin(made, given)
    number, tables = _number(given["self"], "num_microbatch"), given["self"].schedules

    def row(at: int, size: int, number: int) -> list[str]:
        run = seam.Run(at, size)
        nodes = (node for node in tables[at] if node.type in _VERBS)
        return [f"{run.at(node.chunk)}{_VERBS[node.type]}{node.minibatch}" for node in nodes]

    known = _trains(given) and len(tables) == made.of_run.num_ranks
    return seam.plan_on(group, "ColossalAI ZBVZeroBubble", number, row if known else None, 2)


def _number(schedule: Any, name: str) -> int:
    """Return the number of microbatches; a schedule given their size has 0 before its batch."""
    return int(getattr(schedule, name, None) or 0)


def _trains(given: Given) -> bool:
    return given.get("optimizer") is not None


# -- actions


def _before_node(c: _core.Core, schedule: Any, scheduled_node: Any, *_: Any, **__: Any) -> None:
    run = pipeline_actions.of(c).of_run
    if run is not None:
        run.of_framework = scheduled_node


def _of_node(made: Actions, verb: str) -> What:
    node = made.of_run.of_framework
    return verb, made.of_run.at(node.chunk), int(node.minibatch), None


def _forward(made: Actions, given: Given) -> What:
    run = made.of_run
    if run.of_framework is not None:
        return _of_node(made, "F")
    stage = int(given.get("model_chunk_id") or 0) * run.num_ranks + run.stage
    return "F", stage, made.next_mb("F", stage), None


def _backward(made: Actions, given: Given) -> What | None:
    run = made.of_run
    seam.keep_loss(made, given.get("output_obj"))
    if run.of_framework is not None:
        splits = any(node.type == "W" for node in given["self"].schedules[run.stage])
        return _of_node(made, "I" if splits else "B")
    planned = made.next_planned("B")
    if planned is None and int(getattr(given.get("self"), "num_model_chunks", 1)) > 1:
        return None  # its stage is not known
    return seam.backward(made, planned)


def _weight(made: Actions, given: Given) -> What | None:
    made.of_run.of_framework = given.get("scheduled_node")
    return None if made.of_run.of_framework is None else _of_node(made, "W")
