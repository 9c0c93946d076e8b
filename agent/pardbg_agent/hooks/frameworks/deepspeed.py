"""DeepSpeed's PipelineEngine: its instruction schedule is the plan.

``_exec_schedule`` runs the instructions through a table of functions, which is what is hooked: the
engine's methods of the same names are called by DualPipeV's once more inside. A forward or
backward holds no point-to-point op, those are instructions of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from pardbg_agent import core as _core
from pardbg_agent.hooks.frameworks.seam import Given, What, action, hook_run, report_loss
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.hooks.training import step_phases
from pardbg_agent.hooks.training.pipeline_actions import Actions, group_key, ranks_of
from pardbg_agent.schedule_orders import Plan, by_rank

_VERBS: Final = {"ForwardPass": "F", "BackwardPass": "B"}


@dataclass(frozen=True, slots=True)
class _Run:
    engine: Any
    trains: bool


def _hook_engine(patches: Patches, module: ModuleType) -> None:
    engine = module.PipelineEngine
    hook_run(patches, engine, "_exec_schedule", "deepspeed.run", _begins, _log_loss)
    _hook_table(patches, engine)


def _hook_backward(patches: Patches, module: ModuleType) -> None:
    """The loss that is given is divided and scaled inside."""
    engine, before = module.DeepSpeedEngine, step_phases.before_scale
    patches.around(engine, "backward", "deepspeed.backward", before, step_phases.after_scale)


def _hook_dualpipev(patches: Patches, module: ModuleType) -> None:
    _hook_table(patches, module.DualPipeVEngine)


def _hook_table(patches: Patches, engine: Any) -> None:
    """A table of our own in its place, with the two computing instructions watched."""
    table = dict(engine._INSTRUCTION_MAP)
    for instruction, function in table.items():
        verb = _VERBS.get(instruction.__name__)
        if verb is not None:
            which = _forward if verb == "F" else _backward
            table[instruction] = action(function, f"deepspeed.{instruction.__name__}", which)
    patches.set(engine, "_INSTRUCTION_MAP", table)


def _begins(c: _core.Core, made: Actions, given: Given) -> Plan:
    engine, schedule = given["self"], given["pipe_schedule"]
    group = engine.grid.get_pipe_parallel_group()
    ranks, trains = ranks_of(group), "Inference" not in type(schedule).__name__
    trains = trains and not getattr(schedule, "forward_only", False)
    made.of_run = _Run(engine, trains)
    kind, chunks = type(schedule), 2 if _is_v(schedule) else 1
    number = int(schedule.micro_batches)
    order = {}
    if trains:
        order = by_rank(ranks, lambda stage: _row(kind(number, len(ranks), stage), len(ranks)))
    name = "DeepSpeed DualPipeV" if chunks == 2 else "DeepSpeed 1F1B"
    return Plan(name, ranks, len(ranks) * chunks, number, order, group=group_key(group))


def _is_v(schedule: Any) -> bool:
    return "DualPipeV" in type(schedule).__name__


def _row(schedule: Any, num_stages: int) -> list[str]:
    """The computing instructions of one stage's schedule. Buffers are used again, so microbatches
    are counted."""
    counts: dict[tuple[str, int], int] = {}
    row = []
    for instructions in schedule:
        for instruction in instructions:
            verb = _VERBS.get(type(instruction).__name__)
            if verb is None:
                continue
            stage = _virtual(schedule.stage_id, instruction.kwargs.get("phase"), num_stages)
            mb = counts.get((verb, stage), 0)
            counts[verb, stage] = mb + 1
            row.append(f"{stage}{verb}{mb}")
    return row


def _virtual(stage_id: int, phase: Any, num_stages: int) -> int:
    """DualPipeV's second half runs back through the ranks."""
    return 2 * num_stages - 1 - stage_id if phase == 1 else stage_id


def _stage(made: Actions, given: Given) -> int:
    engine = made.of_run.engine
    return _virtual(engine.stage_id, given.get("phase"), engine.num_stages)


def _forward(made: Actions, given: Given) -> What:
    stage = _stage(made, given)
    return "F", stage, made.next_mb("F", stage), made.of_run.engine.module


def _backward(made: Actions, given: Given) -> What:
    stage = _stage(made, given)
    return "B", stage, made.next_mb("B", stage), None


def _log_loss(c: _core.Core, made: Actions) -> None:
    """The mean over the microbatches, where the loss is computed."""
    run = made.of_run
    total: Any = getattr(run.engine, "total_loss", None)
    if run.trains and step_phases.is_plain_scalar(total):
        report_loss(c, made, total.item() / run.engine.micro_batches)


MODULES: Final = {
    "deepspeed.runtime.engine": _hook_backward,
    "deepspeed.runtime.pipe.engine": _hook_engine,
    "deepspeed.runtime.pipe.dualpipev": _hook_dualpipev,
}
