"""Whether two runs begin alike: with the same samples, and the same parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product

from pardbg.analysis.same.noise import ROUNDINGS, alike, coarser, difference
from pardbg.analysis.same.wholes import Whole, Wholes


def inputs(a: Wholes, b: Wholes) -> tuple[bool, int | None]:
    """Return whether the inputs of every common step are known, and the first step in which they
    differ: samples may come in any order, on any ranks, and each in parts on several."""
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
    context parallelism: their rows' sums, in the order that they got them, add up to those of
    ``a``'s. Empty: there are none, or they have whole rows."""
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
    """Return groups that share out the ranks, and have all rows that are wanted."""
    for size in sorted({len(group) for group, _ in fitting}):
        chosen = [(group, rows) for group, rows in fitting if len(group) == size]
        found = [rank for group, _ in chosen for rank in group]
        rows = {row for _, of in chosen for row in of}
        if len(found) == len(set(found)) and set(found) == ranks and rows == wanted.keys():
            return tuple(group for group, _ in chosen)
    return ()


def _wrapped(number: int) -> int:
    """Return a number as one of 64 bits with a sign, as torch adds them."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def initial(a: Wholes, b: Wholes) -> tuple[frozenset[str], Whole | None]:
    """Return the parameters whose initial values are equal, and the first where they are not."""
    equal: set[str] = set()
    begun = {key for key in a.tensors if key[1] == "init"}
    for step, name in product(sorted({key[0] for key in begun}), a.ordered()):
        left, right = (side.tensors.get((step, "init", name)) for side in (a, b))
        if left is None or right is None or not alike(left, right):
            continue
        epsilon = coarser(left, right)
        if epsilon is None or left.bad:
            continue
        if right.bad or difference(left, right) > ROUNDINGS * epsilon * left.norm:
            return frozenset(equal), left
        equal.add(left.name)
    return frozenset(equal), None
