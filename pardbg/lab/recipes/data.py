"""Real text as tokens: CPython's own help topics, 0.7 MB of English, on every machine.

The batch of a step depends on the seed and the step alone, so one process and many see the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from pydoc_data.topics import topics
from typing import Final

import torch
from torch import Tensor

from pardbg.lab.recipes.launch import Options, World
from pardbg.lab.recipes.shape import BATCH, CONTEXT
from pardbg.lab.recipes.shape import share as share

WHOLE: Final = slice(None)
"""Slice of the whole batch, for each rank."""


class Text:
    """The text as bytes, from which training batches are cut."""

    def __init__(self, seed: int, device: torch.device) -> None:
        text = "\n\n".join(topics[name] for name in sorted(topics))
        self._tokens = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        self._seed = seed
        self._device = device

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return tokens and, one place on, the tokens to predict: two int64 [BATCH, CONTEXT]."""
        # A generator of this step's own: nothing a rank drew before can move it.
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + step)
        last = len(self._tokens) - CONTEXT - 1
        starts = torch.randint(last, (BATCH, 1), generator=generator)
        pieces = self._tokens[starts + torch.arange(CONTEXT + 1)].long().to(self._device)
        return pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()


def batches(
    world: World, options: Options, mine: slice | None = None
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield each step with tokens and targets of some sequences: this rank's share of the batch, or
    the sequences of ``mine``."""
    text = Text(options.seed, world.device)
    mine = share(world.rank, world.size) if mine is None else mine
    for step in range(options.steps):
        tokens, targets = text.batch(step)
        yield step, tokens[mine], targets[mine]
