"""The list of recipes, and the command that starts one. Imports no torch.

A recipe is one entry in the list of its kind: ``data``, ``pipelines``, ``sharded`` or ``faults``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches

from pardbg.lab.recipes.catalogue import data, faults, pipelines, sharded
from pardbg.lab.recipes.catalogue.recipe import Kind, Option, Recipe, RecipeError, divisors, listed

__all__ = [
    "RECIPES", "Kind", "Option", "Recipe", "RecipeError", "by_kind", "command", "find",
]  # fmt: skip

_ALL = (*data.RECIPES, *pipelines.RECIPES, *sharded.RECIPES, *faults.RECIPES)
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _ALL}


def by_kind() -> dict[Kind, list[Recipe]]:
    """Return the recipes under their headings, in the order of the list."""
    groups = {kind: [recipe for recipe in _ALL if recipe.kind is kind] for kind in Kind}
    return {kind: found for kind, found in groups.items() if found}


def find(name: str) -> Recipe:
    """Return the recipe of that name. RecipeError, with similar names, if there is none."""
    recipe = RECIPES.get(name)
    if recipe is not None:
        return recipe
    meant = get_close_matches(name, RECIPES, n=3)
    if name.rstrip(":") == "fault":
        meant = [known for known in RECIPES if known.startswith("fault:")]
    words = f"; do you mean {' or '.join(meant)}?" if meant else ":"
    raise RecipeError(f"no recipe {name!r}{words} `pardbg demo --list` shows them")


def command(
    name: str,
    nproc: int | None = None,
    steps: int | None = None,
    own: Sequence[str] = (),
    nnodes: int = 1,
    device: str = "auto",
) -> list[str]:
    """Return the argv that trains a recipe under torchrun, through this interpreter.

    ``own``: the recipe's own options as words, ``["--staleness", "2"]``. ``nnodes``: so many
    torchruns share the ``nproc`` ranks, as on as many machines. ``device``: ``auto``,
    ``cuda``, or ``sim`` for simulated accelerators. RecipeError if there is no such recipe, or the
    options or the number of ranks do not fit it.
    """
    recipe = find(name)
    ranks = recipe.nproc if nproc is None else nproc
    steps = recipe.steps if steps is None else steps
    misfit = recipe.misfit(ranks, {"steps": steps, **recipe.read(own)})
    if misfit is not None:
        raise RecipeError(misfit)
    if device != "auto" and (recipe.on_cpu or "backend" in recipe.defaults()):
        raise RecipeError(f"{name} runs on CPUs: leave out --device {device}")
    if nnodes < 1 or ranks % nnodes:
        fits = listed(divisors(ranks))
        raise RecipeError(
            f"{ranks} ranks cannot be shared evenly by {nnodes} nodes: take --nnodes {fits}"
        )
    run = ["torch.distributed.run", "--standalone"]
    if nnodes > 1:
        run = ["pardbg.lab.recipes.nodes", "--nnodes", str(nnodes)]
    return [
        sys.executable, "-m", *run, "--nproc-per-node", str(ranks // nnodes),
        "-m", recipe.module, *recipe.arguments,
        "--steps", str(steps), "--device", device, *own,
    ]  # fmt: skip
