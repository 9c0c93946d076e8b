"""Copies of parameters that modules compute with: a parameter that a rank does not step itself is a
copy of another tensor's or rank's result, as in ZeRO, and must have the newest update.

A sketch is linear: the copy is the parameter's earlier value plus the updates of the parts that
were taken over. Nothing is claimed of a copy that no choice of parts explains.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pardbg.analysis.same.hypotheses import Hypothesis
from pardbg.analysis.same.noise import EPSILON
from pardbg.analysis.same.wholes import USED, Box, Floats, Part, Whole, Wholes, is_placed
from pardbg.store.captured import TensorDef

_OFF: Final = 0.2
"""Maximum distance of a part's share from 1 (taken over) or 0 (not taken over)."""
_UNEXPLAINED: Final = 0.3
"""Maximum unexplained remainder, as a share of the smallest update."""
_MOST_PARTS: Final = 16
"""Maximum number of parts of a parameter that are told apart: a sketch has 256 numbers."""


@dataclass(frozen=True, slots=True)
class StaleCopy:
    """A parameter whose copy on some ranks lacks updates of the step before."""

    step: int
    """Step in which the copy is used."""
    name: str
    cause: Hypothesis
    error: float
    """Norm of the missing update as a share of the parameter's."""


@dataclass(frozen=True, slots=True)
class _Made:
    """Part of a parameter as its optimizer left it."""

    ranks: tuple[int, ...]
    before: Floats
    after: Floats

    @property
    def update(self) -> Floats:
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Copies:
    """Findings about a run's copies of parameters."""

    stale: tuple[StaleCopy, ...]
    """Stale copies, by step and place in the model."""
    judged: int
    """Number of copies that are known to be stale or not."""


def copies(run: Wholes) -> Copies:
    """Return the copies of parameters that lack updates."""
    parts, tensors, stale, judged = run.parts, run.tensors, [], 0
    first = min((step for step, what, _ in parts if what == "init"), default=0)
    used = [key for key in parts if key[1] == USED]
    for step, _, name in sorted(used, key=lambda key: (key[0], parts[key][0][1].order)):
        before = (step - 1, "init", name) if step - 1 == first else (step - 2, "param", name)
        after = step - 1, "param", name
        if after in tensors and before in tensors and not tensors[after].replicas:
            made = _made(parts[before], parts[after])
            known = _known(parts[step, USED, name], made, tensors[after].dtype)
            judged += len(known)
            if any(known.values()):
                stale.append(_stale(step, name, known, tensors[after]))
    return Copies(tuple(stale), judged)


def _made(before: Sequence[Part], after: Sequence[Part]) -> dict[Box, _Made]:
    """Return place -> part of a parameter that ranks step."""
    known = {_box(part): part for _, part in before}
    ranks: dict[Box, list[int]] = defaultdict(list)
    found = {}
    for rank, part in after:
        box = _box(part)
        ranks[box].append(rank)
        if part.count and box in known:
            found[box] = _Made(tuple(sorted(ranks[box])), known[box].vector, part.vector)
    return found


def _known(
    copies: Sequence[Part], made: Mapping[Box, _Made], dtype: str
) -> dict[int, tuple[_Made, ...]]:
    """Return rank -> updates that its copy lacks, where that is known."""
    found = {}
    for rank, copy in copies:
        here = _inside(copy, made) if is_placed(copy) else ()
        lacking = _lacking(copy, here, dtype)
        if lacking is not None:
            found[rank] = lacking
    return found


def _stale(step: int, name: str, known: Mapping[int, tuple[_Made, ...]], whole: Whole) -> StaleCopy:
    """Return the stale copy: ranks that lack updates, and ranks that made these."""
    lacking = [one for of in known.values() for one in of]
    makers = {rank for one in lacking for rank in one.ranks}
    holders = tuple(sorted(rank for rank, of in known.items() if of))
    cause = Hypothesis("not-taken", ranks=holders, makers=tuple(sorted(makers)))
    worst = max(_norm(one.update) for one in lacking)
    return StaleCopy(step, name, cause, worst / whole.norm if whole.norm else math.inf)


def _inside(copy: TensorDef, made: Mapping[Box, _Made]) -> tuple[_Made, ...]:
    """Return the parts that a copy consists of; empty if that is not known."""
    if copy.count == math.prod(copy.shape):
        return tuple(made.values()) if len(made) <= _MOST_PARTS else ()
    same = made.get(_box(copy))
    return () if same is None else (same,)


def _lacking(copy: TensorDef, parts: Sequence[_Made], dtype: str) -> tuple[_Made, ...] | None:
    """Return the parts whose update a copy lacks; None: not known."""
    rounding = 0.0 if copy.dtype == dtype else EPSILON.get(copy.dtype, math.inf)
    moved = [
        one for one in parts
        if _norm(one.update) * _UNEXPLAINED > rounding * _norm(one.after) and one.update.any()
    ]  # fmt: skip
    if not moved:
        return None
    columns = np.stack([one.update for one in moved], axis=1)
    rest = [one.after for one in parts if all(one is not of for of in moved)]
    target = copy.vector - np.sum([*(one.before for one in moved), *rest], axis=0)
    shares, *_ = np.linalg.lstsq(columns, target, rcond=None)
    unexplained = _norm(target - columns @ shares)
    clear = all(min(abs(x), abs(x - 1)) < _OFF for x in shares)
    if not clear or unexplained > _UNEXPLAINED * min(_norm(one.update) for one in moved):
        return None
    return tuple(one for one, share in zip(moved, shares, strict=True) if share < _OFF)


def _box(part: TensorDef) -> Box:
    return part.offset, part.size


def _norm(vector: Floats) -> float:
    return float(np.linalg.norm(vector))
