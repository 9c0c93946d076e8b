"""The feeding thread: source → store → analysis → one frozen value per frame.

Everything that touches the store happens here, on one thread: applying messages and asking the
analysis. The UI says what it looks at (`Want`) and gets a `Frame`; it never sees the store.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pardbg.analysis.base.values import Finding, LaneSpan, OutputLine, Snapshot
from pardbg.analysis.whatif.answer import WhatIf
from pardbg.session.navigation.align import aligned
from pardbg.session.navigation.goto import TravelError
from pardbg.session.navigation.marks import Mark
from pardbg.session.navigation.travel import every_rank_stepped, first_step_end
from pardbg.store.bookmarks import Bookmark
from pardbg.store.source import Message, Source
from pardbg.store.store import Store
from pardbg.ui.engine.cursor import TimeCursor
from pardbg.ui.engine.gc_pauses import Collecting
from pardbg.ui.engine.landmarks import Journey, Places

LIVE_PERIOD_S = 0.125
"""At most 8 frames a second of a live run."""
PLAY_PERIOD_S = 0.066
"""At most 15 frames a second while a recording plays."""
LOOK_BACK_PERIOD_S = 1.0
"""A frame of the past does not change; only the run's end moves."""
SHARE = 8
"""Frames by themselves take at most 1/SHARE of a core: heavy analysis comes less often. What a
user asks for comes at once."""
PLAYING_SHARE = 2
"""While a recording plays somebody watches."""
POLL_MS = 30
OPENING_S = 0.4
"""A recording's first frame waits so long for the end of the first training step, not longer."""
LOAD_SLICE_S = 0.04
"""Reading a recording gives way so often."""
LOADING_PERIOD_S = 0.2
IDLE_S = 1.5
"""Findings of other moments are looked for once nobody has moved for so long."""
SLOW_S = 0.06
"""Where a whole frame takes longer, what is asked for comes without findings first."""
LATE_NS = 2_000_000_000
"""Records come within this after their time; a moment is whole once later messages are read."""

Lanes = Mapping[int, Mapping[str, tuple[LaneSpan, ...]]]


