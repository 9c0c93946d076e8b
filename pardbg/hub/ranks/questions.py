"""Questions that held ranks answer from their own frames (``p``, ``tensor``, ``compare`` …):
asked of several at once, answered together, whoever does not answer named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pardbg.words import duration

WAIT_NS: Final = 10_000_000_000
"""After this long an evaluation is said to run still; its rank answers nobody any more."""
MAX_TEXT: Final = 10_000


@dataclass(slots=True)
class _Inquiry:
    answer: Callable[[dict[str, Any]], None]
    waiting: dict[str, int]
    """proc -> rank of who has not answered."""
    since_ns: int
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    """rank -> what it said: "ok", and "text" or "error"."""


class Questions:
    """All of them that are under way."""

    def __init__(self) -> None:
        self._known: dict[int, _Inquiry] = {}

    def ask(
        self, number: int, procs: Mapping[str, int], answer: Callable[[dict[str, Any]], None],
        now: int,
    ) -> None:  # fmt: skip
        """The agents ``procs`` (proc -> rank) were asked with id ``number``."""
        self._known[number] = _Inquiry(answer, dict(procs), now)
        self._finish(number)

    def answered(self, number: int, proc: str, message: Mapping[str, Any]) -> None:
        """An agent's ACK."""
        inquiry = self._known.get(number)
        if inquiry is None or proc not in inquiry.waiting:
            return
        kept = {key: message[key] for key in _KEPT if key in message}
        for key in ("text", "error"):
            if key in kept:
                kept[key] = str(kept[key])[:MAX_TEXT]
        inquiry.answers[inquiry.waiting.pop(proc)] = kept
        self._finish(number)

    def gone(self, proc: str) -> None:
        """A process ended meanwhile."""
        for number in list(self._known):
            self._without(number, proc, "it ended meanwhile")

    def tick(self, now: int) -> None:
        for number, inquiry in list(self._known.items()):
            if now - inquiry.since_ns >= WAIT_NS:
                for proc in list(inquiry.waiting):
                    self._without(number, proc, f"no answer in {duration(WAIT_NS)}: it still runs")

    def _without(self, number: int, proc: str, why: str) -> None:
        inquiry = self._known.get(number)
        if inquiry is not None and proc in inquiry.waiting:
            inquiry.answers[inquiry.waiting.pop(proc)] = {"ok": False, "error": why}
            self._finish(number)

    def _finish(self, number: int) -> None:
        inquiry = self._known.get(number)
        if inquiry is not None and not inquiry.waiting:
            del self._known[number]
            inquiry.answer({"answers": dict(sorted(inquiry.answers.items()))})


_KEPT: Final = ("ok", "error", "text", "frame", "frames", "raised", "number", "hash", "hashes")
