"""The numbers page: a row for each module, its bars, and what was not judged, at any size."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.same.comparison import NotJudged, Row, Sameness, alone, compare
from pardbg.analysis.same.hypotheses import Hypothesis
from pardbg.analysis.same.module_flow import Place
from pardbg.analysis.same.module_rows import numbers_of
from pardbg.analysis.same.siblings import Beside
from pardbg.cli.common import load_session
from pardbg.render.draw.cells import Picture, line_width, plain
from pardbg.render.pages.module_numbers import TWO_COLUMNS, listed, module_detail, numbers
from pardbg.session.source_files import Place as Where
from pardbg.session.source_files import SourceLines
from tests.unit.analysis.same.captured import changed, run

pytestmark = pytest.mark.timeout(60)
SESSIONS = Path(__file__).parents[3] / "sessions"
SIZES = (60, 80, 109, TWO_COLUMNS, 120, 200)


def text(picture: Picture) -> list[str]:
    return [plain(row) for row in (*picture.head, *picture.body, *picture.foot)]


def answer(seed: int) -> Sameness:
    drawn = random.Random(seed)
    names = [f"blocks.{at}{inside}" for at in range(40) for inside in (".mlp.up_projection", "")]
    floors = {(what, n): 10 ** drawn.uniform(-3, 8) for n in names for what in ("out", "d_out")}
    floors["out", names[0]] = float("inf")
    rows = tuple(
        Row(0, what, name, 0.1, value, "red" if value > 10 else "green")
        for (what, name), value in floors.items()
    )
    return Sameness(
        "differs", 0, "out", names[4], Hypothesis("sum", ranks=(0, 1)),
        Place("out", names[4], "Mlp", "/model.py:47", "", None),
        (Beside("blocks.2", False, "all_reduce", "tp", 1 << 13, 1, 2, 40),), rows,
        (NotJudged("layout", ("out",), tuple(f"tensor.{at}" for at in range(50))),),
    )  # fmt: skip


@pytest.mark.parametrize("cells", SIZES)
@pytest.mark.parametrize("at", [0, 4, 79])
def test_it_fits_and_marks_the_module_to_look_at(cells: int, at: int) -> None:
    found = numbers_of(answer(cells))
    source = SourceLines(Where("/model.py", 47), 40, tuple(f"code {n}" for n in range(40, 60)), "")
    drawn = numbers(found, cells, 30, at, source=source)
    assert max(map(line_width, (*drawn.head, *drawn.body, *drawn.foot))) <= cells
    marked = [row for row in text(drawn) if row.startswith(" ▶")]
    assert len(marked) == 1 and "up_projection" in marked[0]
    assert drawn.focus == at and drawn.rows[at] == at
    beside = [row for row in text(drawn) if "all_reduce over tp" in row]
    assert len(beside) == (cells >= TWO_COLUMNS)  # in a table; in any case it is in the answer


def test_bars_have_the_colour_of_their_floors() -> None:
    rows = tuple(
        Row(0, "out", name, 0.1, floors, "green")
        for name, floors in (("a", 0.5), ("b", 3.0), ("c", 9.0), ("d", 1e6))
    )
    drawn = numbers(numbers_of(Sameness("same", rows=rows, num_tensors=4)), 100, 30, 9)
    bars = [next(s for s in row if s.text.startswith("█")) for row in drawn.body[:4]]
    assert [bar.style for bar in bars] == ["good", "good", "warn", "bad"]
    # one cell up to a floor, all of them from six powers of ten on
    assert [len(bar.text) for bar in bars][::3] == [1, 9]


def test_gradients_alone_are_listed_from_the_first_module_on() -> None:
    reference = run()
    found = numbers_of(
        compare(reference.store(), changed(run(2, 3), lambda g: g * 2, "blocks.1.norm").store())
    )
    names = [row.name for row in listed(found)]
    assert names == ["embed", "blocks.0", "blocks.1", "head"]
    assert [row.name for row in listed(found) if row.first] == ["blocks.1"]
    assert [row.name for row in listed(found, "BLOCKS.0")] == ["blocks.0"]
    detail = text(module_detail(found.found, listed(found)[2], 100))
    assert sum("blocks.1.norm" in row for row in detail) == 1  # the parameter is not judged


def test_a_run_alone_and_one_without_tensors_say_what_to_do() -> None:
    for found in (alone(run(2).store()), Sameness("nothing-captured", name="A"), None):
        assert any(text(numbers(None if found is None else numbers_of(found), 80, 24)))


@pytest.mark.parametrize(("cells", "rows"), [(80, 20), (120, 35), (200, 55)])
def test_without_tensors_the_loss_and_what_was_logged_are_shown(cells: int, rows: int) -> None:
    shown = snapshot(load_session(SESSIONS / "1f1b.mcap"), None)
    ranks = tuple(replace(rank, metrics=(("norm", 1.25),)) for rank in shown.ranks)
    known = numbers_of(Sameness("nothing-captured", name="A"))
    for made, logged in ((shown, 0), (replace(shown, ranks=ranks), 4)):
        drawn = text(numbers(known, cells, rows, snapshot=made))
        assert len(drawn) <= rows and max(map(len, drawn)) <= cells
        assert any("4.351" in row for row in drawn), "the loss of the newest step"
        assert sum("norm 1.25" in row for row in drawn) == logged
        assert any("--tensors" in row for row in drawn)


def test_a_sum_that_agrees_as_one_has_no_bar() -> None:
    """Two modules put out a term each; only the first is the answer's."""
    rows = tuple(
        Row(0, "out", name, 0.1, floors, level)
        for name, floors, level in (("a.inner", 0.5, "red"), ("a", 0.5, "red"), ("b", 1e4, "red"))
    )
    place = Place("out", "a.inner", "Row", "", "", None)
    found = Sameness("differs", 0, "out", "a.inner", Hypothesis("sum"), place, rows=rows)
    parts = {row.name: row.parts for row in numbers_of(found).modules}
    assert parts == {"a.inner": {"out"}, "a": {"out"}, "b": set()}


def test_nothing_is_ticked_where_nothing_was_compared() -> None:
    for reason in (
        "no-parameters",
        "not-stepped",
        "inputs-differ",
        "initial-parameters-differ",
        "too-large",
    ):
        assert not numbers(numbers_of(Sameness(reason, 0, name="A")), 100, 30).foot
