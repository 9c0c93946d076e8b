"""Noise floors: the largest difference of a tensor that rounding alone explains.

Without a second recording of the reference the floor is 8 epsilon sqrt(depth), where depth is the
number of parameters that a gradient comes through (1 for a parameter itself, which is only added
to). With one it is the difference between both recordings, if that is larger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from pardbg.analysis.same.wholes import Key, Whole

EPSILON: Final = {
    "float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7,
}  # fmt: skip
"""dtype -> distance from 1 to the next larger number"""
ROUNDINGS: Final = 8
YELLOW: Final = 3
"""Number of floors from which a difference is yellow."""
RED: Final = 10
"""Number of floors from which a difference is red."""
SEEN: Final = 0.5
"""Largest share of a tensor (for a parameter: of its update) at which red may begin: above it not
even a wrong factor would be seen, and nothing is judged."""
MEASURED: Final = 0.02
"""Least measured floor, as a share of a tensor, unless 8 epsilon sqrt(depth) is less."""
LEAST: Final = 2.0**-8
"""Least measured floor of recordings that begin a rounding apart: that of bfloat16. The difference
has the noise of both, and layouts have been seen to differ by up to 1.2 of it: half of it is the
floor, so these are at most 2.4 floors apart, and red begins at 5 times the measured one."""

Level = Literal["green", "yellow", "red"]


def level_of(error: float, noise: float) -> Level:
    """Return the level of a difference relative to the noise, both as norms."""
    return "green" if error <= YELLOW * noise else "red" if error > RED * noise else "yellow"


OF_UPDATE: Final = 0.1
"""Share of a step's update that a red difference of a parameter exceeds in any case."""
MOST_OF_UPDATE: Final = 0.9
"""Share of an update explained by rounding above which a parameter is not judged."""
_RARE: Final = 1e-3
"""Expected number of turned elements below which none turns."""


@dataclass(frozen=True, slots=True)
class Floors:
    """Noise floors of a reference's tensors."""

    depth: int
    typical: float
    """Median size of the gradients' elements: far smaller ones are rounding of others."""
    measured: Mapping[Key, float]
    """Norm of the difference between two recordings of the reference; empty without a second."""
    begun_apart: bool = False
    """Whether both recordings begin a rounding apart, so that everything rounds differently."""

    def of(self, reference: Whole, run: Whole, measured: float = 0.0) -> float | None:
        """Return the noise as a norm; None: a dtype is not known. ``measured``: difference between
        two recordings of an activation."""
        epsilon = coarser(reference, run)
        if epsilon is None:
            return None
        deep = reference.what not in ("init", "param")
        share = ROUNDINGS * epsilon * math.sqrt(self.depth if deep else 1)
        size = reference.norm
        if reference.what == "grad":
            size = max(size, self.typical * math.sqrt(reference.count))
        if reference.what == "buffer":  # as of activations of size 1, whose mean may be 0
            size = max(size, math.sqrt(reference.count))
        measured = measured or self.measured.get(reference.key, 0.0)
        if not measured:
            return share * size
        of_one, least = (0.5, LEAST) if self.begun_apart and deep else (1.0, MEASURED)
        return max(of_one * measured, min(share, least) * reference.norm)

    def all_rounding(self, reference: Whole, run: Whole) -> bool:
        """Return whether a gradient is so small beside the others that it may be their rounding."""
        least = RED * (coarser(reference, run) or 1.0) * self.typical
        return reference.norm <= least * math.sqrt(reference.count)


def floors(
    tensors: Mapping[Key, Whole], depth: int, step: int, second: Mapping[Key, Whole] | None
) -> Floors:
    """Return the noise floors of a reference, using a second recording of it if there is one."""
    sizes = [
        whole.norm / math.sqrt(whole.count)
        for whole in tensors.values()
        if whole.what == "grad" and whole.step == step and whole.most and whole.count
    ]
    measured = {
        key: difference(whole, (second or {})[key])
        for key, whole in tensors.items()
        if key in (second or {}) and alike((second or {})[key], whole)
    }
    apart = any(key[1] == "init" and value > 0 for key, value in measured.items())
    return Floors(max(1, depth), float(np.median(sizes)) if sizes else 0.0, measured, apart)


def of_update(share: float, count: int) -> float:
    """Return the share of a step's update that rounding explains, if it is ``share`` of a gradient
    of ``count`` elements. Adam and its like move each element by as much, whatever its gradient: if
    rounding turns the signs of k small elements, they go the other way, which makes 2 sqrt(k /
    count). About half of ``share`` turn; three deviations more are allowed."""
    mean = count * share / 2
    turned = math.ceil(mean + 3 * math.sqrt(mean)) if mean > _RARE else 0
    return max(OF_UPDATE, 2 * math.sqrt(turned / max(1, count)))


def difference(a: Whole, b: Whole) -> float:
    """Return the estimated norm of the difference of two tensors."""
    return float(np.linalg.norm(a.vector - b.vector))


def coarser(a: Whole, b: Whole) -> float | None:
    """Return the larger epsilon of both dtypes; None: one is not known."""
    known = [EPSILON.get(whole.dtype) for whole in (a, b)]
    return None if None in known else max(value for value in known if value is not None)


def alike(left: Whole, right: Whole) -> bool:
    """Return whether two tensors have the same elements; one of them may be recorded flat."""
    flat = 1 in (len(left.shape), len(right.shape))
    return left.shape == right.shape or (flat and math.prod(left.shape) == math.prod(right.shape))


def equal(left: Whole, right: Whole) -> bool:
    """Return whether two parameters are equal up to rounding."""
    epsilon = coarser(left, right)
    if not alike(left, right) or epsilon is None or left.bad or right.bad or not left.most:
        return False
    return difference(left, right) <= ROUNDINGS * epsilon * left.norm
