"""Sizes of the model and the batch that every recipe trains. Imports no torch."""

from __future__ import annotations

from typing import Final

VOCABULARY: Final = 256
"""Tokens are bytes."""
WIDTH: Final = 64
"""Numbers per position between blocks."""
HEADS: Final = 4
BLOCKS: Final = 8
CONTEXT: Final = 64
"""Bytes of text the model sees at once."""

BATCH: Final = 16
"""Sequences per training step, over all ranks: the world's size changes who computes them, never
which they are."""
MICROBATCHES: Final = 8
"""A pipeline cuts the batch into this many pieces of BATCH / MICROBATCHES sequences."""

EXPERTS: Final = 8
"""MLPs that stand for one, in each of MOE_BLOCKS."""
MOE_BLOCKS: Final = (2, 5)


def share(index: int, count: int, whole: int = BATCH) -> slice:
    """Return the part of the batch's sequences (or of ``whole``) of one of ``count``. Where they do
    not divide evenly, the first ones take one more."""
    size, extra = divmod(whole, count)
    first = index * size + min(index, extra)
    return slice(first, first + size + (index < extra))
