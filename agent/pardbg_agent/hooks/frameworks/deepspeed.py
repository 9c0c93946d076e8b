"""DeepSpeed's PipelineEngine, whose instruction schedule is the plan.

``_exec_schedule`` runs the instructions through a table of functions, which is hooked: DualPipeV's
methods call the engine's methods of the same names once more. A forward or backward contains no
point-to-point op; those are instructions of their own."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from pardbg_agent import core as _core
from pardbg_agent.hooks.frameworks import seam
from pardbg_agent.hooks.frameworks.seam import Given, What, action, hook_run, report_losses
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.hooks.training import backward_loss, step_phases
from pardbg_agent.hooks.training.pipeline_actions import Actions
from pardbg_agent.schedule_orders import Plan

_VERBS: Final = {"ForwardPass": "F", "BackwardPass": "B"}


def hook_engine(patches: Patches, module: ModuleType) -> None:
    engine = module.PipelineEngine
    hook_run(patches, engine, "_exec_schedule", "deepspeed.run", _begins, _log_loss)
    _hook_table(patches, engine)


def hook_backward(patches: Patches, module: ModuleType) -> None:
    """Hook backward(), which divides and scales the loss inside. DeepSpeed's own wrapper hides the
    parameters' names."""

    def before(c: _core.Core, engine: Any, loss: Any = None, *_: Any, **__: Any) -> None:
        backward_loss.before_scale(c, engine, loss)

    patches.around(module.DeepSpeedEngine, "backward", "deepspeed.backward", before)


def hook_zero(patches: Patches, module: ModuleType) -> None:
    """Hook ZeRO 1, 2 and 3, which step the groups of parameters one after the other."""
    for name in ("DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3"):
        step_phases.hook_wrapper(patches, getattr(module, name, None))


def hook_dualpipev(patches: Patches, module: ModuleType) -> None:
    _hook_table(patches, module.DualPipeVEngine)


def _hook_table(patches: Patches, engine: Any) -> None:
    """Replace the instruction table by a copy with the two computing instructions hooked."""
    table = dict(engine._INSTRUCTION_MAP)
    for instruction, function in table.items():
        verb = _VERBS.get(instruction.__name__)
        if verb is not None:
            which = _forward if verb == "F" else _backward
            table[instruction] = action(function, f"deepspeed.{instruction.__name__}", which)
    patches.set(engine, "_INSTRUCTION_MAP", table)


def _begins(c: _core.Core, made: Actions, given: Given) -> Plan | None:
    engine, schedule = given["self"], given["pipe_schedule"]
    group, kind = engine.grid.get_pipe_parallel_group(), type(schedule)
    run = seam.begin(made, group, engine.stage_id)
    if "Inference" not in kind.__name__ and not getattr(schedule, "forward_only", False):
        run.of_framework = engine

    def row(at: int, size: int, number: int) -> list[str]:
        return _row(kind(number, size, at), seam.Run(at, size))

    name, chunks = ("DualPipeV", 2) if "DualPipeV" in type(schedule).__name__ else ("1F1B", 1)
    return seam.plan_on(
        group, f"DeepSpeed {name}", int(schedule.micro_batches),
        row if run.of_framework is not None else None, chunks,
    )  # fmt: skip


def _row(schedule: Any, run: seam.Run) -> list[str]:
    """Return the computing instructions of one stage's schedule. Buffers are reused, so
    microbatches are counted."""
    counts: dict[tuple[str, int], int] = {}
    row = []
    for instructions in schedule:
        for instruction in instructions:
            verb = _VERBS.get(type(instruction).__name__)
            if verb is None:
                continue
            stage = run.at(instruction.kwargs.get("phase") == 1)
            mb = counts.get((verb, stage), 0)
            counts[verb, stage] = mb + 1
            row.append(f"{stage}{verb}{mb}")
    return row


def _forward(made: Actions, given: Given) -> What:
    stage = made.of_run.at(given.get("phase") == 1)
    return "F", stage, made.next_mb("F", stage), getattr(given.get("self"), "module", None)


def _backward(made: Actions, given: Given) -> What:
    stage = made.of_run.at(given.get("phase") == 1)
    return "B", stage, made.next_mb("B", stage), None


def _log_loss(c: _core.Core, made: Actions) -> None:
    engine = made.of_run.of_framework
    total: Any = getattr(engine, "total_loss", None)
    if backward_loss.is_one_number(total):
        report_losses(c, made, [total], lambda values: values[0] / engine.micro_batches)
