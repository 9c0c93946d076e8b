"""Whole tensors of a run, added up from the parts that its ranks have.

A sketch is linear: those of disjoint parts add up to that of the whole. Parts that are equal boxes
on ranks known as replicas must be equal bit by bit. What does not add up to exactly one whole has
no known layout, and nothing is claimed of it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from pardbg.events.fields import MAX_NUMBER
from pardbg.store.captured import TensorDef
from pardbg.store.store import Store
from pardbg_agent.wire import MAX_ROWS

Floats = NDArray[np.float64]
Key = tuple[int, str, str]
"""(step, what, name)"""
Gap = Literal["shapes", "dtypes", "place", "overlap", "incomplete", "copies"]
"""Why parts add up to no whole: ranks state unlike shapes or dtypes; a part's place is not known;
parts overlap; parts are missing; equal places with unlike contents on ranks not known as
replicas."""
LARGEST: Final = 1e140
"""Number of a sketch whose square is still one."""
_INPUT: Final = "input"
_RANDOM: Final = "random"
Box = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """A tensor of a run in one step."""

    step: int
    what: str
    name: str
    order: int
    first_rank: int
    dtype: str
    shape: tuple[int, ...]
    count: int
    most: float
    bad: int
    vector: Floats
    """Sketch of the whole, of one replica each."""
    replicas: tuple[tuple[int, int], ...]
    """(rank, bits) of the replicas that are not all equal, of the first such part; else empty."""
    replica_mean: Floats | None
    """Mean of the sketches of replicas, where they differ and each is the whole tensor."""
    zero_ranks: tuple[int, ...]
    """Ranks whose part is all zeros, though another part is not."""
    bits: tuple[int, ...]
    """Of each part, by its place."""
    copies: int
    """Parts that a rank has as a replica of another one's."""

    @property
    def key(self) -> Key:
        return (self.step, self.what, self.name)

    @property
    def norm(self) -> float:
        """Estimated Euclidean norm."""
        return float(np.linalg.norm(self.vector))


