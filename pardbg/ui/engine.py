"""The feeding thread: source → store → analysis → one frozen value per frame.

Everything that touches the store happens here, on one thread: applying messages and asking the
analysis. The UI says what it looks at (`Want`) and gets a `Frame`; it never sees the store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pardbg.analysis.model import LaneSpan, OutputLine, Snapshot
from pardbg.store.source import Message, Source
from pardbg.ui.cursor import TimeCursor

LIVE_PERIOD_S = 0.125
"""At most 8 frames a second of a live run."""
PLAY_PERIOD_S = 0.066
"""At most 15 frames a second while a recording plays."""
LOOK_BACK_PERIOD_S = 1.0
"""A frame of the past does not change; only the run's end moves."""
SHARE = 8
"""Frames by themselves take at most 1/SHARE of a core: heavy analysis comes less often. What a
user asks for comes at once."""
POLL_MS = 30
OPENING_S = 0.5
"""Time spent to find where a recording gets interesting."""

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


@dataclass(frozen=True, slots=True)
class Eyes:
    """The analysis as the engine calls it; tests give their own."""

    snapshot: Callable[[Any, int | None], Snapshot]
    lanes: Callable[[Any, int, int, int, tuple[int, ...] | None], Lanes]
    output: Callable[[Any, int, OutputWant], tuple[OutputLine, ...]]

    @staticmethod
    def real() -> Eyes:
        """The analysis itself, imported late: the first frame need not wait for all of it."""
        from pardbg.analysis.output import lines
        from pardbg.analysis.snapshot import snapshot
        from pardbg.analysis.timeline import lanes

        return Eyes(
            snapshot,
            lanes,
            lambda store, t_ns, want: lines(
                store, t_ns, want.limit, contains=want.contains, rank=want.rank
            ),
        )


class Engine:
    """Runs the thread; ``post`` gets frames, ``fail`` one-line errors, ``loading`` a count."""

    def __init__(
        self,
        source: Source,
        store: Any,
        eyes: Eyes,
        cursor: TimeCursor,
        post: Callable[[Frame], object],
        fail: Callable[[str], object],
        loading: Callable[[int], object],
    ) -> None:
        self._source, self._store, self._eyes, self._cursor = source, store, eyes, cursor
        self._post, self._fail, self._loading = post, fail, loading
        self._want = Want()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pardbg-engine", daemon=True)
        self._looked_s = 0.0
        self._cost_s = 0.0
        self._revision: object = None
        self._cursor_ns: int | None = None
        self._messages = 0
        self._was_finished = False
        self._errors: set[str] = set()

    def start(self) -> None:
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

    def _run(self) -> None:
        try:
            if not self._source.live:
                self._load()
            while not self._ended.is_set():
                self._turn()
        except Exception as error:  # noqa: BLE001 - the thread's last word must reach the screen
            self._fail(f"the viewer's feed stopped: {type(error).__name__}: {error}")

    def _load(self) -> None:
        """Read a recording to its end before the first frame."""
        told = time.monotonic()
        while not self._source.finished and not self._ended.is_set():
            self._apply(self._source.poll(POLL_MS))
            if time.monotonic() - told > 0.2:
                told = time.monotonic()
                self._loading(self._messages)
        self._settle()
        begin, end = self._store.begin_ns, self._store.end_ns
        self._cursor.bounds(begin, end)
        if not self._ended.is_set() and self._cursor.at(time.monotonic()) == begin:
            self._cursor.seek(self._first_step(begin, end))
        self._wake.set()

    def _first_step(self, begin_ns: int, end_ns: int) -> int:
        """When the first training step had ended, nearly: a recording opens where there is
        something to see, not at the imports. Its begin where no step ended."""
        started = time.monotonic()
        low, high = begin_ns, end_ns
        if not self._eyes.snapshot(self._store, end_ns).steps:
            return begin_ns
        while high - low > 50_000_000 and time.monotonic() - started < OPENING_S:
            middle = (low + high) // 2
            if self._eyes.snapshot(self._store, middle).steps:
                high = middle
            else:
                low = middle
        return high

    def _settle(self) -> None:
        settle = getattr(self._store, "settle", None)
        if settle is not None:
            settle()

    def _turn(self) -> None:
        if self._source.finished:
            if not self._was_finished:
                self._was_finished = True
                self._settle()
                self._revision = None
            self._wake.wait(PLAY_PERIOD_S if self._cursor.playing else 0.5)
        else:
            self._apply(self._source.poll(POLL_MS))
        asked = self._wake.is_set()
        if asked or self._due():
            self._wake.clear()
            self._look()

    def _apply(self, messages: list[Message]) -> None:
        for message in messages:
            self._store.apply(message)
        self._messages += len(messages)

    def _due(self) -> bool:
        """Is there something new to see, and is it time?"""
        now = time.monotonic()
        following = self._cursor.following
        period = LIVE_PERIOD_S if following else LOOK_BACK_PERIOD_S
        if self._cursor.playing:
            period = PLAY_PERIOD_S
        if now - self._looked_s < max(period, self._cost_s * SHARE):
            return False
        if self._cursor.playing:
            return True
        return bool(self._store.revision != self._revision)

    def _look(self) -> None:
        begun, spent = time.monotonic(), time.thread_time()
        self._revision = self._store.revision
        try:
            frame = self._frame(begun)
        except Exception as error:  # noqa: BLE001 - one bad record must not blind the viewer
            text = f"cannot show this moment: {type(error).__name__}: {error}"
            if text not in self._errors:
                self._errors.add(text)
                self._fail(text)
            frame = None
        self._looked_s = time.monotonic()
        self._cost_s = time.thread_time() - spent
        if frame is not None:
            self._post(frame)

    def _frame(self, now_s: float) -> Frame:
        want, cursor = self._want, self._cursor
        t_ns = cursor.at(now_s)
        snapshot = self._eyes.snapshot(self._store, t_ns)
        cursor.bounds(snapshot.t_begin_ns, snapshot.t_end_ns)
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
            lanes, t0, t1, output,
        )  # fmt: skip
