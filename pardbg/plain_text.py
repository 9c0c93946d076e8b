"""Text from outside as plain text, without moves of the cursor, colours or hidden words.

Every name, command, exception or value of a job or a file goes through this function before a
terminal, an SVG or a page shows it.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

_DOT = "·"


def plain(text: str) -> str:
    """Return one line of ``text``: unprintable and zero-width characters become ``·``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_plain_char, text.expandtabs(4)))


def plain_lines(text: str) -> str:
    """Return ``text`` with ``plain`` applied to each line."""
    return (
        text if text.isascii() and text.isprintable() else "\n".join(map(plain, text.split("\n")))
    )


def plain_cell(text: str) -> str:
    """Return ``text`` for a cell of a CSV file that a spreadsheet does not read as a formula."""
    text = plain(text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


@lru_cache(maxsize=4096)
def _plain_char(char: str) -> str:
    if char.isprintable() and not _takes_no_cell(char):
        return char
    return "" if char == "\r" else _DOT


def _takes_no_cell(char: str) -> bool:
    return bool(unicodedata.combining(char)) or unicodedata.category(char) in ("Cf", "Me", "Mn")
