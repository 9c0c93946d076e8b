"""The schedules drawn in docs/recipes.md are those that torch plans."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from pardbg.analysis.pipeline.dependencies import Action
from pardbg.analysis.pipeline.play import compute_plan, simulate
from pardbg_agent.hooks.training.pipeline import texts
from pardbg_agent.schedule_orders import one_f_one_b

RANKS, MICROBATCHES = 4, 8
ROW = re.compile(r"    rank (\d)  (.*)")
PLANS = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B",
    "looped-bfs": "LoopedBFS", "zb": "InterleavedZeroBubble", "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV", "mp": "",
}  # fmt: skip
COLUMNS = {"F": 1, "B": 2, "I": 1, "W": 1}


def plan(schedule: str) -> dict[int, list[str]]:
    if not schedule:  # one batch handed on and back
        return {rank: [f"{rank}F0", f"{rank}B0"] for rank in range(RANKS)}
    if schedule == "1F1B":  # torch's own table is wrong in its last row
        return {rank: one_f_one_b(rank, RANKS, MICROBATCHES) for rank in range(RANKS)}
    rows = get_schedule_ops(schedule, RANKS, MICROBATCHES)
    return compute_plan({rank: texts(row) for rank, row in enumerate(rows)}, range(RANKS))


def drawn(schedule: str, columns: Mapping[str, int]) -> dict[int, list[str]]:
    """Two characters per column: ``F0``, ``f0`` in a rank's second stage, ``--`` while it lasts,
    ``..`` idle between its first and its last action, blank before and behind."""
    rows = plan(schedule)
    num_stages = 1 + max(int(re.match(r"\d+", text)[0]) for row in rows.values() for text in row)

    def length(_rank: int, action: Action) -> float:
        return columns[action.kind]

    run = simulate(rows, num_stages, length)
    assert run is not None
    made = {}
    for rank, boxes in run.rows.items():
        cells = ["  "] * int(boxes[0][1]) + [".."] * int(boxes[-1][2] - boxes[0][1])
        lowest = min(int(re.match(r"\d+", text)[0]) for text, _, _ in boxes)
        for text, begin, end in boxes:
            stage, kind, number = re.match(r"(\d+)(\w)(\d+)", text).groups()
            letter = kind if int(stage) == lowest else kind.lower()
            cells[int(begin) : int(end)] = ["--"] * int(end - begin)
            cells[int(begin)] = letter + number if schedule else f"{letter} "
        made[rank] = cells
    return made


def pictures(name: str) -> list[dict[int, list[str]]]:
    """The blocks of four rows in a recipe's part of the page, as columns."""
    page = Path(__file__).parents[3] / "docs" / "recipes.md"
    text = page.read_text(encoding="utf-8").partition(f"### `{name}`\n")[2].partition("\n### ")[0]
    rows = [ROW.fullmatch(line) for line in text.splitlines()]
    found = [(int(m[1]), columns_of(m[2])) for m in rows if m and ":" not in m[2]]
    return [dict(found[at : at + RANKS]) for at in range(0, len(found), RANKS)]


def columns_of(text: str) -> list[str]:
    return [f"{text[at : at + 2]:2}" for at in range(0, len(text), 3)]


def stripped(cells: Sequence[str]) -> list[str]:
    made = list(cells)
    while made and made[-1] == "  ":
        made.pop()
    return made


@pytest.mark.parametrize("name", PLANS)
def test_a_picture_draws_what_torch_plans(name: str) -> None:
    columns = {**COLUMNS, "B": 1} if name == "gpipe" else COLUMNS
    expected = drawn(PLANS[name], columns)
    blocks = pictures(name)
    assert blocks and all(sorted(block) == list(range(RANKS)) for block in blocks)
    for rank in range(RANKS):
        row: list[str] = []
        for block in blocks:
            row += block[rank][:-1] if block[rank][-1] == "… " else block[rank]
        # A picture that ends in dots shows the begin of the schedule.
        whole = blocks[-1][rank][-1] != "… "
        assert row == stripped(expected[rank] if whole else expected[rank][: len(row)])
    assert len(max(expected.values(), key=len)) <= 60
