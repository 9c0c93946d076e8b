"""Moments that somebody marked: about the recording, not part of what ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pardbg.events import fields

BOOKMARK: Final = "bookmark"
"""CONTROL event: ``at_ns`` is marked with ``text``."""
UNMARK: Final = "unmark"
"""CONTROL event: the mark at ``at_ns`` is taken away."""
MAX_BOOKMARKS: Final = 4096
MAX_TEXT: Final = 200


@dataclass(frozen=True, slots=True, order=True)
class Bookmark:
    """A marked moment, hub clock ns."""

    t_ns: int
    text: str


class Bookmarks:
    """One per moment; the newest word about a moment holds."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}

    def take(self, event: Mapping[str, Any]) -> bool:
        """Take a CONTROL event; False where it is about something else."""
        word, t_ns = fields.text(event, "event"), fields.integer_or_none(event, "at_ns")
        if word not in (BOOKMARK, UNMARK):
            return False
        if t_ns is not None and t_ns >= 0:
            self.put(Bookmark(t_ns, fields.text(event, "text") if word == BOOKMARK else ""))
        return True

    def put(self, mark: Bookmark) -> None:
        """Mark a moment; without a text: take its mark away."""
        if not mark.text:
            self._texts.pop(mark.t_ns, None)
        elif len(self._texts) < MAX_BOOKMARKS:
            self._texts[mark.t_ns] = " ".join(mark.text.split())[:MAX_TEXT]

    def all(self) -> tuple[Bookmark, ...]:
        """Return all by time; bookmark 1 is the first."""
        return tuple(sorted(Bookmark(t, text) for t, text in self._texts.items()))
