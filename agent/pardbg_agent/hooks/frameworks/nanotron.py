"""nanotron's pipeline engines.

Its forward and backward hold their own receives (a block asks for its input, autograd for the
gradient of what was sent), so an action's compute begins after the last of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from pardbg_agent import core as _core
from pardbg_agent.hooks.frameworks.seam import (
    Given,
    What,
    hook_action,
    hook_communication,
    hook_run,
    report_loss,
)
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.hooks.training import pipeline_actions, step_phases
from pardbg_agent.hooks.training.pipeline_actions import Actions, group_key, ranks_of
from pardbg_agent.schedule_orders import (
    Plan,
    all_forward_all_backward,
    by_rank,
    one_f_one_b,
)

_ENGINES: Final = {
    "AllForwardAllBackwardPipelineEngine": ("nanotron GPipe", all_forward_all_backward),
    "OneForwardOneBackwardPipelineEngine": ("nanotron 1F1B", one_f_one_b),
}


@dataclass(frozen=True, slots=True)
class _Run:
    stage: int
    losses: list[float]


def _hook_engines(patches: Patches, module: ModuleType) -> None:
    for name in _ENGINES:
        engine = getattr(module, name, None)
        if engine is not None:
            hook_run(patches, engine, "train_batch_iter", "nanotron.run", _begins, _log_loss)
    base = module.PipelineEngine
    hook_action(patches, base, "forward", "nanotron.forward", _forward)
    hook_action(patches, base, "backward", "nanotron.backward", _backward)


def _hook_state(patches: Patches, module: ModuleType) -> None:
    state = module.PipelineTrainBatchState
    hook_communication(patches, state, "run_communication", "nanotron.communication")
    patches.around(
        state, "register_activation_requiring_backward", "nanotron.loss", _before_loss, _after_loss
    )


def _begins(c: _core.Core, made: Actions, given: Given) -> Plan | None:
    known = _ENGINES.get(type(given["self"]).__name__)
    if known is None:
        return None
    name, row = known
    group, number = given["pg"], int(given["nb_microbatches"])
    ranks = ranks_of(group)
    made.of_run = _Run(ranks.index(c.identity.rank), [])
    order = by_rank(ranks, lambda stage: row(stage, len(ranks), number))
    return Plan(name, ranks, len(ranks), number, order, group=group_key(group))


def _forward(made: Actions, given: Given) -> What:
    stage = made.of_run.stage
    return "F", stage, made.next_mb("F", stage), given.get("model")


def _backward(made: Actions, given: Given) -> What:
    stage = made.of_run.stage
    return "B", stage, made.next_mb("B", stage), None


def _before_loss(c: _core.Core, state: Any, activation: Any, *_: Any, **__: Any) -> None:
    """What backward is to begin from: on the last stage the loss, elsewhere stand-ins for what
    was sent."""
    run = pipeline_actions.of(c).of_run
    sent = type(getattr(activation, "grad_fn", None)).__name__.startswith("SendTensor")
    if run is not None and not sent and step_phases.is_plain_scalar(activation):
        run.losses.append(activation.item())


def _after_loss(*_: Any) -> None:
    """Never comes."""


def _log_loss(c: _core.Core, made: Actions) -> None:
    """The sum of what the last stage divided by the number of microbatches."""
    if made.of_run.losses:
        report_loss(c, made, sum(made.of_run.losses))


MODULES: Final = {
    "nanotron.parallel.pipeline_parallel.engine": _hook_engines,
    "nanotron.parallel.pipeline_parallel.state": _hook_state,
}
