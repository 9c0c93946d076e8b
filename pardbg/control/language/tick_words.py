"""What a tick did, in words: the same on every screen and in ``pardbg ctl``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pardbg.analysis.pipeline.dependencies import parse

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
        named = [f"r{rank} waits for {action}" for rank, action in sorted(waits.items())]
        parts += [("; ", "dim"), (" · ".join(named), "warn")]
    if coming:
        parts += [("; next ", "dim")]
        parts += _list({rank: [action] for rank, action in coming.items()}, many_stages, "accent")
    return parts


def _list(actions: Mapping[int, Sequence[str]], many_stages: bool, style: str) -> Words:
    found: Words = []
    for rank, row in sorted(actions.items()):
        if row:
            text = " ".join(short(action, many_stages) for action in row)
            found += [(" · ", "faint")] * bool(found)
            found += [(f"r{rank} ", "dim"), (text, style)]
    return found


def text_of(words: Words) -> str:
    """The words alone."""
    return "".join(text for text, _ in words)
