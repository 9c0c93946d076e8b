"""The answer of ``pardbg same`` as a page: each module with its bars, safe from what it shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pardbg.analysis.same.comparison import Sameness
from pardbg.analysis.same.module_flow import Place
from pardbg.analysis.same.module_rows import as_dict, numbers_of
from pardbg.cli import main
from pardbg.render.reports.same_page import same_page
from pardbg.session.source_files import Place as Where
from pardbg.session.source_files import SourceLines
from tests.unit.analysis.same.captured import changed, run
from tests.unit.render.test_html import Outline, boxes
from tests.unit.render.test_module_numbers import answer


def test_each_module_has_its_bars_and_the_first_is_marked() -> None:
    found = answer(3)
    source = SourceLines(Where("/model.py", 47), 46, ("a < b", "c & d"), "")
    made = same_page(numbers_of(found), "a.mcap and b.mcap", source)
    outline = Outline(made)
    assert not outline.open and "script" not in outline.tags
    assert "   47 ▶ c & d" in outline.text and "a < b" in outline.text
    at = made.index('<svg viewBox="0 0 1000')
    picture = made[at : made.index("</svg>", at) + len("</svg>")]
    levels = {level: len(boxes(picture, f"level {level}")) for level in ("green", "yellow", "red")}
    values = [one for row in numbers_of(found).modules for one in row.floors.values()]
    # the first module's sum is a sign, not a bar
    assert sum(levels.values()) == len(values) - 1 and levels["red"] > 10
    assert outline.text.count("▶ blocks.2.mlp.up_projection") == 1


def test_it_shows_text_of_a_recording_as_text() -> None:
    odd = "<script>alert(1)</script>"
    place = Place("out", odd, odd, f"/{odd}.py:1", "", None)
    found = replace(answer(1), name=odd, place=place)
    assert "<script" not in same_page(numbers_of(found), odd, None)


def test_an_answer_without_modules_is_a_page_too() -> None:
    for found in (Sameness("nothing-captured", name="A"), Sameness("same")):
        assert not Outline(same_page(numbers_of(found), "a", None)).open
    assert as_dict(answer(1))["modules"] != []


def test_the_command_writes_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [run().file(tmp_path / "a.mcap"),
             changed(run(2, 3), lambda g: g * 2).file(tmp_path / "b.mcap")]  # fmt: skip
    page = tmp_path / "page.html"
    words = ["same", *map(str, paths), "--html", str(page)]
    for more, code in (([], 1), ([], 2), (["--force"], 1), (["--show"], 2)):
        with pytest.raises(SystemExit) as end:
            main([*words, *more])
        assert end.value.code == code
    assert not Outline(page.read_text()).open
    assert capsys.readouterr().out.count("Not the same computation") == 2
