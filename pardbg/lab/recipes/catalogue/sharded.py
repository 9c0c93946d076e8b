"""Tensor parallel, sharded and hybrid recipes."""

from __future__ import annotations

from pardbg.lab.recipes.catalogue.recipe import Fits, Kind, Option, Recipe, takes
from pardbg.lab.recipes.shape import BATCH, CONTEXT, EXPERTS, HEADS


def _divides(what: str, *sizes: int, least: int = 1) -> Fits:
    """Ranks that divide all of these; ``what`` says in words why."""
    fitting = [n for n in range(least, min(sizes) + 1) if all(size % n == 0 for size in sizes)]
    *first, last = map(str, fitting)
    take = f"{', '.join(first)} or {last}" if first else last
    return takes(fitting, f"{what} and cannot use {{}}: take {take} ranks")


RECIPES: tuple[Recipe, ...] = (
    Recipe("tp", Kind.TENSOR,
           "every matrix cut over the ranks: by columns, then by rows; sums all_reduced",
           "pardbg.lab.recipes.tp",
           fits=_divides(f"deals {HEADS} attention heads to the ranks", HEADS, least=2),
           screen="timeline"),
    Recipe("tp-sp", Kind.TENSOR,
           "tp, and between the matrices each rank has only some of the positions",
           "pardbg.lab.recipes.tp_sp",
           fits=_divides(f"deals {HEADS} attention heads and {CONTEXT} positions to the ranks",
                         HEADS, CONTEXT, least=2),
           screen="timeline"),
    Recipe("zero1", Kind.SHARDED, "DDP, with the optimizer's state dealt out over the ranks",
           "pardbg.lab.recipes.zero1", screen="memory"),
    Recipe("zero2", Kind.SHARDED,
           "gradients and state sharded; parameters gathered once, held until backward",
           "pardbg.lab.recipes.zero2", since="2.6", screen="memory"),
    Recipe("zero3", Kind.SHARDED,
           "everything sharded; a block is gathered while it computes, twice a step",
           "pardbg.lab.recipes.zero3", since="2.6", screen="memory"),
    Recipe("hsdp", Kind.SHARDED, "sharded within groups of 2 ranks, replicated across the groups",
           "pardbg.lab.recipes.hsdp", fits=takes(
               (4, 8, 16),
               "shards over 2 ranks and replicates that, so cannot use {}: take 4, 8 or 16"),
           since="2.6", screen="memory"),
    Recipe("moe", Kind.EXPERTS,
           f"{EXPERTS} experts over the ranks; tokens travel to theirs and back",
           "pardbg.lab.recipes.moe",
           fits=_divides(f"deals {EXPERTS} experts to the ranks", EXPERTS, BATCH),
           screen="traffic"),
    Recipe("recompute", Kind.EXPERTS,
           "activations forgotten and computed again in backward, every other step",
           "pardbg.lab.recipes.recompute",
           options=(Option("when", "alternate", "which steps forget and recompute", type=str,
                           choices=("alternate", "always", "never")),),
           screen="memory"),
)  # fmt: skip
