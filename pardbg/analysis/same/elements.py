"""Elements of a tensor that differ from the reference's, by rank, if both runs kept elements
(``--full``).

An element is off by more than rounding if it is 10 floors off: of a typical element, or of its own
size if that is larger.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pardbg.analysis.same.module_flow import Floor, Judged
from pardbg.analysis.same.noise import RED
from pardbg.analysis.same.wholes import Floats, Key, Part, Wholes, is_placed
from pardbg.store.captured import TensorDef

Index = NDArray[np.int64]
MOST: Final = 1 << 25
"""Maximum number of elements of the whole tensor that are compared: 256 MiB."""
BINS: Final = 32
"""Maximum number of parts of a dimension whose shares of wrong elements are shown."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Comparison of one rank's part of a tensor."""

    rank: int
    compared: int
    wrong: int
    """Number of elements that differ, among those compared."""
    ranges: tuple[tuple[int, int], ...] = ()
    """(first, last) index of wrong elements in the whole tensor, by dimension; empty: none."""
    first: tuple[int, ...] = ()
    """Index of the first wrong element."""
    reference: float = 0.0
    run: float = 0.0
    """Value of the run at the first wrong element; ``reference``: the reference's value."""
    strips: tuple[tuple[float | None, ...], ...] = ()
    """Share of wrong elements in at most BINS parts of each dimension; None: not on the rank."""


@dataclass(frozen=True, slots=True)
class Elements:
    """A tensor compared element by element."""

    step: int
    what: str
    name: str
    shape: tuple[int, ...]
    """Shape of the whole; an activation has samples first, in the reference's order."""
    by_sample: bool
    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Reference:
    shape: tuple[int, ...]
    values: Floats
    """Flat values; NaN for elements that were not kept."""
    known: NDArray[np.bool_]
    limits: tuple[float, float]
    """(limit of a small element's difference, limit of a large one's as a share of it)."""

    def shard(self, rank: int, index: Index, values: Floats) -> Shard:
        """Return the comparison of a rank's elements at flat indices."""
        both = self.known[index]
        index, values = index[both], values[both]
        right = self.values[index]
        limit = np.maximum(self.limits[0], self.limits[1] * np.abs(right))
        with np.errstate(invalid="ignore"):
            wrong = ~(np.abs(values - right) <= limit) & ~(np.isnan(values) & np.isnan(right))
        off = index[wrong]
        if not len(off):
            return Shard(rank, len(index), 0)
        places = np.unravel_index(off, self.shape)
        at = int(np.argmin(off))
        return Shard(
            rank, len(index), len(off),
            tuple((int(place.min()), int(place.max())) for place in places),
            tuple(int(place[at]) for place in places),
            float(right[wrong][at]), float(values[wrong][at]),
            tuple(
                _strip(all_, place, size) for all_, place, size
                in zip(np.unravel_index(index, self.shape), places, self.shape, strict=True)
            ),
        )  # fmt: skip


def elements_of(
    keys: Iterable[Key], judged: Iterable[Judged], a: Wholes, b: Wholes, floor: Floor
) -> Iterator[Elements]:
    """Yield the comparison of the kept tensors element by element, in their order. ``floor``: noise
    of (reference, run), as a norm."""
    activations = {(one.run.what, one.reference.name): one for one in judged}
    for key in dict.fromkeys(keys):
        found = None
        if (one := activations.get(key[1:])) is not None:
            found = of_activation(one)
        elif (left := a.tensors.get(key)) is not None:
            noise = floor(left, b.tensors.get(key, left)) or 0.0
            of = a.kept.get(key, ()), b.kept.get(key, ())
            found = of_parameter(key, left.shape, noise, left.norm, *of)
        if found is not None:
            yield found


def of_parameter(
    key: Key, shape: tuple[int, ...], noise: float, norm: float,
    reference: Sequence[Part], run: Sequence[Part],
) -> Elements | None:  # fmt: skip
    """Return the elements of a parameter, its gradient or a buffer. ``noise``: its floor, a norm
    like ``norm``, the reference's. None: not kept, or their places are not known."""
    count = math.prod(shape)
    left, right = (
        [
            (rank, part) for rank, part in parts
            if part.kept is not None and part.summand is None and is_placed(part)
        ]
        for parts in (reference, run)
    )  # fmt: skip
    if not right or count > MOST or any(math.prod(p.shape) != count for _, p in (*left, *right)):
        return None
    limits = _limits(noise, norm, count)
    known = _reference(shape, limits, [_in_whole(part) for _, part in left])
    if known is None:
        return None
    shards = tuple(known.shard(rank, *_in_whole(part)) for rank, part in right)
    return Elements(*key, known.shape, False, shards)