@dataclass(frozen=True, slots=True)
class Wholes:
    """What was captured of a run."""

    tensors: Mapping[Key, Whole]
    unknown: Mapping[Key, Gap]
    inputs: Mapping[int, Mapping[str, frozenset[int]] | None]
    """Step -> argument -> hashes of its rows; None where some rows may be missing."""
    group_sizes: tuple[int, ...]
    """Sizes of the run's process groups, and its number of ranks."""
    random: bool
    """Layers draw numbers of their own, as dropout does."""

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps with a gradient or a parameter after its step."""
        keys = (*self.tensors, *self.unknown)
        return tuple(sorted({step for step, what, _ in keys if what != "init"}))

    def names(self, what: str) -> frozenset[str]:
        """Return the names that any rank told, those without a known layout included."""
        return frozenset(n for _, kind, n in (*self.tensors, *self.unknown) if kind == what)

    def ordered(self) -> list[str]:
        """Return the names of parameters in the order of the model. Ranks of a pipeline count from
        0 each: then those of the lowest rank come first."""
        orders: dict[str, set[tuple[int, int]]] = defaultdict(set)
        for whole in self.tensors.values():
            orders[whole.name].add((whole.first_rank, whole.order))
        found = {name: min(places) for name, places in orders.items()}
        one_count = len({order for _, order in found.values()}) == len(found)
        return sorted(found, key=lambda n: (found[n][1] if one_count else found[n], n))


def wholes(store: Store) -> Wholes:
    """Return the tensors captured of the newest life of a run."""
    parts: dict[Key, list[tuple[int, TensorDef]]] = defaultdict(list)
    procs = store.rank_procs(None)
    for rank, process in procs.items():
        for tensor in process.tensors:
            parts[tensor.step, tensor.what, tensor.name].append((rank, tensor))
    tensors: dict[Key, Whole] = {}
    unknown: dict[Key, Gap] = {}
    for key, known in parts.items():
        if key[1] in (_INPUT, _RANDOM):
            continue
        found = _whole(known)
        if isinstance(found, Whole):
            tensors[key] = found
        else:
            unknown[key] = found
    sizes = {len(group.ranks) for group in store.groups.values()} | {len(procs)}
    random = any(what == _RANDOM for _, what, _ in parts)
    return Wholes(tensors, unknown, _inputs(store), tuple(sorted(sizes - {0, 1})), random)


def _inputs(store: Store) -> dict[int, dict[str, frozenset[int]] | None]:
    """Return the rows that came into the model; later stages of a pipeline get activations."""
    rows: dict[int, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    full = set()
    for process in store.rank_procs(None).values():
        counts: dict[int, int] = defaultdict(int)
        for tensor in process.tensors:
            if tensor.what == _INPUT and min(process.stages, default=0) == 0:
                rows[tensor.step][tensor.name].update(tensor.samples)
                counts[tensor.step] += max(len(tensor.samples), *tensor.shape[:1], 0)
        full |= {
            step for step, number in counts.items() if number >= MAX_ROWS
        }  # some may be missing
    return {
        step: None if step in full else {name: frozenset(found) for name, found in args.items()}
        for step, args in rows.items()
    }


def _whole(parts: Sequence[tuple[int, TensorDef]]) -> Whole | Gap:
    """Return the tensor that parts of (rank, part) add up to, or why they do not."""
    first = parts[0][1]
    if any(part.shape != first.shape for _, part in parts):
        return "shapes"
    if any(part.dtype != first.dtype for _, part in parts):
        return "dtypes"
    if not all(_placed(part) for _, part in parts):
        return "place"
    boxes: dict[Box, list[tuple[int, TensorDef]]] = defaultdict(list)
    for rank, part in parts:
        if part.count or not math.prod(first.shape):
            boxes[part.offset, part.size].append((rank, part))
    total = sum(same[0][1].count for same in boxes.values())
    if overlap(list(boxes)):
        return "overlap"
    if total != math.prod(first.shape):
        return "incomplete"
    unlike = [same for same in boxes.values() if len({part.bits for _, part in same}) > 1]
    if not all(_replicas(same) for same in unlike):
        return "copies"
    firsts = [boxes[box][0][1] for box in sorted(boxes)]
    differing = unlike[0] if unlike else []
    vectors = [_vector(part) for _, part in differing] if len(boxes) == 1 else []
    some = any(part.most for part in firsts) and len(boxes) > 1
    zeros = [rank for same in boxes.values() for rank, p in same if not (p.most or p.bad)]
    return Whole(
        first.step, first.what, first.name, first.order, min(rank for rank, _ in parts),
        first.dtype, first.shape, total, max((p.most for _, p in parts), default=0.0),
        sum(part.bad for part in firsts),
        np.sum([_vector(part) for part in firsts], axis=0) if firsts else np.zeros(1),
        tuple((rank, part.bits) for rank, part in differing),
        np.mean(vectors, axis=0) if vectors else None,
        tuple(sorted(zeros)) if some else (),
        tuple(part.bits for part in firsts),
        sum(len(same) - 1 for same in boxes.values() if _replicas(same)),
    )  # fmt: skip


def _placed(part: TensorDef) -> bool:
    """Return whether a part is a box within its tensor, with a sketch."""
    dims = len(part.shape)
    inside = len(part.offset) == len(part.size) == dims and all(
        offset >= 0 and size >= 0 and offset + size <= whole < MAX_NUMBER
        for offset, size, whole in zip(part.offset, part.size, part.shape, strict=True)
    )
    whole = part.count == math.prod(part.size) and bool(part.sketch)
    return inside and whole and bool((np.abs(_vector(part)) < LARGEST).all())


def overlap(boxes: Sequence[Box]) -> bool:
    """Return whether any two of different boxes (offset, size) share an element."""
    if len(boxes) < 2:
        return False
    begin = np.array([box[0] for box in boxes], dtype=np.int64)
    end = begin + np.array([box[1] for box in boxes], dtype=np.int64)
    return any(
        bool(((begin[at + 1 :] < end[at]) & (begin[at] < end[at + 1 :])).all(axis=1).any())
        for at in range(len(boxes) - 1)
    )


def _replicas(same: Iterable[tuple[int, TensorDef]]) -> bool:
    """Return whether the ranks that have equal boxes are known as replicas of each other."""
    known = dict(same)
    return len(known) > 1 and all(known.keys() <= set(part.over) for part in known.values())


def _vector(part: TensorDef) -> Floats:
    return np.frombuffer(part.sketch, dtype="<f8")
