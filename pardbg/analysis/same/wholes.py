"""Whole tensors of a run, assembled from the ranks' parts.

A sketch is linear: those of disjoint parts add up to that of the whole. Parts that are equal boxes
on ranks known as replicas must be equal bit by bit. Parts that do not add up to exactly one whole
have no known layout, and nothing is claimed of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from pardbg.events.fields import MAX_NUMBER
from pardbg.store.captured import TensorDef
from pardbg.store.store import Store
from pardbg_agent.wire import MAX_ROWS

Floats = NDArray[np.float64]
Key = tuple[int, str, str]
"""(step, kind of tensor, name)"""
Gap = Literal["shapes", "dtypes", "place", "overlap", "incomplete", "copies"]
"""Reason why parts add up to no whole: ranks state unlike shapes or dtypes; a part's place is not
known; parts overlap; parts are missing; equal places have unlike contents on ranks not known as
replicas."""
LARGEST: Final = 1e140
"""Largest number in a sketch whose square is still finite."""
_INPUT: Final = "input"
_RANDOM: Final = "random"
_OF_MODULES: Final = ("out", "d_out")
USED: Final = "used"
"""Parameter as a module computes with it, if another tensor's or rank's optimizer makes it."""
Model = tuple[int, int]
"""(rank, number of the outermost module there)"""
Prefixes = Mapping[str, str]
"""Beginning of names in the run -> in the reference, without a trailing dot."""
Box = tuple[tuple[int, ...], tuple[int, ...]]
Part = tuple[int, TensorDef]
"""(rank, its part of a tensor)"""


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """A whole tensor of a run in one step."""

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
    """Sketch of the whole, from one replica of each part."""
    replicas: tuple[tuple[int, int], ...]
    """(rank, bits) of the first part whose replicas are not all equal; empty: all are equal."""
    replica_vectors: tuple[Floats, ...]
    """Sketches of the replicas in ``replicas``, if each is the whole tensor."""
    assumed: bool
    """Whether the ranks count as replicas only because they began equal."""
    zero_ranks: tuple[int, ...]
    """Ranks whose part is all zeros, though another part is not."""
    bits: tuple[int, ...]
    """Bits of each part, by its place."""
    copies: int
    """Number of parts that a rank has as a replica of another rank's."""

    @property
    def key(self) -> Key:
        return (self.step, self.what, self.name)

    @property
    def norm(self) -> float:
        """Return the estimated Euclidean norm."""
        return float(np.linalg.norm(self.vector))


