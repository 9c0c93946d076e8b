"""The run's breakpoints: a table, and what each rank has to know of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from pardbg.control.effects import Command
from pardbg.control.expr import Tree, gates, parse
from pardbg.control.model import Verb
from pardbg.control.ranksets import spell
from pardbg_agent.wire import MAX_BREAKS

EDITS: Final = (
    Verb.BREAK, Verb.TBREAK, Verb.UNTIL, Verb.CONDITION, Verb.IGNORE, Verb.DELETE, Verb.BREAKS,
    Verb.DELAY,
)  # fmt: skip
"""Verbs that hold nobody by themselves."""


class BreakpointError(ValueError):
    """A breakpoint that cannot be set or is not there. One line."""


@dataclass(slots=True)
class Breakpoint:
    """One condition, on some ranks or all."""

    number: int
    text: str
    tree: Tree
    ranks: tuple[int, ...] | None
    """None: all, also those that are still to come."""
    by: str
    """Who set it: holds control when it hits and nobody else does."""
    keep: bool
    """``by`` is a script, which does not stay."""
    lease_ns: int
    once: bool = False
    ignore: int = 0
    hits: dict[str, int] = field(default_factory=dict)
    """proc -> matches."""

    @property
    def num_hits(self) -> int:
        """Matches over all ranks, those that were ignored too."""
        return sum(self.hits.values())

    def as_dict(self) -> dict[str, Any]:
        """For viewers: number, condition, ranks in words, hits, ignore, once."""
        return {
            "number": self.number, "condition": self.text,
            "ranks": "all" if self.ranks is None else spell(self.ranks),
            "hits": self.num_hits, "ignore": self.ignore, "once": self.once, "by": self.by,
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

    def add(
        self, text: str, ranks: tuple[int, ...] | None, by: str, *, keep: bool = False,
        lease_ns: int = 0, once: bool = False,
    ) -> Breakpoint:  # fmt: skip
        """Raises ExprError or BreakpointError."""
        tree = parse(text)
        if len(self._known) >= MAX_BREAKS:
            raise BreakpointError(f"{MAX_BREAKS} breakpoints are set: delete one first")
        self._number += 1
        made = Breakpoint(self._number, text.strip(), tree, ranks, by, keep, lease_ns, once)
        self._known[made.number] = made
        return made

    def change(self, number: int, condition: str) -> Breakpoint:
        """Give it another condition. Raises ExprError or BreakpointError."""
        found = self._need(number)
        found.tree, found.text = parse(condition), condition.strip()
        return found

    def ignore(self, number: int, count: int) -> Breakpoint:
        """Let its next ``count`` matches (on each rank) pass. Raises BreakpointError."""
        found = self._need(number)
        found.ignore = max(0, count)
        return found

    def delete(self, numbers: Iterable[int]) -> list[int]:
        """Those that were there; none named: all. Raises BreakpointError."""
        chosen = list(numbers) or list(self._known)
        for number in chosen:
            self._need(number)
        for number in chosen:
            self._known.pop(number, None)
        return chosen

    def forget(self, by: str) -> list[int]:
        """Who set them has left: a hit would hold a job that nobody looks at."""
        gone = [number for number, one in self._known.items() if one.by == by and not one.keep]
        for number in gone:
            del self._known[number]
        return gone

    def count(self, proc: str, hits: dict[int, int]) -> None:
        """A rank's own counts, as its STATE says."""
        for number, matches in hits.items():
            if number in self._known:
                self._known[number].hits[proc] = matches

    def for_rank(self, rank: int) -> list[dict[str, Any]]:
        """``breaks`` of the BREAKS message to this rank."""
        return [
            {"n": one.number, "gates": gates(one.tree), "tree": one.tree, "ignore": one.ignore,
             "once": one.once}
            for one in self._known.values()
            if one.ranks is None or rank in one.ranks
        ]  # fmt: skip

    def as_dicts(self) -> list[dict[str, Any]]:
        return [one.as_dict() for one in self._known.values()]

    def _need(self, number: int) -> Breakpoint:
        found = self._known.get(number)
        if found is None:
            there = ", ".join(map(str, self._known)) or "none is set"
            raise BreakpointError(f"no breakpoint {number}; there are: {there}")
        return found


def edit(table: Breakpoints, command: Command, keep: bool, lease_ns: int) -> str:
    """Do what a verb of EDITS says; in words what was done. Raises ExprError, BreakpointError."""
    args, verb = command.args, command.verb
    if verb in (Verb.BREAK, Verb.TBREAK, Verb.UNTIL):
        ranks = command.ranks if command.text not in ("", "all") else None
        made = table.add(
            str(args.get("expr", "")), ranks, command.by, keep=keep, lease_ns=lease_ns,
            once=verb is not Verb.BREAK,
        )  # fmt: skip
        where = "" if ranks is None else f" on rank {spell(ranks)}"
        return f"breakpoint {made.number}: {made.text}{where}"
    if verb is Verb.CONDITION:
        changed = table.change(_number(args, "number"), str(args.get("expr", "")))
        return f"breakpoint {changed.number}: {changed.text}"
    if verb is Verb.IGNORE:
        changed = table.ignore(_number(args, "number"), _number(args, "count"))
        return f"breakpoint {changed.number}: the next {changed.ignore} matches pass"
    if verb is Verb.DELETE:
        numbers = args.get("numbers") or []
        if not isinstance(numbers, list) or not all(isinstance(n, int) for n in numbers):
            raise BreakpointError("delete takes numbers of breakpoints, or nothing for all")
        gone = table.delete(numbers)
        return f"breakpoint {', '.join(map(str, gone))} deleted" if gone else "none is set"
    if verb is Verb.DELAY:
        late = _number(args, "ns") / 1e6
        return f"rank {spell(command.ranks)} later by {late:g} ms in each step"
    return f"{len(table.as_dicts())} breakpoints"


def words_of(command: Command) -> str:
    """``pause 0-1``, ``until step==100``: as the user wrote it."""
    parts = (command.verb.value, str(command.args.get("expr", "")), command.text)
    return " ".join(filter(None, parts))


def _number(args: dict[str, Any], name: str) -> int:
    value = args.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 40:
        raise BreakpointError(f"{name} is a number, not {str(value)[:20]!r}")
    return value
