"""Split of a backward in I (the gradient of the input) and W (of the weights).

It is measured in a run that shows I and W apart. torch's schedules have two particularities:

- the first stage has no input gradient to give, so nothing is done in its I and everything in its
  W;
- I and W together take longer than the same backward in one piece: the graph is walked twice, and
  searched for where to cut. Where the run shows whole backwards too, that is measured. Where it
  does not, the first stage's is one: its backward over its forward, beside the other stages'.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

HALF: Final = 0.5
"""Share of W in a backward if no run of it was seen apart from I."""
NOTHING: Final = 0.1
"""Share of the first stage's backward below which its I counts as nothing."""
Seen = Mapping[tuple[int, str, int], int]
"""(stage, kind, microbatch) -> ns, in one step"""
Row = tuple[float, ...]
"""ns of each microbatch, from 0"""


@dataclass(frozen=True, slots=True)
class Split:
    """Durations of a backward's parts, relative to the whole."""

    weight_share: float = HALF
    """W / (I + W) on all stages but the first."""
    measured: bool = False
    """Whether I and W were seen apart; else ``weight_share`` is an assumption."""
    first_input: float = 0.0
    """I / (I + W) on the first stage."""
    overhead: float = 1.0
    """(I + W) / B; 1 if it was not seen."""
    whole_seen: bool = True
    """Whether whole backwards were seen: on other stages than the first, if there are any."""

    joined: float = 1.0
    """Assumed factor of B, except the first stage's, over the value that the rest implies."""

    def parts(self, whole: float) -> tuple[float, float]:
        """Return (I, W) of a backward on any stage but the first."""
        both = whole * self.overhead
        return both * (1 - self.weight_share), both * self.weight_share


def split_of(steps: Sequence[Seen], num_stages: int) -> Split:
    """Return the split as measured over some steps."""
    by_kind = _medians(steps)
    apart = {s for s, kind in by_kind if kind == "W" and (s, "I") in by_kind}
    later = [s for s in sorted(apart) if s > 0] or sorted(apart)
    if not later:
        return Split()
    weight = sum(by_kind[s, "W"] for s in later)
    both = {s: by_kind[s, "I"] + by_kind[s, "W"] for s in apart}
    return Split(
        weight_share=weight / max(1e-9, sum(both[s] for s in later)),
        measured=True,
        first_input=by_kind[0, "I"] / max(1e-9, both[0]) if 0 in apart else 0.0,
        overhead=_overhead(by_kind, both),
        whole_seen=any((s, "B") in by_kind for s in range(min(1, num_stages - 1), num_stages)),
    )


def _medians(steps: Sequence[Seen]) -> dict[tuple[int, str], float]:
    found: dict[tuple[int, str], list[int]] = defaultdict(list)
    for times in steps:
        for (stage, kind, _), ns in times.items():
            found[stage, kind].append(ns)
    return {key: median(several) for key, several in found.items()}


def _overhead(by_kind: Mapping[tuple[int, str], float], both: Mapping[int, float]) -> float:
    """Return (I + W) / B, at least 1."""
    later = [s for s in both if s > 0]
    wholes = [s for s in later if by_kind.get((s, "B"))]
    if wholes:
        found = sum(both[s] for s in wholes) / sum(by_kind[s, "B"] for s in wholes)
        return max(1.0, found)
    first = by_kind.get((0, "F"), 0.0)
    if not later or not first or not both.get(0) or by_kind[0, "I"] > NOTHING * both[0]:
        return 1.0
    ratios = [both[s] / by_kind[s, "F"] for s in later if by_kind.get((s, "F"))]
    return max(1.0, fmean(ratios) * first / both[0]) if ratios else 1.0


def filled(
    seen: Seen, num_stages: int, num_microbatches: int, split: Split
) -> dict[tuple[int, str], Row] | None:
    """Return F, B, I and W of each stage and microbatch of a step, with missing ones derived from
    the rest; None if a stage's work was not seen.

    I and W of the first stage are given like those of the others, so that the model can be cut
    elsewhere: ``as_they_run`` corrects them.
    """
    rows: dict[tuple[int, str], Row] = {}
    for stage in range(num_stages):
        found = [_backward(seen, stage, mb, split) for mb in range(num_microbatches)]
        forwards = [seen.get((stage, "F", mb)) for mb in range(num_microbatches)]
        if None in found or None in forwards:
            return None
        rows[stage, "F"] = tuple(float(ns or 0) for ns in forwards)
        for place, kind in enumerate("BIW"):
            rows[stage, kind] = tuple(one[place] for one in found if one is not None)
    return rows


def _backward(seen: Seen, stage: int, mb: int, split: Split) -> tuple[float, float, float] | None:
    """Return (B, I, W) of one microbatch in ns; None: not seen."""
    whole, first, weight = (seen.get((stage, kind, mb)) for kind in "BIW")
    if first is None:
        return None if whole is None else (float(whole), *split.parts(whole))
    if stage == 0:
        both = float(first + (weight or 0))
        return both, *split.parts(both)
    if weight is None:
        weight = round(first * split.weight_share / max(1e-9, 1 - split.weight_share))
    return (first + weight) / split.overhead, float(first), float(weight)


def as_they_run(times: dict[tuple[int, str], Row], split: Split) -> None:
    """Set ``times`` as schedules have them: I and W of the first stage; of others if unseen."""
    for stage in range(1, 1 + max(s for s, _ in times)):
        whole = times[stage, "B"]
        if not split.measured:
            parts = [split.parts(ns) for ns in whole]
            times[stage, "I"] = tuple(first for first, _ in parts)
            times[stage, "W"] = tuple(weight for _, weight in parts)
        times[stage, "B"] = tuple(split.joined * ns for ns in whole)
    whole = times[0, "B"]
    times[0, "I"] = tuple(split.first_input * ns for ns in whole)
    times[0, "W"] = tuple((1 - split.first_input) * ns for ns in whole)
