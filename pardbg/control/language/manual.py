"""Long help of each verb (``manual.txt``), for ``:help VERB`` and ``pardbg ctl VERB --help``."""

from __future__ import annotations

from typing import Final

from pardbg.control.language.arguments import PDB
from pardbg.sentences import sections

RANKS_TEXT: Final = (
    "RANKS is a rank set: 0, 0-3, 0,2, stage=2, host=n1, rank=3, held, waiting, all, or an axis as "
    "in tp=0 (the first of each tp group)."
)


MANUAL: Final[dict[str, tuple[str, ...]]] = {
    word: tuple(texts.values())
    for word, texts in sections("pardbg.control.language", "manual.txt").items()
}
"""Word -> its meaning, and examples, a line each."""


def word_of(text: str) -> str:
    """Return the verb for a word or pdb's abbreviation of it."""
    word = text.strip().lower()
    return PDB.get(word, word)


def manual(text: str) -> tuple[str, ...]:
    """Return a verb's help (or that of pdb's abbreviation) and examples; empty if there is none."""
    return MANUAL.get(word_of(text), ())
