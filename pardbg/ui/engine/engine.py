"""The engine's thread: source → store → analysis → one frozen value per frame.

Every access to the store is on this one thread: applying messages, and asking the analysis.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from textual.message import Message

from pardbg.errors import UserError
from pardbg.store.history import Bookmark
from pardbg.store.intake import to_columns
from pardbg.store.source import Source
from pardbg.ui.engine.cursor import TimeCursor
from pardbg.ui.engine.feed import Analysis, Frame, SecondRecording, Want
from pardbg.ui.engine.frame_maker import FrameMaker
from pardbg.ui.engine.landmarks import Journey, Places
from pardbg.ui.engine.loading import POLL_MS, Loader
from pardbg.ui.engine.messages import Arrived, FrameReady, Loading, Trouble
from pardbg.ui.engine.pace import PLAY_PERIOD_S, GcPauses, Pace, give_back

LOADING_PERIOD_S = 0.2
OWN_PERIOD_S = 1.0
"""Minimum seconds between changes of the wanted data that frames themselves cause."""

_MOST_ERRORS = 256
"""Maximum number of different errors that are shown, one line each."""
STOOD_S = (2, 2.4, 3, 4, 5, 6, 7, 8)
"""Waiting times of a rank, s, after which a hang is looked for: it may be found at 2 s, once all
ranks have reported where they wait."""
WAITS_S, SELDOM_S = 1.0, 10.0
"""Waiting time of a rank, s, after which the records of many ranks are prepared at once for the
detection of a hang, and the minimum time between two preparations, since in some jobs ranks wait in
every step."""
MOST_RECORDS = 1_000_000
"""Largest number of records for a search of the worst finding before a recording opens."""


class Engine:
    """Thread that makes frames. ``post`` gets frames, one-line errors, the end of each journey in
    time, and the share of a recording read before its first frame."""

    def __init__(
        self,
        source: Source,
        store: Any,
        analysis: Analysis,
        cursor: TimeCursor,
        post: Callable[[Message], object],
        second: SecondRecording | None = None,
    ) -> None:
        self._store, self._analysis, self._cursor = store, analysis, cursor
        self._post = post
        self._loader = Loader(source, store, cursor, second)
        self._places = Places(store, analysis.findings)
        self._maker = FrameMaker(store, analysis, cursor, self._loader, self._places)
        self._pace = Pace(cursor)
        self._gc = GcPauses()
        self._want = Want()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pardbg-engine", daemon=True)
        self._journeys: deque[Journey | Bookmark] = deque()
        self._reported_s = 0.0
        self._whole_owed = False
        """Whether the last frame was a partial one, so that a whole one must follow."""
        self._answer_owed, self._answered_s = False, 0.0
        """Whether a frame changed the wanted data, and when (s) such a change was last answered."""
        self._revision: object = None
        self._stood = 0
        self._ready_s = 0.0
        self._shown: Frame | None = None
        self._was_finished = False
        self._errors: set[str] = set()

    # ---------------------------------------------------------------- from the UI's thread

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End the thread; the source stays open for the source's owner."""
        self._ended.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def want(self, want: Want, by_frame: bool = False) -> None:
        """Set the data that the next frames need. A change is answered at once; but while frames
        come by themselves, a change caused by a frame (``by_frame``) at most once in OWN_PERIOD_S:
        data that moves with each frame would never settle."""
        if want == self._want:
            return
        self._want = want
        if by_frame and (self._cursor.following or self._cursor.playing):
            self._answer_owed = True
        else:
            self._wake.set()

    def wake(self) -> None:
        """Answer a cursor that has moved."""
        self._wake.set()

    def go(self, journey: Journey | Bookmark) -> None:
        """Move the cursor to a place found in the store; or take a bookmark of a recording (a live
        run's bookmarks come back from the hub)."""
        self._journeys.append(journey)
        self._wake.set()

    # ---------------------------------------------------------------- the thread

    def _run(self) -> None:
        try:
            with self._gc.suppressed():
                while not self._ended.is_set():
                    self._turn()
                    self._gc.tick(self._pace.idle or self._cursor.following)
        except Exception as error:  # noqa: BLE001 - the thread's last word must reach the screen
            self._post(Trouble(f"the viewer's feed stopped: {type(error).__name__}: {error}"))

    def _turn(self) -> None:
        if self._loader.finished:
            self._turn_finished()
        elif self._cursor.replay:
            self._read_on()
        else:
            self._loader.read(POLL_MS)
            second = self._loader.second
            if second is not None and not second.source.finished:
                self._loader.read_second(second)
            if self._loader.notice:
                self._report_once(self._loader.notice)
        if not self._loader.opened:
            if self._ended.is_set() or not self._loader.open():
                return
            self._wake.set()
        if self._answer_owed and time.monotonic() >= self._answered_s + OWN_PERIOD_S:
            self._answered_s = time.monotonic()
            self._wake.set()
        if self._stands():
            self._wake.set()
        elif self._may_stand():
            self._ready_s = time.monotonic()
            to_columns(self._store.procs.values())
        asked = self._wake.is_set()
        if asked or self._whole_owed or self._due():
            self._wake.clear()
            self._travel()
            self._look(asked)
        elif (
            self._maker.owes_a_look and self._pace.piece_is_due(self._maker.urgent)
            and time.monotonic() >= self._ready_s + WAITS_S  # else a hang may soon be looked for
        ):  # fmt: skip
            self._go_on()

    def _turn_finished(self) -> None:
        """Read the second source after the first one's end, look for findings, or wait."""
        second = self._loader.second
        if not self._was_finished:
            self._finish()
        elif second is not None and not second.source.finished:
            if self._loader.read_second(second):
                self._wake.set()
        elif self._wake.is_set() or not self._searching():
            self._wake.wait(PLAY_PERIOD_S if self._cursor.playing else 0.5)

    def _read_on(self) -> None:
        """Read a slice of a recording, so that frames and keys are handled in between."""
        self._loader.read_slice(
            lambda: self._ended.is_set() or (self._loader.opened and self._wake.is_set())
        )
        now = time.monotonic()
        if now - self._reported_s >= LOADING_PERIOD_S:
            self._reported_s = now
            if self._shown is None:
                self._post(Loading(self._loader.share))
            else:
                self._post(FrameReady(replace(self._shown, loaded=self._loader.share)))

    def _finish(self) -> None:
        """Settle the store once the whole source is read, or the run has ended."""
        self._was_finished = True
        self._loader.settle()
        self._revision = None
        if self._cursor.replay and self._loader.opened and not self._cursor.playing:
            large = sum(p.num_records for p in self._store.procs.values()) > MOST_RECORDS
            self._loader.to_opening(whole=not large)
            if not large:
                self._to_worst()

    def _to_worst(self) -> None:
        """Move to the first of a recording's worst findings, unless the user has already selected a
        time: then the findings are only listed from here on."""
        worst = self._places.worst()
        if worst is None or self._cursor.moved:
            return
        if self._cursor.open_at(self._places.present_ns(worst)):
            text = f"opened at the first {worst.severity} ({worst.kind}); home goes to the start"
            self._post(Arrived(text, min(worst.culprits, default=None)))

    def _searching(self) -> bool:
        """While idle, look for findings that were withdrawn before the end of a recording."""
        if self._cursor.following or self._cursor.playing or self._shown is None:
            return False
        if not self._pace.idle:
            return False  # the user navigates: no key may wait for this
        if not self._places.search(self._store.begin_ns, self._store.end_ns):
            return False
        time.sleep(0.005)  # keys first
        if self._places.searched >= 1:
            self._places.forget()
            self._wake.set()
        return True

    def _travel(self) -> None:
        """Move the cursor to the destination of keys and ``:goto``."""
        while self._journeys:
            journey = self._journeys.popleft()
            if isinstance(journey, Bookmark):
                self._store.bookmarks.put(journey)
                self._places.forget()
                continue
            begin, end = self._loader.bounds()
            now = self._cursor.at(time.monotonic())
            try:
                found = self._places.go(journey, end if now is None else now, begin, end)
            except UserError as error:
                self._post(Trouble(str(error) + self._loader.so_far))
                continue
            self._cursor.stop()
            self._cursor.seek(found.t_ns)
            if found.text:
                self._post(Arrived(found.text))

    # ---------------------------------------------------------------- frames

    def _due(self) -> bool:
        """Return whether there is something new to show and the time of the next frame has come."""
        shown = self._shown
        if not self._pace.is_time(shown is not None and shown.awaited_ns is not None):
            return False
        if self._cursor.playing:
            return True
        if shown is not None and shown.awaited_ns is None and self._loader.share < 1:
            return False  # what is shown is whole: the rest of the recording changes nothing
        return bool(self._store.revision != self._revision)

    def _stands(self) -> bool:
        """Return whether a rank has waited for the next of STOOD_S, by the hub's report, and no
        hang is shown. Frames of many ranks are rare; this one must come at once."""
        before, self._stood = self._stood, bisect(STOOD_S, self._store.states.stood_ns / 1e9)
        if not (self._cursor.following and before < self._stood):
            return False
        return self._shown is None or self._shown.snapshot.hang is None

    def _may_stand(self) -> bool:
        """Return whether many ranks may soon hang and their records are not prepared yet."""
        waits = WAITS_S <= self._store.states.stood_ns / 1e9 < STOOD_S[0]
        return waits and self._maker.in_rounds and time.monotonic() >= self._ready_s + SELDOM_S

    def _look(self, asked: bool) -> None:
        now_s, self._answer_owed = time.monotonic(), False
        self._revision = self._store.revision
        frame, looks = None, self._maker.num_looks
        try:
            self._store.settle()  # new records cost the same, however often they are read
            partial = self._is_partial(asked)
            if not partial:
                to_columns(self._store.procs.values())
            with self._pace.frame():
                frame = self._maker.awaiting(self._shown, now_s) or self._maker.make(
                    self._want, now_s, partial
                )
        except Exception as error:  # noqa: BLE001 - one bad record must not blind the viewer
            self._report_once(f"cannot show this moment: {type(error).__name__}: {error}")
        self._whole_owed = frame is not None and not frame.whole and not self._cursor.playing
        if frame is None:
            return
        if self._maker.num_looks > looks:
            many = self._analysis.has_partial and self._maker.many
            self._pace.note(whole=self._maker.whole, many=many)
        self._shown = frame
        self._post(FrameReady(frame))

    def _go_on(self) -> None:
        """Continue the look at all ranks with another piece; show what is found at once."""
        over = True
        try:
            with self._pace.piece() as enough:
                over = self._maker.go_on(self._want, enough)
            if over:
                self._wake.set()
        except Exception as error:  # noqa: BLE001 - as for a frame
            self._report_once(f"cannot look at all ranks: {type(error).__name__}: {error}")
        if over:
            self._pace.round_over()
            give_back()

    def _report_once(self, text: str) -> None:
        if text not in self._errors and len(self._errors) < _MOST_ERRORS:
            self._errors.add(text)
            self._post(Trouble(text))

    def _is_partial(self, asked: bool) -> bool:
        """Return whether the next frame is a partial one: whole frames take long, and the user
        waits for this frame."""
        if not self._analysis.has_partial:
            return False
        if self._cursor.following:
            return self._shown is not None and self._maker.in_rounds and self._pace.slow
        slow = self._pace.slow or self._shown is None
        return slow and (self._cursor.playing or asked)
