"""The list's faults: what they take, and that their files say what a reader needs."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from pardbg.lab.recipes.catalogue import Kind, RecipeError, by_kind, command, find

FAULTS = {recipe.name: recipe for recipe in by_kind()[Kind.FAULT]}
NAMED = (
    "missing-rank", "mismatch-op", "mismatch-shape", "mismatch-dtype", "group-order", "p2p-cycle",
    "straggler", "slow-loader", "nan", "diverge", "exception", "kill", "gil-hold", "slow-link",
)  # fmt: skip


def explained(name: str) -> str:
    """The part of the documentation that is about a recipe."""
    page = Path(__file__).parents[3] / "docs" / "recipes.md"
    return page.read_text(encoding="utf-8").partition(f"### `{name}`\n")[2].partition("\n### ")[0]


def source(name: str) -> str:
    return inspect.getsource(FAULTS[name].load())


def test_every_fault_that_the_design_names_is_there() -> None:
    assert {f"fault:{name}" for name in NAMED} <= set(FAULTS)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_says_what_is_wrong_and_marks_where(name: str) -> None:
    text, said = source(name), explained(name)
    for part in ("What is wrong:", "What happens:", "What pardbg says:", f"pardbg demo {name}"):
        assert part in said, part
    assert 1 <= text.count("# FAULT") <= 2 or name == "fault:slow-loader"  # in its data set
    assert len(text.splitlines()) < 60


@pytest.mark.parametrize("name", FAULTS)
def test_pardbg_is_told_nothing_of_a_fault(name: str) -> None:
    whole = Path(inspect.getfile(FAULTS[name].load())).read_text(encoding="utf-8")
    modules = [
        node.module or "" for node in ast.walk(ast.parse(whole)) if isinstance(node, ast.ImportFrom)
    ]
    assert not any("watched" in module or "pardbg_agent" in module for module in modules)


@pytest.mark.parametrize(
    ("name", "nproc", "steps", "own", "says"),
    [
        ("straggler", 4, None, (), "do you mean fault:straggler?"),
        ("fault:straglr", 4, None, (), "do you mean fault:straggler"),
        ("fault:", 4, None, (), "fault:missing-rank or fault:mismatch-op or"),
        ("fault:nan", 4, None, ("--fault-rank", "4"), "--fault-rank 4: there are ranks 0 to 3"),
        ("fault:nan", 4, None, ("--fault-rank", "-1"), "it needs a number of 0 or more"),
        ("fault:nan", 4, 5, ("--fault-step", "5"), "--fault-step 5: of 5 steps the last is 4"),
        ("fault:nan", 1, None, (), "take 2 to 8, not 1"),
        ("fault:nan", 9, None, (), "take 2 to 8, not 9"),
        ("fault:straggler", 4, None, ("--fault-size", "nan"), "a number from 0 to 10000"),
        ("fault:nan", 4, None, ("--fault-size", "1"), "it has --fault-rank, --fault-step"),
        ("fault:p2p-cycle", 4, None, ("--fault-size", "5"), "takes 2 to 4, or 0 for all"),
        ("fault:p2p-cycle", 4, None, ("--fault-size", "1"), "takes 2 to 4, or 0 for all"),
        ("fault:stage-imbalance", 6, None, (), "take 2 to 5 ranks"),
        ("fault:kill", 4, None, ("--timeout-s", "1e9"), "a number from 1 to 86400"),
    ],
)
def test_what_cannot_be_meant_is_said_in_one_line(
    name: str, nproc: int, steps: int | None, own: tuple[str, ...], says: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        command(name, nproc, steps, own)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_recipe_looks_like_that() -> None:
    with pytest.raises(RecipeError, match=r"^no recipe 'zzz': `pardbg demo --list` shows them$"):
        find("zzz")


def test_the_last_rank_and_the_last_step_can_be_meant() -> None:
    argv = command("fault:nan", 2, 5, ("--fault-rank", "1", "--fault-step", "4"))
    assert argv[-4:] == ["--fault-rank", "1", "--fault-step", "4"]
