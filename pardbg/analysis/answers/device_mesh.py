"""The device mesh: axes along which the run's process groups lie, and each rank's place on it."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from math import prod
from typing import Final

from pardbg.analysis.base.asof import View
from pardbg.store.definitions import GroupDef


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of the mesh."""

    name: str
    """Name of the axis; empty: no group names it."""
    size: int


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks in the order of their numbers, row by row: the last axis is that of neighbours."""

    axes: tuple[Axis, ...]
    strides: tuple[int, ...] = ()
    """Differences of the rank numbers of neighbours on each axis, for a turned mesh; else empty."""

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Return a rank's coordinate on each axis."""
        return tuple(rank // self.stride(at) % axis.size for at, axis in enumerate(self.axes))

    def stride(self, at: int) -> int:
        """Return the difference of the rank numbers of neighbours on axis ``at``."""
        return self.strides[at] if self.strides else prod(one.size for one in self.axes[at + 1 :])

    def turn(self, by: int) -> Mesh:
        """Return the same mesh with its first ``by`` axes moved behind the others."""
        order = [(at + by) % len(self.axes) for at in range(len(self.axes))]
        return Mesh(tuple(self.axes[at] for at in order), tuple(map(self.stride, order)))


NO_MESH: Final = Mesh(())


def device_mesh(view: View, num_ranks: int) -> Mesh:
    """Return the mesh of ``num_ranks`` ranks, by groups whose ranks are evenly spaced. A part that
    no groups divide is one unnamed axis."""
    memo, key = view.memo("device mesh"), (len(view.store.groups), num_ranks)
    if key not in memo:
        newest = max((group.epoch for group in view.store.groups.values()), default=0)
        groups = [group for group in view.store.groups.values() if group.epoch == newest]
        memo[key] = _mesh(groups, num_ranks)
    found: Mesh = memo[key]
    return found


def _mesh(groups: list[GroupDef], num_ranks: int) -> Mesh:
    names: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    for group in groups:
        size = len(group.ranks)
        stride = group.ranks[1] - group.ranks[0] if 1 < size < num_ranks else 0
        even = range(group.ranks[0], group.ranks[0] + size * stride, stride) if stride > 0 else ()
        if even and even[-1] < num_ranks and group.ranks == tuple(even):
            names[stride, size][group.axis or ""] += 1
    axes, done = list[Axis](), 1
    while done < num_ranks:
        # Take the shortest of axes with one stride: longer ones are several axes flattened.
        near = min((key for key in names if key[0] == done), key=lambda key: key[1], default=None)
        if near is not None:
            size, name = near[1], names[near].most_common(1)[0][0]
        else:
            later = [stride for stride, _ in names if stride > done and stride % done == 0]
            size, name = min(later, default=-(-num_ranks // done * done)) // done, ""
        axes.append(Axis(name, max(2, size)))
        done *= axes[-1].size
    whole = next((g.axis for g in groups if len(g.ranks) == num_ranks and g.axis), "")
    if len(axes) == 1 and whole:
        axes = [Axis(whole, axes[0].size)]
    return Mesh(tuple(reversed(axes)))
