"""picotron: ``train_step_pipeline_afab`` and ``train_step_pipeline_1f1b``.

They call ``model.forward`` and ``model.backward`` directly, bypassing module hooks. The last stage
computes its loss between a forward and the next communication."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks.frameworks import seam
from pardbg_agent.hooks.frameworks.seam import Given, What, hook_action, hook_run
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.hooks.training import pipeline_actions
from pardbg_agent.hooks.training.pipeline_actions import Actions
from pardbg_agent.schedule_orders import Plan, all_forward_all_backward, one_f_one_b


def hook_schedules(patches: Patches, module: ModuleType) -> None:
    for function, name, row in (
        ("train_step_pipeline_afab", "picotron GPipe", all_forward_all_backward),
        ("train_step_pipeline_1f1b", "picotron 1F1B", one_f_one_b),
    ):
        begins = _begins_as(name, row)
        hook_run(patches, module, function, "picotron.run", begins, seam.report_mean)
    model = module.PipelineParallel
    hook_action(patches, model, "forward", "picotron.forward", seam.in_order("F", "self"), _loss_of)
    hook_action(patches, model, "backward", "picotron.backward", _backward)
    for name in ("pipeline_communicate", "bidirectional_pipeline_communicate"):
        patches.around(module, name, "picotron.communicate", _before_communication)


def _begins_as(name: str, row: Any) -> Any:
    def begins(c: _core.Core, made: Actions, given: Given) -> Plan | None:
        manager: Any = sys.modules["picotron.process_group_manager"].process_group_manager
        seam.begin(made, manager.pp_group, manager.pp_rank)
        return seam.plan_on(manager.pp_group, name, int(given["data_loader"].grad_acc_steps), row)

    return begins


def _is_last(run: seam.Run) -> bool:
    return run.stage == run.num_ranks - 1


def _loss_of(made: Actions, given: Given) -> Any:
    return made.of_run if _is_last(made.of_run) else None


def _backward(made: Actions, given: Given) -> What:
    run = made.of_run
    if _is_last(run):
        seam.keep_loss(made, given.get("output_tensor"))
    return seam.backward(made)


def _before_communication(c: _core.Core, operation: Any = "", *_: Any, **__: Any) -> None:
    """Note that the last stage has computed its loss: it sends no activations before it."""
    made = pipeline_actions.of(c)
    if made.pending is not None and operation != "send_forward":
        made.loss_computed(now_ns())