def of_activation(one: Judged) -> Elements | None:
    """Return the elements of a module's output, or of its gradient, as ``of_parameter``."""
    if one.pair is None or one.reading is None or math.prod(one.pair[0].shape) > MOST:
        return None
    whole, scaled = one.pair
    by_place = one.reading.by == "place"
    rows: dict[int, int] = {}
    for _, part in one.reference.kept:
        for key in _keys(part, by_place):
            rows.setdefault(key, len(rows))
    left = [_by_rows(part, by_place, rows, whole.shape, 0) for _, part in one.reference.kept]
    noise = one.error * whole.norm / one.floors if 0 < one.floors < math.inf else 0.0
    limits = _limits(noise, whole.norm, whole.count)
    known = _reference((len(rows), *whole.shape), limits, left)
    if known is None:
        return None
    scale = one.reading.whole.norm / (scaled.norm or 1.0) or 1.0
    shards = []
    for rank, part in one.run.kept:
        places = _slices(part, whole.shape, one.reading.dim) if one.reading.how == "cut" else [0]
        tried = [_by_rows(part, by_place, rows, whole.shape, at) for at in places]
        made = [known.shard(rank, index, values / scale) for index, values in tried]
        shards += [min(made, key=lambda shard: shard.wrong)] if made else []
    of = one.run.step, one.run.what, one.reference.name
    return Elements(*of, known.shape, True, tuple(shards)) if shards else None


def _limits(noise: float, norm: float, count: int) -> tuple[float, float]:
    return RED * noise / math.sqrt(count or 1), RED * noise / norm if norm else 0.0


def _reference(
    shape: tuple[int, ...], limits: tuple[float, float], parts: Iterable[tuple[Index, Floats]]
) -> _Reference | None:
    count = math.prod(shape)
    if not 0 < count <= MOST:
        return None
    values, known = np.full(count, np.nan), np.zeros(count, dtype=bool)
    for index, some in parts:
        values[index], known[index] = some, True
    return _Reference(shape or (1,), values, known, limits) if known.any() else None


def _in_whole(part: TensorDef) -> tuple[Index, Floats]:
    """Return (flat indices of a part's kept elements in its tensor, values of these)."""
    values = part.kept.values() if part.kept is not None else np.zeros(0)
    values = values[: math.prod(part.size)]
    return _box(part.shape, part.offset, part.size, len(values)), values


def _box(shape: Sequence[int], offset: Sequence[int], size: Sequence[int], number: int) -> Index:
    """Return the flat indices of the first ``number`` elements of a box in a tensor."""
    if not shape:
        return np.zeros(number, dtype=np.int64)
    inside = np.unravel_index(np.arange(number), tuple(size))
    moved = tuple(place + begin for place, begin in zip(inside, offset, strict=True))
    return np.asarray(np.ravel_multi_index(moved, tuple(shape)), dtype=np.int64)


def _keys(part: TensorDef, by_place: bool) -> tuple[int, ...]:
    """Return the keys that identify the samples of a part's kept rows."""
    return () if part.kept is None else part.kept.rows if by_place else part.kept.samples


def _by_rows(
    part: TensorDef, by_place: bool, rows: Mapping[int, int], shape: tuple[int, ...], at: int
) -> tuple[Index, Floats]:
    """Return (flat indices of an activation's kept elements, values of these). ``rows``: sample ->
    its number; ``at``: slice of a row of ``shape`` that the rank has."""
    values = np.zeros(0) if part.kept is None else part.kept.values()
    size, fits = math.prod(part.shape), len(part.shape) == len(shape)
    if not len(values) or not fits or not all(map(_between, part.shape, shape)):
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    numbers = np.array([rows.get(key, -1) for key in _keys(part, by_place)], dtype=np.int64)
    numbers = numbers[: -(-len(values) // size)]
    offset = [n * at if n != whole else 0 for n, whole in zip(part.shape, shape, strict=True)]
    inside = _box(shape, offset, part.shape, min(size, len(values)))
    index = (numbers[:, None] * math.prod(shape) + inside[None, :]).ravel()[: len(values)]
    values = values[: len(index)]
    there = np.repeat(numbers >= 0, len(inside))[: len(index)]
    return index[there], values[there]


def _between(size: int, whole: int) -> bool:
    return 0 < size <= whole


def _slices(part: TensorDef, shape: tuple[int, ...], dim: int) -> list[int]:
    """Return the slices of a row, along a dimension, that a rank may have."""
    fits = len(part.shape) == len(shape) > dim and part.shape[dim]
    parts = shape[dim] // part.shape[dim] if fits else 0
    cuts = {cut.at for cut in part.cuts if (cut.dim, cut.parts) == (dim, parts)}
    return sorted(at for at in cuts if at < parts)


def _strip(places: Index, wrong: Index, size: int) -> tuple[float | None, ...]:
    bins = min(BINS, size)
    there = np.bincount(places * bins // size, minlength=bins)
    off = np.bincount(wrong * bins // size, minlength=bins)
    return tuple(float(o / n) if n else None for o, n in zip(off, there, strict=True))