@dataclass(frozen=True, slots=True)
class Wholes:
    """Captured tensors of a run."""

    tensors: Mapping[Key, Whole]
    unknown: Mapping[Key, Gap]
    inputs: Mapping[int, Mapping[str, frozenset[int]] | None]
    """Step -> argument -> hashes of its rows; None: some rows may be missing."""
    sums: Mapping[int, Mapping[str, Mapping[int, tuple[int, ...]]]]
    """Step -> argument -> rank -> sums of its rows, in order of arrival."""
    groups: frozenset[tuple[int, ...]]
    """Ranks of each of the run's process groups, and all ranks."""
    random: bool
    """Whether layers draw random numbers, as dropout does."""
    parts: Mapping[Key, Sequence[Part]]
    """Parts of each tensor on the ranks, and of modules' copies of parameters (USED)."""

    @property
    def kept(self) -> dict[Key, Sequence[Part]]:
        """Return the parts of tensors of which some rank recorded elements."""
        return {k: of for k, of in self.parts.items() if any(part.kept for _, part in of)}

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Return the sizes of the groups, without those of a single rank."""
        return tuple(sorted({len(ranks) for ranks in self.groups} - {0, 1}))

    @property
    def steps(self) -> tuple[int, ...]:
        """Return the steps with a gradient, or with a parameter after the step."""
        keys = (*self.tensors, *self.unknown)
        return tuple(sorted({step for step, what, _ in keys if what != "init"}))

    def names(self, what: str) -> frozenset[str]:
        """Return the names recorded by any rank, including those without a known layout."""
        return frozenset(n for _, kind, n in (*self.tensors, *self.unknown) if kind == what)

    def ordered(self) -> list[str]:
        """Return the names of parameters in the order of the model. If ranks of a pipeline each
        count from 0, those of the lowest rank come first."""
        orders: dict[str, set[tuple[int, int]]] = defaultdict(set)
        for whole in self.tensors.values():
            orders[whole.name].add((whole.first_rank, whole.order))
        found = {name: min(places) for name, places in orders.items()}
        one_count = len({order for _, order in found.values()}) == len(found)
        return sorted(found, key=lambda n: (found[n][1] if one_count else found[n], n))

    def in_order(self) -> Iterator[Key]:
        """Yield the keys of tensors in the order of execution."""
        names = self.ordered()
        for step in sorted({key[0] for key in self.tensors}):
            yield from ((step, "init", name) for name in names)
            yield from ((step, "grad", name) for name in reversed(names))
            yield from ((step, "param", name) for name in names)
            yield from ((step, "buffer", name) for name in names)


def told(store: Store, prefixes: Mapping[Model, Prefixes] | None = None) -> Iterator[Part]:
    """Yield (rank, tensor) of the newest life of a run, with the reference's names. ``prefixes``:
    of modules that are a part of the model."""
    for rank, process in store.rank_procs(None).items():
        for tensor in process.tensors:
            of = (tensor.step, tensor.what, tensor.name, tensor.model)
            if (kept := process.kept.get(of)) is not None:
                tensor = replace(tensor, kept=kept)
            known = (prefixes or {}).get((rank, tensor.model))
            if known is not None and tensor.what not in (_INPUT, _RANDOM):
                name = _renamed(tensor.name, known) if tensor.name else ""
                if not name:  # a part of the model is not the model
                    continue
                tensor = replace(tensor, name=name)
            yield rank, tensor


def _renamed(name: str, prefixes: Prefixes) -> str:
    """Return a name with its longest known beginning replaced."""
    parts = name.split(".")
    for end in range(len(parts), -1, -1):
        head = ".".join(parts[:end])
        if head in prefixes:
            return ".".join(part for part in (prefixes[head], *parts[end:]) if part)
    return name


def wholes(
    store: Store, prefixes: Mapping[Model, Prefixes] | None = None, later: Collection[int] = (),
    in_place: Callable[[dict[Key, list[Part]]], dict[Key, list[Part]]] | None = None,
) -> Wholes:  # fmt: skip
    """Return the tensors captured in the newest life of a run. ``prefixes``: see ``told``;
    ``later``: ranks whose inputs are not the model's; ``in_place``: puts parts at their place in a
    reference's tensor; then parts at one place that begin equal are replicas."""
    parts: dict[Key, list[Part]] = defaultdict(list)
    random = False
    for rank, tensor in told(store, prefixes):
        random |= tensor.what == _RANDOM
        if tensor.what not in (_INPUT, _RANDOM, *_OF_MODULES):
            parts[tensor.step, tensor.what, tensor.name].append((rank, tensor))
    if in_place is not None:
        parts = in_place(parts)
    equal = {} if in_place is None else _equal_from_the_start(parts)
    tensors: dict[Key, Whole] = {}
    unknown: dict[Key, Gap] = {}
    for key, known in parts.items():
        if key[1] == USED:
            continue
        found = whole_of(known, equal.get(key[2], frozenset()))
        if isinstance(found, Whole):
            tensors[key] = found
        else:
            unknown[key] = found
    groups = {tuple(sorted(group.ranks)) for group in store.groups.values()}
    everyone = tuple(sorted(store.rank_procs(None)))
    return Wholes(
        tensors, unknown, _inputs(store, later), _sums(store, later),
        frozenset({*groups, everyone}), random,
        parts,
    )  # fmt: skip


def _equal_from_the_start(parts: Mapping[Key, Sequence[Part]]) -> dict[str, frozenset[int]]:
    """Return parameter -> its ranks, if those that have the same part of it begin equal."""
    found = {}
    for (_, what, name), known in parts.items():
        values = {(part.offset, part.size, part.bits) for _, part in known}
        if what == "init" and len(values) == len({value[:2] for value in values}):
            found[name] = frozenset(rank for rank, _ in known)
    return found


def samples(store: Store, later: Collection[int] = ()) -> dict[tuple[int, int], frozenset[int]]:
    """Return (rank, step) -> samples that entered the model, if they are known to be complete.
    Later stages of a pipeline, and the ranks ``later``, get activations instead."""
    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    full = set()
    for rank, tensor in _model_inputs(store, later):
        if tensor.name == "0":
            found[rank, tensor.step].update(tensor.samples)
            if len(tensor.samples) >= MAX_ROWS:
                full.add((rank, tensor.step))
    return {key: frozenset(rows) for key, rows in found.items() if rows and key not in full}


