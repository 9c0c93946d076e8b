"""Tensor parallel and sharded recipes, and those of several dimensions on a device mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pardbg.lab.recipes.catalogue.pipelines import BROKEN_ON_GLOO, cut, microbatches, one_per_rank
from pardbg.lab.recipes.catalogue.recipe import (
    ANY_RANKS,
    Fits,
    Kind,
    Option,
    Recipe,
    divisors,
    listed,
    takes,
)
from pardbg.lab.recipes.shape import BATCH, BLOCKS, CONTEXT, EXPERTS, HEADS


def _divides(what: str, *sizes: int, least: int = 1) -> Fits:
    """Return a check that ranks divide all of these; ``what`` is the reason in words."""
    fitting = [n for n in range(least, min(sizes) + 1) if all(size % n == 0 for size in sizes)]
    *first, last = map(str, fitting)
    take = f"{', '.join(first)} or {last}" if first else last
    return takes(fitting, f"{what} and cannot use {{}}: take {take} ranks")


def misfit(name: str, nproc: int, dp: int, tp: int, count: int) -> str | None:
    """Return why ranks, dp, tp and microbatches do not fit together, in one line; None: they do."""
    if BATCH % dp:
        fits = listed(divisors(BATCH))
        return f"{name} deals {BATCH} sequences to its replicas: take {fits} of them, not {dp}"
    if HEADS % tp:
        return f"{name} cuts {HEADS} heads: take --tp {listed(divisors(HEADS))}, not {tp}"
    pp, rest = divmod(nproc, dp * tp)
    if rest or not 2 <= pp <= BLOCKS:
        unit = dp * tp
        return (
            f"{name} needs {unit} ranks for each of 2 to {BLOCKS} stages (dp {dp} × tp {tp}):"
            f" take {2 * unit}, {3 * unit}, … {BLOCKS * unit} ranks, not {nproc}"
        )
    return cut(name, count, pp, one_per_rank, sequences=BATCH // dp)


def _dp_pp(nproc: int, own: Mapping[str, Any]) -> str | None:
    return misfit("dp-pp", nproc, own["replicas"], 1, own["microbatches"])


def _three_d(nproc: int, own: Mapping[str, Any]) -> str | None:
    return misfit("3d", nproc, own["dp"], own["tp"], own["microbatches"])


RECIPES: tuple[Recipe, ...] = (
    Recipe("tp", Kind.TENSOR,
           "every matrix cut over the ranks: by columns, then by rows; sums all_reduced",
           fits=_divides(f"deals {HEADS} attention heads to the ranks", HEADS, least=2),
           screen="timeline"),
    Recipe("tp-sp", Kind.TENSOR,
           "tp, and between the matrices each rank has only some of the positions",
           fits=_divides(f"deals {HEADS} attention heads and {CONTEXT} positions to the ranks",
                         HEADS, CONTEXT, least=2),
           screen="timeline"),
    Recipe("zero1", Kind.SHARDED, "DDP, with the optimizer's state dealt out over the ranks",
           screen="memory"),
    Recipe("zero2", Kind.SHARDED,
           "gradients and state sharded; parameters gathered once, held until backward",
           file="sharding", since="2.6", not_on_gloo=("2.6",), screen="memory"),
    Recipe("zero3", Kind.SHARDED,
           "everything sharded; a block is gathered while it computes, twice a step",
           file="sharding", since="2.6", not_on_gloo=("2.6",), screen="memory"),
    Recipe("hsdp", Kind.SHARDED, "sharded within groups of 2 ranks, replicated across the groups",
           file="sharding", fits=takes(
               (4, 8, 16),
               "shards over 2 ranks and replicates that, so cannot use {}: take 4, 8 or 16"),
           since="2.6", not_on_gloo=("2.6",), screen="memory"),
    Recipe("moe", Kind.EXPERTS,
           f"{EXPERTS} experts over the ranks; tokens travel to theirs and back",
           fits=_divides(f"deals {EXPERTS} experts to the ranks", EXPERTS, BATCH),
           screen="traffic"),
    Recipe("recompute", Kind.EXPERTS,
           "activations forgotten and computed again in backward, every other step",
           options=(Option("when", "alternate", "which steps forget and recompute", type=str,
                           choices=("alternate", "always", "never")),),
           screen="memory"),
    Recipe("dp-pp", Kind.HYBRID,
           "data parallel × pipeline: 1F1B pipelines side by side, gradients averaged",
           file="on_mesh", fits=ANY_RANKS, able=_dp_pp, since="2.6", not_on_gloo=BROKEN_ON_GLOO,
           options=(microbatches(4), Option("replicas", 2, "pipelines side by side", least=1)),
           screen="pipeline"),
    Recipe("3d", Kind.HYBRID, "data × pipeline × tensor parallel on one device mesh",
           file="on_mesh", fits=ANY_RANKS, able=_three_d, nproc=8,
           options=(microbatches(4),
                    Option("dp", 2, "ranks that share a batch and shard the parameters", least=1),
                    Option("tp", 2, "ranks that share each matrix", least=1)),
           since="2.6", not_on_gloo=BROKEN_ON_GLOO, screen="pipeline"),
)  # fmt: skip
