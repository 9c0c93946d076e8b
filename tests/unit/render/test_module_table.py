"""The modules of ``pardbg same``, in the order of execution."""

from __future__ import annotations

import pytest

from pardbg.analysis.same.comparison import Row, Sameness
from pardbg.analysis.same.hypotheses import Hypothesis
from pardbg.analysis.same.module_flow import Place
from pardbg.render.reports.sameness import MAX_MODULES, module_table

BLOCKS = [f"blocks.{at}{inside}" for at in range(3) for inside in (".norm", ".mlp.up", ".mlp", "")]


def answer(floors: dict[tuple[str, str], float], cause: str = "", name: str = "") -> Sameness:
    rows = tuple(
        Row(0, what, of, 0.1, value, "red" if value > 10 else "green")
        for (what, of), value in floors.items()
    )
    place = Place("out", name, "Mlp", "", "", None)
    hypothesis = Hypothesis("sum") if cause == "sum" else None
    return Sameness("differs", 0, "out", name, hypothesis, place, rows=rows)


def line(lines: list[str], name: str) -> list[str]:
    (found,) = [words for text in lines if name in (words := text.split())]
    return found[found.index(name) + 1 :]


def test_bars_are_powers_of_ten_of_floors() -> None:
    floors = {("out", name): 0.5 for name in BLOCKS}
    floors |= {("out", "blocks.2"): 1e4, ("out", "blocks.1"): 5.0}
    floors |= {("grad", "blocks.2.norm.weight"): 100.0, ("grad", "blocks.2.norm.bias"): 1.0}
    lines = module_table(answer(floors, name="blocks.2"))
    # two cells for each power of ten; a module's parameters by the worst
    assert line(lines, "blocks.2") == ["████████", "4.0", "·", "·"]
    assert line(lines, "blocks.1") == ["▒", "0.7", "·", "·"]
    assert line(lines, "blocks.2.norm") == ["▏", "·", "████", "2.0"]
    assert [text for text in lines if text.startswith("▶")] == [
        text for text in lines if "blocks.2 " in text
    ]


@pytest.mark.parametrize("floors", [float("inf"), 1e300])
def test_a_bar_has_an_end(floors: float) -> None:
    lines = module_table(answer({("out", "a"): floors}))
    assert line(lines, "a")[0] == "█" * 12


def test_a_term_of_a_sum_is_marked() -> None:
    lines = module_table(answer({("out", n): 0.1 for n in BLOCKS}, "sum", "blocks.1.mlp"))
    assert line(lines, "blocks.1.mlp")[0] == "Σ"


def test_a_large_model_is_cut_at_a_level_but_for_what_is_beside_the_chosen_one() -> None:
    names = [f"blocks.{at}{inside}" for at in range(20) for inside in (".a", ".b", "")]
    lines = module_table(answer({("out", n): 0.1 for n in names}, name="blocks.7.a"))
    shown = [text.split()[1 if text.startswith("▶") else 0] for text in lines[1:-1]]
    assert shown == [n for n in names if n.count(".") == 1 or n.startswith("blocks.7.")]
    assert lines[-1].split()[0] == str(len(names) - len(shown)) and len(shown) <= MAX_MODULES


def test_without_outputs_there_is_no_table() -> None:
    assert not module_table(answer({("grad", "a.weight"): 100.0}))
