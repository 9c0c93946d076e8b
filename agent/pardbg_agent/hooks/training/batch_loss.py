"""The loss of a step, from the scalars that backward began from."""

from __future__ import annotations

import weakref
from typing import Any

from pardbg_agent.wire import NONE


class BatchLoss:
    """The losses of a step's microbatches, until an optimizer steps or another step begins.

    Their mean is the loss. Programs that accumulate gradients divide each loss by the number of
    microbatches before backward; where they do, their sum is. An epoch's last step may have fewer,
    each still divided by the number that the step before had.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[float, float]] = []
        """(value, the number it was divided by, or 1)"""
        self._step = NONE
        self._number = 0
        """Microbatches of the last step that divided by their number."""
        self._closure: Any = None
        self._of: dict[int, weakref.ref[Any]] = {}

    def add(self, of: Any, value: float, divisor: float, step: int, closure: Any) -> float:
        """The step's loss with one more microbatch. A second backward from the same scalar ``of``
        (for the weights alone, say) is of the same one. ``closure``: what says in which optimizer's
        step() backward was called, or None: its second evaluation (LBFGS) is of the same batch."""
        if step != self._step:
            self.clear()
            self._step = step
        known = self._of.get(id(of))
        if known is not None and known() is of:
            return self.value()
        self._of[id(of)] = weakref.ref(of)
        if closure is not None and closure is self._closure:
            self._parts.pop()
        self._closure = closure
        self._parts.append((value, divisor))
        return self.value()

    def value(self) -> float:
        """Sum of the parts if each was divided by their number, else their mean."""
        number = len(self._parts)
        total = sum(value for value, _ in self._parts)
        if self._divided_by(number):
            return total
        short = number < self._number and self._divided_by(self._number)
        return total / number * (self._number if short else 1)

    def _divided_by(self, number: int) -> bool:
        return all(abs(divisor - number) < 1e-6 * number for _, divisor in self._parts)

    def clear(self) -> None:
        """An optimizer stepped: its gradients are gone."""
        if len(self._parts) > 1 and self._divided_by(len(self._parts)):
            self._number = len(self._parts)
        self._parts, self._closure, self._of = [], None, {}


def divisor_of(loss: Any) -> float:
    """The plain number a loss was divided by last (``loss / 4``, ``loss * 0.25``), else 1."""
    node = getattr(loss, "grad_fn", None)
    name = type(node).__name__
    if name not in ("DivBackward0", "MulBackward0"):
        return 1.0
    other: Any = getattr(node, "_saved_other", None)
    if getattr(other, "is_cpu", False) and other.dim() == 0 and not other.requires_grad:
        number = float(other)
        return number if name == "DivBackward0" else (1 / number if number else 1.0)
    return 1.0
