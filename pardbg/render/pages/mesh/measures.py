"""Measures shown as squares: a value for each rank, with its place among the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from pardbg import words
from pardbg.analysis.answers.device_mesh import Mesh
from pardbg.analysis.answers.ranks import RankNow
from pardbg.render.draw.axis import nice_step
from pardbg.render.draw.squares import Square
from pardbg.render.pages.mesh.square_layout import SquareLayout

LEVELS: Final = 6
"""Number of shades of a measure."""
_DIGITS: Final = 9
_STEPS: Final = 30
"""Number of steps of a scale: each step has one shade and one digit."""
_LEAST: Final = 0.03
"""Minimum scale of values around their median: smaller differences do not matter."""
_MOST: Final = 2
"""Multiple of the scale beyond which values are drawn as excess."""
_WITHIN: Final = 0.9
"""Share of ranks that the scale covers."""
_UNKNOWN: Final = Square("mesh.unknown", -1)


@dataclass(frozen=True, slots=True)
class Measure:
    """A value per rank, on a common scale."""

    name: str
    note: str
    style: str
    values: Mapping[int, float]
    low: float
    high: float
    signed: bool
    """Whether values are an excess over a median; else they are shares or amounts."""
    text: Callable[[float], str]

    def squares(self, marked: Collection[int]) -> dict[int, Square]:
        """Return the square of each rank with a known value; ``marked`` ranks are an excess."""
        shades = [Square(f"mesh.{self.style}.{at * LEVELS // _STEPS}", at * _DIGITS // (_STEPS - 1))
                  for at in range(_STEPS)]  # fmt: skip
        low, span = self.low, (self.high - self.low) or 1.0
        found = {
            rank: shades[min(_STEPS - 1, max(0, int((value - low) / span * _STEPS)))]
            for rank, value in self.values.items()
        }
        over = Square("mesh.over", _DIGITS)
        if self.signed:
            found |= {rank: over for rank, value in self.values.items() if self.is_excess(value)}
            found |= {rank: over for rank in marked if rank in found}
        return found

    def is_excess(self, value: float) -> bool:
        return self.signed and value > _MOST * self.high

    @property
    def worst(self) -> tuple[int, float] | None:
        """Return the rank that stands out, with its value: the maximum of a signed measure, else
        the value furthest from the median."""
        if not self.values:
            return None
        middle = 0.0 if self.signed else median(self.values.values())
        sign = self.signed

        def off(rank: int) -> float:
            return self.values[rank] - middle if sign else abs(self.values[rank] - middle)

        rank = max(self.values, key=off)
        return rank, self.values[rank]


def measures(ranks: Sequence[RankNow]) -> tuple[Measure, ...]:
    """Return the measures of compute, waiting and memory of all ranks."""
    excess = over_like(ranks)
    waiting = {r.rank: r.wait_fraction for r in ranks if r.wait_fraction is not None}
    memory = {r.rank: float(r.memory_bytes) for r in ranks if r.memory_bytes is not None}
    size = sorted(map(abs, excess.values()))
    scale = max(_LEAST, size[int(len(size) * _WITHIN) - 1] if size else 0.0)
    scale = nice_step(scale * 1e3) / 1e3
    of = "of its stage" if any(rank.stages for rank in ranks) else "of all"
    around = f"against the median {of}"
    return (
        Measure("compute", around, "compute", excess, -scale, scale, True, _change),
        Measure("waiting", "share of the step", "waiting", waiting, *_ends(waiting), False, _share),
        Measure("memory", "of each rank", "memory", memory, *_ends(memory), False,
                words.binary_size),
    )  # fmt: skip


def _ends(values: Mapping[int, float]) -> tuple[float, float]:
    return min(values.values(), default=0.0), max(values.values(), default=0.0)


def _change(value: float) -> str:
    return words.change(value, 0)


def _share(value: float) -> str:
    return words.percent(value, 0)


def over_like(ranks: Sequence[RankNow]) -> dict[int, float]:
    """Return the relative excess of each rank's compute time in its last step over the median of
    the ranks with the same stages."""
    like: dict[tuple[int, ...], dict[int, float]] = defaultdict(dict)
    for rank in ranks:
        if rank.compute_fraction is not None and rank.step_ns:
            like[rank.stages][rank.rank] = rank.compute_fraction * rank.step_ns[-1]
    found: dict[int, float] = {}
    for times in like.values():
        middle = median(times.values())
        if middle > 0:
            found |= {rank: ns / middle - 1 for rank, ns in times.items()}
    return found


@dataclass(frozen=True, slots=True)
class Coordinate:
    """The ranks at one place of an axis, compared to those at the axis's other places."""

    axis: int
    at: int
    excess: float
    """Mean of the place's ranks above the median of the axis's places."""
    without: float
    """Same excess, without the rank that stands out."""


def by_coordinate(mesh: Mesh, measure: Measure) -> list[Coordinate]:
    """Return for each axis the place whose ranks compute longest on average, the longest first."""
    worst = measure.worst
    found = []
    for axis, length in enumerate(axis.size for axis in mesh.axes):
        stride = mesh.stride(axis)
        sums: dict[int, list[float]] = defaultdict(list)
        for rank, value in measure.values.items():
            sums[rank // stride % length].append(value)
        if not sums:
            continue
        means = {at: fmean(values) for at, values in sums.items()}
        middle = median(means.values())
        most = max(means, key=lambda at: means[at])
        others = list(sums[most])
        if worst is not None and worst[0] // stride % length == most and len(others) > 1:
            others.remove(worst[1])
        rest = fmean(others) - middle
        found.append(Coordinate(axis, most, means[most] - middle, rest))
    return sorted(found, key=lambda one: -one.excess)


def drawn(
    layout: SquareLayout, measure: Measure, marked: Collection[int], here: Collection[int] = ()
) -> list[list[Square | None]]:
    """Return the squares of a measure; a square of several ranks shows the one with the largest
    value, or a marked one. A rank that is ``here`` and has no value yet is a paler square."""
    known, values = measure.squares(marked), measure.values
    if layout.each == 1:
        unknown = dict.fromkeys(here, _UNKNOWN)
        return [[known.get(first) or unknown.get(first) for first in row] for row in layout.rows]

    def shown(first: int) -> Square | None:
        ranks = [rank for rank in layout.ranks(first) if rank in known] if first >= 0 else []
        most = max(ranks, key=lambda rank: (rank in marked, values[rank]), default=None)
        return None if most is None else known[most]

    return [[shown(first) for first in row] for row in layout.rows]
