"""Finds gradients that differ before they are averaged: by scale, modules or ops, or all zero."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby, product, zip_longest
from typing import Final, Literal

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.steps import last_step_end
from pardbg.analysis.comm.matching import odd_ones
from pardbg.analysis.findings.finding import Candidate
from pardbg.analysis.findings.kinds.value_kinds import (
    ClipsParts,
    OnlyZeros,
    UnequalComputation,
    UnequalScale,
)
from pardbg.analysis.findings.values.exchanged import (
    PHASES_BACK,
    SUMS,
    averaging,
    backwards,
    issued_since,
    probes,
    sharding,
    told_words,
)
from pardbg.analysis.pipeline.pipelines import layouts
from pardbg.store.process import Process

_SCALES: Final = "loss scale"
"""Name of the record of a loss's factor (a, float64) and the loss after it (b, the bits of a
float64)."""
_ZEROS: Final = "zeros"
"""Name of the record of a step's inputs to sums that are zero throughout (a, bytes), among inputs
of at least ``b`` bytes."""
_HEADS: Final[tuple[tuple[Literal["modules", "loss"], str], ...]] = (
    ("modules", "modules "), ("loss", "loss by "),
)  # fmt: skip
"""(what may differ, prefix of the names of the records about it)"""
_CLIPS: Final[Mapping[Literal["shards", "stages"], str]] = {
    "shards": "clips shard", "stages": "clips stage",
}  # fmt: skip
"""Parts of a model whose gradients torch's own function clips -> name of the record of that."""
_LOOKS: Final = 3
"""Number of newest looks that must have unlike numbers, in the same proportions."""
_LEAST: Final = 1.2
"""Minimum factor between the largest and the smallest number."""
_NEAR: Final = 1e-3
_OWN: Final = 0.5
"""Share of a rank's factor that its loss without the factor may compensate."""

_Look = dict[int, tuple[float, float]]
"""rank -> (factor of its loss, the loss after it)"""


def unequal_scales(view: View) -> Iterable[Candidate]:
    """Find ranks that average gradients of losses with unlike factors, such as a missing division
    by the microbatches or ranks. Not found if the factors are weights by samples, or turn sums over
    unlike numbers of samples into means."""
    for ranks in _together(view):
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
            t_ns=last_step_end(view),
            facts=UnequalScale(unlike[0], len(unlike), len(found), tuple(scales.items())),
        )  # fmt: skip


def _together(view: View) -> Iterable[tuple[int, ...]]:
    """Return the ranks of each group that average gradients or shard one model."""
    return dict.fromkeys((*averaging(view), *sharding(view)))


def _common(view: View, ranks: Sequence[int]) -> list[tuple[int, _Look, int]]:
    """Return (step, look, backwards of that step) of the looks that all ranks have, in order, where
    they ran equally many backwards and all numbers are positive; empty if the newest look is
    alike."""
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
    """Return (step, n of the n-th such record in it) -> (factor of the loss, the loss after it)."""
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
    """Return whether the ranks' factors had the same proportions in each look."""
    scales = np.array([[scale for scale, _ in of.values()] for of in looks])
    return bool(np.allclose(scales / scales[:, :1], (scales / scales[:, :1])[0], rtol=_NEAR))


def _are_weights(of: _Look, num_backwards: int) -> bool:
    """Return whether the factors add up to 1 or to the number of ranks, perhaps over all
    microbatches: shares of the samples."""
    total = sum(scale for scale, _ in of.values())
    wholes = (1, len(of), 1 / num_backwards, len(of) / num_backwards)
    return any(math.isclose(total, whole, rel_tol=_NEAR) for whole in wholes)


def _losses_alike(looks: Sequence[_Look]) -> bool:
    """Return whether ranks' losses without their factors are independent of these; sums over more
    samples, divided by more, would grow as the factor falls."""
    scales = np.log([scale for scale, _ in looks[-1].values()])
    before = np.log(
        [statistics.median(of[rank][1] / of[rank][0] for of in looks) for rank in looks[-1]]
    )
    scales, before = scales - scales.mean(), before - before.mean()
    return bool(abs((scales * before).sum()) < _OWN * (scales**2).sum())


# -- modules and ops


def unequal_computations(view: View) -> Iterable[Candidate]:
    """Find ranks that average gradients of unlike models (classes of modules, a dropout's p), or of
    losses from unlike ops, with each rank the same in all of the newest looks."""
    for ranks, (what, head) in product(_together(view), _HEADS):
        for looks in _told(view, ranks, head):
            newest = dict([*looks.items()][-_LOOKS:])
            of = next(reversed(newest.values()))
            unlike = len({*of.values()}) > 1 and all(look == of for look in newest.values())
            if unlike and len(newest) == _LOOKS:
                first = next(step for step, look in looks.items() if look == of)
                yield Candidate(
                    kind="unequal-settings", ranks=ranks, culprits=odd_ones(of),
                    t_ns=last_step_end(view),
                    facts=UnequalComputation(what, _sides(of, what == "loss"), first),
                )  # fmt: skip


