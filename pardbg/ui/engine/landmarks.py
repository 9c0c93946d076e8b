"""Landmarks of a run: its findings so far, marks on the time bar, and journeys in time.

Part of the engine: everything here reads the store, on the engine's thread.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pardbg.analysis.findings.finding import MANY, Finding
from pardbg.session.navigation.goto import parse
from pardbg.session.navigation.marks import Mark, marks
from pardbg.session.navigation.travel import Found, beside, find, since_ns
from pardbg.words import duration

SAMPLES: Final = 48
"""Number of moments of a recording that are searched for findings withdrawn before its end."""
MARKS_PERIOD_S: Final = 1.0
_MOST_FINDINGS: Final = 1000
_MOST_WITHDRAWN: Final = 8


_HALVINGS: Final = 8
_NEAR_NS: Final = 200_000_000


def _is_merged_into(finding: Finding, now: Finding) -> bool:
    """Return whether a finding on many ranks was merged into ``now``, or reduced to it."""
    if (finding.kind, finding.where) != (now.kind, now.where):
        return False
    many = max(len(finding.ranks), len(now.ranks)) >= MANY
    return many and not set(finding.ranks).isdisjoint(now.ranks)


@dataclass(slots=True)
class _PartFindings:
    """The findings of a part of the run."""

    found: dict[tuple[object, ...], Finding] = field(default_factory=dict)
    seen_ns: dict[tuple[object, ...], int] = field(default_factory=dict)
    """Identity of a finding -> the earliest moment at which it was present."""
    gone_ns: dict[tuple[object, ...], int] = field(default_factory=dict)
    """Identity of a finding -> earliest analysed moment since which it is absent."""
    present_ns: dict[tuple[object, ...], int] = field(default_factory=dict)
    """Identity of a finding -> the time at which it appeared, for findings that were visited."""
    sampled: int = 0


@dataclass(frozen=True, slots=True)
class Journey:
    """A destination: ``goto`` as typed, or ``by`` units from here."""

    goto: str = ""
    unit: str = ""
    by: int = 0
    rank: int = 0
    step: int | None = None
    """The training step that is on the screen; None: none is."""


class Places:
    """Findings and marks of the run or of a part of it, collected as they appear."""

    def __init__(
        self, store: Any, findings: Callable[[Any, int | None], Iterable[Finding]]
    ) -> None:
        self._store, self._look = store, findings
        self._of_part: dict[int | None, _PartFindings] = defaultdict(_PartFindings)
        self._here = self._of_part[None]
        self._marks: tuple[Mark, ...] = ()
        self._made_s = 0.0
        self._made_of: object = None

    def look_at(self, part: int | None) -> None:
        """Use the findings of one part from here on; None: of the run without a chosen part."""
        self._here = self._of_part[part]
        self.forget()

    @property
    def findings(self) -> list[Finding]:
        """Return the findings by begin: finding 1 is the first."""
        return sorted(self._here.found.values(), key=lambda f: (since_ns(f), f.kind))

    def take(self, findings: Iterable[Finding], t_ns: int) -> None:
        """Take the findings of a snapshot at ``t_ns``."""
        for finding in findings:
            key = finding.identity
            known = self._here.found.get(key)
            if known is None and len(self._here.found) >= _MOST_FINDINGS:
                continue
            self._here.seen_ns[key] = min(t_ns, self._here.seen_ns.get(key, t_ns))
            if known is None or since_ns(finding) < since_ns(known):
                self._here.found[key] = finding

    def withdrawn(self, now: Iterable[Finding], t_ns: int, begin_ns: int) -> tuple[Finding, ...]:
        """Return warnings and errors that were present before ``t_ns`` and are gone without a
        successor, as notes with the time of withdrawal; the newest ones."""
        present = tuple(now)
        there = {finding.identity for finding in present}
        instead = {(f.kind, f.culprits) for f in present} | {f.culprits for f in present}
        gone: dict[tuple[object, ...], Finding] = {}
        for key, finding in self._here.found.items():
            if key in there or self._here.seen_ns[key] >= t_ns:
                self._here.gone_ns.pop(key, None)
                continue
            about = finding.kind, finding.culprits
            if finding.severity == "info" or {about, finding.culprits or about} & instead:
                continue
            if any(_is_merged_into(finding, of_more) for of_more in present):
                continue
            since = self._here.gone_ns[key] = min(t_ns, self._here.gone_ns.get(key, t_ns))
            text = f"withdrawn at {duration(max(0, since - begin_ns))}: {finding.text}"
            gone[about] = replace(finding, severity="info", text=text, t_ns=since)
        return tuple(sorted(gone.values(), key=lambda f: -f.t_ns)[:_MOST_WITHDRAWN])

    def search(self, begin_ns: int, end_ns: int) -> bool:
        """Search one more moment of a recording; return False if all of them were searched."""
        if self._here.sampled >= SAMPLES:
            return False
        self._here.sampled += 1
        at = end_ns - (end_ns - begin_ns) * (self._here.sampled - 1) // SAMPLES
        self.take(self._look(self._store, at), at)
        return True

    def worst(self) -> Finding | None:
        """Return the error of a whole recording that began first, else the first warning."""
        end_ns = self._store.end_ns
        found = list(self._look(self._store, end_ns))
        self.take(found, end_ns)
        grave = [finding for finding in found if finding.severity != "info"]
        return min(grave, key=lambda f: (f.severity != "error", since_ns(f)), default=None)

    @property
    def searched(self) -> float:
        """Return the progress of the search for findings, 0..1."""
        return self._here.sampled / SAMPLES

    def marks(self) -> tuple[Mark, ...]:
        """Return the marks of the time bar; computed anew after changes, once a second at most."""
        now = time.monotonic()
        of = (self._store.revision, len(self._here.found), self._store.bookmarks.all())
        if of != self._made_of and now - self._made_s >= MARKS_PERIOD_S:
            self._made_of, self._made_s = of, now
            self._marks = marks(self._store, self.findings)
        return self._marks

    def present_ns(self, finding: Finding) -> int:
        """Return a time at which the finding is present, to some tenths of a second the earliest. A
        finding may appear only after its cause has lasted for a while."""
        key, present = finding.identity, self._here.present_ns
        late = self._here.seen_ns.get(key, finding.t_ns)
        if key in present:
            return min(late, present[key])
        early = since_ns(finding)
        if finding.first_ns is None and finding.evidence is not None:  # else that is the newest
            early = max(early, finding.evidence.t_ns)
        for _ in range(_HALVINGS):
            if late - early <= _NEAR_NS:
                break
            middle = (early + late) // 2
            there = key in {found.identity for found in self._look(self._store, middle)}
            early, late = (early, middle) if there else (middle, late)
        present[key] = max(late, early)
        return present[key]

    def _appearing(self, t_ns: int, by: int) -> list[Finding]:
        """Return the finding that appears next after ``t_ns`` (``by`` > 0), or appeared last before
        it, as a list of findings that begin at the same time; empty: no finding."""
        found: list[Finding] = []
        for finding in self.findings[:: 1 if by > 0 else -1]:
            since = since_ns(finding)
            if found and (by < 0 or since >= since_ns(found[0])):
                break  # findings that begin later appear later, too
            if by > 0 and self._here.seen_ns.get(finding.identity, t_ns + 1) <= t_ns:
                continue
            at = self.present_ns(finding) if by > 0 or since < t_ns else t_ns
            if by * (at - t_ns) > 0 and (not found or at < since_ns(found[0])):
                found = [replace(finding, first_ns=at)]
        return found

    def forget(self) -> None:
        """Compute the marks anew at once, after a bookmark was set."""
        self._made_s, self._made_of = 0.0, None

    def go(self, journey: Journey, t_ns: int, begin_ns: int, end_ns: int) -> Found:
        """Return the place in the recording that a journey leads to. Raises UserError."""
        if journey.goto:
            target = parse(journey.goto)
            found = find(self._store, t_ns, target, begin_ns, end_ns, self.findings, journey.step)
            if target.kind == "finding":
                return replace(found, t_ns=self.present_ns(self.findings[target.number - 1]))
            return found
        there = self._appearing(t_ns, journey.by) if journey.unit == "finding" else ()
        return beside(self._store, t_ns, journey.unit, journey.by, journey.rank, there)
