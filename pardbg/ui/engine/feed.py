"""Requests and answers between UI and engine: a page states its needs (`Want`), a frame comes as
one frozen value (`Frame`). The UI has no access to the store, and analyses nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pardbg.analysis.answers.rounds import Round
from pardbg.analysis.answers.snapshot import EVERYTHING, SECTIONS, Snapshot, Viewport, snapshot
from pardbg.analysis.answers.timeline import Lanes as Lanes
from pardbg.analysis.answers.timeline import Spot, WaitedFor, lanes
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.run import OutputLine, lines
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.finding import Finding
from pardbg.analysis.pipeline.implied import ScheduleDetail
from pardbg.analysis.pipeline.in_flight import Peak
from pardbg.analysis.pipeline.ticks.cell import Ticks, TicksWant, ticks_shown
from pardbg.analysis.same.comparison import alone, compare
from pardbg.analysis.same.module_rows import Numbers, numbers_of
from pardbg.analysis.whatif.answer import WhatIf, kept_whatif
from pardbg.render.frame.step_charts import Ahead, Event
from pardbg.session.navigation.marks import Mark
from pardbg.session.source_files import Place, SourceLines
from pardbg.store.history import Bookmark
from pardbg.store.source import Source
from pardbg.store.store import Store


@dataclass(frozen=True, slots=True)
class TimelineWant:
    """The timeline's window, ending at the cursor."""

    span_ns: int | None
    """Length of the window; None: some steps, as the length of a step is not known yet."""
    columns: int
    ranks: tuple[int, ...] | None = None
    spot: Spot | None = None
    """The chosen box."""
    end_ns: int | None = None
    """End of the window, if it is before the cursor."""
    halved: int = 0
    """Number of times that the default window is halved (< 0: doubled)."""


@dataclass(frozen=True, slots=True)
class OutputWant:
    limit: int
    contains: str | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Want:
    """Data that the visible page needs beyond the snapshot."""

    timeline: TimelineWant | None = None
    output: OutputWant | None = None
    ahead: bool = False
    """Step times and losses of the whole recording."""
    whatif: bool = False
    schedule: bool = False
    """Plan in time, critical path and microbatches in flight."""
    peaks: bool = False
    """The actions that made each rank's peak of activations."""
    ticks: TicksWant | None = None
    source: Place | None = None
    """The line of a file to show."""
    pipeline_of: int | None = None
    """Rank whose pipeline the snapshot shows in full, if a run has several pipelines."""
    sameness: bool = False
    """Whether a comparison of the run with its reference is needed."""
    part: int | None = None
    """The life or role to look at; None: the newest life."""
    viewport: Viewport = EVERYTHING
    """Parts of the snapshot that the page draws."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The second of two runs shown together."""

    name: str
    snapshot: Snapshot
    by: str
    """Axis by which the two runs are aligned: ``step 42`` or ``time``."""
    note: str = ""
    schedule: ScheduleDetail | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """Data that a screen draws from."""

    snapshot: Snapshot
    following: bool = True
    """Live and at the newest time; False while looking back and in replay."""
    finished: bool = False
    """Whether the source has no more messages."""
    playing: bool = False
    speed: float = 1.0
    lanes: Lanes = field(default_factory=dict)
    lanes_t0_ns: int = 0
    lanes_t1_ns: int = 0
    waited: tuple[Spot, WaitedFor | None] | None = None
    """The chosen box, and the op or rank that its rank waited for."""
    output: tuple[OutputLine, ...] | None = None
    """Lines of the job's output; None: not requested."""
    begin_ns: int = 0
    end_ns: int = 0
    """Time bounds of the whole session, also while only part of it is read."""
    active_ns: tuple[int, int] | None = None
    """First and last moment at which a rank was active."""
    loaded: float = 1.0
    """Share of a recording that is read, 0..1."""
    whole: bool = True
    """False: findings are still looked for; a frame with them follows."""
    searched: bool = True
    """Whether every part of a recording was looked at for findings."""
    sections: frozenset[str] = SECTIONS
    """Sections of the snapshot that this frame contains."""
    awaited_ns: int | None = None
    """The requested moment while it is not read yet; the frame shows an earlier one."""
    marks: tuple[Mark, ...] = ()
    findings: tuple[Finding, ...] = ()
    """Findings of the run up to the analysed time, by time."""
    bookmarks: tuple[Bookmark, ...] = ()
    whatif: WhatIf | str | None = None
    schedule: ScheduleDetail | None = None
    peaks: Mapping[int, Peak] = field(default_factory=dict)
    ticks: Ticks | None = None
    """The pipelines by tick."""
    ahead: Ahead | None = None
    """Step times and losses of the whole recording."""
    events: tuple[Event, ...] = ()
    """Positions on the axis of steps where errors and warnings begin."""
    source: SourceLines | None = None
    """Lines around ``Want.source``."""
    other: Comparison | None = None
    """The second of two recordings shown together."""
    sameness: Numbers | None = None
    """Comparison with the second recording, or of the run's replicas; None: not known yet."""

    @property
    def looking(self) -> bool:
        """Whether findings of this moment, or the rest of a recording, are still to come."""
        return not (self.whole and (self.searched or self.finished))


class Analysis:
    """The analysis as the engine calls it; tests use their own."""

    has_partial = True
    """Whether a partial snapshot can be made, without the slowest parts."""

    def snapshot(
        self, store: Any, t_ns: int | None, rank: int | None, viewport: Viewport,
        before: Snapshot | None, partial: bool,
    ) -> Snapshot:  # fmt: skip
        """Return the run at a time, as `pardbg.analysis.answers.snapshot` does."""
        return snapshot(store, t_ns, rank, viewport, before, partial=partial)

    def round(self, store: Any, rank: int | None, viewport: Viewport, before: Snapshot) -> Round:
        """Begin a look at all ranks of a live run of many ranks."""
        return Round(store, rank, viewport, before)

    def lanes(
        self, store: Any, t0_ns: int, t1_ns: int, columns: int, ranks: tuple[int, ...] | None,
        now_ns: int,
    ) -> Lanes:  # fmt: skip
        """Return the timeline lanes of these ranks, as of a cursor; None: of all ranks."""
        return lanes(store, t0_ns, t1_ns, columns, ranks, now_ns)

    def output(self, store: Any, t_ns: int, want: OutputWant) -> tuple[OutputLine, ...]:
        """Return the output lines up to a time."""
        return lines(store, t_ns, want.limit, contains=want.contains, rank=want.rank)

    def findings(self, store: Any, t_ns: int | None) -> Iterable[Finding]:
        """Return the findings at a time, without the rest of a snapshot."""
        found = findings(view := View(store, t_ns))
        view.done()
        return found

    def whatif(self, store: Any, t_ns: int | None) -> WhatIf | str | None:
        """Return other schedules, by the steps up to a time."""
        return kept_whatif(View(store, t_ns))

    def num_tensors(self, store: Any) -> int:
        """Return the number of captured tensors that ranks have reported."""
        return sum(len(process.tensors) for process in store.rank_procs(None).values())

    def sameness(self, store: Any, reference: Any) -> Numbers:
        """Return the comparison of a run with ``reference``; None: of the run's replicas only."""
        return numbers_of(alone(store) if reference is None else compare(reference, store))

    def ticks(self, store: Any, t_ns: int | None, want: TicksWant) -> Ticks | None:
        """Return the pipelines by tick."""
        return ticks_shown(store, t_ns, want)


@dataclass(frozen=True, slots=True)
class SecondRecording:
    """A recording to show beside the first."""

    name: str
    source: Source
    store: Store