def _told(
    view: View, ranks: Sequence[int], head: str
) -> Iterable[dict[int, dict[int, tuple[str, ...]]]]:
    """Yield step -> rank -> words of the looks that all ranks have, for each of their models."""
    names = (name for rank in ranks for name in view.ranks[rank].names.values())
    if len({name for name in names if name.startswith(head)}) < 2:  # the usual case
        return
    told = {rank: told_words(view, view.ranks[rank], head) for rank in ranks}
    common = sorted(set.intersection(*map(set, told.values())))
    for seq, looks in groupby(common, key=lambda look: look[0]):
        yield {step: {rank: of[seq, step] for rank, of in told.items()} for _, step in looks}


def _sides(of: Mapping[int, tuple[str, ...]], ordered: bool) -> tuple[tuple[int, str], ...]:
    """Return (rank, words that not all ranks have; if ``ordered``, the first word that differs)."""
    if ordered:
        columns = zip_longest(*of.values(), fillvalue="")
        apart = next(column for column in columns if len({*column}) > 1)
        return tuple(sorted(zip(of, apart, strict=True)))
    common = set.intersection(*map(set, of.values()))
    return tuple((rank, " ".join(sorted({*words} - common))) for rank, words in sorted(of.items()))


def clipped_parts(view: View) -> Iterable[Candidate]:
    """Find ranks that shard one model (FSDP1), or are its pipeline, and each clip their part of the
    gradients by that part's own norm, to one limit: unlike ones may come from the whole norm."""
    pipelines = [layout.ranks for layout in layouts(view) if len(layout.ranks) > 1]
    for (what, name), of in zip(_CLIPS.items(), (sharding(view), pipelines), strict=True):
        for ranks in of:
            told = [probes(view, view.ranks[r], name, "<f8") for r in ranks if r in view.ranks]
            limits = [{(step, limit) for step, _, limit, _ in looks} for looks in told]
            alike = set.intersection(*limits) if len(limits) == len(ranks) else set()
            steps = sorted({step for step, _ in alike})
            if len(steps) >= _LOOKS:
                yield Candidate(kind="unequal-settings", ranks=ranks, t_ns=last_step_end(view),
                                facts=ClipsParts(steps[0], what))  # fmt: skip


# -- nothing


def only_zeros(view: View) -> Iterable[Candidate]:
    """Find ranks that contribute only zeros to the sums of gradients in the newest looks, though
    their losses are not zero, while other ranks contribute more."""
    groups = [*_together(view)]
    together = [{*ranks} for ranks in groups]
    for ranks in groups:
        empty = {rank: _empty_steps(view, view.ranks[rank], together) for rank in ranks}
        if not any(empty.values()):  # the usual case
            continue
        losses = {rank: _losses(view, view.ranks[rank]) for rank in ranks}
        looks = sorted(set.intersection(*map(set, losses.values())))
        for rank, of in losses.items():
            empty[rank] = [step for step in looks if step in empty[rank] and of[step]]
        newest = looks[-_LOOKS:]
        culprits = tuple(rank for rank in ranks if empty[rank][-_LOOKS:] == newest)
        if len(newest) == _LOOKS and 0 < len(culprits) < len(ranks):
            steps = empty[culprits[0]]
            yield Candidate(
                kind="no-gradient", ranks=ranks, culprits=culprits, t_ns=last_step_end(view),
                facts=OnlyZeros(steps[0], len(steps), len(looks)),
            )  # fmt: skip


def _losses(view: View, process: Process) -> dict[int, float]:
    """Return step -> the loss of the last look in it."""
    return {step: loss for (step, _), (_, loss) in _looks(view, process).items()}


def _empty_steps(view: View, process: Process, together: Sequence[set[int]]) -> list[int]:
    """Return the steps in which all of a rank's inputs to sums of gradients were zero, on any
    group: experts without a token contribute nothing to theirs. Inputs too small to be checked do
    not count, nor does HSDP's second sum."""
    zeros = {
        step: (num_bytes, least) for step, _, num_bytes, least in probes(view, process, _ZEROS)
    }
    if not zeros:
        return []
    issues, part = issued_since(view, process, 0)
    part = slice(max(part.start, part.stop - PHASES_BACK), part.stop)
    sharded = process.model is not None and process.model.parameters_sharded
    ids = [i for i, op in process.ops.items() if op.op in (SUMS[1:2] if sharded else SUMS)]
    groups = [i for i, group in process.groups.items() if {*group.ranks} in together]
    of = np.isin(issues.col("name_id")[part], ids) & np.isin(issues.col("group_id")[part], groups)
    steps, sizes = issues.col("step")[part][of], issues.col("a")[part][of]
    summed = {
        step: int(sizes[(steps == step) & (sizes >= of[1])].sum()) for step, of in zeros.items()
    }
    return [step for step, (num_bytes, _) in zeros.items() if 0 < summed[step] <= num_bytes]
