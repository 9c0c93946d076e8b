"""Parameters that are cut by hand, where nobody states how.

A rank tells such a part as if it were a whole, and beside that what its sketch is if the part is a
slice along one of its groups. The reference's shape says which dimension is cut and into how many
parts; where several groups have that size, the initial values say which it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pardbg.analysis.same.noise import equal
from pardbg.analysis.same.wholes import Key, Part, Whole, whole_of
from pardbg.store.captured import CutDef, TensorDef


def in_place(told: Mapping[Key, list[Part]], begun: Mapping[str, Whole]) -> dict[Key, list[Part]]:
    """Return each tensor's parts, those that are slices of the reference's at their place.
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
    """Return the number of the group that the parts are slices along: with it they make up the
    reference's whole, if possible with its values."""
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
    """Return the cuts that would make the part a slice of a tensor of the whole's shape."""
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
