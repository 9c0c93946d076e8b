"""Recipes of more than one dimension, on a device mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pardbg.lab.recipes.catalogue.pipelines import cut, microbatches, one_per_rank
from pardbg.lab.recipes.catalogue.recipe import ANY_RANKS, Kind, Option, Recipe, divisors, listed
from pardbg.lab.recipes.shape import BATCH, BLOCKS, HEADS


def misfit(name: str, nproc: int, dp: int, tp: int, count: int) -> str | None:
    """Why ranks, dp, tp and microbatches do not go together, in one line; None: they do."""
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


RECIPES = (
    Recipe("dp-pp", Kind.HYBRID,
           "data parallel × pipeline: 1F1B pipelines side by side, gradients averaged",
           "pardbg.lab.recipes.dp_pp", fits=ANY_RANKS, able=_dp_pp,
           options=(microbatches(4), Option("replicas", 2, "pipelines side by side", least=1)),
           screen="pipeline"),
    Recipe("3d", Kind.HYBRID, "data × pipeline × tensor parallel on one device mesh",
           "pardbg.lab.recipes.three_d", fits=ANY_RANKS, able=_three_d, nproc=8,
           options=(microbatches(4),
                    Option("dp", 2, "ranks that share a batch and shard the parameters", least=1),
                    Option("tp", 2, "ranks that share each matrix", least=1)),
           screen="pipeline"),
)  # fmt: skip
