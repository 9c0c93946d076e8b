"""Model and pipeline parallel recipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pardbg.lab.recipes.catalogue import tables
from pardbg.lab.recipes.catalogue.recipe import Kind, Option, Recipe, divisors, takes
from pardbg.lab.recipes.shape import BATCH, BLOCKS, MICROBATCHES

Takes = Callable[[int, int], bool]
"""(ranks, microbatches) -> whether the schedule can run with them."""
BROKEN_ON_GLOO: Final = "2.6", "2.7", "2.9"
"""Torch releases whose schedules break on gloo. 2.6 only waits for the last message of a batch
(``_batch_p2p`` in pipelining/schedules.py): NCCL coalesces all of them, gloo does not."""


def microbatches(default: int = MICROBATCHES) -> Option:
    return Option("microbatches", default, "pieces a step's batch is cut into", least=1)


def cut(name: str, count: int, num_ranks: int, can: Takes, sequences: int = BATCH) -> str | None:
    """Return why so many ranks cannot cut ``sequences`` into ``count`` microbatches, or None."""
    able = [m for m in divisors(sequences) if can(num_ranks, m)]
    if count in able:
        return None
    if not able:
        few = f"{sequences} sequence{'s' * (sequences > 1)}"
        return f"{name} has {few} for a pipeline of {num_ranks} ranks, too few: take fewer ranks"
    fits = ", ".join(map(str, able[:-1])) + " or " * (len(able) > 1) + str(able[-1])
    return (
        f"{name} cannot cut {sequences} sequences into {count} microbatches for a pipeline of"
        f" {num_ranks} ranks: take --microbatches {fits}"
    )


def any_number(num_ranks: int, count: int) -> bool:
    return True


def one_per_rank(num_ranks: int, count: int) -> bool:
    """Return whether there is a microbatch for each rank, as 1F1B's warm-up needs."""
    return count >= num_ranks


def two_per_rank(num_ranks: int, count: int) -> bool:
    """Return whether there is a microbatch per stage, as DualPipeV needs; a rank has two stages."""
    return count >= 2 * num_ranks


def whole_rounds(num_ranks: int, count: int) -> bool:
    """Return whether microbatches fill whole rounds of the ranks, as interleaved schedules need."""
    return count % max(1, count // num_ranks) == 0


def _pipeline(
    name: str,
    summary: str,
    can: Takes = any_number,
    stages_per_rank: int = 1,
    since: str = "2.6",
    not_on_gloo: tuple[str, ...] = BROKEN_ON_GLOO,
) -> Recipe:
    most = BLOCKS // stages_per_rank
    each = "a stage" if stages_per_rank == 1 else f"{stages_per_rank} stages"

    def able(nproc: int, own: Mapping[str, Any]) -> str | None:
        return cut(name, own["microbatches"], nproc, can)

    return Recipe(
        name=name,
        kind=Kind.PIPELINE,
        summary=summary,
        file="pipeline",
        fits=takes(
            range(2, most + 1),
            f"puts {each} of the {BLOCKS}-block model on each rank and cannot use {{}}:"
            f" take 2 to {most} ranks",
        ),
        able=able,
        options=(microbatches(),),
        since=since,
        not_on_gloo=not_on_gloo,
        screen="pipeline",
    )


RECIPES = (
    Recipe("mp", Kind.PIPELINE,
           "layers on different ranks, one batch at a time: all but one rank wait", fits=takes(
               range(2, BLOCKS + 1),
               f"gives each rank some of {BLOCKS} blocks: take 2 to {BLOCKS} ranks, not {{}}",
           ), screen="pipeline"),
    _pipeline("gpipe", "all forwards, then all backwards; simple, holds every activation",
              not_on_gloo=("2.9",)),
    _pipeline("1f1b", "one forward, one backward in turn; few activations held", one_per_rank),
    _pipeline("interleaved", "1F1B with two stages on each rank; a smaller bubble, more traffic",
              whole_rounds, stages_per_rank=2),
    _pipeline("looped-bfs", "two stages on each rank, all microbatches through one, then through"
              " the other", stages_per_rank=2),
    _pipeline("zb", "interleaved, backward cut in two: weights' gradients wait for idle time",
              whole_rounds, stages_per_rank=2),
    _pipeline("zbv", "backward cut in two, stages laid out as a V: rank 0 has the first and the"
              " last", stages_per_rank=2, not_on_gloo=(*BROKEN_ON_GLOO, "2.8", "2.10", "2.11")),
    _pipeline("dualpipev", "a V of stages where a forward and a backward pass each other as one"
              " action", two_per_rank, stages_per_rank=2, since="2.9",
              not_on_gloo=("2.9", "2.10", "2.11")),
    tables.RECIPE,
)  # fmt: skip
