"""Outputs of a run's modules, and their gradients, assembled from the ranks' parts.

Ranks with the same samples had the whole of it, equal parts of a sum, or slices; ranks with other
samples had other rows, which add. A rank cannot tell which of these it was: each is a reading, and
the one that the reference agrees with is taken.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from pardbg.analysis.same.wholes import (
    LARGEST,
    Floats,
    Model,
    Part,
    Prefixes,
    Whole,
    samples,
    told,
)
from pardbg.events.fields import MAX_NUMBER
from pardbg.store.captured import CutDef, TensorDef
from pardbg.store.store import Store

By = Literal["contents", "place"]
How = Literal["whole", "sum", "cut"]
Kind = tuple[How, By, int]
"""(form of the ranks' parts, identification of samples, dimension of a cut)"""
WHATS: Final = ("out", "d_out")


def place_in_block(name: str) -> str:
    """Return a name shared by modules at the same place of other blocks: ``blocks.*.mlp``."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Activation of all samples of a step, if ``how`` is the form of the ranks' parts."""

    how: How
    by: By
    """Identification of samples: by contents, or by their place among those of a rank."""
    dim: int
    """Dimension along which the parts are cut."""
    whole: Whole
    members: tuple[tuple[int, Floats], ...]
    """(rank, sketch) of the first group of ranks that had the same samples."""
    groups: int
    """Number of groups of ranks with the same samples each."""

    @property
    def kind(self) -> Kind:
        """Return the key that tells this reading from others."""
        return (self.how, self.by, self.dim)


@dataclass(frozen=True, slots=True, eq=False)
class Activation:
    """Output of a module in a step, or the gradient of it."""

    step: int
    what: str
    name: str
    order: tuple[int, int]
    """Lowest (rank, place among the rank's modules)."""
    kind: str
    place: str
    readings: tuple[Reading, ...]
    alone: bool
    """Whether every rank had samples of its own, so that its part is whole."""
    times: Mapping[int, tuple[int, ...]]
    """Rank -> begin and end of each forward, or times of gradients, in ns of its host's clock."""
    kept: Sequence[Part]
    """Parts of ranks that recorded elements."""


def activations(
    store: Store, step: int, prefixes: Mapping[Model, Prefixes], later: Collection[int] = (),
    reference: Sequence[Activation] = (), shared: Sequence[Sequence[int]] = (),
) -> list[Activation]:  # fmt: skip
    """Return the activations of a run in a step (arguments as ``wholes``). Ranks of each group in
    ``shared`` have parts of the same samples. If ranks have modules of unlike classes under a name
    of the ``reference``, the one of the reference's class is meant: others, such as an Identity,
    stand in for it in other stages of a pipeline."""
    kinds = {(one.what, one.name): one.kind for one in reference}
    parts: dict[tuple[str, str], list[Part]] = defaultdict(list)
    for rank, tensor in told(store, prefixes):
        if tensor.what in WHATS and tensor.step == step:
            parts[tensor.what, tensor.name].append((rank, tensor))
    known = {rank: rows for (rank, at), rows in samples(store, later).items() if at == step}
    known |= {rank: frozenset({at}) for at, ranks in enumerate(shared) for rank in ranks}
    return [_activation(_of_kind(of, kinds.get(key)), known) for key, of in parts.items()]


def _of_kind(parts: Sequence[Part], kind: str | None) -> Sequence[Part]:
    return [part for part in parts if part[1].kind == kind] or parts


def _activation(parts: Sequence[Part], known_samples: Mapping[int, frozenset[int]]) -> Activation:
    """Return the activation of parts. ``known_samples``: rank -> its samples in that step."""
    ranks = _by_rank(parts)
    groups: dict[frozenset[int], list[Part]] = defaultdict(list)
    for rank, part in ranks:
        groups[known_samples.get(rank, frozenset())].append((rank, part))
    first = ranks[0][1]
    order = min((rank, part.order) for rank, part in ranks)
    known = [g for g in groups if g]
    distinct = sum(map(len, known)) == len(frozenset().union(*known))
    found: list[Reading] = []
    if len(known) == len(groups) and distinct:
        found += _readings("contents", list(groups.values()))
    if len(groups) == 1:
        found += _readings("place", list(groups.values()))
    return Activation(
        first.step, first.what, first.name, order, first.kind, first.place, tuple(found),
        all(len(group) == 1 for group in groups.values()),
        {rank: part.times for rank, part in ranks},
        [(rank, part) for rank, part in ranks if part.kept is not None],
    )  # fmt: skip


def _by_rank(parts: Iterable[Part]) -> list[Part]:
    """Return one valid part of each rank. A rank that steps several optimizers records a module
    before each; its samples add."""
    found: dict[int, TensorDef] = {}
    for rank, part in parts:
        if _sound(part):
            found[rank] = _added(found[rank], part) if rank in found else part
    return sorted(found.items()) or list(parts)[:1]


def _added(part: TensorDef, more: TensorDef) -> TensorDef:
    others = {(cut.dim, cut.parts, cut.at): cut for cut in more.cuts}
    cuts = []
    for cut in part.cuts if part.shape == more.shape else ():
        other = others.get((cut.dim, cut.parts, cut.at))
        if other is not None:
            both = (
                (_vector(mine) + _vector(its)).tobytes()
                for mine, its in ((cut.sketch, other.sketch), (cut.by_place, other.by_place))
            )
            cuts.append(CutDef(cut.dim, cut.parts, cut.at, *both))
    return replace(
        part, count=part.count + more.count, most=max(part.most, more.most),
        bad=part.bad + more.bad, cuts=tuple(cuts), times=part.times + more.times,
    )  # fmt: skip


def _sound(part: TensorDef) -> bool:
    size = math.prod(part.shape)
    vectors = [vector for cut in part.cuts for vector in (cut.sketch, cut.by_place)]
    return (
        all(0 < n < MAX_NUMBER for n in (*part.shape, part.count)) and size < MAX_NUMBER
        and all(cut.by_place for cut in part.cuts)
        and all(bool((np.abs(_vector(vector)) < LARGEST).all()) for vector in vectors)
    )  # fmt: skip


def _readings(by: By, groups: Sequence[Sequence[Part]]) -> Iterable[Reading]:
    parts = [part for group in groups for part in group]
    if len({(part.shape, part.dtype) for _, part in parts}) > 1:
        return
    shape = parts[0][1].shape
    whole = [[(rank, _of(part, by, 0, 1, 0)) for rank, part in group] for group in groups]
    if any(vector is None for group in whole for _, vector in group):
        return
    several = any(len(group) > 1 for group in whole)
    vectors = [[vector for _, vector in group if vector is not None] for group in whole]
    first = next((group for group in whole if len(group) > 1), [])
    members = tuple((rank, vector) for rank, vector in first if vector is not None)
    means = sum((np.mean(group, axis=0) for group in vectors), np.zeros(1))
    yield Reading("whole", by, 0, _whole(parts, shape, means), members, len(groups))
    if several:
        sums = sum((np.sum(group, axis=0) for group in vectors), np.zeros(1))
        yield Reading("sum", by, 0, _whole(parts, shape, sums), members, len(groups))
    for dim, num in dict.fromkeys((c.dim, c.parts) for _, p in parts for c in p.cuts):
        if num > 1 and 0 <= dim < len(shape):
            cut = _joined(groups, by, dim, num)
            if cut is not None:
                size = tuple(n * (num if at == dim else 1) for at, n in enumerate(shape))
                yield Reading("cut", by, dim, _whole(parts, size, cut), (), len(groups))


def _joined(groups: Sequence[Sequence[Part]], by: By, dim: int, num: int) -> Floats | None:
    """Return the sketch assembled from the slices of all groups; None: some are missing."""
    total = np.zeros(1)
    for group in groups:
        slices: dict[int, list[Floats]] = defaultdict(list)
        for _, part in group:
            for at in {cut.at for cut in part.cuts if (cut.dim, cut.parts) == (dim, num)}:
                vector = _of(part, by, dim, num, at)
                if vector is not None:
                    slices[at].append(vector)
        if slices.keys() != set(range(num)):
            return None
        total = total + sum(np.mean(same, axis=0) for same in slices.values())
    return total


def _of(part: TensorDef, by: By, dim: int, num: int, at: int) -> Floats | None:
    wanted = (dim, num, at)
    found = next((c for c in part.cuts if (c.dim, c.parts, c.at) == wanted), None)
    return None if found is None else _vector(_bytes(found, by))


def _bytes(cut: CutDef, by: By) -> bytes:
    return cut.sketch if by == "contents" else cut.by_place


def _vector(sketch: bytes) -> Floats:
    return np.frombuffer(sketch, dtype="<f8")


def _whole(parts: Sequence[Part], shape: tuple[int, ...], vector: Floats) -> Whole:
    first = parts[0][1]
    rows = max(part.count for _, part in parts)
    return Whole(
        first.step, first.what, first.name, first.order, parts[0][0], first.dtype, shape,
        rows * math.prod(shape), max(part.most for _, part in parts),
        sum(part.bad for _, part in parts), vector, (), (), False, (), (), 0,
    )  # fmt: skip
