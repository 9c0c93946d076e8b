"""picotron: ``train_step_pipeline_afab`` and ``train_step_pipeline_1f1b``.

They call ``model.forward`` and ``model.backward`` themselves, so no module hook would see them. The
last stage computes its loss between a forward and the next communication.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks.frameworks.seam import Given, What, hook_action, hook_run, report_loss
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.hooks.training import pipeline_actions, step_phases
from pardbg_agent.hooks.training.pipeline_actions import Actions, group_key, ranks_of
from pardbg_agent.schedule_orders import (
    Plan,
    all_forward_all_backward,
    by_rank,
    one_f_one_b,
)


@dataclass(frozen=True, slots=True)
class _Run:
    stage: int
    is_last: bool
    losses: list[float] = field(default_factory=list)


def _hook(patches: Patches, module: ModuleType) -> None:
    afab = _begins_as("picotron GPipe", all_forward_all_backward)
    hook_run(patches, module, "train_step_pipeline_afab", "picotron.run", afab, _log_loss)
    plain = _begins_as("picotron 1F1B", one_f_one_b)
    hook_run(patches, module, "train_step_pipeline_1f1b", "picotron.run", plain, _log_loss)
    model = module.PipelineParallel
    hook_action(patches, model, "forward", "picotron.forward", _forward, _loss_of)
    hook_action(patches, model, "backward", "picotron.backward", _backward)
    for name in ("pipeline_communicate", "bidirectional_pipeline_communicate"):
        patches.around(module, name, "picotron.communicate", _before_communication, _nothing)


def _begins_as(name: str, row: Any) -> Any:
    def begins(c: _core.Core, made: Actions, given: Given) -> Plan:
        manager: Any = sys.modules["picotron.process_group_manager"].process_group_manager
        ranks = ranks_of(manager.pp_group)
        stage, number = int(manager.pp_rank), int(given["data_loader"].grad_acc_steps)
        made.of_run = _Run(stage, stage == len(ranks) - 1)
        order = by_rank(ranks, lambda at: row(at, len(ranks), number))
        return Plan(name, ranks, len(ranks), number, order, group=group_key(manager.pp_group))

    return begins


def _forward(made: Actions, given: Given) -> What:
    stage = made.of_run.stage
    return "F", stage, made.next_mb("F", stage), given.get("self")


def _loss_of(made: Actions, given: Given) -> Any:
    return made.of_run if made.of_run.is_last else None


def _backward(made: Actions, given: Given) -> What:
    run = made.of_run
    loss: Any = given.get("output_tensor")
    if run.is_last and step_phases.is_plain_scalar(loss):
        run.losses.append(loss.item())
    return "B", run.stage, made.next_mb("B", run.stage), None


def _before_communication(c: _core.Core, operation: Any = "", *_: Any, **__: Any) -> None:
    """The last stage's loss is there; its activations go nowhere, so nothing was sent before."""
    made = pipeline_actions.of(c)
    if made.pending is not None and operation != "send_forward":
        made.loss_computed(now_ns())


def _nothing(*_: Any) -> None:
    """Never comes."""


def _log_loss(c: _core.Core, made: Actions) -> None:
    """The mean over the microbatches, where the last stage is."""
    losses = made.of_run.losses
    if losses:
        report_loss(c, made, sum(losses) / len(losses))


MODULES: Final = {"picotron.pipeline_parallel.pipeline_parallel": _hook}
