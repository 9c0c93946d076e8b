"""A moving picture: each row of each screen at its time, what stays drawn once."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from io import StringIO

import pytest
from rich.console import Console
from rich.text import Text

from tests.ui.moving import moving, runs

pytestmark = pytest.mark.timeout(30)
_AT = re.compile(r"([\d.]+)% \{ visibility: (\w+) \}")


def screen(*rows: str) -> str:
    """A picture of rows as Textual makes it; ``!`` in front is red on blue."""
    console = Console(record=True, width=20, file=StringIO(), force_terminal=True)
    for row in rows:
        console.print(Text(row.lstrip("!"), "red on blue" if row[:1] == "!" else "white on black"))
    return console.export_svg(title="t")


FRAMES = [
    screen("head", "one", "!tail & more"), screen("head", "two", "!tail & more"),
    screen("head", "two", "end"), screen("head", "one", "end"),
]  # fmt: skip


def test_rows_are_drawn_once_for_as_long_as_they_stay() -> None:
    found = [
        (part.first, part.last, re.sub("<[^>]*>", "", part.drawn)) for part in runs(FRAMES, {})
    ]
    nbsp = "\u00a0"
    assert [part for part in found if part[2].strip(nbsp)] == [
        (0, 4, "head"), (0, 1, "one"), (1, 3, "two"), (3, 4, "one"),
        (0, 2, f"tail{nbsp}&amp;{nbsp}more"), (2, 4, "end"),
    ]  # fmt: skip


def test_each_is_seen_in_its_time_and_again() -> None:
    """Of 8 s: 1, 3, 2 and 2."""
    picture = moving(FRAMES, [1, 3, 2, 2])
    ET.fromstring(picture)
    assert picture.count("head") == 1
    times = {
        name: [(float(at), seen == "visible") for at, seen in _AT.findall(rule)]
        for name, rule in re.findall(r"@keyframes (f\d-\d) \{ (.*) \}", picture)
    }
    assert times == {
        "f0-1": [(0, True), (0, True), (12.5, False)],
        "f0-2": [(0, True), (0, True), (50, False)],
        "f1-3": [(0, False), (12.5, True), (75, False)],
        "f2-4": [(0, False), (50, True), (100, True)],
        "f3-4": [(0, False), (75, True), (100, True)],
    }
    assert "animation: f1-3 8s step-end infinite" in picture


def test_a_style_has_one_name_in_all_screens() -> None:
    styles: dict[str, str] = {}
    runs(FRAMES, styles)
    assert len(styles) == len(set(styles.values()))
    assert len({name for name in styles.values() if f'"{name}"' in moving(FRAMES, [1] * 4)}) >= 2
