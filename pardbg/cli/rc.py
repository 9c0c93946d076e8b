"""First commands of a viewer or a job, from files.

[Note: .pardbgrc] ``rc`` in the user's configuration directory runs by itself. ``./.pardbgrc`` may
have come with somebody else's project, and what it says reaches the ranks: the user is shown it and
asked, once per content, or trusts the directory (``PARDBG_TRUST_RC``). Without a terminal it never
runs. A job without a screen reads neither, unless ``--rc FILE`` names one: a breakpoint that
somebody forgot must not hold a job that nobody looks at.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from pardbg.cli.common import all_of, echo, has_terminal
from pardbg.control.machine.breakpoints import EDITS
from pardbg.control.machine.holding import HOLD_S
from pardbg.errors import UserError
from pardbg.events.commands import Reply
from pardbg.events.control_codes import Verb, Why
from pardbg.events.control_facts import Refusal
from pardbg.plain_text import plain_lines
from pardbg.ui.commands.command_line import Command
from pardbg.ui.commands.startup import Rc, RcLine, run_rc
from pardbg.words import binary_size

RC_NAME: Final = ".pardbgrc"
ENV_TRUST: Final = "PARDBG_TRUST_RC"
"""Variable with directories, separated by colons, whose ``.pardbgrc`` runs without a question."""
MAX_RC_BYTES: Final = 64 << 10
MAX_ANSWERS_BYTES: Final = 1 << 20
HEADLESS: Final = (*EDITS, Verb.LEVEL, Verb.MARK)
"""Verbs that are allowed before the job runs and unattended."""
RC: Final = click.option(
    "--rc", "rc_file", type=click.Path(path_type=Path), metavar="FILE",
    help="File of commands to start with, one per line: breakpoints, watches, delays; also "
    "without a screen.",
)  # fmt: skip
rc_options: Final = all_of(
    RC,
    click.option("--no-rc", is_flag=True, help=f"Do not read your rc file and ./{RC_NAME}."),
)  # fmt: skip


def user_rc() -> Path:
    """Return ``<user configuration>/pardbg/rc``."""
    import platformdirs

    return platformdirs.user_config_path("pardbg") / "rc"


def viewer_rc(rc_file: Path | None, no_rc: bool) -> Rc:
    """Return a viewer's first commands; may ask the user. Raises UserError for a named file."""
    named = named_rc(rc_file)
    if no_rc:
        return replace(named, own=user_rc())
    mine, here = own_rc(), _rc_at(Path(RC_NAME), RC_NAME, _may_run)
    lines = (*mine.lines, *here.lines, *named.lines)
    return Rc(lines, (*mine.problems, *here.problems), user_rc())


def own_rc() -> Rc:
    """Return the commands of the user's own file."""
    path = user_rc()
    return replace(_rc_at(path, _short(path), lambda text: True), own=path)


def _rc_at(path: Path, shown: str, may_run: Callable[[str], bool]) -> Rc:
    try:
        text = _read(path, shown, own=True)
    except FileNotFoundError:
        return Rc()
    except OSError as error:
        return Rc((), (f"{shown}: not read: {error.strerror or error}",))
    if may_run(text):
        return Rc(tuple(_lines(text, shown)))
    return Rc((), (f"{shown}: not run; `--rc {shown}` runs it",))


def named_rc(rc_file: Path | None) -> Rc:
    """Return the commands of a named file. Raises UserError."""
    if rc_file is None:
        return Rc()
    try:
        return Rc(tuple(_lines(_read(rc_file, str(rc_file), own=False), str(rc_file))))
    except OSError as error:
        raise UserError(f"--rc {rc_file}: {error.strerror or error}") from None


def _short(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _read(path: Path, shown: str, *, own: bool) -> str:
    """Read a file of commands; ``own`` refuses one that others can write. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError("not a regular file")
        if own and facts.st_uid != os.getuid():
            raise OSError("owned by another user")
        if own and facts.st_mode & 0o022:
            raise OSError(f"writable by others (chmod go-w {shown})")
        if facts.st_size > MAX_RC_BYTES:
            raise OSError(f"larger than {binary_size(MAX_RC_BYTES)}")
        return file.read(MAX_RC_BYTES).decode("utf-8", "replace")


def _lines(text: str, shown: str) -> list[RcLine]:
    lines = ((n, line.strip()) for n, line in enumerate(text.splitlines(), 1))
    return [RcLine(f"{shown}:{n}", line) for n, line in lines if line and line[0] != "#"]


# -- whether a file that lies here may run


def _may_run(text: str) -> bool:
    """Return whether the user trusts this content or the directory; ask once per content."""
    if not _lines(text, RC_NAME):
        return True
    trusted = filter(None, os.environ.get(ENV_TRUST, "").split(os.pathsep))
    if any(os.path.realpath(folder) == os.path.realpath(os.curdir) for folder in trusted):
        return True
    digest = hashlib.sha256(text.encode()).hexdigest()
    answer = _answers().get(digest)
    if answer is None and has_terminal():
        echo(f"{os.path.abspath(RC_NAME)} has commands for this run:\n\n{plain_lines(text)}\n")
        answer = click.confirm("Run them, now and whenever a file says the same?", default=False)
        path = _answers_path()
        with contextlib.suppress(OSError):  # without a place for it, the question comes again
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{digest} {'yes' if answer else 'no'}\n")
    return bool(answer)


def _answers_path() -> Path:
    import platformdirs

    return platformdirs.user_state_path("pardbg") / "rc-answers"


def _answers() -> dict[str, bool]:
    """Return the user's earlier answers, by SHA-256 of the content."""
    with contextlib.suppress(OSError), _answers_path().open(encoding="utf-8") as file:
        pairs = (line.split() for line in file.read(MAX_ANSWERS_BYTES).splitlines())
        return {pair[0]: pair[1] == "yes" for pair in pairs if len(pair) == 2}
    return {}


# -- without a screen


def apply_rc(run_dir: Path, rc: Rc, talk: Callable[[str], None]) -> None:
    """Run commands in an unattended run, as a script would. A hit of their breakpoints holds the
    job for ``HOLD_S`` and notifies the user."""
    if not rc.lines:
        return
    from pardbg.hub.client import HubControl  # slow to import

    port = HubControl(run_dir, script=True)

    def ask(verb: Verb, ranks: str | None, **args: Any) -> Reply:
        if verb not in HEADLESS:
            text = f"{verb.value} needs running ranks and a viewer"
            return Reply(refusal=Refusal(Why.INVALID, text))
        return port.command(verb, ranks, 10.0, lease_s=HOLD_S, **args)

    def perform(found: Command) -> str:
        return f"{found.action.command} needs a screen"

    try:
        run_rc(rc, ask, perform, lambda text, bad: talk(text))
    finally:
        port.close()
