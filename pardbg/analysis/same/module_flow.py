"""First module whose output, or gradient of an output, differs from the reference.

Forward, it is the first in the order of execution whose inputs agree. Backward, gradients are
compared up to one common factor: a loss is often averaged over fewer samples, and the gradients of
parameters make up for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from pardbg.analysis.same.activations import Activation, Reading, place_in_block
from pardbg.analysis.same.hypotheses import RESIDUAL, Hypothesis, Trial, factor, trials
from pardbg.analysis.same.noise import RED, SEEN, Level, difference, level_of
from pardbg.analysis.same.wholes import Floats, Key, Whole, Wholes

Why = Literal["layout", "noise", "dtype", "scale"]
"""Why an activation is not judged: it is not known what ranks have of it; rounding is as large as a
mistake; nothing is known of the dtype; its gradients have no common factor to the reference's."""
LOW_PRECISION: Final = 4 * 2.0**-7
"""Relative difference that computation in bfloat16 explains, whatever the parameters' dtype, …"""
_OF_CAST: Final = 4
"""… and times that, where products of matrices have another dtype than the reference's."""
_PRODUCTS: Final = ("Linear", "Conv")
"""Parts of the names of modules that compute in low precision under autocast."""
Floor = Callable[[Whole, Whole], "float | None"]
Noise = Callable[[Whole, Whole, float], "float | None"]


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """An activation compared with the reference's."""

    reference: Activation
    run: Activation
    pair: tuple[Whole, Whole] | None
    """(reference, run) as they were compared; None: there was no fitting reading."""
    reading: Reading | None
    error: float
    floors: float
    level: Level | Why


@dataclass(frozen=True, slots=True)
class Place:
    """Module to look at."""

    what: str
    """``out`` or ``d_out``: kind of the first difference; ``loss``: outputs agree, but not the
    gradients that backward begins with."""
    name: str
    kind: str
    """Class of the module."""
    source: str
    """file:line of the module's forward; empty for torch's own."""
    through: str
    """For a gradient, the module whose backward produces it; else empty."""
    hypothesis: Hypothesis | None


@dataclass(frozen=True, slots=True)
class Flow:
    """Activations in the order of execution, and the first that differs."""

    judged: tuple[Judged, ...]
    first: Place | None


def flow(
    reference: Sequence[Activation], run: Sequence[Activation], second: Sequence[Activation],
    noise: Noise, sizes: Sequence[int],
) -> Flow:  # fmt: skip
    """Return one step's activations judged. ``second``: those of another recording of the
    reference; ``noise``: (reference, run, difference of both recordings) -> noise as a norm;
    ``sizes``: of the run's groups."""
    floor = _with_measured(reference, second, noise)
    outs = _without_effect(
        _settled([_best(a, b, floor, 1.0) for a, b in _pairs(reference, run, "out")])
    )
    unknown = {one.reference.name for one in outs if one.level == "layout"}
    first = _first(outs, sizes)
    pairs = _pairs(reference, run, "d_out")
    scale = _scale(pairs, floor)
    if scale is None:
        back = [Judged(a, b, None, None, 0.0, 0.0, "scale") for a, b in pairs]
        if first is None and outs and outs[-1].level == "green":
            first = Place("loss", "", "", "", "", None)
    else:
        back = _settled([
            _best(a, b, floor, scale) if a.name not in unknown
            else Judged(a, b, None, None, 0.0, 0.0, "layout") for a, b in pairs
        ])  # fmt: skip
        behind = None if first is not None else _first(back, sizes)
        first = first or (behind and _first(_doubted(outs), sizes)) or behind
    return Flow((*outs, *back), first)


def _with_measured(
    reference: Sequence[Activation], second: Sequence[Activation], noise: Noise
) -> Floor:
    """Return the noise as a function that includes the measured difference of both recordings."""
    known = {(b.what, b.name): b for b in second}
    measured = {
        id(left): difference(left, reading.whole)
        for a in reference
        if (b := known.get((a.what, a.name))) is not None
        for left, reading in _readings(a, b)
        if reading.how == "whole"
    }

    def floor(left: Whole, right: Whole) -> float | None:
        return noise(left, right, measured.get(id(left), 0.0))

    return floor


