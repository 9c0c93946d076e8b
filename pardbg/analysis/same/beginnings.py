"""Equality of two runs' beginnings: samples and initial parameters.

Parameters may be cut by hand without a stated layout. A rank records such a part as if it were a
whole, and with it the sketch that it has if the part is a slice along one of the rank's groups. The
reference's shape tells which dimension is cut and into how many parts; if several groups have that
size, the initial values tell which one it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

from pardbg.analysis.same.noise import ROUNDINGS, alike, coarser, difference, equal
from pardbg.analysis.same.wholes import Key, Part, Prefixes, Whole, Wholes, samples, whole_of
from pardbg.store.captured import CutDef, TensorDef
from pardbg.store.store import Store


def inputs(a: Wholes, b: Wholes) -> tuple[bool, int | None]:
    """Return (whether the inputs of every common step are known, first step in which they differ):
    samples may come in any order, on any ranks, and each in parts on several ranks."""
    known = True
    for step in sorted(set(a.steps) & set(b.steps)):
        left, right = a.inputs.get(step), b.inputs.get(step)
        common = (left or {}).keys() & (right or {}).keys()
        if left is None or right is None or not common:
            known = False
        elif not all(left[name] == right[name] or sharing(a, b, step, name) for name in common):
            return True, step
    return known, None


def sharing(a: Wholes, b: Wholes, step: int, name: str) -> tuple[tuple[int, ...], ...]:
    """Return the groups of ranks of ``b`` that have parts of each row of ``a``'s argument, as in
    context parallelism: their rows' sums, in order of arrival, add up to those of ``a``'s. Empty:
    there are none, or they have whole rows."""
    left, right = ((side.inputs.get(step) or {}).get(name) for side in (a, b))
    if left is None or left == right:
        return ()
    wanted = Counter(sum_ for sums in a.sums.get(step, {}).get(name, {}).values() for sum_ in sums)
    parts = b.sums.get(step, {}).get(name, {})
    if not wanted or not parts:
        return ()
    fitting = []
    for ranks in sorted(b.groups):
        of = [parts.get(rank, ()) for rank in ranks]
        if len(ranks) > 1 and of[0] and len({len(sums) for sums in of}) == 1:
            whole = Counter(_wrapped(sum(row)) for row in zip(*of, strict=True))
            if whole <= wanted:
                fitting.append((ranks, whole))
    return _covering(fitting, frozenset(parts), wanted)


Fitting = tuple[tuple[int, ...], Counter[int]]


def _covering(
    fitting: Sequence[Fitting], ranks: frozenset[int], wanted: Counter[int]
) -> tuple[tuple[int, ...], ...]:
    """Return groups that partition the ranks and have all wanted rows; empty: there are none."""
    for size in sorted({len(group) for group, _ in fitting}):
        chosen = [(group, rows) for group, rows in fitting if len(group) == size]
        found = [rank for group, _ in chosen for rank in group]
        rows = {row for _, of in chosen for row in of}
        if len(found) == len(set(found)) and set(found) == ranks and rows == wanted.keys():
            return tuple(group for group, _ in chosen)
    return ()


def _wrapped(number: int) -> int:
    """Return a number wrapped to a signed 64-bit integer, as torch adds them."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def initial(a: Wholes, b: Wholes) -> tuple[frozenset[str], Whole | None]:
    """Return (parameters whose initial values are equal, the first one whose values are not)."""
    known: set[str] = set()
    begun = {key for key in a.tensors if key[1] == "init"}
    for step, name in product(sorted({key[0] for key in begun}), a.ordered()):
        left, right = (side.tensors.get((step, "init", name)) for side in (a, b))
        if left is None or right is None or not alike(left, right):
            continue
        epsilon = coarser(left, right)
        if epsilon is None or left.bad:
            continue
        if right.bad or difference(left, right) > ROUNDINGS * epsilon * left.norm:
            return frozenset(known), left
        known.add(left.name)
    return frozenset(known), None


def later_ranks(a: Wholes, run: Store, parts: Mapping[tuple[int, int], Prefixes]) -> frozenset[int]:
    """Return ranks with a part of the model and none of its input rows: later pipeline stages."""
    rows = {step: (found or {}).get("0", frozenset()) for step, found in a.inputs.items()}
    partial = {rank for rank, _ in parts}
    taken = {
        rank for (rank, step), own in samples(run).items() if own & rows.get(step, frozenset())
    }
    return frozenset(partial - taken)


def in_place(told: Mapping[Key, list[Part]], begun: Mapping[str, Whole]) -> dict[Key, list[Part]]:
    """Return each tensor's parts, with slices put at their place in the reference's tensor.
    ``begun``: the reference's initial parameters by name."""
    steps = defaultdict(list)
    for key in told:
        steps[key[2]].append(key)
    found = dict(told)
    for name, keys in steps.items():
        whole = begun.get(name)
        first = next((key for key in keys if key[1] == "init"), None)
        if whole is None or first is None or all(p.shape == whole.shape for _, p in told[first]):
            continue
        number = _choice(told[first], whole)
        if number is not None:
            for key in keys:
                moved = _sliced(told[key], whole, number)
                found[key] = told[key] if moved is None else moved
    return found


def _choice(parts: Sequence[Part], whole: Whole) -> int | None:
    """Return the number of the group along which the parts are slices of the reference's whole."""
    complete = []
    for number in range(max(len(_fitting(part, whole)) for _, part in parts)):
        moved = _sliced(parts, whole, number)
        made = None if moved is None else whole_of(moved)
        if isinstance(made, Whole):
            if equal(whole, made):
                return number
            complete.append(number)
    return complete[0] if complete else None


def _fitting(part: TensorDef, whole: Whole) -> list[CutDef]:
    """Return the cuts by which the part is a slice of a tensor of the whole's shape."""
    return [
        cut for cut in part.cuts
        if cut.parts > 1 and cut.dim < len(part.shape) == len(whole.shape)
        and whole.shape == tuple(
            n * (cut.parts if dim == cut.dim else 1) for dim, n in enumerate(part.shape)
        )
    ]  # fmt: skip


def _sliced(parts: Sequence[Part], whole: Whole, number: int) -> list[Part] | None:
    found: list[Part] = []
    for rank, part in parts:
        cuts = _fitting(part, whole)
        if part.size != part.shape or len(cuts) <= number:
            return None
        cut = cuts[number]
        offset = tuple(n * cut.at if dim == cut.dim else 0 for dim, n in enumerate(part.shape))
        moved = replace(part, shape=whole.shape, offset=offset, sketch=cut.sketch, cuts=())
        found.append((rank, moved))
    return found
