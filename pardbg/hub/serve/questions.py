"""Questions to agents on behalf of viewers: evaluations answered together, levels for a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pardbg.events.commands import Answers
from pardbg_agent.ctrl.agent_messages import Evaluated, NoAnswer, SetLevel

WAIT_NS: Final = 10_000_000_000
"""Time, in ns, after which a rank is reported as still evaluating; later answers are dropped."""
MOST_NS: Final = 24 * 3600 * 1_000_000_000


@dataclass(slots=True)
class _Inquiry:
    answer: Callable[[Answers], None]
    waiting: dict[str, int]
    """Process -> rank of processes that have not answered."""
    since_ns: int
    answers: dict[int, Evaluated] = field(default_factory=dict)
    """Answers by rank."""


class Questions:
    """All evaluations under way."""

    def __init__(self) -> None:
        self._known: dict[int, _Inquiry] = {}

    def ask(
        self, number: int, procs: Mapping[str, int], answer: Callable[[Answers], None], now: int
    ) -> None:
        """Note that the agents ``procs`` (process -> rank) were asked with id ``number``."""
        self._known[number] = _Inquiry(answer, dict(procs), now)
        self._finish(number)

    def answered(self, proc: str, answer: Evaluated) -> None:
        """Take an agent's answer."""
        self._take(answer.re, proc, answer)

    def gone(self, proc: str) -> None:
        """End the questions to a process that ended meanwhile."""
        for number in list(self._known):
            self._take(number, proc, Evaluated(number, NoAnswer.ENDED))

    def tick(self, now: int) -> None:
        """Answer without ranks that take too long."""
        for number, inquiry in list(self._known.items()):
            if now - inquiry.since_ns >= WAIT_NS:
                for proc in list(inquiry.waiting):
                    self._take(number, proc, Evaluated(number, NoAnswer.SILENT))

    def _take(self, number: int, proc: str, answer: Evaluated) -> None:
        inquiry = self._known.get(number)
        if inquiry is not None and proc in inquiry.waiting:
            inquiry.answers[inquiry.waiting.pop(proc)] = answer
            self._finish(number)

    def _finish(self, number: int) -> None:
        inquiry = self._known.get(number)
        if inquiry is not None and not inquiry.waiting:
            del self._known[number]
            inquiry.answer(Answers(dict(sorted(inquiry.answers.items()))))


class Levels:
    """Sampling levels of agents: set, and reset to the previous one if set for a time."""

    def __init__(self, send: Callable[[str, SetLevel], bool]) -> None:
        self._send = send
        self._back: dict[str, tuple[int, int]] = {}
        """Process -> (time of the reset, level)."""

    def ask(self, levels: Mapping[str, int], level: int, for_ns: int, now: int) -> list[str]:
        """Set ``level`` on the processes of ``levels`` (process -> its level now); return those
        asked.

        ``for_ns``: time after which the level is reset; 0: it stays."""
        asked = []
        for proc, present in levels.items():
            until, before = self._back.pop(proc, (0, present))
            if for_ns and level != before:
                self._back[proc] = (max(until, now + min(for_ns, MOST_NS)), before)
            elif for_ns and until > now:
                self._back[proc] = (until, before)  # it is at that level afterwards anyway
                continue
            if self._send(proc, SetLevel(0, level)):
                asked.append(proc)
        return asked

    def tick(self, now: int) -> list[tuple[str, int]]:
        """Return (process, level) of processes that were reset now, as their time is over."""
        over = [(proc, level) for proc, (until, level) in self._back.items() if until <= now]
        for proc, level in over:
            del self._back[proc]
            self._send(proc, SetLevel(0, level))
        return over