def _pairs(
    reference: Sequence[Activation], run: Sequence[Activation], what: str
) -> list[tuple[Activation, Activation]]:
    known = {b.name: b for b in run if b.what == what}
    ordered = sorted((a for a in reference if a.what == what), key=lambda a: a.order)
    return [(a, known[a.name]) for a in ordered if a.name in known]


def _readings(a: Activation, b: Activation) -> Iterator[tuple[Whole, Reading]]:
    """Yield (reference's whole, reading of the run) that could be the same."""
    for whole in a.readings:
        for reading in b.readings:
            same = whole.by == reading.by and whole.whole.shape == reading.whole.shape
            if whole.how == "whole" and same:
                yield whole.whole, reading


def _best(a: Activation, b: Activation, floor: Floor, scale: float) -> Judged:
    """Return the best-fitting reading as judged; red if none fits."""
    best: Judged | None = None
    for whole, reading in _readings(a, b):
        noise = floor(whole, reading.whole)
        scaled = _scaled(reading.whole, 1 / scale)
        error, size = difference(whole, scaled), whole.norm
        level = _level(whole, scaled, error, noise)
        in_floors = error / noise if noise else float("inf") if error else 0.0
        share = error / size if size else float("inf") if error else 0.0
        one = Judged(a, b, (whole, scaled), reading, share, in_floors, level)
        if best is None or _rank(one) < _rank(best):
            best = one
    return best or Judged(a, b, None, None, 0.0, 0.0, "layout")


def _rank(judged: Judged) -> tuple[bool, bool, bool, float]:
    """Return the sort key of readings: fitting ones first, and of these the simplest."""
    fits, of = judged.level in ("green", "yellow"), judged.reading
    how, by = (of.how, of.by) if of is not None else ("", "")
    return (not fits, how == "sum", by == "place", judged.floors)


def _level(left: Whole, right: Whole, error: float, noise: float | None) -> Level | Why:
    if noise is None:
        return "dtype"
    if right.bad > left.bad:
        return "red"
    if not left.most and not right.most:
        return "green"
    if RED * noise > SEEN * left.norm:
        return "noise"
    return level_of(error, noise)


def _settled(judged: Sequence[Judged]) -> list[Judged]:
    """Return the activations, red only where the form of the ranks' parts is known from modules
    where it fits. A sum that modules of the same kind have summed is red too if a later one is."""
    fits = [one for one in judged if one.level in ("green", "yellow") and one.reading is not None]
    known = {one.reading.kind for one in fits if one.reading is not None}
    hows: dict[str, Counter[str]] = defaultdict(Counter)
    for one in fits:
        if one.reading is not None:
            hows[place_in_block(one.reference.name)][one.reading.how] += 1
    found: list[Judged] = []
    red = False
    for one in reversed(judged):
        others = hows[place_in_block(one.reference.name)]
        read = one.reading is not None and one.reading.kind in known
        if one.level == "red" and not (one.run.alone or read):
            one = replace(one, level="layout")
        elif red and _is_sum(one) and others["whole"] > others["sum"]:
            one = replace(one, level="red")
        red |= one.level == "red"
        found.append(one)
    return found[::-1]


def _without_effect(outs: Sequence[Judged]) -> list[Judged]:
    """Return the outputs, with unknown layout for red ones inside a module whose output agrees:
    their parts were misread, as the slices of a gated layer are, and so they were in other
    blocks."""
    agree = {one.reference.name for one in outs if one.level == "green"}
    shared = [one for one in outs if one.level == "red" and not one.run.alone]
    misread = {
        place_in_block(one.reference.name) for one in shared if not agree.isdisjoint(_around(one))
    }
    unknown = {id(one) for one in shared if place_in_block(one.reference.name) in misread}
    return [replace(one, level="layout") if id(one) in unknown else one for one in outs]


def _around(one: Judged) -> list[str]:
    parts = one.reference.name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _is_sum(one: Judged) -> bool:
    fits = one.level in ("green", "yellow")
    return fits and one.reading is not None and one.reading.how == "sum"


def _doubted(outs: Sequence[Judged]) -> list[Judged]:
    """Return the outputs, given that gradients are red: a yellow one is red too if no later one is
    green, since rounding alone hardly gets there."""
    end = 1 + max((at for at, one in enumerate(outs) if one.level == "green"), default=-1)
    return [
        *outs[:end],
        *(replace(o, level="red") if o.level == "yellow" else o for o in outs[end:]),
    ]


