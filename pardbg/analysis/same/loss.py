"""Loss of the first captured step beside the reference's.

The loss decides the answer only if it is larger by a logarithm (comparison.OF_LOSS): programs
report a rank's own mean, a sum, or a share of a batch, and compute the same. If gradients differ,
the loss is the number that a user knows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.losses import losses_by_step, seen_losses
from pardbg.analysis.same.noise import EPSILON, RED, ROUNDINGS, SEEN, level_of
from pardbg.analysis.same.wholes import Wholes
from pardbg.store.store import Store

Level = Literal["green", "yellow", "red", "noise"]
"""Level of the difference; ``noise``: rounding may be as large as a mistake, or is not known."""
_CLOSE: Final = 1e-3
"""Tolerance of a factor, relative; of an offset, by the loss; unless rounding is larger."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Losses of one step, in the program's own unit."""

    step: int
    reference: float
    run: float
    floors: float
    """Difference in noise floors; infinite if no floor is known."""
    level: Level
    times: float = 0.0
    """Factor of the run's loss over the reference's: N or 1/N of a group of N ranks; else 0."""
    log_of: int = 0
    """Number of ranks whose logarithm the run's loss is larger by, as if each rank had all logits
    and took them for its part of the vocabulary; else 0."""


def loss_of(
    reference: tuple[Store, Wholes], run: tuple[Store, Wholes], floor: Store | None, step: int
) -> Loss | None:
    """Return both losses of a step; None: one is not known."""
    left, right = (_seen(store, step) for store, _ in (reference, run))
    if left is None or right is None:
        return _printed(reference[0], run[0], step)
    second = None if floor is None else _seen(floor, step)
    known, error = _noise((reference[1], run[1]), left, second), abs(right - left)
    if known is None or not math.isfinite(left):
        return Loss(step, left, right, math.inf, "noise")
    if not math.isfinite(right):
        return Loss(step, left, right, math.inf, "red")
    floors = error / known if known else math.inf if error else 0.0
    level: Level = level_of(floors, 1.0)
    times, log_of = _looks(left, right, known, run[1].group_sizes)
    if level == "red" or (level == "yellow" and log_of):
        return Loss(step, left, right, floors, "red", times, log_of)
    return Loss(step, left, right, floors, "noise" if RED * known > SEEN * abs(left) else level)


def _seen(store: Store, step: int) -> float | None:
    found = seen_losses(View(store, None), step, step).get(step)
    return None if found is None else found[0]


def _printed(reference: Store, run: Store, step: int) -> Loss | None:
    """Return losses that were only printed, with too few digits to be judged."""
    left, right = (
        losses_by_step(View(store, None), step, step).get(step) for store in (reference, run)
    )
    return None if left is None or right is None else Loss(step, left, right, math.inf, "noise")


def _noise(sides: Sequence[Wholes], size: float, second: float | None) -> float | None:
    """Return the noise of a loss; None: a dtype is not known."""
    tensors = [whole for side in sides for whole in side.tensors.values() if whole.what != "init"]
    known = [EPSILON.get(dtype) for dtype in {whole.dtype for whole in tensors}]
    finite = [value for value in known if value is not None]
    if not finite or len(finite) < len(known):
        return None
    share = ROUNDINGS * max(finite) * math.sqrt(max(1, len(sides[0].names("grad"))))
    if second is None:
        return share * abs(size)
    # A mean over many tokens: little but the number itself rounds.
    return max(abs(second - size), min(share, max(finite)) * abs(size))


def _looks(left: float, right: float, noise: float, sizes: Sequence[int]) -> tuple[float, int]:
    """Return (factor, 0), (0, ranks of the logarithm) or (0, 0)."""
    close = max(_CLOSE * abs(left), noise)
    for number in sorted({2, *sizes}):
        for times in (float(number), 1 / number):
            if abs(right - times * left) <= times * close:
                return times, 0
        if abs(right - left - math.log(number)) <= close:
            return 0.0, number
    return 0.0, 0
