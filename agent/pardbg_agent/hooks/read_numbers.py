"""Values of one-element tensors, read without waiting for a device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import torch

from pardbg_agent import core as _core
from pardbg_agent.hooks.device.late_numbers import LateNumbers, Tell
from pardbg_agent.hooks.tensors import counts_ops, unseen

_HOOK: Final = "device numbers"


def captures(c: _core.Core) -> bool:
    """Return whether the device's current stream captures a graph: then add no work of ours."""
    late = _late(c)
    return late is not None and late.capturing()


def readable(tensor: Any) -> bool:
    """Return whether a tensor's values can be read without waiting: at once in host memory, later
    on the device that is timed, unless its stream captures a graph."""
    late = None if tensor.is_cpu or _core.CURRENT is None else _late(_core.CURRENT)
    there = late is not None and bool(tensor.device == late.device) and not late.capturing()
    return bool(tensor.is_cpu) or there


def _late(c: _core.Core) -> LateNumbers | None:
    return None if c.device is None else c.device.numbers


def read_numbers(c: _core.Core, numbers: Sequence[Any], tell: Tell) -> bool:
    """Call ``tell`` with the values of readable tensors of one element each, of one dtype: at once
    if they are in host memory, else from the agent's thread when the device has computed them.
    Returns whether that is to come."""
    if all(number.is_cpu for number in numbers):
        with unseen():
            tell([number.item() for number in numbers])
        return True
    if counts_ops() or len({(one.dtype, one.device) for one in numbers}) > 1:
        return False
    told = partial(c.guard.call, _HOOK, tell)
    return bool(c.guard.call(_HOOK, _read_late, c, numbers, told))


def _read_late(c: _core.Core, numbers: Sequence[Any], tell: Tell) -> bool:
    late: LateNumbers = c.device.numbers
    with torch.no_grad(), late.here():
        flat = [number.detach().reshape(1) for number in numbers]
        return late.read(torch.cat(flat) if len(flat) > 1 else flat[0], tell)
