"""The start screen's list and preview: two numbers of one thing have their names."""

from __future__ import annotations

from pathlib import Path
from statistics import median_high

from pardbg.render.draw.cells import plain
from pardbg.render.frame.start_page import Entry, preview
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
