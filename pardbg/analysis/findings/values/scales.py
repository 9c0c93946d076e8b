"""Losses that ranks multiply by unlike numbers before backward."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.analysis.comm.matching import odd_ones
from pardbg.analysis.findings.finding import Candidate
from pardbg.analysis.findings.kinds.value_kinds import UnequalScale
from pardbg.analysis.findings.values.exchanged import (
    PHASES_BACK,
    averaging,
    backwards,
    probes,
    sharding,
)
from pardbg.store.process import Process

_SCALES: Final = "loss scale"
"""Name of the record of what a loss was multiplied by (a, float64), and of the loss (b, its
bits)."""
_LOOKS: Final = 3
"""Newest looks in which numbers are unlike, in the same way each time."""
_LEAST: Final = 1.2
"""Factor between the largest and the smallest number."""
_NEAR: Final = 1e-3
_OWN: Final = 0.5
"""Share of a rank's number that its loss without it may make up for."""

_Look = dict[int, tuple[float, float]]
"""rank -> (what its loss was multiplied by, the loss after that)"""


def unequal_scales(view: View) -> Iterable[Candidate]:
    """Find ranks that average gradients of losses that they multiplied by unlike numbers: one left
    out to divide by the microbatches, or by the ranks. Not where the numbers are weights of the
    ranks' samples, or turn sums over unlike numbers of samples into means."""
    for ranks in dict.fromkeys((*averaging(view), *sharding(view))):
        found = _common(view, ranks)
        newest = [of for _, of, _ in found][-_LOOKS:]
        unlike = [step for step, of, _ in found if _factor(of) >= _LEAST]
        if len(newest) < _LOOKS or not _same_way(newest) or _factor(newest[-1]) < _LEAST:
            continue
        if _are_weights(newest[-1], found[-1][2]) or not _losses_alike(newest):
            continue
        scales = {rank: scale for rank, (scale, _) in sorted(newest[-1].items())}
        yield Candidate(
            kind="unequal-scale", ranks=tuple(sorted(ranks)), culprits=odd_ones(scales),
            t_ns=view.t_ns,
            facts=UnequalScale(tuple(scales.items()), unlike[0], len(unlike), len(found)),
        )  # fmt: skip


def _common(view: View, ranks: Sequence[int]) -> list[tuple[int, _Look, int]]:
    """Return (step, look, backwards of that step) of the looks that all ranks have, in order,
    where they ran as many backwards and all numbers are positive; none where they are alike in the
    newest."""
    looks = {rank: _looks(view, view.ranks[rank]) for rank in ranks}
    common = sorted(set.intersection(*map(set, looks.values())))
    told = [(step, {rank: looks[rank][step, nth] for rank in ranks}) for step, nth in common]
    told = [(step, of) for step, of in told if all(0 < n < math.inf for n in chain(*of.values()))]
    if not told or _factor(told[-1][1]) < _LEAST:  # the usual case
        return []
    counts = {rank: _backwards(view, view.ranks[rank]) for rank in ranks}
    numbers = [(step, of, {counts[rank].get(step, 0) for rank in ranks}) for step, of in told]
    return [(step, of, min(number)) for step, of, number in numbers if len(number) == 1]


def _looks(view: View, process: Process) -> dict[tuple[int, int], tuple[float, float]]:
    """(step, its n-th such record) -> what its loss was multiplied by, and the loss."""
    found: dict[tuple[int, int], tuple[float, float]] = {}
    for step, _, scale, bits in probes(view, process, _SCALES, "<f8"):
        nth = next(n for n in range(len(found) + 1) if (step, n) not in found)
        found[step, nth] = scale, float(np.int64(bits).view(np.float64))
    return found


def _backwards(view: View, process: Process) -> dict[int, int]:
    _, _, steps = backwards(view, process, PHASES_BACK)
    found, counts = np.unique(steps, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _factor(of: _Look) -> float:
    scales = [scale for scale, _ in of.values()]
    return max(scales) / min(scales)


def _same_way(looks: Sequence[_Look]) -> bool:
    """Return whether the ranks' numbers had the same proportions in each look."""
    scales = np.array([[scale for scale, _ in of.values()] for of in looks])
    return bool(np.allclose(scales / scales[:, :1], (scales / scales[:, :1])[0], rtol=_NEAR))


def _are_weights(of: _Look, num_backwards: int) -> bool:
    """Return whether the numbers add up to 1 or to the number of ranks, perhaps over all
    microbatches: each rank's share of the samples."""
    total = sum(scale for scale, _ in of.values())
    wholes = (1, len(of), 1 / num_backwards, len(of) / num_backwards)
    return any(math.isclose(total, whole, rel_tol=_NEAR) for whole in wholes)


def _losses_alike(looks: Sequence[_Look]) -> bool:
    """Return whether a rank's loss without its number does not grow as that number falls, as the
    sum over more samples does that is divided by more."""
    scales = np.log([scale for scale, _ in looks[-1].values()])
    before = np.log(
        [statistics.median(of[rank][1] / of[rank][0] for of in looks) for rank in looks[-1]]
    )
    scales, before = scales - scales.mean(), before - before.mean()
    return bool(abs((scales * before).sum()) < _OWN * (scales**2).sum())
