"""Frames with the data that the page wants, from the analysis at the cursor."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pardbg.analysis.answers.rounds import Round
from pardbg.analysis.answers.snapshot import MANY, SECTIONS, Snapshot, Viewport
from pardbg.analysis.answers.timeline import Spot, WaitedFor, waited_for
from pardbg.analysis.base.run import OutputLine
from pardbg.analysis.findings.finding import Finding
from pardbg.analysis.pipeline.implied import schedule_detail
from pardbg.analysis.pipeline.in_flight import Peak, peaks
from pardbg.analysis.same.module_rows import Numbers, is_captured
from pardbg.render.frame.step_charts import Ahead, Event
from pardbg.session.navigation.replay import aligned, place_on_steps
from pardbg.session.navigation.travel import active_bounds, since_ns
from pardbg.session.source_files import SourceLines, source_around
from pardbg.ui.engine.cursor import TimeCursor
from pardbg.ui.engine.feed import Analysis, Comparison, Frame, Lanes, Want
from pardbg.ui.engine.landmarks import Places
from pardbg.ui.engine.loading import Loader

_EVENTS: Final = 4
"""Maximum number of findings that have a line in the charts over steps."""
_NARROW = 80
"""Columns of a timeline below which the default window is one step instead of three."""
TURNS = 8
"""Number of looks at all of many live ranks within which every row is made anew."""
YOUNG_S = 30.0
_SPAN_NS = 300_000_000
"""Length of a step, ns, while none is known."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """The newest snapshot and what it covers."""

    moment: tuple[int, int] | None
    """Revision of the store, and time; None: the newest time of a live run."""
    snapshot: Snapshot
    whole: bool
    viewport: Viewport

    def covers(self, viewport: Viewport, partial: bool) -> bool:
        """Return whether the snapshot has all that this viewport needs of the same moment."""
        if not viewport.sections <= self.viewport.sections:
            return False
        return self.whole or (partial and viewport.ranks == self.viewport.ranks)


class FrameMaker:
    """Maker of frames, on the engine's thread."""

    def __init__(
        self, store: Any, analysis: Analysis, cursor: TimeCursor, loader: Loader, places: Places
    ) -> None:
        self._store, self._analysis, self._cursor = store, analysis, cursor
        self._loader, self._places = loader, places
        self._source_read: SourceLines | None = None
        self._compared: tuple[int, Numbers] | None = None
        """Number of tensors that were compared, and the result."""
        self._whole: Ahead | None = None
        self._part: int | None = None
        self._kept: _Kept | None = None
        self._bounds: tuple[int, tuple[int, int] | None] | None = None
        self.num_looks = 0
        """Snapshots made."""
        self.whole = True
        """Whether the last snapshot was a whole one."""
        self._last: Snapshot | None = None
        """The last whole snapshot."""
        self._round: Round | None = None
        self._looked_at = -1
        """Revision of the store at the last look at all ranks."""
        self._stepped_s: float | None = None
        """Time (s) at which a step was first seen."""
        self._left_ns: int | None = None
        """Position of the cursor when a part of the run was chosen."""

    def make(self, want: Want, now_s: float, partial: bool) -> Frame:
        """Return the frame at the cursor; a ``partial`` frame has most findings of the last whole
        frame, or none."""
        cursor, analysis = self._cursor, self._analysis
        if not self.in_rounds:
            self._round = None
        begin, end = self._look_at(want.part, now_s)
        t_ns = cursor.at(now_s)
        snapshot, whole = self._snapshot(t_ns, want, partial)
        until_ns = snapshot.t_end_ns if t_ns is None else snapshot.t_ns  # as states are
        if cursor.following and not whole and self._last is not None:
            snapshot = replace(snapshot, findings=joined(snapshot.findings, self._last.findings))
            whole = True
        elif whole:
            self._last = snapshot
        self._places.take(snapshot.findings, snapshot.t_ns)
        if whole:
            found = snapshot.findings
            if gone := self._places.withdrawn(found, snapshot.t_ns, snapshot.t_begin_ns):
                snapshot = replace(snapshot, findings=(*found, *gone))
        active = self._active() if cursor.replay or self._loader.finished else None
        lanes, t0, t1 = self._lanes(want, snapshot, active)
        output: tuple[OutputLine, ...] | None = None
        if want.output is not None:
            output = analysis.output(self._store, until_ns, want.output)
        return Frame(
            snapshot=snapshot,
            following=cursor.following,
            finished=self._loader.finished,
            playing=cursor.playing,
            speed=cursor.speed,
            lanes=lanes,
            lanes_t0_ns=t0,
            lanes_t1_ns=t1,
            waited=_waited(want, snapshot, lanes),
            output=output,
            begin_ns=begin,
            end_ns=end,
            active_ns=active,
            loaded=self._loader.share,
            whole=whole,
            searched=not cursor.replay or self._places.searched >= 1,
            sections=self._kept.viewport.sections if self._kept is not None else SECTIONS,
            marks=() if cursor.following else self._places.marks(),
            findings=tuple(self._places.findings),
            bookmarks=self._store.bookmarks.all(),
            whatif=analysis.whatif(self._store, snapshot.t_ns) if want.whatif else None,
            schedule=schedule_detail(snapshot.pipeline) if want.schedule else None,
            peaks=_peaks(snapshot) if want.peaks else {},
            ticks=analysis.ticks(self._store, snapshot.t_ns, want.ticks) if want.ticks else None,
            ahead=self._ahead() if want.ahead and cursor.replay else None,
            events=self._events() if want.ahead else (),
            source=self._source(want),
            other=self._beside(want, snapshot.t_ns, whole),
            sameness=self._sameness() if want.sameness else None,
        )

    def _active(self) -> tuple[int, int] | None:
        """Return the recording's active bounds, updated when more of the recording is read."""
        if self._bounds is None or self._bounds[0] != self._store.revision:
            self._bounds = self._store.revision, active_bounds(self._store)
        return self._bounds[1]

    def _snapshot(self, t_ns: int | None, want: Want, partial: bool) -> tuple[Snapshot, bool]:
        """Return the snapshot, and whether it is whole. If neither the store nor the cursor has
        moved, make only the sections that the page draws and the snapshot before lacks: for a
        thousand ranks a whole one takes long, and pages are turned often."""
        moment = None if t_ns is None else (self._store.revision, t_ns)
        known, viewport = self._kept, want.viewport
        here = (
            known is not None and moment is not None and known.moment == moment
            and _shows(known.snapshot, want.pipeline_of)
        )  # fmt: skip
        if known is not None and here:
            if known.covers(viewport, partial):
                return known.snapshot, known.whole
            if known.whole and self._analysis.has_partial:
                return self._complete(known, t_ns, want)
        self.num_looks += 1
        before = known.snapshot if known is not None else None
        whole = not (partial and self._analysis.has_partial)
        if known is not None and whole:
            viewport = self._in_turn(viewport, known)
            before = before if t_ns is None else None
        made = self._ask(self._store, t_ns, want.pipeline_of, viewport, before, partial=not whole)
        self.whole = whole
        self._kept = _Kept(moment, made, whole, want.viewport)
        return made, whole

    def _complete(self, known: _Kept, t_ns: int | None, want: Want) -> tuple[Snapshot, bool]:
        """Return the whole snapshot ``known`` with the missing sections that the page draws, and
        whether it is whole: the ranks' last steps are made a few at a time."""
        viewport = replace(want.viewport, sections=want.viewport.sections | known.viewport.sections)
        drawn = self._ask(
            self._store, t_ns, want.pipeline_of, viewport, known.snapshot, partial=True
        )
        lacking = {n: getattr(drawn, n) for n in viewport.sections - known.viewport.sections}
        made, whole = replace(known.snapshot, **lacking), not lacking.get("courses")
        self._kept = _Kept(known.moment, made, whole, viewport)
        return made, whole

    @property
    def many(self) -> bool:
        """Return whether there are so many ranks that rows outside the viewport are reused."""
        return self._kept is not None and len(self._kept.snapshot.ranks) > MANY

    @property
    def urgent(self) -> bool:
        """Return whether the look at all ranks should be over soon: ranks stopped or went on since
        the last one, or the run's first steps were just seen, which shows what is slow."""
        if self._kept is None or self._last is None:
            return False
        is_young = self._stepped_s is None or time.monotonic() < self._stepped_s + YOUNG_S
        return is_young or stopped(self._kept.snapshot) != stopped(self._last)

    @property
    def in_rounds(self) -> bool:
        """Return whether slow analysis runs in pieces between frames: in a live run of many ranks,
        while the cursor follows the run."""
        if not (self._cursor.following and self.many and self._analysis.has_partial):
            return False
        return self._last is not None and not self._store.run_ends

    @property
    def owes_a_look(self) -> bool:
        """Return whether a look at all ranks is not over, or new data came since the last one."""
        more = self._round is not None or self._store.revision != self._looked_at
        return self.in_rounds and more

    def go_on(self, want: Want, enough: Callable[[], bool]) -> bool:
        """Continue the look at all ranks, or begin one. Return whether the look is over."""
        if (kept := self._kept) is None:
            return True
        if self._round is None:
            self.num_looks, self._looked_at = self.num_looks + 1, self._store.revision
            viewport = self._in_turn(want.viewport, kept)
            self._round = self._analysis.round(
                self._store, want.pipeline_of, viewport, kept.snapshot
            )
        round_, self._round = self._round, None  # one that fails is not gone on with
        made = round_.go_on(enough)
        if made is None:
            self._round = round_
            return False
        self._last = made
        self._kept = replace(kept, snapshot=made)
        if made.steps and self._stepped_s is None:
            self._stepped_s = time.monotonic()
        return True

    def _ask(
        self, store: Any, t_ns: int | None, rank: int | None, viewport: Viewport,
        before: Snapshot | None = None, *, partial: bool,
    ) -> Snapshot:  # fmt: skip
        partial = partial and self._analysis.has_partial
        return self._analysis.snapshot(store, t_ns, rank, viewport, before, partial)

    def _in_turn(self, viewport: Viewport, before: _Kept) -> Viewport:
        """Return the viewport and a share of the other ranks: each whole snapshot of a live run
        makes another share of those rows anew. After a time in the past, all ranks."""
        if viewport.ranks is None or before.moment is not None:
            return replace(viewport, ranks=None)
        turn = self.num_looks % TURNS
        ranks = before.snapshot.ranks
        others = (row.rank for at, row in enumerate(ranks) if at % TURNS == turn)
        return replace(viewport, ranks=viewport.ranks.union(others))

    def _look_at(self, part: int | None, now_s: float) -> tuple[int, int]:
        """Select a part, and return begin and end of the shown time. Back at the whole run, the
        cursor returns to its earlier position."""
        if part == self._part:
            return self._loader.bounds()
        if self._part is None:
            self._left_ns = self._cursor.at(now_s)
        self._part, self._last, self._round = part, None, None
        self._store.look_at(part)
        self._places.look_at(part)
        found = self._loader.bounds()
        if part is None and self._left_ns is not None:
            self._cursor.seek(self._left_ns)
        return found

    def awaiting(self, shown: Frame | None, now_s: float) -> Frame | None:
        """Return the previous frame, marked as such, while the selected time is not read yet."""
        t_ns = self._cursor.at(now_s)
        if not self._cursor.replay or t_ns is None or shown is None or self._loader.is_read(t_ns):
            return None
        return replace(
            shown, awaited_ns=t_ns, loaded=self._loader.share, playing=self._cursor.playing,
            speed=self._cursor.speed,
        )  # fmt: skip

    def _ahead(self) -> Ahead | None:
        """Return step times and losses of the whole recording, once all of it is read."""
        if self._whole is None and self._loader.finished:
            end = self._ask(self._store, None, None, Viewport(sections=frozenset()), partial=True)
            times = tuple((row.step, row.duration_ns) for row in end.steps)
            self._whole = Ahead(times, end.loss_history)
        return self._whole

    def _events(self) -> tuple[Event, ...]:
        """Return the positions of the worst findings' begins on the axis of steps, where known."""
        told = sorted(
            (f for f in self._places.findings if f.severity != "info"),
            key=lambda found: found.order,
        )
        places = ((found, place_on_steps(self._store, since_ns(found))) for found in told[:_EVENTS])
        return tuple(Event(place, found) for found, place in places if place is not None)

    def _source(self, want: Want) -> SourceLines | None:
        """Return the source lines of a place. Read once per place: the file may change meanwhile, a
        recorded stack does not."""
        if want.source is not None and (
            self._source_read is None or self._source_read.place != want.source
        ):
            self._source_read = source_around(want.source)
        return self._source_read if want.source is not None else None

    def _lanes(
        self, want: Want, snapshot: Snapshot, active: tuple[int, int] | None
    ) -> tuple[Lanes, int, int]:
        """Return lanes, and begin and end of their window, which ends at the cursor or at the last
        activity of a run that has ended."""
        t1, timeline = snapshot.t_ns, want.timeline
        if timeline is None:
            return {}, t1, t1
        t1 = t1 if active is None else min(t1, active[1])
        over = snapshot.hang.until_ns if snapshot.hang is not None else None
        now = t1 if over is None else min(t1, over)  # up to then ranks were in their ops
        t1 = t1 if timeline.end_ns is None else min(t1, timeline.end_ns)
        steps = 1 if timeline.columns < _NARROW else min(3, max(1, len(snapshot.steps)))
        usual = max(1, int((snapshot.step_ns or _SPAN_NS) * steps / 2**timeline.halved))
        span = timeline.span_ns or usual
        if timeline.end_ns is None:
            t1 = _moving_until(snapshot, t1, span)
        t0 = t1 - span
        lanes = self._analysis.lanes(self._store, t0, t1, timeline.columns, timeline.ranks, now)
        return lanes, t0, t1

    def _sameness(self) -> Numbers | None:
        """Return the comparison of the tensors captured so far, made anew when there are more; for
        a recording once all of it is read."""
        second, cursor = self._loader.second, self._cursor
        if cursor.replay and not self._loader.finished:
            return None
        if second is not None and not second.source.finished:
            return None
        known = self._analysis.num_tensors(self._store)
        if self._compared is None or self._compared[0] != known:
            reference, whole = None if second is None else second.store, self._loader.finished
            if reference is not None and not whole and not is_captured(self._store):
                return None  # in the middle of a step
            self._compared = known, self._analysis.sameness(self._store, reference)
        return self._compared[1]

    def _beside(self, want: Want, t_ns: int, whole: bool) -> Comparison | None:
        """Return the second run's snapshot at the same step."""
        second = self._loader.second
        if second is None or not second.source.finished or not self._cursor.replay:
            return None
        place = aligned(self._store, t_ns, second.store)
        snapshot = self._ask(
            second.store, place.t_ns, want.pipeline_of, want.viewport, partial=not whole
        )
        detail = schedule_detail(snapshot.pipeline) if want.schedule else None
        return Comparison(second.name, snapshot, place.by, place.note, detail)