def _inputs(store: Store, later: Collection[int]) -> dict[int, dict[str, frozenset[int]] | None]:
    """Return the rows that entered the model; later stages of a pipeline get activations."""
    rows: dict[int, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for rank, tensor in _model_inputs(store, later):
        rows[tensor.step][tensor.name].update(tensor.samples)
        counts[rank, tensor.step] += max(len(tensor.samples), *tensor.shape[:1], 0)
    full = {step for (_, step), number in counts.items() if number >= MAX_ROWS}  # some are missing
    return {
        step: None if step in full else {name: frozenset(found) for name, found in args.items()}
        for step, args in rows.items()
    }


def _sums(store: Store, later: Collection[int]) -> dict[int, dict[str, dict[int, tuple[int, ...]]]]:
    """Return the sums of the rows that entered the model."""
    found: dict[int, dict[str, dict[int, tuple[int, ...]]]] = defaultdict(lambda: defaultdict(dict))
    for rank, tensor in _model_inputs(store, later):
        of = found[tensor.step][tensor.name]
        of[rank] = of.get(rank, ()) + tensor.sums
    return found


def _model_inputs(store: Store, later: Collection[int]) -> Iterator[tuple[int, TensorDef]]:
    """Yield (rank, input of the model), without later stages and the ranks ``later``."""
    for rank, process in store.rank_procs(None).items():
        if min(process.stages, default=0) == 0 and rank not in later:
            yield from ((rank, tensor) for tensor in process.tensors if tensor.what == _INPUT)


def whole_of(parts: Sequence[Part], equal: Collection[int] = ()) -> Whole | Gap:
    """Return the tensor that parts, (rank, part), add up to, or the reason why they do not.
    ``equal``: ranks known as replicas."""
    first = parts[0][1]
    if any(part.shape != first.shape for _, part in parts):
        return "shapes"
    if any(part.dtype != first.dtype for _, part in parts):
        return "dtypes"
    if not all(is_placed(part) for _, part in parts):
        return "place"
    added = _added(parts)
    if isinstance(added, str):
        return added
    parts = added
    boxes: dict[Box, list[Part]] = defaultdict(list)
    for rank, part in parts:
        if part.count or not math.prod(first.shape):
            boxes[part.offset, part.size].append((rank, part))
    total = sum(same[0][1].count for same in boxes.values())
    if overlap(list(boxes)):
        return "overlap"
    if total != math.prod(first.shape):
        return "incomplete"
    unlike = [same for same in boxes.values() if len({part.bits for _, part in same}) > 1]
    if not all(_replicas(same, equal) for same in unlike):
        return "copies"
    firsts = [boxes[box][0][1] for box in sorted(boxes)]
    differing = unlike[0] if unlike else []
    vectors = [part.vector for _, part in differing] if len(boxes) == 1 else []
    some = any(part.most for part in firsts) and len(boxes) > 1
    zeros = [rank for same in boxes.values() for rank, p in same if not (p.most or p.bad)]
    return Whole(
        first.step, first.what, first.name, first.order, min(rank for rank, _ in parts),
        first.dtype, first.shape, total, max((p.most for _, p in parts), default=0.0),
        sum(part.bad for part in firsts),
        np.sum([part.vector for part in firsts], axis=0) if firsts else np.zeros(1),
        tuple((rank, part.bits) for rank, part in differing),
        tuple(vectors), bool(differing) and not _replicas(differing, ()),
        tuple(sorted(zeros)) if some else (),
        tuple(part.bits for part in firsts),
        sum(len(same) - 1 for same in boxes.values() if _replicas(same, equal)),
    )  # fmt: skip


def _added(parts: Sequence[Part]) -> list[Part] | Gap:
    """Return the parts, with the summands at each place added up, one replica of each."""
    found: list[Part] = []
    of: dict[Any, dict[int, list[Part]]] = defaultdict(lambda: defaultdict(list))
    for rank, part in parts:
        if part.summand is None:
            found.append((rank, part))
        else:
            of[part.offset, part.size, part.summand[1]][part.summand[0]].append((rank, part))
    for (_, _, count), summands in of.items():
        if len(summands) != count:
            return "incomplete"
        if any(len({part.bits for _, part in same}) > 1 for same in summands.values()):
            return "copies"
        firsts = [same[0][1] for _, same in sorted(summands.items())]
        whole = replace(
            firsts[0], summand=None, most=max(part.most for part in firsts),
            bad=sum(part.bad for part in firsts), bits=sum(part.bits for part in firsts),
            sketch=np.sum([part.vector for part in firsts], axis=0).tobytes(),
        )  # fmt: skip
        found.append((min(rank for same in summands.values() for rank, _ in same), whole))
    return found


def is_placed(part: TensorDef) -> bool:
    """Return whether a part is a box within its tensor, with a sketch."""
    dims = len(part.shape)
    inside = len(part.offset) == len(part.size) == dims and all(
        offset >= 0 and size >= 0 and offset + size <= whole < MAX_NUMBER
        for offset, size, whole in zip(part.offset, part.size, part.shape, strict=True)
    )
    whole = part.count == math.prod(part.size) and bool(part.sketch)
    return inside and whole and bool((np.abs(part.vector) < LARGEST).all())


def overlap(boxes: Sequence[Box]) -> bool:
    """Return whether any two different boxes (offset, size) share an element."""
    if len(boxes) < 2:
        return False
    begin = np.array([box[0] for box in boxes], dtype=np.int64)
    end = begin + np.array([box[1] for box in boxes], dtype=np.int64)
    return any(
        bool(((begin[at + 1 :] < end[at]) & (begin[at] < end[at + 1 :])).all(axis=1).any())
        for at in range(len(boxes) - 1)
    )


def _replicas(same: Iterable[Part], equal: Collection[int]) -> bool:
    """Return whether the ranks that have equal boxes are known as replicas of each other."""
    known = dict(same)
    sure = known.keys() <= set(equal)
    return len(known) > 1 and (
        sure or all(known.keys() <= set(part.over) for part in known.values())
    )


def ended_equal(a: Wholes, b: Wholes, step: int) -> bool:
    """Return whether both had the same parameters, bit by bit, after a step."""
    keys = [key for key in a.tensors if key[:2] == (step, "param")]
    return bool(keys) and all(
        key in b.tensors and b.tensors[key].bits == a.tensors[key].bits for key in keys
    )
