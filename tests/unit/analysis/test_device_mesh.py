"""The device mesh by its groups, by hand."""

from __future__ import annotations

import pytest

from pardbg.analysis.answers.device_mesh import Axis, Mesh, device_mesh
from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.base.asof import View
from pardbg_agent import wire
from tests.unit.trace_builder import Proc, Trace

CUBE = {"tp0": (0, 1), "tp1": (2, 3), "pp0": (0, 2), "pp1": (1, 3), "dp0": (0, 4), "dp3": (3, 7)}
FLAT = {"dp_pp": (0, 2, 4, 6), "all": tuple(range(8))}
UNEVEN = {"odd": (0, 1, 5)}


def told(proc: Proc, groups: dict[str, tuple[int, ...]]) -> None:
    for at, (key, ranks) in enumerate(groups.items(), 1):
        if proc.rank in ranks:
            axis = key.rstrip("0123456789")
            proc.define(wire.DefKind.GROUP, id=at, key=key, name=key, axis=axis, ranks=list(ranks),
                        backend="gloo")  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        (CUBE | FLAT | UNEVEN, [("dp", 2), ("pp", 2), ("tp", 2)]),
        ({"tp0": (0, 1), "tp1": (2, 3)}, [("", 4), ("tp", 2)]),
        ({"dp0": (0, 4)}, [("dp", 2), ("", 4)]),
        ({"all": tuple(range(8))}, [("all", 8)]),
        ({}, [("", 8)]),
    ],
    ids=["cube", "tp alone", "dp alone", "one group", "none"],
)
def test_axes_are_those_of_evenly_spaced_groups(
    groups: dict[str, tuple[int, ...]], axes: list[tuple[str, int]]
) -> None:
    """The shortest of those that begin alike; what no group divides has no name."""
    trace = Trace(8)
    for proc in trace.ranks:
        told(proc, groups)
    found = device_mesh(View(trace.store(), None), 8)
    assert [(axis.name, axis.size) for axis in found.axes] == axes
    assert snapshot(trace.store(), None).mesh == found


def test_a_rank_has_a_place_on_each_axis() -> None:
    mesh = Mesh((Axis("dp", 32), Axis("pp", 8), Axis("tp", 4)))
    assert mesh.coordinates(613) == (19, 1, 1)  # 613 = 19·32 + 1·4 + 1
    assert [mesh.stride(at) for at in range(3)] == [32, 4, 1]


@pytest.mark.parametrize("far", [(0, 1, 1 << 60), (0, (1 << 32) - 7), (0, 4, 8, 12)])
def test_a_group_that_leaps_far_is_read_by_its_size(far: tuple[int, ...]) -> None:
    """A recording may claim any ranks: no axis is longer than the ranks that there are."""
    trace = Trace(8)
    for proc in trace.ranks:
        told(proc, {"far": far})
    assert device_mesh(View(trace.store(), None), 8).axes == (Axis("", 8),)
