"""The start screen's list and preview: two numbers of one thing have their names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median_high

from pardbg.render.draw.cells import plain
from pardbg.render.frame.start_page import Entry, own_names, preview, start_page
from pardbg.session.digest import digest
from pardbg.words import duration

PATH = Path(__file__).parents[3] / "sessions" / "fault-slow-loader.mcap"


def test_the_preview_names_the_median_that_the_list_shows_and_the_last_step() -> None:
    found = digest(PATH)
    times = [ns for _, ns in found.times]
    entry = Entry("recording", PATH.stem, str(PATH), 0, digest=found)
    (row,) = [text for text in map(plain, preview(entry, 60, 50)) if "step time" in text]
    middle, last = duration(median_high(times)), duration(times[-1])
    assert middle != last and f"median {middle} " in row and row.rstrip().endswith(last)


def test_runs_of_one_name_are_told_apart_by_what_differs_in_their_ids() -> None:
    found = digest(PATH)
    one, other, alone = (
        Entry("recording", stem, f"/somewhere/{stem}.mcap", 0, digest=replace(found, name=name))
        for stem, name in (
            ("1f1b-20261201-104310", "1f1b"),
            ("1f1b-20261201-104544", "1f1b"),
            ("ddp-20261201-104310", "ddp"),
        )
    )
    live = Entry("live", "1f1b", "1f1b-189fe3ff", 0)
    assert own_names((one, other, alone)) == {one.target: "104310", other.target: "104544"}
    assert own_names((live, one)) == {live.target: "189fe3ff", one.target: "20261201-104310"}
    for cells in (80, 120):
        page = [plain(row) for row in start_page((one, other, alone), 2, cells, 20, 0).body]
        assert sum("1f1b 104310" in row for row in page) == 1
        assert sum("1f1b 104544" in row for row in page) == 1
