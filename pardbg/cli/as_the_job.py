"""Ends of commands that stand in for a job: with the job's exit code, signal and terminal."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from pardbg.cli.common import talk
from pardbg.hub.run.jobs import adopt_orphans, as_script
from pardbg.hub.run.start import CommandError

if TYPE_CHECKING:
    from pardbg.hub.run.start import RunHandle


def end_as(status: int) -> int:
    """Return the job's exit code, or die of the signal that ended the job (``status`` < 0), so that
    the waiting process sees the job's own end."""
    if status >= 0:
        return status
    sys.stdout.flush()
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core is the job's
    with contextlib.suppress(OSError, ValueError):  # SIGKILL, SIGSTOP: no need to
        signal.signal(-status, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [-status])
    os.kill(os.getpid(), -status)
    return 128 - status  # the signal ends no process here


def run_plain(argv: list[str], why: str) -> NoReturn:
    """Become the job, unwatched, after one line with the reason why nothing is recorded. Raises
    CommandError if the job cannot be started."""
    talk(f"NOT recorded, the job runs without pardbg: {why}")
    sys.stdout.flush()
    sys.stderr.flush()
    adopt_orphans(False)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        script = as_script(argv, None, error)
        if script is not None:
            os.execv(script[0], script)
        code = 127 if isinstance(error, FileNotFoundError) else 126
        raise CommandError(f"cannot run {argv[0]!r}: {error.strerror or error}", code) from None


@contextlib.contextmanager
def ending_with_us(handle: RunHandle | None) -> Iterator[None]:
    """End the job inside the context if the terminal is closed or SIGTERM arrives. A job outlives a
    viewer that is killed, since the user did not decide to end the job."""

    def end(number: int, frame: FrameType | None) -> None:
        assert handle is not None
        handle.kill()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    told = [] if handle is None else [signal.SIGHUP, signal.SIGTERM]
    before = [(n, signal.signal(n, end)) for n in told if signal.getsignal(n) == signal.SIG_DFL]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
