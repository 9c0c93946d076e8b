"""Shared parts of commands: errors, output files, common options, shell completion."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

import click
from click.shell_completion import CompletionItem

from pardbg.errors import UserError
from pardbg.plain_text import plain_lines

if TYPE_CHECKING:
    from pardbg.store.store import Store

USAGE_EXIT: Final = 2
MAX_HELP: Final = 100
"""Cells of help in a wider terminal."""
_MIN_HELP: Final = 40
F = TypeVar("F", bound=Callable[..., Any])


def echo(text: str, err: bool = False) -> None:
    """Print lines on stdout or stderr, without control characters from jobs or files. Whose reader
    went away (`| head`) changes nothing else: the exit code is the command's."""
    try:
        click.echo(plain_lines(text), err=err)
    except BrokenPipeError:
        write_no_more(sys.stderr if err else sys.stdout)


def write_no_more(stream: TextIO) -> None:
    """Point a stream at /dev/null, so that the flush at exit does not fail."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def trouble(error: OSError) -> str | None:
    """Return the lack of the machine that an error shows, as text; None: a bug of pardbg."""
    if isinstance(error, FileNotFoundError) and error.filename is None:
        try:
            os.getcwd()  # else it is tempfile's
        except FileNotFoundError:
            return "the current directory no longer exists: cd to another one"
        return "no directory for temporary files can be written to: set TMPDIR to one"
    words = {
        errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
        errno.ENOSPC: "no space left on the output device",
        errno.EDQUOT: "disk quota exceeded",
        errno.ENOMEM: "out of memory",
    }
    return words.get(error.errno or 0)


def session_path(text: str) -> tuple[Path, bool]:
    """Return (session file, whether it still grows) for a path or the name of a live run."""
    from pardbg.hub.run.runs import list_runs

    path, runs = Path(text), list_runs()
    writing = {os.path.realpath(run.session) for run in runs}
    if os.path.lexists(path) or path.suffix == ".mcap":
        return path, os.path.realpath(path) in writing
    fitting = [run for run in runs if text in (run.run, run.name) or run.run.startswith(text)]
    if not fitting:
        raise UserError(f"no such file or live run: {text}; `pardbg ls` lists those")
    return fitting[-1].session, True


def load_session(text: str, part: int | None = None) -> Store:
    """Load a session file, or a live run's recording so far, or one part of either. Raises
    UserError."""
    from pardbg.session.reader import load

    path, growing = session_path(text)
    store = load(path, growing=growing)
    if part is not None and not store.look_at(part):
        number = len(store.parts())
        raise UserError(f"no part {part}: {text} has {f'{number} parts' if number else 'one life'}")
    return store


@contextmanager
def new_file(path: Path, force: bool) -> Iterator[Path]:
    """Yield a file beside ``path`` that replaces ``path`` at the end, or is removed on failure."""
    if path.is_dir():  # which --force does not replace
        raise UserError(f"{path} is a directory; give the name of a file")
    _check_target(path, force)
    fresh = path.with_name(f".{path.name}.{os.getpid()}{path.suffix}")
    try:
        fresh.touch(exist_ok=False)  # do not follow another user's link
    except OSError as error:
        raise UserError(_cannot_write(path, error)) from None
    try:
        yield fresh
        os.replace(fresh, path)
    except OSError as error:
        raise UserError(_cannot_write(path, error)) from None
    finally:
        fresh.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path, force: bool) -> Iterator[Path]:
    """Yield a folder that replaces ``path`` at the end, as ``new_file`` does. With ``force`` files
    of the same names are replaced; a subfolder with other files is refused, because files of two
    exports would read as one table."""
    if path.exists() and not path.is_dir():
        raise UserError(
            f"{path} is a file, and this format writes a folder of tables; choose another path"
        )
    _check_target(path, force or (path.is_dir() and not any(path.iterdir())))
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.mkdir()
        yield fresh
        path.mkdir(exist_ok=True)
        _move_into(fresh, path)
    except OSError as error:
        raise UserError(_cannot_write(path, error)) from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _move_into(fresh: Path, path: Path) -> None:
    made = sorted(one for one in fresh.rglob("*") if one.is_file())
    for folder in {one.parent for one in made} - {fresh}:
        there = path / folder.relative_to(fresh)
        old, new = ({one.name for one in each.glob("*")} for each in (there, folder))
        if old - new:
            raise UserError(
                f"{there} has files of another export: choose another path, or remove it"
            )
    for one in made:
        target = path / one.relative_to(fresh)
        target.parent.mkdir(exist_ok=True)
        os.replace(one, target)


def refuse_planted(path: Path) -> None:
    """Refuse another user's link or file in a folder that all users may write to, as the kernel's
    ``protected_symlinks`` does. Raises UserError."""
    try:
        found, folder = path.lstat(), path.parent.stat()
    except OSError:
        return
    shared = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
    if shared and found.st_uid not in (os.getuid(), folder.st_uid):
        uid = found.st_uid
        raise UserError(f"{path} belongs to another user (uid {uid}): choose another path")


def _check_target(path: Path, force: bool) -> None:
    refuse_planted(path)
    if path.exists() and not force:
        raise UserError(f"{path} exists: choose another path, or --force to replace it")
    if not path.parent.is_dir():
        raise UserError(f"no such directory: {path.parent}; create it or choose another path")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"cannot write to {path.parent}: choose another path")


def _cannot_write(path: Path, error: OSError) -> str:
    return f"cannot write {path}: {error.strerror or error}; nothing was written"


def help_width() -> int:
    """Return the cells of help on this terminal: as click has them for options."""
    return max(_MIN_HELP, min(MAX_HELP, shutil.get_terminal_size().columns)) - 2


def talk(line: str) -> None:
    """Print a message of pardbg's own on stderr."""
    echo(f"pardbg: {line}", err=True)


