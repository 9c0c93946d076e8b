"""``watch nan``: values that are not finite, before they spread.

Checked while the watch is set, at any cost: the inputs of collectives and sends before their issue;
the loss that backward is called on and numbers that the program logs; every gradient, at the
optimizer's gate. (Without a watch ``probes`` checks a share of the inputs.) Of inputs on a device
the result is read when the device has it, as each op would wait for it, so the rank stops some ops
later. Gradients on a device are checked all together, which waits for the device once per step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from pardbg_agent import core as _core
from pardbg_agent.ctrl.agent_messages import Watch
from pardbg_agent.hooks.comm.op_arguments import inputs
from pardbg_agent.hooks.context import of
from pardbg_agent.hooks.read_numbers import read_numbers, readable
from pardbg_agent.hooks.tensors import counts_ops, is_pending, local_part, parameters_of
from pardbg_agent.hooks.watch import probes
from pardbg_agent.hooks.watch.tensor_names import Models, canonical
from pardbg_agent.wire import REDUCE

_BOUNDS: Final = {REDUCE.index("min"), REDUCE.index("max")}
"""Reductions whose inputs may rightly be infinite, as a minimum's start value is."""


@dataclass(slots=True)
class Found:
    """Last report of the watch."""

    hit: tuple[int, int] = (-1, -1)
    """(watch, step): NaN spreads, so one report per step is enough."""


def before_issue(c: _core.Core, watch: Watch, op: Any) -> None:
    """Check the inputs of the next op (``op_watches.Coming``)."""
    spec = op.spec
    if spec.kind in ("recv", "barrier") or not _due(c, watch):
        return
    if spec.kind == "broadcast" and op.peer != c.identity.rank:
        return  # a receiver's tensor is not written yet
    for tensor in inputs(spec, op.args):
        if not tensor.is_cpu:
            _look_late(c, watch, op, tensor)
            continue
        found = _say(tensor, op.reduce in _BOUNDS)
        if found is not None:
            name = next(_gradients(), None) if spec.reduce >= 0 else None
            where = f"; so is {name}" if name else ""
            _stop(c, watch, f"{found} in the input of {op.text()}{where}")
            return


def loss(c: _core.Core, value: float) -> None:
    """Stop at a loss that is NaN or infinite, if ``watch nan`` is set."""
    watch = c.watches.nan
    if watch is not None and not math.isfinite(value) and _due(c, watch):
        _stop(c, watch, f"the loss is {value}")


def gradients(c: _core.Core, watch: Watch, optimizer: Any) -> None:
    """Stop at a gradient that is NaN or infinite, before the optimizer uses it."""
    if not _due(c, watch):
        return
    there = [
        (at, p) for at, p in enumerate(parameters_of(optimizer))
        if p.grad is not None and not is_pending(p.grad)
    ]  # fmt: skip
    on_device = [g for _, p in there if not (g := local_part(p.grad)).is_cpu]
    if on_device and all_finite(on_device):
        there = [(at, p) for at, p in there if local_part(p.grad).is_cpu]
    bad = [(at, p) for at, p in there if _say(p.grad) is not None]
    if not bad:
        return
    at, parameter = bad[-1]  # backward runs from last to first: closest to the source
    name = next(_names(optimizer, parameter), f"parameter {at}")
    more = f", and of {len(bad) - 1} more" if len(bad) > 1 else ""
    _stop(c, watch, f"{_say(parameter.grad)} in the gradient of {name}{more}")


def _due(c: _core.Core, watch: Watch) -> bool:
    return of(c).part(Found).hit != (watch.number, c.step)


def _stop(c: _core.Core, watch: Watch, text: str) -> None:
    of(c).part(Found).hit = watch.number, c.step
    c.gate.stop(watch.number, text)


def _look_late(c: _core.Core, watch: Watch, op: Any, tensor: Any) -> None:
    """Have an op's input on a device checked there; a minimum's or a maximum's is not."""
    text, step = op.text(), c.step

    def told(largest: list[float]) -> None:
        due = c.watches.nan is watch and of(c).part(Found).hit != (watch.number, step)
        if due and not math.isfinite(largest[0]):
            _stop(c, watch, f"NaN or infinity in the input of {text}, in step {step}")

    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or counts_ops():
        return
    numbers = tensor.is_floating_point() and tensor.element_size() > 1 and tensor.numel()
    if numbers and op.reduce not in _BOUNDS and readable(tensor):
        with torch.no_grad():
            largest = torch.linalg.vector_norm(tensor.detach(), math.inf).float()
        read_numbers(c, [largest], told)


def all_finite(tensors: list[Any]) -> bool:
    """Return whether all values of these tensors are finite, waiting once for each device and
    allocating no tensor of their size. Returns True while a graph is captured, when a device cannot
    be read."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return True
    by_device: dict[Any, list[Any]] = {}
    with torch.no_grad():
        for tensor in tensors:
            if tensor.numel() and (tensor.is_floating_point() or tensor.is_complex()):
                largest = torch.linalg.vector_norm(tensor.detach(), math.inf)
                by_device.setdefault(tensor.device, []).append(largest.float())
        return all(
            bool(torch.stack(some).isfinite().all().item()) for some in by_device.values()
        )  # fmt: skip


def _say(tensor: Any, bounds: bool = False) -> str | None:
    """Return ``3 of 16384 values are not finite (2 NaN, 1 infinite; the first at 17)``; None: all
    are finite, or, for ``bounds``, all but infinite ones."""
    tensor = local_part(tensor)
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_meta:
        return None
    found = probes.not_finite(tensor)
    if found is None:
        return None
    count, first = found
    with torch.no_grad():
        nan = int(torch.isnan(tensor.detach()).count_nonzero().item())
    if bounds and not nan:
        return None
    are = "is" if count == 1 else "are"
    kinds = f"{nan} NaN" if nan == count else f"{nan} NaN, {count - nan} infinite"
    return f"{count} of {tensor.numel()} values {are} not finite ({kinds}; the first at {first})"


# -- names


def _names(optimizer: Any, parameter: Any) -> Iterator[str]:
    """Yield the optimizer's name of a parameter, then its outermost module's name of it."""
    for group in optimizer.param_groups:
        named = zip(group.get("param_names") or (), group["params"], strict=False)
        yield from (str(name) for name, p in named if p is parameter)
    for module in Models().outermost():
        yield from (canonical(name) for name, p in module.named_parameters() if p is parameter)


def _gradients() -> Iterator[str]:
    """Yield ``the gradient of head.weight`` for gradients that are not finite, last parameters
    first."""
    for module in Models().outermost():
        for name, p in reversed(list(module.named_parameters())):
            grad = None if is_pending(p.grad) else local_part(p.grad)
            if type(grad) is torch.Tensor and grad.is_cpu and probes.not_finite(grad) is not None:
                yield f"the gradient of {canonical(name)}"
