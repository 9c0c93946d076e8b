"""Hypotheses on a difference: a factor, zeros, an earlier step's values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from pardbg.analysis.same.noise import RED
from pardbg.analysis.same.wholes import Floats, Whole

Cause = Literal[
    "factor",
    "update",
    "zero",
    "stale",
    "not-finite",
    "no-gradient",
    "part-zero",
    "mean",
    "sum",
    "replicas",
    "log",
    "not-taken",
]
"""Likely cause of a difference. ``factor``: a multiple of the reference; ``update``: what a step
adds to a parameter is; ``zero``: all elements are 0; ``stale``: of the step before (a parameter
that has not moved); ``no-gradient``: none was there for the optimizer; ``part-zero``: what some
ranks have is 0; ``replicas``: they differ; ``mean``, ``sum``: that of the replicas is the
reference; ``log``: a loss larger by that of ``factor``; ``not-taken``: the copies of ``ranks`` lack
the updates that ``makers`` made."""
CERTAIN: Final = ("factor", "stale", "replicas", "mean", "sum")
"""Causes that unlike inputs or unlike parameters would not bring about."""
RESIDUAL: Final = 0.02
"""Share of a factor's effect that may remain unexplained by it."""
FEWEST: Final = 16
"""Number of elements below which a factor may be chance."""
_CLOSE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Explanation of the first difference."""

    cause: Cause
    factor: float = 1.0
    """Value for the causes ``factor`` and ``log``; a named value if it is close to one."""
    named: bool = False
    """Whether the factor is 2, 1/2, or N or 1/N for a group of N ranks."""
    ranks: tuple[int, ...] = ()
    odd_ranks: tuple[int, ...] = ()
    """For ``replicas``: ranks unlike most; empty if no value has a majority."""
    makers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trial:
    """Distance of a tensor from the reference under one hypothesis."""

    cause: Cause
    """``factor``: divided by it; ``sum``, ``mean``: over the ranks; ``replicas``: of the closest
    rank alone; ``stale``: from the tensor of a step before."""
    factor: float
    floors: float
    """Error in noise floors."""


def trials(
    reference: Whole, run: Whole, members: Sequence[Floats], before: Whole | None, noise: float,
    sizes: Sequence[int],
) -> tuple[Trial, ...]:  # fmt: skip
    """Return the hypotheses tried, by error. ``members``: tensors of ranks with the same place, if
    known; ``sizes``: numbers of ranks of the groups, tried as factors."""
    if noise <= 0 or run.bad or reference.bad:
        return ()
    one, target = (members[0] if members else run.vector), reference.vector
    factors = {of for number in {2, *sizes} for of in (float(number), 1 / number)}
    if (fitted := factor(reference, run, sizes)) is not None:
        factors.add(fitted.factor)
    tried: list[tuple[Cause, float, Floats]] = [
        ("factor", by, one / by - target) for by in sorted(factors)
    ]
    if len(members) > 1:
        whole = np.sum(members, axis=0)
        tried += [("sum", 1.0, whole - target), ("mean", 1.0, whole / len(members) - target)]
        tried += [min((("replicas", 1.0, v - target) for v in members), key=lambda t: _size(t[2]))]
    if before is not None:
        tried.append(("stale", 1.0, one - before.vector))
    made = (Trial(cause, by, _size(left) / noise) for cause, by, left in tried)
    return tuple(sorted(made, key=lambda trial: trial.floors))


def _size(vector: Floats) -> float:
    return float(np.linalg.norm(vector))


def factor(reference: Whole, run: Whole, sizes: Sequence[int]) -> Hypothesis | None:
    """Return the factor from the reference's tensor to the run's, with small residual; or None."""
    r, p = reference.vector, run.vector
    square = float(r @ r)
    if reference.count < FEWEST or not square or not run.most:
        return None
    found = float(p @ r) / square
    residual = float(np.linalg.norm(p - found * r)) / square**0.5
    if residual > RESIDUAL * min(1.0, abs(found - 1)) or residual > RESIDUAL * abs(found):
        return None
    for number in sorted({2, *sizes}):
        for named in (float(number), 1 / number, -1.0):
            if abs(found - named) <= _CLOSE * abs(named):
                return Hypothesis("factor", named, True)
    return Hypothesis("factor", found)


def update(reference: Whole, run: Whole, earlier: Sequence[Whole | None]) -> Hypothesis | None:
    """Return the factor that makes the run's step of a parameter of the reference's, with small
    residual. ``earlier``: the parameter before it, in both."""
    old, own = earlier
    if run.what != "param" or old is None or own is None:
        return None
    found = factor(
        replace(reference, vector=reference.vector - old.vector),
        replace(run, vector=run.vector - own.vector), (),
    )  # fmt: skip
    return found and replace(found, cause="update")


def hypothesis(
    reference: Whole, run: Whole, before: Whole | None, noise: float, sizes: Sequence[int]
) -> Hypothesis | None:
    """Return the hypothesis on a difference; None: unknown. ``before``: tensor a step before."""
    if run.bad and not reference.bad:
        return Hypothesis("not-finite")
    if run.replicas:
        return of_replicas(reference, run, noise)
    stale = before is not None and run.bits == before.bits
    if stale and run.what == "param":  # a bias begins with zeros
        return Hypothesis("stale")
    if not run.most and reference.most:
        return Hypothesis("zero")
    if stale:
        return Hypothesis("stale")
    if run.zero_ranks and not set(run.zero_ranks) & set(reference.zero_ranks):
        missing = reference.vector - run.vector
        if abs(float(missing @ run.vector)) <= 0.25 * float(
            np.linalg.norm(missing) * np.linalg.norm(run.vector)
        ):
            return Hypothesis("part-zero", ranks=run.zero_ranks)
    return factor(reference, run, sizes)


def unlike(run: Whole) -> Hypothesis:
    """Return the hypothesis that names the replicas which differ."""
    counts = Counter(bits for _, bits in run.replicas)
    common, number = counts.most_common(1)[0]
    odd = tuple(rank for rank, bits in run.replicas if bits != common)
    ranks = tuple(rank for rank, _ in run.replicas)
    return Hypothesis("replicas", ranks=ranks, odd_ranks=odd if 2 * number > len(ranks) else ())


def of_replicas(reference: Whole, run: Whole, noise: float) -> Hypothesis | None:
    """Return the hypothesis on replicas that differ; None: they were only assumed to be replicas,
    and neither their sum, their mean nor one of them is the reference."""
    ranks = tuple(rank for rank, _ in run.replicas)
    if run.replica_vectors and reference.most:
        mean = np.mean(run.replica_vectors, axis=0)
        if _fits(mean, reference, noise):
            return Hypothesis("mean", ranks=ranks)
        if _fits(mean * len(ranks), reference, noise):
            return Hypothesis("sum", ranks=ranks)
    if not run.assumed:
        return unlike(run)
    errors = [float(np.linalg.norm(v - reference.vector)) for v in run.replica_vectors]
    off = tuple(r for r, error in zip(ranks, errors, strict=False) if error > RED * noise)
    return Hypothesis("replicas", ranks=ranks, odd_ranks=off) if len(off) < len(errors) else None


def _fits(vector: Floats, reference: Whole, noise: float) -> bool:
    error = float(np.linalg.norm(vector - reference.vector))
    return error <= max(noise, RESIDUAL * reference.norm)
