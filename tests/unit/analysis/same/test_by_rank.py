"""Which ranks have what is off, by block: replicas by their own, parts by the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pardbg.analysis.same.by_rank import RankBlocks, block_of
from pardbg.analysis.same.comparison import Sameness, compare
from pardbg.analysis.same.module_rows import Numbers, as_dict
from pardbg.analysis.same.noise import RED
from pardbg.render.draw.cells import line_width, plain
from pardbg.render.pages.module_numbers import numbers
from tests.unit.analysis.same.captured import Run, changed, run

NORM = (0, "grad", "blocks.1.norm")


def off(found: Sameness) -> dict[int, list[str | None]]:
    """Blocks by rank that are off; None: the rank has none of it."""
    return {
        one.rank: [
            None if floors is None else block
            for block, floors in zip(found.blocks, one.floors, strict=True)
            if floors is None or floors > RED
        ]
        for one in found.ranks
    }


def compared(other: Run) -> Sameness:
    return compare(run().store(), other.store())


def test_a_replica_is_judged_by_its_own() -> None:
    odd = run(3, 1)
    odd.own[(*NORM, 2)] = odd.values[NORM] * 1.5
    found = compared(odd)
    assert found.blocks == ("embed", "blocks.0", "blocks.1", "head")
    assert off(found) == {0: [], 1: [], 2: ["blocks.1"]}


def test_all_that_have_a_part_are_off() -> None:
    halves = changed(run(2, 1, shard=True), lambda grad: grad * 2, "blocks.0.weight")
    assert off(compared(halves)) == {0: ["blocks.0"], 1: ["blocks.0"]}


def test_a_stage_has_its_blocks_alone() -> None:
    staged = changed(run(2, 1), lambda grad: grad * 2, "blocks.1.norm")
    for step, what, name in staged.values:
        last = name.startswith(("blocks.1", "head"))
        staged.hidden.add((step, what, name, 0 if last else 1))
    assert off(compared(staged)) == {0: [None, None], 1: [None, None, "blocks.1"]}


def test_where_all_is_well_nothing_is_off() -> None:
    found = compared(run(2, 3))
    assert off(found) == {0: [], 1: []} and not any("rank × block" in row for row in foot(found))
    assert [one["rank"] for one in as_dict(found)["ranks"]] == [0, 1]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "block"), [
    ("blocks.1.mlp.up.weight", "blocks.1"), ("model.layers.12", "model.layers.12"),
    ("head.weight", "head"), ("embed", "embed"), ("a.0.b.3.c", "a.0"),
])  # fmt: skip
def test_blocks(name: str, block: str) -> None:
    assert block_of(name) == block


def foot(found: Sameness, cells: int = 100) -> list[str]:
    drawn = numbers(Numbers(found, ()), cells, 30)
    assert max(map(line_width, drawn.foot)) <= cells
    return [plain(row) for row in drawn.foot]


def test_ranks_that_are_alike_are_drawn_once_and_as_many_as_fit() -> None:
    def ranks(*floors: tuple[float | None, ...]) -> Sameness:
        found = compared(changed(run(2, 3), lambda grad: grad * 2))
        made = Sameness("differs", 0, "grad", "a", rows=found.rows, blocks=tuple("abc"))
        return replace(made, ranks=tuple(RankBlocks(at, of) for at, of in enumerate(floors)))

    few = ranks((0.1, 5.0, 99.0), (0.1, 5.0, 99.0), (None, 0.1, 0.1))
    assert foot(few)[0].rstrip() == " rank × block  r0,1 ▁▄█  r2 ·▁▁    a … c"
    many = ranks(*((float(at & 1) * 99, float(at >> 1) * 99, 99.0) for at in range(4)))
    assert "r3 ███" in foot(many, 80)[0] and "+" not in foot(many, 80)[0]
    assert "+2" in foot(many, 46)[0] or "+3" in foot(many, 46)[0]
    # of many blocks the worst of neighbours
    long = ranks((0.1,) * 20 + (99.0,) + (0.1,) * 11)
    assert "r0 ▁▁▁▁▁▁▁▁▁▁█▁▁▁▁▁ " in foot(long)[0]
