"""What a word means, for ``:help WORD`` and ``pardbg ctl WORD --help``."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from pardbg.control.language.arguments import PDB
from pardbg.control.language.manual import RANKS_TEXT, manual, word_of
from pardbg.ui.commands.actions import ACTIONS

INDENT: Final = "  "


def explain(text: str) -> list[str]:
    """Usage, one sentence, and what more there is to say, examples indented twice; nothing for a
    word nobody knows. Lines may be long."""
    word = word_of(text)
    found = [action for action in ACTIONS if action.command == word]
    if not found:
        return []
    lines = []
    for action in found:
        keys = f"   (key {action.shown})" if action.shown else ""
        lines += [f"{action.command} {action.usage}".strip() + keys, f"{INDENT}{action.help}"]
    more, *examples = manual(word) or ("",)
    lines += [f"{INDENT}{more}"] if more else []
    lines += [f"{INDENT}{INDENT}{example}" for example in examples]
    if "RANKS" in found[0].usage:
        lines += ["", RANKS_TEXT]
    short = [abbreviation for abbreviation, full in PDB.items() if full == word]
    return [*lines, "", f"pdb's abbreviation: {', '.join(short)}"] if short else lines


def wrapped(lines: Sequence[str], cells: int) -> list[str]:
    """The same for a terminal so wide; what is indented stays so."""
    out: list[str] = []
    for text in lines:
        indent = text[: len(text) - len(text.lstrip())]
        out += textwrap.wrap(
            text, cells, initial_indent="", subsequent_indent=indent, break_on_hyphens=False
        ) or [""]  # fmt: skip
    return out
