"""Sizes of the model and the batch that every recipe trains. Imports no torch."""

from __future__ import annotations

from typing import Final

VOCABULARY: Final = 256
"""Number of tokens: bytes."""
WIDTH: Final = 64
"""Numbers per position between blocks."""
HEADS: Final = 4
BLOCKS: Final = 8
CONTEXT: Final = 64
"""Bytes of text in the model's context."""

BATCH: Final = 16
"""Sequences per training step, over all ranks: the world's size changes which rank computes a
sequence, never the sequences."""
MICROBATCHES: Final = 8
"""Number of microbatches of a pipeline, each of BATCH / MICROBATCHES sequences."""

EXPERTS: Final = 8
"""Number of MLPs that replace one, in each of MOE_BLOCKS."""
MOE_BLOCKS: Final = (2, 5)


def share(index: int, count: int, whole: int = BATCH) -> slice:
    """Return the slice of the batch's sequences (or of ``whole``) for one of ``count``. If they do
    not divide evenly, the first ones take one more."""
    size, extra = divmod(whole, count)
    first = index * size + min(index, extra)
    return slice(first, first + size + (index < extra))
