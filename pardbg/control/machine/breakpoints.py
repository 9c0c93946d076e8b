"""The run's breakpoints and watches: one table, and each rank's part of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pardbg.control.language.expr import Tree, gates, parse
from pardbg.control.language.verbs import Verb
from pardbg.control.language.watch_expr import parse_watch
from pardbg.control.machine.effects import Command
from pardbg.words import duration, parse_rank_set, rank_set, ranks_text
from pardbg_agent.wire import MAX_BREAKS

EDITS: Final = (
    Verb.BREAK, Verb.TBREAK, Verb.UNTIL, Verb.CONDITION, Verb.IGNORE, Verb.DELETE, Verb.BREAKS,
    Verb.DELAY, Verb.WATCH,
)  # fmt: skip
"""Verbs that hold no rank by themselves."""


class BreakpointError(ValueError):
    """A breakpoint that cannot be set or is not there. One line."""


@dataclass(slots=True)
class Breakpoint:
    """One condition or watch, on some ranks or all."""

    number: int
    text: str
    tree: Tree
    """Of a watch: empty."""
    ranks: tuple[int, ...] | None
    """None: all, including those still to come."""
    by: str
    """Viewer that set it; takes control on a hit if it is free."""
    keep: bool
    """Whether ``by`` is a script, which does not stay."""
    lease_ns: int
    once: bool = False
    kind: str = ""
    """Of a watch (wire.WATCH_KINDS); empty: a breakpoint."""
    limit: float = 0.0
    """A watch's, in the kind's own unit."""
    ignore: int = 0
    hits: dict[str, int] = field(default_factory=dict)
    """proc -> matches."""

    @property
    def what(self) -> str:
        """``breakpoint 2`` or ``watch 3``."""
        return f"{'watch' if self.kind else 'breakpoint'} {self.number}"

    @property
    def num_hits(self) -> int:
        """Matches on all ranks, including ignored ones."""
        return sum(self.hits.values())

    def as_dict(self) -> dict[str, Any]:
        """For viewers: number, condition, ranks in words, hits, ignore, once."""
        return {
            "number": self.number, "condition": self.text,
            "ranks": "all" if self.ranks is None else rank_set(self.ranks, "-"),
            "hits": self.num_hits, "ignore": self.ignore, "once": self.once, "by": self.by,
            "kind": self.kind, "keep": self.keep, "lease_ns": self.lease_ns,
        }  # fmt: skip


class Breakpoints:
    """All of the run's breakpoints, by number."""

    def __init__(self) -> None:
        self._known: dict[int, Breakpoint] = {}
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self._known)

    def get(self, number: int) -> Breakpoint | None:
        return self._known.get(number)

    def all(self) -> list[Breakpoint]:
        """Return all, by number."""
        return list(self._known.values())

    def add(
        self, text: str, ranks: tuple[int, ...] | None, by: str, *, keep: bool = False,
        lease_ns: int = 0, once: bool = False,
    ) -> Breakpoint:  # fmt: skip
        """Raises ExprError or BreakpointError."""
        return self._put(text, parse(text), ranks, by, keep, lease_ns, once)

    def watch(
        self, text: str, ranks: tuple[int, ...] | None, by: str, *, keep: bool = False,
        lease_ns: int = 0,
    ) -> Breakpoint:  # fmt: skip
        """Raises ExprError or BreakpointError."""
        kind, limit = parse_watch(text)
        made = self._put(text, (), ranks, by, keep, lease_ns, False)
        made.kind, made.limit = kind, limit
        return made

    def _put(
        self, text: str, tree: Tree, ranks: tuple[int, ...] | None, by: str, keep: bool,
        lease_ns: int, once: bool,
    ) -> Breakpoint:  # fmt: skip
        if len(self._known) >= MAX_BREAKS:
            raise BreakpointError(f"{MAX_BREAKS} breakpoints are set: delete one first")
        self._number += 1
        made = Breakpoint(self._number, text.strip(), tree, ranks, by, keep, lease_ns, once)
        self._known[made.number] = made
        return made

    def restore(self, said: Mapping[str, Any]) -> None:
        """Restore one from its ``as_dict`` in the recording, under its number. Raises
        ExprError or BreakpointError."""
        try:
            number, words = int(said["number"]), str(said["ranks"])
            ranks = None if words == "all" else parse_rank_set(words)
            lease_ns, ignore = int(said["lease_ns"]), int(said["ignore"])
        except (LookupError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise BreakpointError(f"not as a hub says it: {error!r}") from None
        highest, self._number = self._number, number - 1
        try:
            made = (self.watch if said.get("kind") else self.add)(
                str(said.get("condition")), ranks, str(said.get("by")),
                keep=said.get("keep") is True, lease_ns=lease_ns,
            )  # fmt: skip
        finally:
            self._number = max(highest, number)
        made.ignore, made.once = ignore, said.get("once") is True

    def skip(self, number: int) -> None:
        """Continue numbering after ``number``."""
        self._number = max(self._number, number)

    def change(self, number: int, condition: str) -> Breakpoint:
        """Give it another condition. Raises ExprError or BreakpointError."""
        found = self._need(number)
        if found.kind:
            found.kind, found.limit = parse_watch(condition)
        else:
            found.tree = parse(condition)
        found.text = condition.strip()
        return found

    def ignore(self, number: int, count: int) -> Breakpoint:
        """Skip its next ``count`` matches on each rank. Raises BreakpointError."""
        found = self._need(number)
        found.ignore = max(0, count)
        return found

    def delete(self, numbers: Iterable[int]) -> list[int]:
        """Delete these, or all if none is named. Return their numbers. Raises BreakpointError."""
        chosen = list(numbers) or list(self._known)
        for number in chosen:
            self._need(number)
        for number in chosen:
            self._known.pop(number, None)
        return chosen

    def forget(self, by: str) -> list[int]:
        """Delete those of a viewer that has left: a hit would hold an unattended job."""
        gone = [number for number, one in self._known.items() if one.by == by and not one.keep]
        for number in gone:
            del self._known[number]
        return gone

    def count(self, proc: str, hits: dict[int, int]) -> None:
        """Take over a rank's counts, from its STATE."""
        for number, matches in hits.items():
            if number in self._known:
                self._known[number].hits[proc] = matches

    def for_rank(self, rank: int) -> list[dict[str, Any]]:
        """``breaks`` of the BREAKS message to this rank."""
        return [
            {"n": one.number, "gates": gates(one.tree), "tree": one.tree, "ignore": one.ignore,
             "once": one.once}
            for one in self._on(rank)
            if not one.kind
        ]  # fmt: skip

    def watches_for_rank(self, rank: int) -> list[dict[str, Any]]:
        """``watches`` of the BREAKS message to this rank."""
        return [
            {"n": one.number, "kind": one.kind, "limit": one.limit, "ignore": one.ignore}
            for one in self._on(rank)
            if one.kind
        ]

    def _on(self, rank: int) -> list[Breakpoint]:
        return [one for one in self._known.values() if one.ranks is None or rank in one.ranks]

    def as_dicts(self) -> list[dict[str, Any]]:
        return [one.as_dict() for one in self._known.values()]

    def _need(self, number: int) -> Breakpoint:
        found = self._known.get(number)
        if found is None:
            there = ", ".join(map(str, self._known)) or "none is set"
            raise BreakpointError(f"no breakpoint {number}; there are: {there}")
        return found


def edit(table: Breakpoints, command: Command, keep: bool, lease_ns: int) -> str:
    """Carry out a verb of EDITS. Return what was done. Raises ExprError, BreakpointError."""
    args, verb = command.args, command.verb
    if verb in (Verb.BREAK, Verb.TBREAK, Verb.UNTIL, Verb.WATCH):
        ranks = command.ranks if command.text not in ("", "all") else None
        expr = str(args.get("expr", ""))
        if verb is Verb.WATCH:
            made = table.watch(expr, ranks, command.by, keep=keep, lease_ns=lease_ns)
        else:
            made = table.add(
                expr, ranks, command.by, keep=keep, lease_ns=lease_ns, once=verb is not Verb.BREAK
            )
        where = "" if ranks is None else f" on {ranks_text(ranks)}"
        return f"{made.what}: {made.text}{where}"
    if verb is Verb.CONDITION:
        changed = table.change(_number(args, "number"), str(args.get("expr", "")))
        return f"{changed.what}: {changed.text}"
    if verb is Verb.IGNORE:
        changed = table.ignore(_number(args, "number"), _number(args, "count"))
        return f"{changed.what}: skips the next {changed.ignore} matches"
    if verb is Verb.DELETE:
        numbers = args.get("numbers") or []
        if not isinstance(numbers, list) or not all(isinstance(n, int) for n in numbers):
            raise BreakpointError("delete takes breakpoint numbers, or nothing for all")
        named = {one.number: one.what for one in table.all()}
        gone = table.delete(numbers)
        return f"{', '.join(named[n] for n in gone)} deleted" if gone else "none is set"
    if verb is Verb.DELAY:
        late = duration(_number(args, "ns"))
        return f"{ranks_text(command.ranks)} delayed by {late} in each step"
    return f"{len(table.as_dicts())} breakpoints"


def words_of(command: Command) -> str:
    """``pause 0-1``, ``until step==100``: as the user wrote it."""
    count = command.args.get("count")
    times = f"x{count}" if isinstance(count, int) and count > 1 else ""
    parts = (command.verb.value, str(command.args.get("expr", "")), command.text, times)
    return " ".join(filter(None, parts))


def _number(args: dict[str, Any], name: str) -> int:
    value = args.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 40:
        raise BreakpointError(f"{name} is a number, not {str(value)[:20]!r}")
    return value
