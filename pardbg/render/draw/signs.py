"""Signs for severities and states, the same on every screen, in the time bar and in reports; and
ASCII stand-ins of the same width, so that columns stay aligned."""

from __future__ import annotations

import codecs
import os
import sys
import unicodedata
from collections.abc import Mapping
from typing import Final

SIGN: Final = {"error": ("✗", "bad"), "warning": ("▲", "warn"), "info": ("i", "dim")}
"""Severity -> (character, style)."""
SIGNS: Final = {
    "running": ("▶", "good"), "waiting": ("◷", "warn"), "held": ("‖", "held"),
    "stale": ("?", "warn"), "lost": ("✗", "bad"), "ended": ("■", "dim"), "unknown": ("·", "faint"),
}  # fmt: skip
"""A rank's state -> its sign."""


_BRAILLE, _UPPER = 0x2800, 0x1B
"""Braille character without dots, and the dots of a cell's upper half."""
ERRORS: Final = "pardbg-ascii"
"""Error handler for ``open`` and ``reconfigure``: stand-ins for what the encoding lacks."""
_ARROWS: Final = str.maketrans({"←": "left", "↑": "up", "→": "right", "↓": "down"})
_PAIRS: Final = (
    ("─━╌┄═⋯╸", "-------"), ("│┃║╎┆┊╷▏▕‖", "||||||||||"), ("┌└┘┗┛├┴╭╮╯╰┐┤┬┼", "+++++++++++++++"),
    ("▁▂▃▄▅▆▇█", "__..-=##"), ("▉▊▋▌▍▎", "######"), ("░▒▓▚", ":%%x"), ("■□●○◉◌◷•·˙", "#o*o@oo*.'"),
    ("▲▼▾▶▸▹◀◂◆★▀", "^vv>>><<o*^"), ("←↑→↓↻", "<^>v@"), ("✓✗", "+x"), ("╱╲", "/\\"),
    ("–—−×⋅±≈≠≤≥…›“”§µμ²°ΣΦ", "---x*+~!<>~>\"\"Suu2oSF"),
)  # fmt: skip
TABLE: Final[Mapping[str, str]] = {
    sign: plain for signs, plains in _PAIRS for sign, plain in zip(signs, plains, strict=True)
}


def ascii_of(text: str) -> str:
    """Return the text with ASCII stand-ins, as many characters as before."""
    return "".join(_sign(sign) for sign in text)


def _sign(sign: str) -> str:
    if sign.isascii():
        return sign
    if dots := ord(sign) - _BRAILLE if 0 < ord(sign) - _BRAILLE < 256 else 0:
        return "." if not dots & _UPPER else "'" if not dots & ~_UPPER else ":"
    found = TABLE.get(sign) or unicodedata.normalize("NFKD", sign)[0]
    return found if found.isascii() else "?"


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return ascii_of(error.object[error.start : error.end]), error.end


def has_utf8() -> bool:
    """Return whether the locale's variables name UTF-8; if none is set, whether Python uses it."""
    named = next((v for v in map(os.environ.get, ("LC_ALL", "LC_CTYPE", "LANG")) if v), None)
    if named is not None:
        return "utf8" in named.lower().replace("-", "")
    return codecs.lookup(getattr(sys.__stdout__, "encoding", None) or "ascii").name == "utf-8"


def keys_text(keys: str) -> str:
    """Return names of keys as shown on the terminal: stand-ins for arrow characters."""
    return keys if has_utf8() else keys.translate(_ARROWS)


codecs.register_error(ERRORS, _replace)
