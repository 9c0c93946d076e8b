"""The report of a tick: the same on every screen and in ``pardbg ctl``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pardbg.analysis.pipeline.dependencies import parse
from pardbg.words import rank_set

_MOST = 4
"""Maximum number of actions of a rank that are listed."""
Words = list[tuple[str, str]]
"""(text, style token) in order."""


def short(action: str, many_stages: bool) -> str:
    """``B5`` where a rank has one stage only, else ``2B5``; other words stay."""
    parsed = parse(action)
    if parsed is None or many_stages:
        return action
    return action[len(str(parsed.stage)) :]


def did(
    head: str,
    ran: Mapping[int, Sequence[str]],
    waits: Mapping[int, str],
    coming: Mapping[int, str],
    many_stages: bool,
) -> Words:
    """``tick 7 ran r1 B0 · r2 F2; r0 waits for 1B0; next r1 F3 · r2 B1``.

    ``waits``: rank -> the action that has to run first on another rank; ``coming``: rank -> what
    its next tick runs.
    """
    parts: Words = [(head, "strong"), (" ran ", "dim")]
    parts += _list(ran, many_stages, "strong") or [("nothing", "warn")]
    if waits:
        parts += [("; ", "dim"), (grouped(waits, "waits for "), "warn")]
    if coming:
        parts += [("; next ", "dim")]
        parts += _list({rank: [action] for rank, action in coming.items()}, many_stages, "accent")
    return parts


def _list(actions: Mapping[int, Sequence[str]], many_stages: bool, style: str) -> Words:
    """Merge ranks that do the same: ``r0,4 F3``."""
    same: dict[str, list[int]] = {}
    for rank, row in sorted(actions.items()):
        if row:
            text = " ".join(short(action, many_stages) for action in _few(row))
            same.setdefault(text, []).append(rank)
    found: Words = []
    for text, ranks in same.items():
        found += [(" · ", "faint")] * bool(found)
        found += [(f"r{rank_set(ranks)} ", "dim"), (text, style)]
    return found


def _few(row: Sequence[str]) -> Sequence[str]:
    """Abbreviate a long row of actions."""
    return row if len(row) <= _MOST else [row[0], "…", row[-1]]


def grouped(texts: Mapping[int, str], before: str = "") -> str:
    """``r0–3 before 0F0 · r4 before recv``"""
    same: dict[str, list[int]] = {}
    for rank, text in sorted(texts.items()):
        same.setdefault(text, []).append(rank)
    return " · ".join(f"r{rank_set(ranks)} {before}{text}" for text, ranks in same.items())


def text_of(words: Words) -> str:
    """Return the text without styles."""
    return "".join(text for text, _ in words)
