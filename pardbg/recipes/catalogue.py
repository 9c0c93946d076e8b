"""The list of recipes, and the command that starts one. Imports no torch."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from pardbg.recipes.shape import BATCH, BLOCKS, MICROBATCHES


class RecipeError(ValueError):
    """A wish no recipe can fulfil: one line that says what and what to do."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A program that trains the small GPT in one kind of parallelism."""

    name: str
    summary: str
    """One line for ``pardbg demo --list``."""
    module: str
    """Runs as ``torchrun -m MODULE``."""
    nproc: int = 4
    """Ranks by default."""
    steps: int = 300
    """Training steps by default: some minutes to watch when compute is paced."""
    pipeline: bool = False
    """Its picture is the pipeline schedule."""
    stages_per_rank: int = 1

    def misfit(self, nproc: int) -> str | None:
        """Why this recipe cannot run on that many ranks, in one line; None: it can."""
        if not self.pipeline:
            if nproc >= 1 and BATCH % nproc == 0:
                return None
            fits = ", ".join(str(n) for n in range(1, BATCH + 1) if BATCH % n == 0)
            return f"{self.name} cuts a batch of {BATCH} and cannot use {nproc} ranks: take {fits}"
        most = min(BLOCKS // self.stages_per_rank, MICROBATCHES)
        if 2 <= nproc <= most:
            return None
        each = "a stage" if self.stages_per_rank == 1 else f"{self.stages_per_rank} stages"
        return (
            f"{self.name} puts {each} of the {BLOCKS}-block model on each rank"
            f" and cannot use {nproc}: take 2 to {most} ranks"
        )


_ALL = (
    Recipe(
        name="1f1b",
        summary="pipeline: one forward, one backward in turn; few activations held",
        module="pardbg.recipes.onef1b",
        pipeline=True,
    ),
    Recipe(
        name="gpipe",
        summary="pipeline: all forwards, then all backwards; simple, holds every activation",
        module="pardbg.recipes.gpipe",
        pipeline=True,
    ),
    Recipe(
        name="interleaved",
        summary="pipeline: 1F1B with two stages on each rank; a smaller bubble, more traffic",
        module="pardbg.recipes.interleaved",
        pipeline=True,
        stages_per_rank=2,
    ),
    Recipe(
        name="ddp",
        summary="data parallel: a replica per rank, gradients averaged while backward runs",
        module="pardbg.recipes.ddp",
    ),
)

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _ALL}
DEFAULT = "1f1b"


def command(name: str, nproc: int | None = None, steps: int | None = None) -> list[str]:
    """The argv that trains a recipe under torchrun, through this interpreter. RecipeError if there
    is no such recipe or it does not fit the number of ranks."""
    recipe = RECIPES.get(name)
    if recipe is None:
        raise RecipeError(f"no recipe {name!r}: there are {', '.join(RECIPES)}")
    ranks = recipe.nproc if nproc is None else nproc
    misfit = recipe.misfit(ranks)
    if misfit is not None:
        raise RecipeError(misfit)
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(ranks),
        "-m", recipe.module, "--steps", str(recipe.steps if steps is None else steps),
    ]  # fmt: skip
