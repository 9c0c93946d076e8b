"""How much each rank records, switched while it runs; for a while, or until the next word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pardbg_agent.wire import LEVELS, Msg

MOST_NS: Final = 24 * 3600 * 1_000_000_000


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
        """Whose while is over: (proc, the level it has again)."""
        over = [(proc, level) for proc, (until, level) in self._back.items() if until <= now]
        for proc, level in over:
            del self._back[proc]
            self._send(proc, {"t": Msg.LEVEL.value, "id": 0, "level": level})
        return over

    def forget(self, procs: Iterable[str]) -> None:
        """Processes that have ended."""
        for proc in procs:
            self._back.pop(proc, None)


def number_of(word: object) -> int | None:
    """``full`` or 2 -> 2; None: no such level."""
    if isinstance(word, str) and word in LEVELS:
        return LEVELS.index(word)
    return word if isinstance(word, int) and 0 <= word < len(LEVELS) else None
