"""``.pardbgrc``: which files are read, when they are refused, and their commands without a screen.

A viewer reads ``~/.pardbgrc`` and then ``./.pardbgrc``, as pdb does. The one in the current
directory may have come with somebody else's project, so, as gdb does, a file that is not the user's
own or that others may write to is refused; and it holds console words alone, never Python that
runs here. A job without a screen reads none, unless ``--rc FILE`` names it: a breakpoint that
somebody forgot must not hold a job that nobody looks at.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from pardbg.cli.common import UserError
from pardbg.control.language.verbs import Reply, Verb
from pardbg.control.machine.breakpoints import EDITS
from pardbg.control.machine.holding import HOLD_S
from pardbg.ui.commands.command_line import Command
from pardbg.ui.commands.startup import Rc, RcLine, run_rc

NAME: Final = ".pardbgrc"
MAX_BYTES: Final = 64 << 10
HEADLESS: Final = (*EDITS, Verb.LEVEL, Verb.MARK)
"""Verbs that make sense before the job runs and unattended."""
F = TypeVar("F", bound=Callable[..., Any])


def rc_options(command: F) -> F:
    """``--rc`` and ``--no-rc``."""
    for option in (
        click.option("--no-rc", is_flag=True, help=f"Do not read ~/{NAME} and ./{NAME}."),
        click.option("--rc", "rc_file", type=click.Path(path_type=Path), metavar="FILE",
                     help="File of commands to start with, one per line; also without a screen."),
    ):  # fmt: skip
        command = option(command)
    return command


def for_viewer(rc_file: Path | None, no_rc: bool) -> Rc:
    """Return the commands a viewer starts with. Raises UserError for a named file."""
    home, here = Path.home() / NAME, Path.cwd() / NAME
    found, problems = [], []
    for path, shown in () if no_rc else ((home, f"~/{NAME}"), (here, NAME)):
        if path == here and here.exists() and home.exists() and here.samefile(home):
            continue
        try:
            found += _lines(path, shown, own=True)
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"{shown}: not read: {error.strerror or error}")
    return Rc((*found, *named(rc_file).lines), tuple(problems))


def named(rc_file: Path | None) -> Rc:
    """Return the commands of a named file. Raises UserError."""
    if rc_file is None:
        return Rc()
    try:
        return Rc(tuple(_lines(rc_file, str(rc_file), own=False)))
    except OSError as error:
        raise UserError(f"--rc {rc_file}: {error.strerror or error}") from None


def _lines(path: Path, shown: str, *, own: bool) -> list[RcLine]:
    """Raises OSError. ``own``: only if nobody else can have written it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError("not a regular file")
        if own and facts.st_uid != os.getuid():
            raise OSError("owned by another user")
        if own and facts.st_mode & 0o022:
            raise OSError(f"writable by others (chmod go-w {shown})")
        if facts.st_size > MAX_BYTES:
            raise OSError(f"larger than {MAX_BYTES >> 10} KiB")
        text = file.read(MAX_BYTES).decode("utf-8", "replace")
    lines = ((n, line.strip()) for n, line in enumerate(text.splitlines(), 1))
    return [RcLine(f"{shown}:{n}", line) for n, line in lines if line and line[0] != "#"]


def apply(run_dir: Path, rc: Rc, talk: Callable[[str], None]) -> None:
    """Give the commands to an unattended run, as a script would. A hit of their breakpoints holds
    the job for HOLD_S, and the user is told."""
    from pardbg.hub.client import HubControl

    if not rc.lines:
        return
    port = HubControl(run_dir, script=True)

    def ask(verb: Verb, ranks: str | None, **args: Any) -> Reply:
        if verb not in HEADLESS:
            return Reply(False, f"{verb.value} needs running ranks and a viewer", {})
        return port.command(verb, ranks, 10.0, lease_s=HOLD_S, **args)

    def perform(found: Command) -> str:
        return f"{found.action.command} needs a screen"

    try:
        run_rc(rc, ask, perform, lambda text, bad: talk(text))
    finally:
        port.close()
