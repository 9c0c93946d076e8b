"""Loss of a step, from the scalars that backward began from."""

from __future__ import annotations

import ctypes
import weakref
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from pardbg_agent.hooks.tensors import number_of, parameters_of
from pardbg_agent.wire import NONE

_NEAR = 1e-6
_OPS = 8
"""Ops that made a loss which are told."""
_TARGET_BYTES = 1 << 15
"""Of a loss's targets that are read."""
_BY_NUMBERS = ("DivBackward0", "MulBackward0")
_LAYOUT = ("View", "Reshape", "UnsafeView", "Clone", "Slice")
"""How ops begin that compute nothing: which of them there are depends on sizes."""


@dataclass(slots=True)
class Awaited:
    """A loss, None until it is known: a device computes it."""

    value: float | None = None


class BatchLoss:
    """Losses of a step's microbatches, until an optimizer steps or another step begins.

    Their mean is the loss. Programs that accumulate gradients divide each loss by the number of
    microbatches before backward, or weigh each by its samples: where these shares add up to 1,
    their sum is the loss. An epoch's last step may have fewer microbatches, each still divided by
    the number of the step before."""

    __slots__ = ("_closure", "_number", "_of", "_outside", "_parts", "_step")

    def __init__(self) -> None:
        self._parts: list[tuple[Awaited, float]] = []
        """(loss, share that it was multiplied by, or 1) of each microbatch."""
        self._step = NONE
        self._number = 0
        """Microbatches of the last step whose losses were divided by their number."""
        self._closure: Any = None
        self._outside = 0
        """Number of microbatches before the closure."""
        self._of: dict[int, weakref.ref[Any]] = {}

    def add(
        self, of: Any, value: Awaited, share: float, step: int, closure: Any
    ) -> Callable[[], float | None]:
        """Add a microbatch; return what computes the step's loss then, None while unknown. A
        second backward from the same scalar ``of`` (for the weights alone, say) is of the same
        microbatch. ``closure``: weak reference to the optimizer in whose step() backward was
        called, with its time, or None: its second evaluation (LBFGS) is of the same batch. It
        begins where there are no gradients, or where the shares would exceed 1."""
        if step != self._step:
            self.clear()
            self._step = step
        known = self._of.get(id(of))
        if known is not None and known() is of:
            return self._so_far()
        self._of[id(of)] = weakref.ref(of)
        if closure is None or closure is not self._closure:
            self._outside = len(self._parts)
        elif self._shares() + share > 1 + _NEAR or all(
            p.grad is None for p in parameters_of(closure[0]())
        ):
            del self._parts[self._outside :]
        self._closure = closure
        self._parts.append((value, share))
        return self._so_far()

    def _so_far(self) -> Callable[[], float | None]:
        return partial(_whole, tuple(self._parts), self._number)

    @property
    def at_first(self) -> bool:
        """Return whether exactly one microbatch was added."""
        return len(self._parts) == 1

    def _shares(self) -> float:
        return _shares(self._parts)

    def clear(self) -> None:
        """Start over after an optimizer's step, which ends its gradients."""
        if len(self._parts) > 1 and abs(self._shares() - 1) < _NEAR:
            self._number = len(self._parts)
        self._parts, self._closure, self._of = [], None, {}


def _whole(parts: Sequence[tuple[Awaited, float]], before: int) -> float | None:
    """Return the sum of the parts if their shares add up to 1, else their mean."""
    values = [part.value for part, _ in parts if part.value is not None]
    number = len(parts)
    if len(values) < number:
        return None
    if abs(_shares(parts) - 1) < _NEAR:
        return sum(values)
    short = number < before and all(abs(share * before - 1) < _NEAR for _, share in parts)
    return sum(values) / number * (before if short else 1)


def _shares(parts: Iterable[tuple[Awaited, float]]) -> float:
    return sum(share for _, share in parts)


def share_of(loss: Any) -> float:
    """Return the plain number, not 1, a loss was multiplied by last (``loss * 0.25``, ``loss /
    4``), else 1. Accelerate divides by 1 a loss that a trainer on top of it has divided."""
    node: Any = getattr(loss, "grad_fn", None)
    share = 1.0
    while share == 1.0 and (number := _number(node)) is not None:
        share, node = number, node.next_functions[0][0]
    return share


def made_by(loss: Any) -> tuple[float, str]:
    """Return (the product of all plain numbers that a loss was last multiplied by, the names of the
    last autograd ops before those)."""
    node: Any = getattr(loss, "grad_fn", None)
    scale, ops = 1.0, list[str]()
    while (number := _number(node)) is not None:
        scale, node = scale * number, node.next_functions[0][0]
    while node is not None and len(ops) < _OPS:
        if not (name := type(node).__name__).startswith(_LAYOUT):
            ops.append(name)
        node = next(iter(node.next_functions), (None,))[0]
    return scale, " ".join(ops)


def targets_of(loss: Any) -> int:
    """Return a checksum of the targets that the newest op with any compared with, in host memory;
    0: there are none, or they are all the same. Reads what autograd keeps: nothing is unpacked."""
    node: Any = getattr(loss, "grad_fn", None)
    for _ in range(_OPS):
        try:
            kept = getattr(getattr(node, "_raw_saved_target", None), "data", None)
        except RuntimeError:  # a backward has freed it
            return 0
        if type(kept) is torch.Tensor and kept.is_cpu and kept.is_contiguous():
            found = ctypes.string_at(kept.data_ptr(), min(kept.nbytes, _TARGET_BYTES))
            size = kept.element_size()
            return zlib.crc32(found) if found[size:] != found[:-size] else 0
        node = next(iter(getattr(node, "next_functions", ())), (None,))[0]
    return 0


def _number(node: Any) -> float | None:
    """Return the plain number that an autograd node multiplies by, or None."""
    name = type(node).__name__
    try:
        other: Any = getattr(node, "_saved_other", None) if name in _BY_NUMBERS else None
    except RuntimeError:  # a backward has freed it; the next one will raise
        return None
    if not getattr(other, "is_cpu", False) or other.dim() or other.requires_grad:
        return None
    number = number_of(other)
    return (1 / number if number else 1.0) if name == "DivBackward0" else number
