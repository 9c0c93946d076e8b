"""The run's breakpoints and watches: one table, and each rank's part of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pardbg.control.language.arguments import parse_watch
from pardbg.control.language.expr import Tree, gates, parse
from pardbg.events.control_codes import Verb, Why
from pardbg.events.control_facts import Breakpoint as Info
from pardbg.events.control_facts import Refusal
from pardbg_agent.ctrl.agent_messages import BreakAt, SetBreaks, Watch
from pardbg_agent.wire import MAX_BREAKS

EDITS: Final = (
    Verb.BREAK, Verb.TBREAK, Verb.UNTIL, Verb.CONDITION, Verb.IGNORE, Verb.DELETE, Verb.BREAKS,
    Verb.DELAY, Verb.WATCH,
)  # fmt: skip
"""Verbs that hold no rank by themselves."""


class Refuse(Exception):
    """A command is refused."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal)
        self.refusal = refusal


@dataclass(slots=True)
class Breakpoint:
    """One condition or watch, on some ranks or all."""

    number: int
    text: str
    tree: Tree
    """Condition; empty for a watch."""
    ranks: tuple[int, ...] | None
    """None: all, including those still to come."""
    by: str
    """Viewer that set it; takes control on a hit if it is free."""
    keep: bool
    """Whether ``by`` is a script, which does not stay."""
    lease_ns: int
    once: bool = False
    kind: str = ""
    """Kind of a watch (wire.WATCH_KINDS); empty: a breakpoint."""
    limit: float = 0.0
    """A watch's, in the kind's own unit."""
    ignore: int = 0
    hits: dict[str, int] = field(default_factory=dict)
    """proc -> matches."""

    def info(self) -> Info:
        """Return it as viewers see it."""
        return Info(
            self.number, self.text, self.ranks, sum(self.hits.values()), self.ignore, self.once,
            self.kind, self.by, self.keep, self.lease_ns,
        )  # fmt: skip


class Breakpoints:
    """All of the run's breakpoints, by number."""

    def __init__(self) -> None:
        self._known: dict[int, Breakpoint] = {}
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self._known)

    def get(self, number: int) -> Breakpoint | None:
        return self._known.get(number)

    def add(
        self, text: str, ranks: tuple[int, ...] | None, by: str, *, keep: bool = False,
        lease_ns: int = 0, once: bool = False, watch: bool = False,
    ) -> Breakpoint:  # fmt: skip
        """Raises UserError (the condition makes no sense) and Refuse (there are too many)."""
        kind, limit = parse_watch(text) if watch else ("", 0.0)
        tree = () if watch else parse(text)
        if len(self._known) >= MAX_BREAKS:
            raise Refuse(Refusal(Why.MANY_BREAKPOINTS, number=MAX_BREAKS))
        self._number += 1
        made = self._known[self._number] = Breakpoint(
            self._number, text.strip(), tree, ranks, by, keep, lease_ns, once, kind, limit
        )
        return made

    def restore(self, info: Info) -> None:
        """Restore one from its ``info``, under its number. Raises as ``add``."""
        highest, self._number = self._number, info.number - 1
        try:
            made = self.add(
                info.condition, info.on, info.by, keep=info.keep, lease_ns=info.lease_ns,
                once=info.once, watch=bool(info.kind),
            )  # fmt: skip
        finally:
            self._number = max(highest, info.number)
        made.ignore = info.ignore

    def skip(self, number: int) -> None:
        """Continue numbering after ``number``."""
        self._number = max(self._number, number)

    def change(self, number: int, condition: str) -> Breakpoint:
        """Give it another condition. Raises UserError and Refuse."""
        found = self._need(number)
        if found.kind:
            found.kind, found.limit = parse_watch(condition)
        else:
            found.tree = parse(condition)
        found.text = condition.strip()
        return found

    def ignore(self, number: int, count: int) -> Breakpoint:
        """Skip its next ``count`` matches on each rank. Raises Refuse."""
        found = self._need(number)
        found.ignore = max(0, count)
        return found

    def delete(self, numbers: Iterable[int]) -> list[Breakpoint]:
        """Delete these, or all if none is named, and return them. Raises Refuse."""
        chosen = [self._need(number) for number in list(numbers) or list(self._known)]
        for one in chosen:
            self._known.pop(one.number, None)
        return chosen

    def forget(self, by: str) -> list[Breakpoint]:
        """Delete those of a viewer that has left: a hit would hold an unattended job."""
        gone = [one for one in self._known.values() if one.by == by and not one.keep]
        for one in gone:
            del self._known[one.number]
        return gone

    def count(self, proc: str, hits: Mapping[int, int]) -> None:
        """Take over a rank's counts, from its STATE."""
        for number, matches in hits.items():
            if number in self._known:
                self._known[number].hits[proc] = matches

    def for_rank(self, rank: int, message_id: int) -> SetBreaks:
        """Return the message with all that is set for this rank."""
        own = [one for one in self._known.values() if one.ranks is None or rank in one.ranks]
        return SetBreaks(
            message_id,
            tuple(BreakAt(one.number, gates(one.tree), one.tree, one.ignore, one.once)
                  for one in own if not one.kind),
            tuple(Watch(one.number, one.kind, one.limit, one.ignore) for one in own if one.kind),
        )  # fmt: skip

    def infos(self) -> tuple[Info, ...]:
        return tuple(one.info() for one in self._known.values())

    def _need(self, number: int) -> Breakpoint:
        found = self._known.get(number)
        if found is None:
            known = tuple(self._known)
            raise Refuse(Refusal(Why.NO_BREAKPOINT, number=number, numbers=known))
        return found