def _first(judged: Sequence[Judged], sizes: Sequence[int]) -> Place | None:
    """Return the first red one, or the one before it if that is a sum which no rank had summed."""
    at = next((at for at, one in enumerate(judged) if one.level == "red"), None)
    if at is None:
        return None
    before = judged[at - 1].reading if at else None
    if before is not None and before.how == "sum" and _unlike(judged[at]):
        at -= 1
    one = judged[at]
    agreed = [other for other in judged[:at] if other.level == "green"]
    through = agreed[-1].reference.name if one.run.what == "d_out" and agreed else ""
    return Place(
        one.run.what, one.reference.name, one.run.kind, one.run.place, through,
        _cause(one, sizes),
    )  # fmt: skip


def _unlike(one: Judged) -> bool:
    """Return whether ranks with the same samples have unlike values."""
    members = [vector for _, vector in one.reading.members] if one.reading is not None else []
    spread = max((float(np.linalg.norm(v - members[0])) for v in members), default=0.0)
    return one.pair is not None and spread * one.floors > RED * one.error * one.pair[0].norm


def _cause(one: Judged, sizes: Sequence[int]) -> Hypothesis | None:
    if one.pair is None or one.reading is None:
        return None
    reference, run = one.pair
    ranks = tuple(rank for rank, _ in one.reading.members)
    if one.reading.how == "sum":
        return Hypothesis("sum", ranks=ranks)
    if run.bad and not reference.bad:
        return Hypothesis("not-finite")
    if not run.most:
        return Hypothesis("zero")
    all_rows = one.reading.how == "whole" and one.reading.groups == 1
    odd = _odd(reference, one.reading.members) if all_rows else ()
    if odd:
        return Hypothesis("replicas", ranks=ranks, odd_ranks=odd)
    return factor(reference, run, sizes)


def _odd(reference: Whole, members: Sequence[tuple[int, Floats]]) -> tuple[int, ...]:
    """Return the ranks unlike the reference, if other ranks are like it."""
    limit = RESIDUAL * reference.norm
    off = tuple(
        rank for rank, vector in members if np.linalg.norm(vector - reference.vector) > limit
    )
    return off if 0 < len(off) < len(members) else ()


def _scale(pairs: Sequence[tuple[Activation, Activation]], floor: Floor) -> float | None:
    """Return the factor of the gradients that backward begins with; None: there is none."""
    for a, b in pairs:
        for whole, reading in _readings(a, b):
            square = float(whole.vector @ whole.vector)
            if not square or reading.how == "sum" or whole.bad or reading.whole.bad:
                continue
            found = float(reading.whole.vector @ whole.vector) / square
            noise = floor(whole, reading.whole)
            if not found or noise is None:
                continue
            rest = difference(whole, _scaled(reading.whole, 1 / found))
            if rest <= max(RED * noise, 1e-6 * whole.norm):
                return found
        return None
    return 1.0


def _scaled(whole: Whole, by: float) -> Whole:
    return whole if by == 1.0 else replace(whole, vector=whole.vector * by)


def tried(
    key: Key, judged: Sequence[Judged], sides: tuple[Wholes, Wholes],
    before: Callable[[Wholes, Whole], Whole | None], floor: Floor,
) -> tuple[Trial, ...]:  # fmt: skip
    """Return the hypotheses tried on the tensor that differs first."""
    a, b = sides
    one = next((o for o in judged if (o.run.step, o.run.what, o.reference.name) == key), None)
    if one is not None and one.pair is not None and one.reading is not None:
        noise, members = floor(*one.pair), [vector for _, vector in one.reading.members]
        return trials(*one.pair, members, None, noise or 0.0, b.group_sizes)
    left, right = a.tensors.get(key), b.tensors.get(key)
    if one is not None or left is None or right is None:
        return ()
    noise, members = floor(left, right), list(right.replica_vectors)
    return trials(left, right, members, before(b, right), noise or 0.0, b.group_sizes)


def low_precision(judged: Sequence[Judged]) -> float:
    """Return the relative difference that low precision explains: none where a product of matrices
    agrees."""
    of = [one for one in judged if one.run.what == "out"]
    of = [one for one in of if any(kind in one.run.kind for kind in _PRODUCTS)]
    if any(one.level == "green" for one in of):
        return 0.0
    cast = any(one.pair and one.pair[0].dtype != one.pair[1].dtype for one in of)
    return LOW_PRECISION * (_OF_CAST if cast else 1)