def _moving_until(snapshot: Snapshot, t1_ns: int, span_ns: int) -> int:
    """Return the end of a window of ``span_ns`` with activity: at the cut while ranks are held; in
    a hang, also one in which the job ended, the first half of the window is the time before."""
    held = [row.since_ns for row in snapshot.ranks if row.state == "held"]
    if held and all(row.state in ("held", "ended") for row in snapshot.ranks):
        return min(t1_ns, max(since or t1_ns for since in held))
    hang = snapshot.hang
    if hang is not None:
        return min(t1_ns, hang.since_ns + span_ns // 2)
    return t1_ns


def stopped(snapshot: Snapshot) -> tuple[object, ...]:
    """Return the hang, and the ranks that have stopped."""
    hang = snapshot.hang
    rows = tuple((r.rank, r.state) for r in snapshot.ranks if r.state not in ("running", "waiting"))
    return (None if hang is None else (hang.kind, hang.culprits)), rows


def joined(now: Sequence[Finding], before: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return a partial snapshot's findings, and the last whole one's about other culprits."""
    new = {(one.kind, one.culprits) for one in now}
    kept = (one for one in before if (one.kind, one.culprits) not in new)
    return tuple(sorted((*now, *kept), key=lambda one: one.order)) if now else tuple(before)


def _shows(snapshot: Snapshot, rank: int | None) -> bool:
    """Return whether the snapshot's pipeline is that of ``rank``, as `pipeline_view` selects it."""
    index = next((i for i, pipeline in enumerate(snapshot.pipelines) if rank in pipeline.ranks), 0)
    return snapshot.pipeline is None or snapshot.pipeline.index == index


def _waited(want: Want, snapshot: Snapshot, lanes: Lanes) -> tuple[Spot, WaitedFor | None] | None:
    spot = want.timeline.spot if want.timeline is not None else None
    return None if spot is None else (spot, waited_for(snapshot, lanes, spot))


def _peaks(snapshot: Snapshot) -> Mapping[int, Peak]:
    last = snapshot.pipeline.last_complete if snapshot.pipeline is not None else None
    return peaks(last) if last is not None else {}
