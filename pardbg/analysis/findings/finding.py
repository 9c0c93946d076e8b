"""Findings, and the candidates for them: facts as detectors report them, before anything is decided
or put into words."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final, Literal

from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.analysis.findings.wording import word
from pardbg.sentences import filled

Severity = Literal["error", "warning", "info"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")
"""The worst first."""
MANY: Final = 4
"""Number of findings of one rank each, with like facts, that become one."""
GroupKey = tuple[int, str]
"""(epoch, key) of a process group."""


class Label(str):
    """Name of a group or of an op on one, for people: as good as a figure, where facts are compared
    over ranks."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where to look: a moment, a rank and a screen."""

    t_ns: int
    rank: int | None
    screen: str
    """A screen's name: ``timeline``, ``collectives``, ``pipeline`` …"""
    lane: str = ""
    """The timeline's lane, where one is meant."""
    op: str = ""
    """The op in words, where one is meant."""


class Facts:
    """Facts that a finding rests on: fields of a frozen dataclass for each kind or family of kinds,
    in ``kinds``. Severity, sentence and advice are functions of them; their words, and those of the
    row of docs/findings.md, are in ``kinds/kinds.txt``."""

    __slots__ = ()

    @property
    def screen(self) -> str:
        """Return the screen with the evidence, where the candidate names none; empty: none."""
        return word(type(self), "screen")

    def severity(self) -> Severity:
        """Return how bad these facts are by themselves."""
        return "warning"

    def text(self, about: Candidate) -> str:
        """Return the facts as a sentence or a few."""
        return filled(word(type(self), "text"), self, about)

    def advice(self) -> str:
        """Return advice for the user, from the finding's facts."""
        return self.tries("")

    def tries(self, case: object) -> str:
        """Return what to try in a case of several; else what to try in all others."""
        return word(type(self), f"try {case}") or word(type(self), "try")

    def explaining(self, about: Candidate, effect: Candidate) -> Facts:
        """Return these facts with what they explain, of a rule that tells them."""
        return self

    def beyond_load(self) -> bool:
        """Return whether an overloaded host is no explanation (for facts about speed)."""
        return False

    def subject(self, about: Candidate) -> Hashable:
        """Return what candidates of one kind that are one finding have in common; None: each is a
        finding of its own."""
        return None

    def joined(self, same: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return the candidates of one subject, these facts' own first, as one."""
        return same


class Note(Facts):
    """Facts that are worth a note."""

    __slots__ = ()

    def severity(self) -> Severity:
        return "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What a detector reports: a finding, unless the arbiter has reasons against it."""

    kind: str
    """Identifier of its kind, ``missing-rank``."""
    facts: Facts
    t_ns: int
    ranks: tuple[int, ...] = ()
    culprits: tuple[int, ...] = ()
    group: str | None = None
    seq: int | None = None
    where: str | None = None
    cost_ns_per_step: int | None = None
    evidence: Evidence | None = None
    """None: the time, the first culprit and the screen of the facts."""
    first_ns: int | None = None
    scope: frozenset[GroupKey] = frozenset()
    """Groups whose ops it is about."""
    joined: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Ranks and culprits of all candidates with like facts that it stands for."""
    last_resort: bool = False
    """Holds only where nothing else explains how its ranks ended."""
    settled: bool = True
    """Known well enough to be shown. Until then it only explains others."""
    handled: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """(exception, culprits that are just handling it)"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. ``text`` says what; ``advice`` what to try."""

    kind: str
    """A stable identifier, ``missing-rank``; listed in docs/findings.md."""
    severity: Severity
    t_ns: int
    text: str
    advice: str = ""
    ranks: tuple[int, ...] = ()
    """Affected ranks, direct waiters first."""
    culprits: tuple[int, ...] = ()
    """Ranks that caused it; never those that only wait."""
    group: str | None = None
    seq: int | None = None
    where: str | None = None  # ``train.py:88 in forward``
    cost_ns_per_step: int | None = None
    """Time that a step would save without it, where that is known."""
    evidence: Evidence | None = None
    first_ns: int | None = None
    """Since when it is so (``t_ns`` is when it was last seen); None: the same."""
    facts: Facts | None = None
    """Facts that ``text`` is made from."""
    handled: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """As ``Candidate.handled``."""

    @property
    def order(self) -> tuple[int, int]:
        """Sorts the worst first, then the newest."""
        return SEVERITIES.index(self.severity), -self.t_ns

    @property
    def identity(self) -> tuple[object, ...]:
        """Tells whether two moments have the same one: what lasts is seen at ever newer ops."""
        seq = self.seq if self.first_ns is None else None
        return self.kind, self.culprits or self.ranks, self.group, seq


def first(row: CollectiveRow) -> int:
    """Return when its first rank issued it, in ns."""
    return min(row.issued.values(), default=0)


def at_row(row: CollectiveRow, rank: int | None) -> Evidence:
    """Return the collective itself, on its screen."""
    return Evidence(first(row), rank, "collectives", op=f"{row.op} {row.label} #{row.seq}")


def kind_of_facts(value: Any) -> Any:
    """Return facts without their figures: ranks whose facts differ in numbers alone are alike."""
    if is_dataclass(value):
        return type(value), *(kind_of_facts(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, tuple):
        return frozenset(kind_of_facts(part) for part in value)
    figure = isinstance(value, (int, float, Label)) and not isinstance(value, bool)
    return type(value) if figure else value


def facts_json(value: Any) -> Any:
    """Return facts as JSON has them."""
    if is_dataclass(value):
        return {field.name: facts_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (tuple, list)):
        return [facts_json(part) for part in value]
    return value
