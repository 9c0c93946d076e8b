"""Breakpoints and watches of the run: one table, and each rank's part of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final

from pardbg.control.language.arguments import parse_watch
from pardbg.control.language.expr import gates, parse
from pardbg.events.control_codes import Verb, Why
from pardbg.events.control_facts import Breakpoint, Refusal
from pardbg_agent.ctrl.agent_messages import BreakAt, SetBreaks, Watch
from pardbg_agent.wire import MAX_BREAKS

EDITS: Final = (
    Verb.BREAK, Verb.TBREAK, Verb.UNTIL, Verb.CONDITION, Verb.IGNORE, Verb.ENABLE, Verb.DISABLE,
    Verb.DELETE, Verb.BREAKS, Verb.DELAY, Verb.WATCH,
)  # fmt: skip
"""Verbs on breakpoints, watches and delays, which hold no rank by themselves."""


class Refuse(Exception):
    """Raised when a command is refused."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal)
        self.refusal = refusal


class Breakpoints:
    """All breakpoints and watches of the run, by number."""

    def __init__(self) -> None:
        self._known: dict[int, Breakpoint] = {}
        self._hits: dict[int, dict[str, int]] = {}
        """Number -> process -> matches, since it was last enabled."""
        self._before: dict[int, int] = {}
        """Number -> matches before it was last enabled or disabled."""
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self._known)

    def get(self, number: int) -> Breakpoint | None:
        return self._known.get(number)

    def add(self, new: Breakpoint) -> Breakpoint:
        """Set a breakpoint under the next number. Raises UserError (no condition) or Refuse."""
        made = self._set(replace(new, number=self._number + 1))
        self._number = made.number
        return made

    def restore(self, known: Breakpoint) -> None:
        """Set a breakpoint under its number. Raises as ``add``."""
        self.skip(known.number)
        self._set(known)

    def skip(self, number: int) -> None:
        """Continue numbering after ``number``."""
        self._number = max(self._number, number)

    def change(self, number: int, condition: str) -> Breakpoint:
        """Give a breakpoint another condition. Raises UserError and Refuse."""
        return self._with_hits(self._set(replace(self._need(number), condition=condition)))

    def ignore(self, number: int, count: int) -> Breakpoint:
        """Skip a breakpoint's next ``count`` matches on each rank. Raises Refuse."""
        found = self._known[number] = replace(self._need(number), ignore=max(0, count))
        return self._with_hits(found)

    def enable(self, numbers: Iterable[int], enabled: bool) -> list[Breakpoint]:
        """Enable or disable breakpoints, all if none is named; return them. Raises Refuse."""
        chosen = [self._with_hits(self._need(n)) for n in list(numbers) or list(self._known)]
        for one in chosen:
            self._before[one.number] = one.hits
            self._hits.pop(one.number, None)
            self._known[one.number] = replace(one, enabled=enabled)
        return [self._known[one.number] for one in chosen]

    def delete(self, numbers: Iterable[int]) -> list[Breakpoint]:
        """Delete breakpoints, all if none is named, and return them. Raises Refuse."""
        chosen = {n: self._with_hits(self._need(n)) for n in list(numbers) or list(self._known)}
        for number in chosen:
            del self._known[number]
            self._hits.pop(number, None)
            self._before.pop(number, None)
        return list(chosen.values())

    def forget(self, by: str) -> list[Breakpoint]:
        """Delete the breakpoints of a viewer that has left: a hit would hold an unattended job."""
        gone = [one.number for one in self._known.values() if one.by == by and not one.keep]
        return self.delete(gone) if gone else []

    def count(self, proc: str, hits: Mapping[int, int]) -> None:
        """Take over a rank's counts, from its STATE."""
        for number, matches in hits.items():
            if number in self._known and self._known[number].enabled:
                self._hits.setdefault(number, {})[proc] = matches

    def for_rank(self, rank: int, message_id: int) -> SetBreaks:
        """Return the message with all breakpoints and watches that are set for this rank."""
        breaks, watches = [], []
        for one in self._known.values():
            if not one.enabled or (one.on is not None and rank not in one.on):
                continue
            if one.kind:
                kind, limit = _watch(one.condition)
                watches.append(Watch(one.number, kind, limit, one.ignore))
            else:
                tree = _tree(one.condition)
                breaks.append(BreakAt(one.number, gates(tree), tree, one.ignore, one.once))
        return SetBreaks(message_id, tuple(breaks), tuple(watches))

    def infos(self) -> tuple[Breakpoint, ...]:
        """Return all breakpoints and watches in the form for viewers."""
        return tuple(map(self._with_hits, self._known.values()))

    def _with_hits(self, one: Breakpoint) -> Breakpoint:
        hits = self._before.get(one.number, 0) + sum(self._hits.get(one.number, {}).values())
        return replace(one, hits=hits)

    def _set(self, one: Breakpoint) -> Breakpoint:
        text = one.condition.strip()
        if one.kind:
            one = replace(one, kind=_watch(text)[0])
        else:
            _tree(text)
        if one.number not in self._known and len(self._known) >= MAX_BREAKS:
            raise Refuse(Refusal(Why.MANY_BREAKPOINTS, number=MAX_BREAKS))
        made = self._known[one.number] = replace(one, condition=text, hits=0)
        return made

    def _need(self, number: int) -> Breakpoint:
        found = self._known.get(number)
        if found is None:
            known = tuple(self._known)
            raise Refuse(Refusal(Why.NO_BREAKPOINT, number=number, numbers=known))
        return found


_tree = lru_cache(MAX_BREAKS)(parse)
_watch = lru_cache(MAX_BREAKS)(parse_watch)