@dataclass(frozen=True, slots=True)
class TimelineWant:
    """The timeline's window, ending at the cursor."""

    span_ns: int | None
    """None: the analysis has not said yet how long a step is; take some steps."""
    columns: int
    ranks: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class OutputWant:
    limit: int
    contains: str | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Want:
    """What the visible screen needs beyond the snapshot."""

    timeline: TimelineWant | None = None
    output: OutputWant | None = None
    whatif: bool = False
    pipeline_of: int | None = None
    """The rank whose pipeline the snapshot shows in full, where a run has several."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The second of two runs that are looked at together."""

    name: str
    snapshot: Snapshot
    by: str
    """What the two are aligned by: ``step 42`` or ``time``."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """Everything a screen draws from."""

    snapshot: Snapshot
    following: bool = True
    """Live and at the newest time; False while looking back and in replay."""
    finished: bool = False
    """The source has nothing more."""
    playing: bool = False
    speed: float = 1.0
    lanes: Lanes = field(default_factory=dict)
    lanes_t0_ns: int = 0
    lanes_t1_ns: int = 0
    output: tuple[OutputLine, ...] = ()
    begin_ns: int = 0
    end_ns: int = 0
    """The whole session, also while only part of it is read."""
    loaded: float = 1.0
    """How much of a recording is read."""
    whole: bool = True
    """False: findings are still looked for; a frame with them follows."""
    awaited_ns: int | None = None
    """The moment that was asked for and is not read yet; what is shown is an earlier one."""
    marks: tuple[Mark, ...] = ()
    findings: tuple[Finding, ...] = ()
    """Of the whole run as far as it was looked at, by time."""
    bookmarks: tuple[Bookmark, ...] = ()
    whatif: WhatIf | str | None = None
    other: Comparison | None = None
    """The second of two recordings that are shown together."""


def _no_findings(_store: Any, _t_ns: int | None) -> Iterable[Finding]:
    return ()


@dataclass(frozen=True, slots=True)
class Analysis:
    """The analysis as the engine calls it; tests give their own."""

    snapshot: Callable[[Any, int | None, int | None], Snapshot]
    """Of a store, at a time, with the pipeline of a rank."""
    lanes: Callable[[Any, int, int, int, tuple[int, ...] | None], Lanes]
    output: Callable[[Any, int, OutputWant], tuple[OutputLine, ...]]
    glance: Callable[[Any, int | None, int | None], Snapshot] | None = None
    """A snapshot without findings, for a first answer where the whole one takes long."""
    findings: Callable[[Any, int | None], Iterable[Finding]] = _no_findings
    """Findings at a moment, without the rest of a snapshot."""
    whatif: Callable[[Any, int | None], WhatIf | str | None] = lambda _store, _t_ns: None
    """Other schedules by the steps up to a moment."""

    @staticmethod
    def real() -> Analysis:
        """The analysis itself, imported late: the first frame need not wait for all of it."""
        from pardbg.analysis.answers.snapshot import snapshot
        from pardbg.analysis.answers.timeline import lanes
        from pardbg.analysis.base.asof import View
        from pardbg.analysis.base.output import lines
        from pardbg.analysis.findings import findings
        from pardbg.analysis.whatif.answer import kept_whatif

        return Analysis(
            snapshot,
            lanes,
            lambda store, t_ns, want: lines(
                store, t_ns, want.limit, contains=want.contains, rank=want.rank
            ),
            lambda store, t_ns, rank: snapshot(store, t_ns, rank, deep=False),
            lambda store, t_ns: findings(View(store, t_ns)),
            lambda store, t_ns: kept_whatif(View(store, t_ns)),
        )


@dataclass(frozen=True, slots=True)
class SecondRecording:
    """A recording to show beside the first."""

    name: str
    source: Source
    store: Store


class Engine:
    """Runs the thread; ``post`` gets frames, ``fail`` one-line errors, ``say`` where a journey
    ended, ``loading`` how much of a recording is read before its first frame."""

    def __init__(
        self,
        source: Source,
        store: Any,
        eyes: Analysis,
        cursor: TimeCursor,
        post: Callable[[Frame], object],
        fail: Callable[[str], object],
        loading: Callable[[float], object],
        say: Callable[[str], object] = lambda text: None,
        second: SecondRecording | None = None,
    ) -> None:
        self._source, self._store, self._eyes, self._cursor = source, store, eyes, cursor
        self._post, self._fail, self._loading, self._say = post, fail, loading, say
        self._second = second
        self._places = Places(store, eyes.findings)
        self._want = Want()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pardbg-engine", daemon=True)
        self._journeys: deque[Journey | Bookmark] = deque()
        self._begun_s = self._looked_s = self._told_s = 0.0
        self._cost_s = self._whole_s = 0.0
        self._owed = False
        """The last frame was a first answer: the whole one is to come."""
        self._revision: object = None
        self._frame_made: Frame | None = None
        self._opened = not cursor.replay
        self._read_ns = 0
        """Hub time of the newest message read."""
        self._was_finished = False
        self._errors: set[str] = set()
        self._collecting = Collecting()

    def start(self) -> None:
        self._begun_s = time.monotonic()
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End the thread; the source stays open, for whoever opened it."""
        self._ended.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def want(self, want: Want) -> None:
        """What the next frames must hold; a changed wish is answered at once."""
        if want != self._want:
            self._want = want
            self._wake.set()

    def wake(self) -> None:
        """The cursor was moved."""
        self._wake.set()

    def go(self, journey: Journey) -> None:
        """Move the cursor to a place that the store knows."""
        self._journeys.append(journey)
        self._wake.set()

    def mark(self, mark: Bookmark) -> None:
        """A bookmark of a recording (a live run's come back from the hub)."""
        self._journeys.append(mark)
        self._wake.set()

    def _run(self) -> None:
        try:
            with self._collecting.alone():
                while not self._ended.is_set():
                    self._turn()
                    idle = time.monotonic() - self._looked_s > IDLE_S
                    self._collecting.look(idle or self._cursor.following)
        except Exception as error:  # noqa: BLE001 - the thread's last word must reach the screen
            self._fail(f"the viewer's feed stopped: {type(error).__name__}: {error}")

    def _turn(self) -> None:
        if self._source.finished:
            if not self._was_finished:
                self._finish()
            elif self._second is not None and not self._second.source.finished:
                self._read_second(self._second)
            elif not self._wake.is_set() and self._searching():
                pass
            else:
                self._wake.wait(PLAY_PERIOD_S if self._cursor.playing else 0.5)
        elif not self._cursor.replay:
            self._apply(self._source.poll(POLL_MS))
        else:
            self._read_on()
        if not self._opened and not self._open():
            return
        asked = self._wake.is_set()
        if asked or self._owed or self._due():
            self._wake.clear()
            self._travel()
            self._look(asked)

    # ---------------------------------------------------------------- reading

    def _read_on(self) -> None:
        """A slice of a recording: frames and keys come in between."""
        until = time.monotonic() + LOAD_SLICE_S
        while not self._source.finished and not self._ended.is_set():
            self._apply(self._source.poll(0))
            if time.monotonic() >= until or (self._opened and self._wake.is_set()):
                break
        now = time.monotonic()
        if now - self._told_s >= LOADING_PERIOD_S:
            self._told_s = now
            if self._frame_made is None:
                self._loading(self._loaded)
            else:
                self._post(replace(self._frame_made, loaded=self._loaded))

    def _read_second(self, second: SecondRecording) -> None:
        """A slice of the run beside this one, read after it."""
        until = time.monotonic() + LOAD_SLICE_S
        while not second.source.finished and time.monotonic() < until:
            second.store.apply_all(second.source.poll(0))
        if second.source.finished:
            second.store.settle()
            self._wake.set()

    def _beside(self, t_ns: int, whole: bool) -> Comparison | None:
        """The second run where it stands at the same step."""
        second = self._second
        if second is None or not second.source.finished:
            return None
        place = aligned(self._store, t_ns, second.store)
        look = self._eyes.snapshot if whole or not self._eyes.glance else self._eyes.glance
        made = look(second.store, place.t_ns, self._want.pipeline_of)
        return Comparison(second.name, made, place.by, place.note)

    def _open(self) -> bool:
        """Choose where a recording opens: at the end of the first training step, its begin where
        none has ended in what could be read so far."""
        if self._ended.is_set():
            return False
        whole = self._source.finished
        stepped = whole or every_rank_stepped(self._store)
        if not stepped and time.monotonic() - self._begun_s < OPENING_S:
            return False
        self._opened = True
        self._bounds()
        self._to_first_step()
        self._wake.set()
        return True

    def _to_first_step(self) -> None:
        begin = self._store.begin_ns
        if self._cursor.at(time.monotonic()) == begin:
            end = first_step_end(self._store)
            self._cursor.seek(begin if end is None else end)

    def _finish(self) -> None:
        """Everything was read, or the run has ended."""
        self._was_finished = True
        self._settle()
        self._revision = None
        if self._cursor.replay and self._opened and not self._cursor.playing:
            self._bounds()
            self._to_first_step()

    def _searching(self) -> bool:
        """Nothing to do: look for findings that were gone again by the end of a recording."""
        if self._cursor.following or self._cursor.playing or self._frame_made is None:
            return False
        if time.monotonic() - self._looked_s < IDLE_S:
            return False  # somebody moves about: no key shall wait for this
        if not self._places.search(self._store.begin_ns, self._store.end_ns):
            return False
        time.sleep(0.005)  # keys first
        if self._places.searched >= 1:
            self._places.forget()
            self._wake.set()
        return True

    @property
    def _loaded(self) -> float:
        return 1.0 if self._source.finished else float(getattr(self._source, "progress", 1.0))

    def _bounds(self) -> tuple[int, int]:
        """Begin and end of the session, as far as they are known."""
        begin, end = self._store.begin_ns, self._store.end_ns
        if not self._source.finished:
            end = max(end, getattr(self._source, "end_ns", None) or 0)
        self._cursor.bounds(begin, end)
        return begin, end

    def _settle(self) -> None:
        settle = getattr(self._store, "settle", None)
        if settle is not None:
            settle()

    def _apply(self, messages: list[Message]) -> None:
        for message in messages:
            self._store.apply(message)
        if messages:
            self._read_ns = max(self._read_ns, messages[-1].received_ns)

    # ---------------------------------------------------------------- moving

    def _travel(self) -> None:
        """Where keys and ``:goto`` want to be."""
        while self._journeys:
            journey = self._journeys.popleft()
            if isinstance(journey, Bookmark):
                self._store.bookmarks.put(journey)
                self._places.forget()
                continue
            begin, end = self._bounds()
            now = self._cursor.at(time.monotonic())
            try:
                found = self._places.go(journey, end if now is None else now, begin, end)
            except TravelError as error:
                self._fail(str(error) + self._so_far())
                continue
            self._cursor.stop()
            self._cursor.seek(found.t_ns)
            if found.text:
                self._say(found.text)

    def _so_far(self) -> str:
        return "" if self._loaded >= 1 else f" ({self._loaded:.0%} of the recording is read)"

    # ---------------------------------------------------------------- looking

    def _due(self) -> bool:
        """Is there something new to see, and is it time?"""
        now = time.monotonic()
        following = self._cursor.following
        period = LIVE_PERIOD_S if following else LOOK_BACK_PERIOD_S
        made = self._frame_made
        if self._cursor.playing or (made is not None and made.awaited_ns is not None):
            period = PLAY_PERIOD_S
        share = PLAYING_SHARE if self._cursor.playing else SHARE
        if now - self._looked_s < max(period, self._cost_s * share):
            return False
        if self._cursor.playing:
            return True
        if made is not None and made.awaited_ns is None and self._loaded < 1:
            return False  # what is shown is whole: the rest of the recording changes nothing
        return bool(self._store.revision != self._revision)

    def _look(self, asked: bool) -> None:
        begun, spent = time.monotonic(), time.thread_time()
        self._revision = self._store.revision
        try:
            frame = self._awaiting(begun) or self._frame(begun, self._hurry(asked))
        except Exception as error:  # noqa: BLE001 - one bad record must not blind the viewer
            text = f"cannot show this moment: {type(error).__name__}: {error}"
            if text not in self._errors:
                self._errors.add(text)
                self._fail(text)
            frame = None
        self._looked_s = time.monotonic()
        self._cost_s = time.thread_time() - spent
        if frame is not None and frame.whole and frame.awaited_ns is None:
            self._whole_s = self._cost_s
        self._owed = frame is not None and not frame.whole and not self._cursor.playing
        if frame is not None:
            self._frame_made = frame
            self._post(frame)

    def _awaiting(self, now_s: float) -> Frame | None:
        """The moment asked for is not read yet: the frame before it, saying so."""
        t_ns, made = self._cursor.at(now_s), self._frame_made
        if self._source.finished or not self._cursor.replay or t_ns is None or made is None:
            return None
        if t_ns + LATE_NS <= self._read_ns:
            return None
        return replace(
            made, awaited_ns=t_ns, loaded=self._loaded, playing=self._cursor.playing,
            speed=self._cursor.speed,
        )  # fmt: skip

    def _hurry(self, asked: bool) -> bool:
        """Give a first answer: whole frames take long, and somebody waits for this one."""
        if self._eyes.glance is None or self._cursor.following:
            return False
        slow = self._whole_s > SLOW_S or self._frame_made is None
        return slow and (self._cursor.playing or asked)

    def _frame(self, now_s: float, hurry: bool = False) -> Frame:
        want, cursor = self._want, self._cursor
        t_ns = cursor.at(now_s)
        look = self._eyes.glance if hurry and self._eyes.glance else self._eyes.snapshot
        snapshot = look(self._store, t_ns, want.pipeline_of)
        begin, end = self._bounds()
        self._places.saw(snapshot.findings)
        lanes: Lanes = {}
        t0 = t1 = snapshot.t_ns
        if want.timeline is not None:
            span = want.timeline.span_ns or (snapshot.step_ns or 300_000_000) * 3
            t0 = t1 - span
            lanes = self._eyes.lanes(
                self._store, t0, t1, want.timeline.columns, want.timeline.ranks
            )
        output: tuple[OutputLine, ...] = ()
        if want.output is not None:
            output = self._eyes.output(self._store, snapshot.t_ns, want.output)
        return Frame(
            snapshot, cursor.following, self._source.finished, cursor.playing, cursor.speed,
            lanes, t0, t1, output, begin, end, self._loaded, look is self._eyes.snapshot, None,
            () if cursor.following else self._places.marks(), tuple(self._places.findings),
            self._store.bookmarks.all(),
            self._eyes.whatif(self._store, snapshot.t_ns) if want.whatif else None,
            other=self._beside(snapshot.t_ns, look is self._eyes.snapshot),
        )  # fmt: skip
