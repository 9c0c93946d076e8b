"""nanotron's pipeline engines.

Its forward and backward contain their own receives (a block asks for its input, autograd for the
gradient of the sent activation), so an action's compute begins after the last receive."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from pardbg_agent import core as _core
from pardbg_agent.hooks.frameworks import seam
from pardbg_agent.hooks.frameworks.seam import Given, hook_action, hook_communication, hook_run
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.hooks.training import pipeline_actions
from pardbg_agent.hooks.training.pipeline_actions import Actions, ranks_of
from pardbg_agent.schedule_orders import Plan, all_forward_all_backward, one_f_one_b

_ENGINES: Final = {
    "AllForwardAllBackwardPipelineEngine": ("nanotron GPipe", all_forward_all_backward),
    "OneForwardOneBackwardPipelineEngine": ("nanotron 1F1B", one_f_one_b),
}


def hook_engines(patches: Patches, module: ModuleType) -> None:
    for name in _ENGINES:
        engine = getattr(module, name, None)
        if engine is not None:
            hook_run(patches, engine, "train_batch_iter", "nanotron.run", _begins, seam.report_sum)
    base = module.PipelineEngine
    hook_action(patches, base, "forward", "nanotron.forward", seam.in_order("F", "model"))
    hook_action(patches, base, "backward", "nanotron.backward", seam.in_order("B"))


def hook_state(patches: Patches, module: ModuleType) -> None:
    state = module.PipelineTrainBatchState
    hook_communication(patches, state, "run_communication", "nanotron.communication")
    patches.around(state, "register_activation_requiring_backward", "nanotron.loss", _before_loss)


def _begins(c: _core.Core, made: Actions, given: Given) -> Plan | None:
    known = _ENGINES.get(type(given["self"]).__name__)
    if known is None:
        return None
    name, row = known
    seam.begin(made, given["pg"], ranks_of(given["pg"]).index(c.identity.rank))
    return seam.plan_on(given["pg"], name, int(given["nb_microbatches"]), row)


def _before_loss(c: _core.Core, state: Any, activation: Any, *_: Any, **__: Any) -> None:
    """Keep the loss on the last stage; on other stages backward begins from stand-ins for sent
    activations."""
    if not type(getattr(activation, "grad_fn", None)).__name__.startswith("SendTensor"):
        seam.keep_loss(pipeline_actions.of(c), activation)
