"""``pardbg.record``: recording of a block of a program, with this process and the processes that it
starts, to a session.

A run needs a job: here it is ``cat``, which reads a pipe that this process holds open. So the run
ends with the block, or with this process, however that ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from pardbg.cli.common import refuse_planted
from pardbg.errors import UserError
from pardbg.hub.run.launcher import job_env
from pardbg.hub.run.start import RunHandle, start_run
from pardbg_agent import wire

if TYPE_CHECKING:
    from pardbg.opened import Session

END_S: Final = 30.0
"""Maximum time, s, for a run to end and to close its file."""
_VARIABLES: Final = (wire.ENV_RUN, "PYTHONPATH")


@dataclass
class Recording:
    """Recording of a block. After the block, ``session`` is the recorded session."""

    path: Path
    _handle: RunHandle
    _write_end: int = -1

    def stop(self) -> Session:
        """End the recording before its block ends. Raises UserError if nothing was recorded."""
        if self._write_end >= 0:
            from pardbg_agent import autostart

            autostart.remove_hooks()
            os.close(self._write_end)
            self._write_end = -1
            if not self._handle.wait_recorded(END_S):
                self._handle.kill()  # a child that outlives the block has the pipe, too
                self._handle.wait_recorded(END_S)
        return self.session

    @cached_property
    def session(self) -> Session:
        """Return the recorded session, loaded once. Raises UserError."""
        from pardbg.opened import opened

        return opened(self.path)


@contextmanager
def recorded(path: str | os.PathLike[str], force: bool = False) -> Iterator[Recording]:
    """Record a block; see ``pardbg.record``."""
    session = _target(Path(path), force)
    before = {name: os.environ.get(name) for name in _VARIABLES}
    with TemporaryDirectory(prefix="pardbg-") as folder:
        pipe = os.path.join(folder, "block")
        os.mkfifo(pipe, 0o600)
        write_end = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)
        try:
            handle = start_run(["cat", pipe], name=session.stem, session=session)
        except BaseException:
            os.close(write_end)
            raise
        recording = Recording(session, handle, write_end)
        try:
            own = job_env(dict(os.environ), handle.run_dir)
            os.environ.update({name: own[name] for name in _VARIABLES})
            _watch_this_process()
            yield recording
        finally:
            _restore(before)
            with suppress(UserError):  # reading the session raises it
                recording.stop()


def _watch_this_process() -> None:
    import pardbg_agent

    if "torch" in sys.modules:
        pardbg_agent.attach()
    else:
        from pardbg_agent import autostart

        autostart.start()


def _restore(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def _target(path: Path, force: bool) -> Path:
    refuse_planted(path)
    if os.environ.get(wire.ENV_RUN):
        raise UserError("this process is watched already: record() would be a run in a run")
    if path.exists() and not force:
        raise UserError(f"{path} exists: choose another file, or force=True to replace it")
    if not path.absolute().parent.is_dir():
        raise UserError(f"no such directory: {path.absolute().parent}")
    return Path(os.path.realpath(path))
