"""What the hub does in the place of a launcher that was killed: the job goes on, and so do we."""

from __future__ import annotations

import time
from typing import Final

from pardbg.hub.run import config as files
from pardbg.hub.run import jobs
from pardbg.hub.run.config import RunConfig
from pardbg.hub.run.output import Copier

LOOK_S: Final = 0.1
REAP_S: Final = 1.0
"""How long whoever became the job's parent may take to write down how it ended."""


class Successor:
    """Looks whether the launcher is there; from when it is not, copies the job's output (if nobody
    else reads it), ends the job where that was asked for, and says that it has ended."""

    def __init__(self, config: RunConfig, sources: list[int]) -> None:
        self._dir = config.dir
        self._sources = sources
        """The job's stdout and stderr in memory; empty: its owner reads them."""
        self._killing = jobs.Killing(config.dir, config.owner_pid)
        self._launch = files.read_json(config.dir / files.LAUNCH_FILE)
        self._copier: Copier | None = None
        self._look_at = 0.0
        self._ended_at = 0.0
        self._code: int | None = None
        self.took_over = False

    def tick(self) -> bool:
        """Look, and do what is due. True if the launcher was just found to be gone."""
        now = time.monotonic()
        if self._launch is None or now < self._look_at:
            return False
        self._look_at = now + LOOK_S
        if not self.took_over:
            if jobs.is_alive(self._launch, "pid", "start"):
                return False
            if (self._dir / files.EXIT_FILE).exists():
                return False
            self._take_over()
            return True
        self._killing.tick()
        self._see_end(now)
        return False

    def finish(self) -> None:
        """Read what the job wrote last."""
        if self._copier is not None:
            self._copier.finish()
        self._killing.finish()

    def _take_over(self) -> None:
        self.took_over = True
        if self._sources:
            self._copier = Copier(self._dir, self._sources)

    def _see_end(self, now: float) -> None:
        if (self._dir / files.EXIT_FILE).exists() or jobs.job_pid(self._dir) is not None:
            return
        if self._code is None:
            self._code = jobs.last_seen(self._dir)
        self._ended_at = self._ended_at or now
        if now - self._ended_at >= REAP_S:
            error = jobs.UNKNOWN if self._code is None else ""
            jobs.write_exit(self._dir, self._code, error=error)
