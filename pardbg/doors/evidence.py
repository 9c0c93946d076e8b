"""Evidence for the doors: a recording, a live run, or the logs of a job."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mcap.writer import MCAP0_MAGIC

from pardbg.analysis.answers.report import Report, report
from pardbg.analysis.base.asof import View
from pardbg.errors import UserError
from pardbg.hub.client import LiveSource
from pardbg.hub.run.runs import RunError, find_run, list_runs
from pardbg.hub.target import Target, elsewhere, local
from pardbg.session.reader import load
from pardbg.store.store import Store

POLL_MS: Final = 50
PAUSE_S: Final = 0.02
"""Pause between polls, s, in which a thread that waits for the lock gets it."""
JOIN_S: Final = 15.0
"""Maximum time, s, for a hub to send a run's history."""
BUNDLE: Final = ".tar.zst"
_MAGIC: Final = MCAP0_MAGIC[:5]


@dataclass(frozen=True, slots=True)
class JobLog:
    """Log files of a job."""

    paths: tuple[str, ...]

    def close(self) -> None:
        """Do nothing: log files are not kept open."""


class Recording:
    """A recording, loaded."""

    def __init__(self, name: str, store: Store) -> None:
        self.name = name
        self._store = store
        self._lock = threading.RLock()
        self._report: tuple[int, Report] | None = None

    @contextmanager
    def looking(self) -> Iterator[Store]:
        """Yield the store, which does not change in the context."""
        with self._lock:
            yield self._store

    def look(self) -> tuple[Report, Mapping[str, object]]:
        """Return the report, and the source and time that it describes."""
        with self.looking() as store:
            if self._report is None or self._report[0] != store.revision:
                self._report = store.revision, report(store)
            return self._report[1], self._about(View(store, None))

    def _about(self, view: View) -> Mapping[str, object]:
        return {"source": "recording", "name": self.name}

    def close(self) -> None:
        """Release the recording."""


class LiveRun(Recording):
    """A live run, followed by a thread of its own so that questions miss no message."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.name, Store(live=True))
        self.target = target
        self._source = LiveSource(target)
        self._joined, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="pardbg-follow", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Return whether the run has ended."""
        return not self._thread.is_alive()

    @contextmanager
    def looking(self) -> Iterator[Store]:
        """Yield the store. Raises UserError if the hub sends no history."""
        if not self._joined.wait(JOIN_S):
            raise UserError(f"{self.name}: {self._source.notice or 'its hub does not answer'}")
        with super().looking() as store:
            yield store

    def _follow(self) -> None:
        source = self._source
        try:
            while not self._closed.is_set() and not source.finished:
                messages = source.poll(POLL_MS)
                with self._lock:
                    self._store.apply_all(messages)
                if source.joined:
                    self._joined.set()
                self._closed.wait(PAUSE_S)
        finally:
            source.close()
            self._joined.set()

    def _about(self, view: View) -> Mapping[str, object]:
        """Return the run's facts: records of all ranks are complete up to ``complete_to_ns``."""
        found = {
            "source": "live run", "name": self.name, "run": self.target.run, "now_ns": view.now_ns,
            "complete_to_ns": view.t_ns, "behind_ns": view.now_ns - view.t_ns,
            "ended": view.run_end is not None,
        }  # fmt: skip
        return {**found, "notice": self._source.notice} if self._source.notice else found

    def close(self) -> None:
        """Leave the run, which runs on."""
        self._closed.set()
        self._thread.join(5.0)
        self.target.close()


Evidence = Recording | LiveRun | JobLog


def open_evidence(text: str | None, key: Path | None = None) -> Evidence:
    """Open a live run by its name or address, a session file or bundle, or a log or a directory of
    logs; None: the only live run. Raises UserError."""
    if text is None:
        return LiveRun(local(_only_run()))
    if text.startswith(("tcp:", "ssh:")):
        return LiveRun(elsewhere(text, key, os.environ))
    path = Path(text)
    if not os.path.lexists(path):
        try:
            return LiveRun(local(find_run(text).path))
        except RunError:
            raise UserError(f"{text} is neither a file nor a live run (`pardbg ls`)") from None
    written = {os.path.realpath(one.session): one.path for one in list_runs()}
    if (run := written.get(os.path.realpath(path))) is not None:
        return LiveRun(local(run))
    return Recording(path.name, load(path)) if _is_session(path) else JobLog((text,))


def _only_run() -> Path:
    runs = list_runs()
    if len(runs) > 1:
        raise UserError(f"{len(runs)} runs are live, name one: {', '.join(r.run for r in runs)}")
    return find_run().path


def _is_session(path: Path) -> bool:
    """Return whether a file is a session or a bundle, not a log. Raises UserError."""
    if path.suffix == ".mcap" or path.name.endswith(BUNDLE):
        return True
    if path.is_dir():
        return False
    try:
        with open(path, "rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
