"""The list of recipes, without torch."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

from pardbg.lab.recipes.catalogue import (
    RECIPES,
    Kind,
    Option,
    Recipe,
    RecipeError,
    by_kind,
    command,
)


@pytest.mark.parametrize(
    ("torch", "name", "runs"),
    [("2.6.0", "1f1b", False), ("2.6.0", "gpipe", True), ("2.9.1+cpu", "gpipe", False),
     ("2.8.0", "1f1b", True), ("2.13.0", "tour", True), ("2.11.0", "tour", False)],
)  # fmt: skip
def test_a_recipe_that_breaks_on_gloo_says_so(
    monkeypatch: pytest.MonkeyPatch, torch: str, name: str, runs: bool
) -> None:
    """It would hang, as torch's own schedules do there."""
    monkeypatch.setattr(metadata, "version", lambda _: torch)
    assert (RECIPES[name].misfit_on_gloo() is None) is runs


def test_the_first_four() -> None:
    assert set(RECIPES) >= {"ddp", "gpipe", "1f1b", "interleaved"}
    assert all(recipe.name == name for name, recipe in RECIPES.items())
    assert {r.name for r in by_kind()[Kind.PIPELINE]} >= {"gpipe", "1f1b", "interleaved"}
    assert sum(map(len, by_kind().values())) == len(RECIPES)


@pytest.mark.parametrize("name", [n for n in RECIPES if not n.startswith("fault:")])
def test_a_recipes_module_runs_the_recipe_of_that_name(name: str) -> None:
    spec = importlib.util.find_spec(RECIPES[name].module)
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    runs = "main_of(RECIPES)" if RECIPES[name].arguments else f'main("{name}", train)'
    assert source.rstrip().endswith(f'if __name__ == "__main__":\n    {runs}')
    assert not RECIPES[name].arguments or callable(RECIPES[name].load())
    assert len(source.splitlines()) < 300
    assert ast.get_docstring(ast.parse(source))


def test_the_command_of_the_default() -> None:
    assert command("1f1b", nproc=2, steps=7) == [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "pardbg.lab.recipes.pipeline", "1f1b", "--steps", "7", "--device", "auto",
    ]  # fmt: skip
    assert command("ddp")[5:7] == ["4", "-m"]


@pytest.mark.parametrize(
    ("name", "nproc", "says"),
    [
        ("1f2b", 4, "`pardbg demo --list` shows them"),
        ("1f1b", 1, "take 2 to 8 ranks"),  # a pipeline of one stage sends nothing
        ("1f1b", 9, "take 2 to 8 ranks"),  # 8 blocks
        ("interleaved", 5, "take 2 to 4 ranks"),  # 2 stages each of 8 blocks
        ("ddp", 3, "take 1, 2, 4, 8, 16"),  # 16 sequences
        ("ddp", 0, "take 1, 2, 4, 8, 16"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(name: str, nproc: int, says: str) -> None:
    with pytest.raises(RecipeError) as caught:
        command(name, nproc)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def recipe_with_options() -> Recipe:
    late = Option("staleness", 4, "how late", least=0)
    backend = Option("backend", "gloo", "who sends", type=str, choices=("gloo", "nccl"))
    return Recipe("x", Kind.DATA, "a test's", "nowhere", options=(late, backend))


def test_a_recipes_own_options() -> None:
    recipe = recipe_with_options()
    assert recipe.read([]) == {"staleness": 4, "backend": "gloo"}
    assert recipe.read(["--backend=nccl", "--staleness", "2"]) == {
        "staleness": 2,
        "backend": "nccl",
    }


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--staleness", "-1"], "--staleness -1: it needs a number of 0 or more"),
        (["--staleness", "two"], "--staleness two: it needs a number of 0 or more"),
        (["--staleness"], "--staleness of x: it needs a number of 0 or more"),
        (["--backend", "smoke"], "--backend smoke: take one of gloo, nccl"),
        (["--speed", "9"], "x has no option --speed: it has --staleness, --backend"),
        (["staleness", "9"], "x has no option staleness: it has --staleness, --backend"),
    ],
)
def test_a_wrong_option_is_said_in_one_line(words: list[str], says: str) -> None:
    with pytest.raises(RecipeError, match=f"^{re.escape(says)}$"):
        recipe_with_options().read(words)


def test_a_recipe_without_options_says_so() -> None:
    with pytest.raises(RecipeError, match="ddp has no option --speed: it has none of its own"):
        command("ddp", own=["--speed", "9"])