def all_of(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds these options, in order."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


PART: Final = click.option("--part", type=click.IntRange(1), metavar="N", help="Look at part N of "
                           "a run with several lives or roles; `report` lists them.")  # fmt: skip
FORCE: Final = click.option("--force", is_flag=True, help="Overwrite an existing file.")
JSON: Final = click.option("--json", "json_", is_flag=True, help="Print JSON.")


def writes(what: str) -> Callable[[F], F]:
    """Return options ``-o``, required, and ``--force``."""
    path = click.Path(path_type=Path)
    return all_of(click.option("-o", "--output", type=path, required=True, help=what), FORCE)


def skips(default: int = 0) -> Callable[[F], F]:
    """Return option ``--skip``; the help shows the default unless it is 0."""
    return click.option("--skip", type=click.IntRange(0), default=default, metavar="N",
                        show_default=default > 0,
                        help="Skip the first N steps (warm-up).")  # fmt: skip


def has_terminal() -> bool:
    """Return whether there is a terminal for keys and screens."""
    return sys.stdin.isatty() and sys.stdout.isatty() and not cannot_draw()


def cannot_draw() -> str:
    """Return the reason why the terminal cannot show screens; empty: it can."""
    term = os.environ.get("TERM", "")
    if term in ("", "dumb", "unknown"):
        return f"TERM={term}: this terminal cannot show screens" if term else "TERM is not set"
    return ""


def need_terminal(what: str, instead: str = "pardbg ctl ranks") -> None:
    """Raise UserError without a usable terminal."""
    if has_terminal():
        return
    why = cannot_draw() if sys.stdin.isatty() and sys.stdout.isatty() else "stdin or stdout is none"
    raise UserError(f"{what} needs a terminal: {why}; try `{instead}`")


def completions(words: Iterable[str], typed: str) -> list[CompletionItem]:
    """Return the words that complete what was typed."""
    return [CompletionItem(word) for word in words if word.startswith(typed)]


def complete_recipes(
    _ctx: click.Context, _param: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Complete names of recipes, with the recipes' summaries."""
    from pardbg.lab.recipes.catalogue import RECIPES

    return [
        CompletionItem(name, help=recipe.summary)
        for name, recipe in RECIPES.items() if name.startswith(typed)
    ]  # fmt: skip


def complete_runs(_ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    from pardbg.hub.run.runs import list_runs

    return completions((run.run for run in list_runs()), typed)


def complete_sessions(
    ctx: click.Context, param: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Complete live runs and files."""
    return [*complete_runs(ctx, param, typed), CompletionItem(typed, type="file")]


def complete_ctl(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete a live run or verb, then the verb's arguments."""
    from pardbg.control.language.arguments import INSPECT
    from pardbg.ui.commands.actions import ctl_help
    from pardbg.ui.commands.command_line import complete

    verbs = ctl_help()
    known = [*verbs, *INSPECT]
    said = list(ctx.params.get(param.name or "") or ())
    at = next((i for i, word in enumerate(said[:2]) if word in known), None)
    if at is not None:
        line = " ".join([*said[at:], typed])
        return completions(
            (whole.rpartition(" ")[2] for whole in complete(line.rstrip(), True)), typed
        )
    found = [CompletionItem(w, help=verbs.get(w)) for w in known if w.startswith(typed)]
    return found if said else [*complete_runs(ctx, param, typed), *found]
