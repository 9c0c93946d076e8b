"""State beyond one session of the viewer: commands of ``.pardbgrc`` files, run when a viewer
starts, the history of the ``:`` prompt, and what was answered of lessons."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pardbg.control.language.arguments import inspect_words, verb_meant, verb_words
from pardbg.errors import UserError
from pardbg.events.commands import Reply
from pardbg.events.control_codes import Verb
from pardbg.render.frame.control_words import done_text, error_text
from pardbg.ui.commands import command_line
from pardbg.ui.commands.actions import Action
from pardbg.ui.commands.command_line import Command

REFUSED: Final = ("kill", "quit", "leave", "command")
"""Words that are no beginning, and no key's."""
SETTINGS: Final = ("theme", "key", "columns", "alert")
"""Actions that, beside the page to begin with, hold in every viewer."""


@dataclass(frozen=True, slots=True)
class RcLine:
    """A command of a ``.pardbgrc`` file, with its place: ``.pardbgrc:3``."""

    place: str
    text: str


@dataclass(frozen=True, slots=True)
class Rc:
    """The files' commands, and a line for each refused file."""

    lines: tuple[RcLine, ...] = ()
    problems: tuple[str, ...] = ()
    own: Path | None = None
    """The user's own file, where settings are kept."""


def split_rc(rc: Rc, live: bool) -> tuple[list[tuple[str, Command]], Rc]:
    """Return (place, command) of the settings, and the rest: wrong ones, and those of a live
    run."""
    settings, rest = [], []
    for line in rc.lines:
        try:
            found = parse_rc_line(line)
        except UserError:
            rest.append(line)
            continue
        if found.action.id in SETTINGS or found.action.group == "screens":
            settings.append((line.place, found))
        elif live:
            rest.append(line)
    return settings, replace(rc, lines=tuple(rest))


def keep_setting(path: Path, word: str, value: str) -> str:
    """Write ``word value`` into the user's file, in place of its last such line; return what to say
    of it. Raises OSError."""
    path = path.resolve()  # it may be a link into a folder of such files
    lines = path.read_text("utf-8", "surrogateescape").splitlines() if path.exists() else []
    known = [at for at, line in enumerate(lines) if line.split()[:1] == [word]]
    at = known[-1] if known else len(lines)
    lines[at : at + 1] = [f"{word} {value}"]
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.touch(0o600)
    fresh.write_text("".join(f"{line}\n" for line in lines), "utf-8", "surrogateescape")
    fresh.chmod(mode)
    os.replace(fresh, path)
    return f"{word} {value}: kept in {path}"


def parse_rc_line(line: RcLine) -> Command:
    """Return the parsed command. Raises UserError."""
    found = command_line.parse(line.text, live=True)
    if found.action.command in REFUSED:
        raise UserError(f"{found.action.command} cannot be a start command")
    return found


def hub_request(action: Action, argument: str) -> tuple[Verb, str | None, dict[str, object]] | None:
    """Return (verb, rank set, arguments) of a command for the hub; None for a command of the
    screen. Raises UserError."""
    if action.id.startswith("inspect_"):
        ranks, args = inspect_words(action.id.removeprefix("inspect_"), argument)
        return Verb.INSPECT, ranks or "held", args
    if action.verb is None:
        return None
    words = argument.split()
    verb = verb_meant(action.verb, words)
    return verb, *verb_words(verb, words)


def run_rc(
    rc: Rc,
    ask: Callable[..., Reply],
    perform: Callable[[Command], str],
    say: Callable[[str, bool], None],
) -> None:
    """Run all lines in order, even if some fail. Waits for every answer, so not on the UI's thread.

    ``ask(verb, ranks, **args)`` is the port's, ``perform`` runs a screen's command and returns its
    error text, ``say(text, bad)`` shows a line.
    """
    for problem in rc.problems:
        say(problem, True)
    for line in rc.lines:
        try:
            found = parse_rc_line(line)
            request = hub_request(found.action, found.argument)
        except UserError as error:
            say(f"{line.place}: {error}", True)
            continue
        if request is None:
            wrong = perform(found)
            done = "ok"
        else:
            verb, ranks, args = request
            reply = ask(verb, ranks, **args)
            wrong = error_text(reply)
            done = done_text(reply) or "ok"
        say(f"{line.place}: {wrong or f'{line.text}: {done}'}", bool(wrong))


def answered_of(
    lessons: Sequence[tuple[str, int]], answered: History
) -> list[tuple[str, int, int]]:
    """Return (name, answered ideas, ideas) of every lesson; ``lessons``: (name, ideas)."""
    keys = set(answered.lines)
    return [(name, sum(f"{name} {at}" in keys for at in range(ideas)), ideas)
            for name, ideas in lessons]  # fmt: skip


KEPT: Final = 500
MAX_LINE: Final = 1000
_SLACK: Final = 2
"""Multiple of KEPT lines at which the file is cut to KEPT."""


class History:
    """Typed lines, oldest first. Without a path no file is written; unreadable files are
    ignored."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.lines: list[str] = []

    def load(self) -> None:
        """Read the history file; shorten a long file."""
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            found = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
            self.lines = [line[:MAX_LINE] for line in found if line.strip()][-KEPT:]
            if len(found) > _SLACK * KEPT:
                fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
                self._write(fresh, os.O_TRUNC, "".join(f"{line}\n" for line in self.lines))
                os.replace(fresh, self._path)

    def add(self, line: str) -> bool:
        """Add a line; return False if it repeats the last line."""
        if not line or self.lines[-1:] == [line]:
            return False
        self.lines = [*self.lines[1 - KEPT :], line[:MAX_LINE]]
        return True

    def keep(self, line: str) -> None:
        """Append a line to the file. Slow: not on the UI's thread."""
        if self._path is not None and line.isprintable():
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._write(self._path, os.O_APPEND, f"{line[:MAX_LINE]}\n")

    def _write(self, path: Path, how: int, text: str) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
