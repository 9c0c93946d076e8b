"""Megatron-core: the schedules of ``pipeline_parallel.schedules``.

All of them call ``forward_step`` and ``backward_step`` through the module's globals; neither
contains a point-to-point op. A forward gives its microbatch and chunk, a backward does not: the
k-th one of a run is the k-th of the plan. ``combined_1f1b``, where all-to-alls of experts are
overlapped, has one call for a forward and another microbatch's backward: both actions last as long
as the call."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from torch import Tensor

from pardbg_agent import core as _core
from pardbg_agent.hooks.frameworks import seam
from pardbg_agent.hooks.frameworks.seam import Given, What, hook_action, hook_run, report_losses
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.hooks.read_numbers import readable
from pardbg_agent.hooks.training.pipeline_actions import Actions
from pardbg_agent.schedule_orders import Plan, interleaved, one_f_one_b


def hook_schedules(patches: Patches, module: ModuleType) -> None:
    for name, begins in (
        ("forward_backward_pipelining_without_interleaving", _plain),
        ("forward_backward_pipelining_with_interleaving", _interleaved),
        ("forward_backward_no_pipelining", _unpiped),
    ):
        hook_run(patches, module, name, "megatron.run", begins, _log_loss)
    hook_action(patches, module, "forward_step", "megatron.forward", _forward)
    hook_action(patches, module, "backward_step", "megatron.backward", _backward)


def hook_combined(patches: Patches, module: ModuleType) -> None:
    hook_action(patches, module, "combined_forward_backward_step", "megatron.combined", _combined)


def _begin(made: Actions, given: Given) -> Any:
    communicator = given.get("p2p_communicator")
    state: Any = sys.modules["megatron.core.parallel_state"]
    group = getattr(communicator, "pp_group", None) or state.get_pipeline_model_parallel_group()
    seam.begin(made, group)
    return group


def _plain(c: _core.Core, made: Actions, given: Given) -> Plan | None:
    row = None if given.get("forward_only") else one_f_one_b
    number = int(given["num_microbatches"])
    return seam.plan_on(_begin(made, given), "Megatron 1F1B", number, row)


def _interleaved(c: _core.Core, made: Actions, given: Given) -> Plan | None:
    chunks = len(given["model"])
    config = _config(given["model"][0])
    together = int(getattr(config, "microbatch_group_size_per_vp_stage", 0) or 0)

    def row(at: int, size: int, number: int) -> list[str]:
        order = interleaved(at, size, number, chunks, together)
        if not getattr(config, "overlap_moe_expert_parallel_comm", False):
            return order
        ahead = 2 * (size - at - 1) + (chunks - 1) * (together or size) + 1
        return overlapped(order, ahead)

    return seam.plan_on(
        _begin(made, given), "Megatron Interleaved1F1B", int(given["num_microbatches"]),
        None if given.get("forward_only") else row, chunks,
    )  # fmt: skip


def overlapped(order: list[str], ahead: int) -> list[str]:
    """Return the actions with each backward paired with the forward ``ahead`` positions later."""
    forwards = [entry for entry in order if "F" in entry]
    backwards = [entry for entry in order if "B" in entry]
    pairs = [f"({f};{b})OVERLAP_F_B" for f, b in zip(forwards[ahead:], backwards, strict=False)]
    return forwards[:ahead] + pairs + backwards[len(pairs) :]


def _unpiped(c: _core.Core, made: Actions, given: Given) -> None:
    """Note a run without pipeline: forward and backward are phases of the step, not actions."""
    made.of_run = seam.Run(0, 1)


def _config(model: Any) -> Any:
    while not hasattr(model, "config") and hasattr(model, "module"):
        model = model.module
    return getattr(model, "config", None)


def _forward(made: Actions, given: Given, model: str = "model", chunk: str = "vp_stage") -> What:
    run = made.of_run
    run.of_framework = given.get("forward_data_store")
    stage = (given.get(chunk) or 0) * run.num_ranks + run.stage
    mb = given.get("current_microbatch")
    mb = made.next_mb("F", stage) if mb is None else int(mb)
    return "F", stage, mb, given.get(model)


def _backward(made: Actions, given: Given) -> What:
    return seam.backward(made, made.next_planned("B"))


def _combined(made: Actions, given: Given) -> list[What]:
    both = []
    if given.get("f_model") is not None:
        both.append(_forward(made, given, "f_model", "f_model_chunk_id"))
    if given.get("b_model") is not None:
        both.append(_backward(made, given))
    return both


def _log_loss(c: _core.Core, made: Actions) -> None:
    """Report the mean, over microbatches, of the first value of the loss function: a number each,
    or a sum and a token count. On the last stage only; never waits for a device."""
    reported = made.of_run.of_framework or ()
    firsts = [next(iter(each.values())) for each in reported if isinstance(each, dict) and each]
    values = [_numbers(first) for first in firsts]
    numbers = [number for value in values for number in value]
    sizes = {len(value) for value in values}

    def loss_of(read: list[float]) -> float:
        on_device = iter(read)
        known = [next(on_device) if isinstance(one, Tensor) else one for one in numbers]
        return sum(known) / len(known) if sizes == {1} else (
            sum(known[::2]) / max(sum(known[1::2]), 1e-30))  # fmt: skip

    if sizes in ({1}, {2}):
        report_losses(c, made, [one for one in numbers if isinstance(one, Tensor)], loss_of)


def _numbers(value: Any) -> list[Any]:
    """Return the numbers in a value; those on a device as tensors."""
    if isinstance(value, (int, float)):
        return [float(value)]
    if isinstance(value, (tuple, list)):
        return [number for each in value for number in _numbers(each)]
    if type(value) is not Tensor or value.numel() > 2 or not readable(value):
        return []
    flat = value.detach().flatten()
    return flat.tolist() if value.is_cpu else list(flat.unbind())
