"""Losses that backward begins from, and those that schedules have, as METRIC records.

One that a device computes is read when the device is done with it (``read_numbers``)."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import kept_gradients
from pardbg_agent.hooks.context import LOCAL, Context, local
from pardbg_agent.hooks.device.device_records import HOOK
from pardbg_agent.hooks.ops import late_inputs
from pardbg_agent.hooks.read_numbers import read_numbers, readable
from pardbg_agent.hooks.tensors import unseen
from pardbg_agent.hooks.training import batch_loss
from pardbg_agent.hooks.training.cycle import Cycle
from pardbg_agent.hooks.watch import not_finite, probes
from pardbg_agent.wire import NO_GROUP, NONE, Flag, Kind, Lane

_METRIC, _COUNTER = int(Kind.METRIC), int(Lane.COUNTER)
_SEEN: Final = int(Flag.FLOAT | Flag.INFERRED)
"""Flags of a number that a hook took and the program did not log."""
_TARGETS: Final = "loss targets"
"""Name of what fails alone where a loss keeps its targets in a way of its own."""
_SHARES: Final = "torchtitan.components.loss"
"""Module whose import makes backward begin from a part of the sum over all ranks' tokens."""


def see_loss(c: _core.Core, x: Context, tensors: Any) -> None:
    """Note the loss that backward begins from, if it is one number, and, where due, the gradients
    that it adds to."""
    state = LOCAL.state
    if kept_gradients.noted:
        c.guard.call(HOOK, kept_gradients.backward_begins, c, x.part(Cycle).only)
    unscaled, state.unscaled = state.unscaled, None
    if not is_one_number(tensors) or _SHARES in sys.modules:
        return
    of, share = unscaled or (tensors, batch_loss.share_of(tensors))
    parts, known = x.part(batch_loss.BatchLoss), x.loop.num_schedules or x.part(Cycle).expected
    if not known:
        parts.clear()  # losses of one step are not told apart, and would never end
    part, on_host = batch_loss.Awaited(), of.is_cpu
    whole = parts.add(tensors, part, share, c.step, state.nest.optimizer)
    due = c.step % probes.EVERY == 0 and known and parts.at_first
    made = batch_loss.made_by(tensors) if due else (share, "")
    scale = share if unscaled else made[0]
    targets = c.guard.call(_TARGETS, batch_loss.targets_of, tensors) if due else None

    def told(values: list[float], step: int = c.step, t: int = now_ns()) -> None:
        part.value = values[0]
        if (value := whole()) is not None:
            _write_loss(c, value, step, t)
        if not on_host and not math.isfinite(values[0]):
            late_inputs.tell_finite(c, step)
            not_finite.loss(c, values[0])
        if due:
            probes.tell_loss(c, step, t, (scale, values[0]), made[1], targets or 0)

    read_numbers(c, [of], told)
    if part.value is not None and not math.isfinite(part.value):  # known at once
        c.guard.call(HOOK, probes.loss_not_finite, c)
        not_finite.loss(c, part.value)


def before_scale(c: _core.Core, scaler: Any, outputs: Any, *_: Any, **__: Any) -> Any:
    """Keep the loss of ``scaler.scale(loss).backward()`` as it was before scaling."""
    if is_one_number(outputs) and not local().nest.action:
        with unseen():
            local().unscaled = outputs.detach(), batch_loss.share_of(outputs)


def is_one_number(tensor: Any) -> bool:
    """Return whether a tensor is one number that ``read_numbers`` may read."""
    plain = type(tensor) is torch.Tensor and tensor.numel() == 1 and not tensor.is_complex()
    return plain and readable(tensor)


def log_losses(
    c: _core.Core, losses: Sequence[Any], step: int, loss_of: Callable[[list[float]], float]
) -> None:  # fmt: skip
    """Write METRIC loss of a schedule that began in ``step``: what ``loss_of`` makes of its losses;
    an evaluation's belongs to no step. One that the program logs comes later and so wins."""
    t, on_host = now_ns(), all(loss.is_cpu for loss in losses)

    def told(values: list[float]) -> None:
        loss = loss_of(values)
        _write_loss(c, loss, step, t, 1)
        not_finite.loss(c, loss)
        if not on_host and not math.isfinite(loss):
            late_inputs.tell_finite(c, step)

    if torch.is_grad_enabled():
        read_numbers(c, losses, told)


def _write_loss(c: _core.Core, value: float, step: int, t: int, reported: int = 0) -> None:
    """Write METRIC loss; ``t`` is when the host issued what it is of."""
    c.loss = value
    c.record_f(
        _METRIC, _COUNTER, _SEEN, c.defs.name("loss"), t, t, step, 0, NO_GROUP, NONE, NONE, NONE,
        value, reported,
    )  # fmt: skip
