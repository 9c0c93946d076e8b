"""Answers of bounded size: JSON with a page of rows, and what is too long shortened and marked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from pardbg.errors import UserError

MAX_CHARS: Final = 8_000
"""Of an answer, about two thousand tokens."""
MAX_LIMIT: Final = 200
_HEAD_SHARE: Final = 2
"""All but the rows takes one part in so many, at most."""
_SHORTER: Final = ((64, 2_000), (16, 500), (4, 120), (1, 40), (0, 0))
"""(items of a list, characters of a text) that are kept, one try after the other."""


def packed(value: object) -> str:
    """Return compact JSON that can be sent: names of files may be any bytes."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)
    return text.encode("utf-8", "replace").decode()


def page(head: Mapping[str, object], rows: Sequence[object], offset: int, limit: int) -> str:
    """Return ``head`` and rows from ``offset``: as many as ``limit`` and MAX_CHARS allow, and
    ``next_offset`` where more follow. Raises UserError."""
    if offset < 0 or not 1 <= limit <= MAX_LIMIT:
        raise UserError(f"offset is 0 or more, limit 1 to {MAX_LIMIT}; got {offset} and {limit}")
    about = fitted(dict(head), MAX_CHARS // _HEAD_SHARE)
    frame = {**_fields(about), "total": len(rows), "offset": offset, "next_offset": len(rows)}
    room = MAX_CHARS - len(packed({**frame, "rows": []}))
    shown: list[object] = []
    for row in rows[offset : offset + limit]:
        text = packed(row)
        if len(text) + 1 > room and shown:
            break
        if len(text) + 1 > room:
            row = fitted(row, room - 1)
            text = packed(row)
        shown.append(row)
        room -= len(text) + 1
    following = offset + len(shown)
    frame["next_offset"] = following if following < len(rows) else None
    return packed({**frame, "rows": shown})


def fitted(value: object, most: int) -> object:
    """Return the value, with its lists and texts shortened until its JSON has ``most``
    characters."""
    if len(packed(value)) <= most:
        return value
    for items, characters in _SHORTER:
        shorter = _cut(value, items, characters)
        if len(packed(shorter)) <= most:
            return shorter
    return {"left_out": f"{len(packed(value))} characters"}


def _cut(value: object, items: int, characters: int) -> object:
    if isinstance(value, str) and len(value) > characters:
        return f"{value[:characters]}…"
    if isinstance(value, (list, tuple)):
        kept = [_cut(one, items, characters) for one in value[:items]]
        return kept if len(value) <= items else [*kept, f"… {len(value) - items} more"]
    if isinstance(value, Mapping):
        return {key: _cut(one, items, characters) for key, one in value.items()}
    return value


def _fields(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, Mapping) else {}
