"""Whether two runs begin alike: with the same samples, and the same parameters."""

from __future__ import annotations

from itertools import product

from pardbg.analysis.same.noise import ROUNDINGS, alike, coarser, difference
from pardbg.analysis.same.wholes import Whole, Wholes


def inputs(a: Wholes, b: Wholes) -> tuple[bool, int | None]:
    """Return whether the inputs of every common step are known, and the first step in which they
    differ: samples may come in any order, on any ranks."""
    known = True
    for step in sorted(set(a.steps) & set(b.steps)):
        left, right = a.inputs.get(step), b.inputs.get(step)
        common = (left or {}).keys() & (right or {}).keys()
        if left is None or right is None or not common:
            known = False
        elif any(left[name] != right[name] for name in common):
            return True, step
    return known, None


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
