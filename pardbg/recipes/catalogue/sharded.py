"""Tensor parallel, sharded and hybrid recipes."""

from __future__ import annotations

from pardbg.recipes.catalogue.recipe import Fits, Kind, Option, Recipe
from pardbg.recipes.shape import BATCH, CONTEXT, EXPERTS, HEADS


def _divides(what: str, *sizes: int, least: int = 1) -> Fits:
    """Ranks that divide all of these; ``what`` says in words why."""
    fitting = [n for n in range(least, min(sizes) + 1) if all(size % n == 0 for size in sizes)]
    *first, last = map(str, fitting)
    take = f"{', '.join(first)} or {last}" if first else last

    def fits(name: str, nproc: int) -> str | None:
        if nproc in fitting:
            return None
        return f"{name} {what} and cannot use {nproc}: take {take} ranks"

    return fits


def _groups_of_two(name: str, nproc: int) -> str | None:
    if nproc >= 4 and nproc % 2 == 0 and BATCH % nproc == 0:
        return None
    return f"{name} shards over 2 ranks and replicates that, so cannot use {nproc}: take 4, 8 or 16"


RECIPES: tuple[Recipe, ...] = (
    Recipe(
        name="tp",
        kind=Kind.TENSOR,
        summary="every matrix cut over the ranks: by columns, then by rows; sums all_reduced",
        module="pardbg.recipes.tp",
        fits=_divides(f"deals {HEADS} attention heads to the ranks", HEADS, least=2),
        screen="timeline",
    ),
    Recipe(
        name="tp-sp",
        kind=Kind.TENSOR,
        summary="tp, and between the matrices each rank has only some of the positions",
        module="pardbg.recipes.tp_sp",
        fits=_divides(
            f"deals {HEADS} attention heads and {CONTEXT} positions to the ranks",
            HEADS, CONTEXT, least=2,
        ),
        screen="timeline",
    ),
    Recipe(
        name="zero1",
        kind=Kind.SHARDED,
        summary="DDP, with the optimizer's state dealt out over the ranks",
        module="pardbg.recipes.zero1",
        screen="memory",
    ),
    Recipe(
        name="zero2",
        kind=Kind.SHARDED,
        summary="gradients and state sharded; parameters gathered once, held until backward",
        module="pardbg.recipes.zero2",
        screen="memory",
    ),
    Recipe(
        name="zero3",
        kind=Kind.SHARDED,
        summary="everything sharded; a block is gathered while it computes, twice a step",
        module="pardbg.recipes.zero3",
        screen="memory",
    ),
    Recipe(
        name="hsdp",
        kind=Kind.SHARDED,
        summary="sharded within groups of 2 ranks, replicated across the groups",
        module="pardbg.recipes.hsdp",
        fits=_groups_of_two,
        screen="memory",
    ),
    Recipe(
        name="moe",
        kind=Kind.EXPERTS,
        summary=f"{EXPERTS} experts over the ranks; tokens travel to theirs and back",
        module="pardbg.recipes.moe",
        fits=_divides(f"deals {EXPERTS} experts to the ranks", EXPERTS, BATCH),
        screen="traffic",
        follows_single=False,
    ),
    Recipe(
        name="recompute",
        kind=Kind.EXPERTS,
        summary="activations forgotten and computed again in backward, every other step",
        module="pardbg.recipes.recompute",
        options=(
            Option(
                "when", "alternate", "which steps forget and recompute", type=str,
                choices=("alternate", "always", "never"),
            ),
        ),
        screen="memory",
    ),
)  # fmt: skip
