"""What agents are asked for viewers: questions that are answered together, levels for a while."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pardbg.words import duration
from pardbg_agent.wire import LEVELS, Msg

WAIT_NS: Final = 10_000_000_000
"""After this long an evaluation is said to run still; its rank answers nobody any more."""
MAX_TEXT: Final = 10_000
_KEPT: Final = ("ok", "error", "text", "frame", "frames", "raised", "number", "hash", "hashes")
MOST_NS: Final = 24 * 3600 * 1_000_000_000


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
        kept = {key: message[key] for key in _KEPT if key in message}
        for key in ("text", "error"):
            if key in kept:
                kept[key] = str(kept[key])[:MAX_TEXT]
        self._take(number, proc, kept)

    def gone(self, proc: str) -> None:
        """A process ended meanwhile."""
        for number in list(self._known):
            self._take(number, proc, {"ok": False, "error": "it ended meanwhile"})

    def tick(self, now: int) -> None:
        late = {"ok": False, "error": f"no answer in {duration(WAIT_NS)}: it still runs"}
        for number, inquiry in list(self._known.items()):
            if now - inquiry.since_ns >= WAIT_NS:
                for proc in list(inquiry.waiting):
                    self._take(number, proc, late)

    def _take(self, number: int, proc: str, answer: dict[str, Any]) -> None:
        inquiry = self._known.get(number)
        if inquiry is not None and proc in inquiry.waiting:
            inquiry.answers[inquiry.waiting.pop(proc)] = answer
            self._finish(number)

    def _finish(self, number: int) -> None:
        inquiry = self._known.get(number)
        if inquiry is not None and not inquiry.waiting:
            del self._known[number]
            inquiry.answer({"answers": dict(sorted(inquiry.answers.items()))})


class Levels:
    """Asks agents for a level and, where it was for a while, for the one before."""

    def __init__(self, send: Callable[[str, dict[str, Any]], bool]) -> None:
        self._send = send
        self._back: dict[str, tuple[int, int]] = {}
        """proc -> (when, to which level)."""

    def ask(self, levels: Mapping[str, int], level: int, for_ns: int, now: int) -> list[str]:
        """Set ``level`` on the processes of ``levels`` (proc -> its level now); who was asked.

        ``for_ns``: after that it is what it was before; 0: it stays.
        """
        asked = []
        for proc, present in levels.items():
            until, before = self._back.pop(proc, (0, present))
            if for_ns and level != before:
                self._back[proc] = (max(until, now + min(for_ns, MOST_NS)), before)
            elif for_ns and until > now:
                self._back[proc] = (until, before)  # it is at that level afterwards anyway
                continue
            if self._send(proc, {"t": Msg.LEVEL.value, "id": 0, "level": level}):
                asked.append(proc)
        return asked

    def tick(self, now: int) -> list[tuple[str, int]]:
        """Return those whose time is over: (proc, the level it has again)."""
        over = [(proc, level) for proc, (until, level) in self._back.items() if until <= now]
        for proc, level in over:
            del self._back[proc]
            self._send(proc, {"t": Msg.LEVEL.value, "id": 0, "level": level})
        return over


def number_of(word: object) -> int | None:
    """``full`` or 2 -> 2; None: no such level."""
    if isinstance(word, str) and word in LEVELS:
        return LEVELS.index(word)
    return word if isinstance(word, int) and 0 <= word < len(LEVELS) else None
