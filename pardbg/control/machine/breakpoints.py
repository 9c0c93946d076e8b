"""The run's breakpoints and watches: one table, and each rank's part of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pardbg.control.language.arguments import parse_watch
from pardbg.control.language.expr import Tree, gates, parse
from pardbg.control.language.verbs import Verb
from pardbg.errors import NONSENSE, UserError
from pardbg.words import parse_rank_set, rank_set
from pardbg_agent.wire import MAX_BREAKS

EDITS: Final = (
    Verb.BREAK, Verb.TBREAK, Verb.UNTIL, Verb.CONDITION, Verb.IGNORE, Verb.DELETE, Verb.BREAKS,
    Verb.DELAY, Verb.WATCH,
)  # fmt: skip
"""Verbs that hold no rank by themselves."""


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

    @property
    def what(self) -> str:
        """Return text such as ``breakpoint 2`` or ``watch 3``."""
        return f"{'watch' if self.kind else 'breakpoint'} {self.number}"

    def as_dict(self) -> dict[str, Any]:
        """For viewers: number, condition, ranks in words, hits, ignore, once."""
        return {
            "number": self.number, "condition": self.text,
            "ranks": "all" if self.ranks is None else rank_set(self.ranks, "-"),
            "hits": sum(self.hits.values()), "ignore": self.ignore, "once": self.once,
            "by": self.by, "kind": self.kind, "keep": self.keep, "lease_ns": self.lease_ns,
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
        lease_ns: int = 0, once: bool = False, watch: bool = False,
    ) -> Breakpoint:  # fmt: skip
        """Raises UserError."""
        kind, limit = parse_watch(text) if watch else ("", 0.0)
        tree = () if watch else parse(text)
        if len(self._known) >= MAX_BREAKS:
            raise UserError(f"{MAX_BREAKS} breakpoints are set: delete one first")
        self._number += 1
        made = self._known[self._number] = Breakpoint(
            self._number, text.strip(), tree, ranks, by, keep, lease_ns, once, kind, limit
        )
        return made

    def restore(self, said: Mapping[str, Any]) -> None:
        """Restore one from its ``as_dict``, under its number. Raises UserError."""
        try:
            number, words = int(said["number"]), str(said["ranks"])
            ranks = None if words == "all" else parse_rank_set(words)
            lease_ns, ignore = int(said["lease_ns"]), int(said["ignore"])
        except NONSENSE as error:
            raise UserError(f"not as a hub says it: {error!r}") from None
        highest, self._number = self._number, number - 1
        try:
            made = self.add(
                str(said.get("condition")), ranks, str(said.get("by")),
                keep=said.get("keep") is True, lease_ns=lease_ns, watch=bool(said.get("kind")),
            )  # fmt: skip
        finally:
            self._number = max(highest, number)
        made.ignore, made.once = ignore, said.get("once") is True

    def skip(self, number: int) -> None:
        """Continue numbering after ``number``."""
        self._number = max(self._number, number)

    def change(self, number: int, condition: str) -> Breakpoint:
        """Give it another condition. Raises UserError."""
        found = self._need(number)
        if found.kind:
            found.kind, found.limit = parse_watch(condition)
        else:
            found.tree = parse(condition)
        found.text = condition.strip()
        return found

    def ignore(self, number: int, count: int) -> Breakpoint:
        """Skip its next ``count`` matches on each rank. Raises UserError."""
        found = self._need(number)
        found.ignore = max(0, count)
        return found

    def delete(self, numbers: Iterable[int]) -> list[Breakpoint]:
        """Delete these, or all if none is named, and return them. Raises UserError."""
        chosen = [self._need(number) for number in list(numbers) or list(self._known)]
        for one in chosen:
            self._known.pop(one.number, None)
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

    def for_rank(self, rank: int) -> dict[str, list[dict[str, Any]]]:
        """Return ``breaks`` and ``watches`` of the BREAKS message to this rank."""
        breaks: list[dict[str, Any]] = []
        watches: list[dict[str, Any]] = []
        for one in self._known.values():
            said = {"n": one.number, "ignore": one.ignore}
            if one.ranks is not None and rank not in one.ranks:
                continue
            if one.kind:
                watches.append({**said, "kind": one.kind, "limit": one.limit})
            else:
                tree = one.tree
                breaks.append({**said, "gates": gates(tree), "tree": tree, "once": one.once})
        return {"breaks": breaks, "watches": watches}

    def as_dicts(self) -> list[dict[str, Any]]:
        return [one.as_dict() for one in self._known.values()]

    def _need(self, number: int) -> Breakpoint:
        found = self._known.get(number)
        if found is None:
            there = ", ".join(map(str, self._known)) or "none is set"
            raise UserError(f"no breakpoint {number}; there are: {there}")
        return found
