"""The sentence over the memory page, and the ladder of ZeRO levels."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pardbg.analysis.memory.breakdown import MemoryRow, ZeroModel
from pardbg.render.draw.cells import Line, line_width, plain
from pardbg.render.pages.memory import memory
from pardbg.render.pages.zero_ladder import LEVELS, counted, ladder, verdict
from tests.ui.sample import snapshot_ddp

MIB = 1 << 20
MODEL = ZeroModel(0, 0, 4, 8 * MIB, 8 * MIB, 16 * MIB)
ROW = MemoryRow(
    0, 8 * MIB, 8 * MIB, 16 * MIB, MIB, MIB, 300 * MIB, 333 * MIB, "rss", 32 * MIB, (), MODEL
)  # fmt: skip


def sign(line: Line) -> str:
    return plain(line).strip()[0]


@pytest.mark.parametrize("cells", [56, 57, 80, 120])
def test_each_level_has_its_bytes_and_how_much_less_that_is(cells: int) -> None:
    """8 + 8 + 16 = 32; 8 + 8 + 4 = 20 (-38%); 8 + 2 + 4 = 14 (-56%); 2 + 2 + 4 = 8 (-75%)."""
    drawn = ladder(ROW, cells)
    assert all(line_width(line) <= cells for line in drawn)
    for level, (line, bytes_, against) in enumerate(
        zip(drawn[:4], ("32", "20", "14", "8"), ("here", "−38%", "−56%", "−75%"), strict=True)
    ):
        text = plain(line)
        assert LEVELS[level] in text
        assert re.search(rf" {bytes_}(\.0)? MiB +{against}", text), text


@pytest.mark.parametrize(
    ("parameters", "shards", "many"),
    [(2 * MIB, 4, ("16Φ", "10Φ", "7Φ", "4Φ")), (0, 4, ("4P", "2.5P", "1.75P", "1P")),
     (2 * MIB, 3, ("16Φ", "10.7Φ", "8Φ", "5.33Φ"))],
)  # fmt: skip
@pytest.mark.parametrize(("cells", "rows"), [(62, 0), (78, 0), (78, 20), (56, 20)])
def test_each_level_is_a_multiple_of_the_parameters(
    parameters: int, shards: int, many: tuple[str, ...], cells: int, rows: int
) -> None:
    """4 bytes a parameter, 4 of gradient, 8 of Adam: 4+4+8/3 = 10.7, 4+12/3 = 8, 16/3 = 5.33."""
    own = replace(ROW, zero=replace(MODEL, parameters=parameters, shards=shards))
    drawn = [plain(row) for row in ladder(own, cells, rows)]
    names = [text for text in drawn if any(f" {name} " in text for name in LEVELS)]
    assert len(names) == 4 and all(f" {m} " in text for m, text in zip(many, names, strict=True))
    assert max(map(len, drawn)) <= cells
    assert (f"{2 * MIB:,}" in drawn[-1]) == bool(parameters)


def test_bars_are_as_long_as_their_bytes() -> None:
    """Of 40 cells: 10 + 10 + 20; 10 + 10 + 5; 10 + 2.5 + 5; 2.5 + 2.5 + 5."""
    sizes = []
    for line in ladder(ROW, 120)[:4]:
        sizes.append(sum(len(run.text) for run in line if "mem." in run.style))
    assert sizes == [40, 25, 18, 10] or sizes == [40, 25, 17, 10]


@pytest.mark.parametrize(("rows", "each"), [(5, 1), (8, 1), (9, 2), (13, 3), (21, 5), (60, 6)])
def test_bars_are_taller_where_there_is_room(rows: int, each: int) -> None:
    """Four levels and a line on what was measured; of 50 cells 8 + 8 + 16 of 32 are all."""
    drawn = ladder(ROW, 56, rows)
    assert len(drawn) == 4 * each + 1 <= max(rows, 5)
    bars = [row for row in drawn[:each] if any("mem." in run.style for run in row)]
    assert len(bars) == max(1, each - 2)
    if each > 1:
        assert sum(len(run.text) for run in bars[0] if "mem." in run.style) == 50
        assert sum(plain(row).count("P") for row in bars) == 1, "its letter once"


def test_it_says_where_the_run_is_and_what_it_has() -> None:
    at_three = replace(ROW, zero=replace(MODEL, level=3), parameters_bytes=2 * MIB,
                       gradients_bytes=2 * MIB, optimizer_bytes=4 * MIB)  # fmt: skip
    drawn = [plain(line) for line in ladder(at_three, 80)]
    assert ["here" in text for text in drawn] == [False, False, False, True, False]
    assert "+300%" in drawn[0] and f"{8.0} MiB" in drawn[-1].replace("8 MiB", "8.0 MiB")


@pytest.mark.parametrize("zero", [None, replace(MODEL, shards=1)])
def test_there_is_none_where_nothing_is_known_or_cut(zero: ZeroModel | None) -> None:
    assert ladder(replace(ROW, zero=zero), 80) == []


def test_the_sentence_is_of_the_worst() -> None:
    rows = [replace(ROW, rank=rank) for rank in range(4)]
    assert sign(verdict(rows, {}, 80)) == "✓"
    assert "r" in plain(verdict(rows, {2: 100 * MIB}, 80))
    over = plain(verdict(rows, {0: 0, 2: 100 * MIB, 3: 40 * MIB}, 120))
    assert sign(verdict(rows, {2: 100 * MIB}, 80)) == "▲" and "2" in over and "100 MiB" in over


def test_what_is_not_as_expected_is_not_said_to_be() -> None:
    rows = [replace(ROW, rank=rank) for rank in range(4)]
    rows[3] = replace(rows[3], optimizer_bytes=20 * MIB)
    text = plain(verdict(rows, {}, 120))
    assert "✓" not in text and "36" in text and "32" in text and "3" in text


def test_before_the_first_optimizer_step_nothing_is_as_expected() -> None:
    early = [replace(ROW, optimizer_bytes=None)]
    assert counted(early[0]) is None and "✓" not in plain(verdict(early, {}, 80))
    unknown = [replace(ROW, expected_bytes=None, zero=None)]
    assert "✓" not in plain(verdict(unknown, {}, 80))


def test_a_job_that_starts_has_no_figures_yet() -> None:
    """No bars of nothing, and no sentence about them."""
    none = MemoryRow(0, None, None, None, None, None, None, None, "rss", None, ())
    made = replace(snapshot_ddp(2), memory=(none, replace(none, rank=1)))
    shown = memory(made, 80, 20)
    assert not any("r0" in plain(row) for row in shown.body)
    part = replace(none, parameters_bytes=MIB)
    assert any("r0" in plain(row) for row in memory(replace(made, memory=(part,)), 80, 20).body)
    assert plain(verdict([part], {}, 120)).split()[1] != "a"
