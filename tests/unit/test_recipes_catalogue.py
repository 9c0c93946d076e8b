"""The list of recipes, without torch."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

from pardbg.recipes.catalogue import DEFAULT, RECIPES, RecipeError, command


def test_the_first_four() -> None:
    assert set(RECIPES) >= {"ddp", "gpipe", "1f1b", "interleaved"}
    assert DEFAULT == "1f1b"
    assert all(recipe.name == name for name, recipe in RECIPES.items())
    assert {name for name, recipe in RECIPES.items() if recipe.pipeline} >= {"gpipe", "1f1b"}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipes_module_runs_the_recipe_of_that_name(name: str) -> None:
    spec = importlib.util.find_spec(RECIPES[name].module)
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    assert source.rstrip().endswith(f'if __name__ == "__main__":\n    main("{name}", train)')
    assert len(source.splitlines()) < 300
    assert ast.get_docstring(ast.parse(source))


def test_the_command_of_the_default() -> None:
    assert command("1f1b", nproc=2, steps=7) == [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "pardbg.recipes.onef1b", "--steps", "7",
    ]  # fmt: skip
    assert command("ddp")[5:7] == ["4", "-m"]


@pytest.mark.parametrize(
    ("name", "nproc", "says"),
    [
        ("1f2b", 4, "there are 1f1b, gpipe, interleaved, ddp"),
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
