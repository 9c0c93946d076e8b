"""The command line: a thin composition root that joins hub, session, analysis and screens.

stdout is data, stderr is talk. Exit codes: 0 ok, 1 a check failed, 2 bad usage or input, else the
job's own. What a user can get wrong is answered in one line, never with a traceback.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from pardbg import __version__
from pardbg.control.model import Verb

if TYPE_CHECKING:
    from pardbg.hub.launch import RunHandle

USAGE_EXIT = 2


class UserError(click.ClickException):
    """Something the user can put right: one line, exit code 2."""

    exit_code = USAGE_EXIT


def main(argv: list[str] | None = None) -> NoReturn:
    """Run one command; turn every error a user can cause into one line on stderr."""
    args = list(sys.argv[1:] if argv is None else argv)
    job: list[str] | None = None
    if "--" in args:
        cut = args.index("--")
        args, job = args[:cut], args[cut + 1 :]
    try:
        code = cli.main(args, prog_name="pardbg", standalone_mode=False, obj=job)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.Abort:
        code = 130
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "pardbg"
        click.echo(f"pardbg: {_one_line(error.format_message())} (see `{where} --help`)", err=True)
        code = USAGE_EXIT
    except click.ClickException as error:
        click.echo(f"pardbg: {_one_line(error.format_message())}", err=True)
        code = error.exit_code
    except BrokenPipeError:
        # The reader of our stdout went away (`| head`): say nothing, and keep the interpreter from
        # flushing into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="pardbg")
def cli() -> None:
    """Watch, record, replay and step parallel PyTorch training."""


@cli.command()
@click.argument("name", required=False, default="1f1b")
@click.option("--nproc", type=click.IntRange(1, 64), help="Ranks (default: the recipe's).")
@click.option("--steps", type=click.IntRange(1), help="Training steps (default: the recipe's).")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Session file to write.")
@click.option("--list", "list_", is_flag=True, help="List the recipes, a line each.")
def demo(
    name: str, nproc: int | None, steps: int | None, output: Path | None, list_: bool
) -> int | None:
    """Train a built-in recipe under torchrun, watched."""
    from pardbg.recipes import catalogue

    if list_:
        width = max(map(len, catalogue.RECIPES))
        for recipe in catalogue.RECIPES.values():
            click.echo(f"{recipe.name:<{width}}  {recipe.nproc} ranks  {recipe.summary}")
        return None
    if name not in catalogue.RECIPES:
        raise UserError(f"no recipe {name!r}: `pardbg demo --list` shows them")
    _need_torch()
    try:
        argv = catalogue.command(name, nproc, steps)
    except catalogue.RecipeError as error:
        raise UserError(str(error)) from None
    # As torchrun would set it, less its notice.
    env = {"OMP_NUM_THREADS": "1", **os.environ}
    handle = _start(argv, name=name, output=output, recipe=name, env=env)
    return _watch_job(handle, start_screen=_start_screen(name))


@cli.command()
@click.argument("run", required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Session file to write.")
@click.pass_obj
def watch(job: list[str] | None, run: str | None, output: Path | None) -> int | None:
    """Join the live run RUN (default: the newest), or start one: `watch -- torchrun … train.py`."""
    if job is not None:
        if run is not None:
            raise UserError(f"{run!r} before `--`: give a run to join, or a command, not both")
        return _watch_job(_start(_job(job), name=_job_name(job), output=output))
    if output is not None:
        raise UserError("-o goes with a command: `pardbg watch -o S.mcap -- torchrun …`")
    _need_terminal("watch")
    return _tui_live(_find(run).path, "overview")


@cli.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Session file to write.")
@click.pass_obj
def run(job: list[str] | None, output: Path | None) -> int:
    """Run a job without a screen, recorded: `run -o S.mcap -- torchrun … train.py`.

    The job's output and exit code are its own.
    """
    from pardbg import headless

    argv = _job(job)
    handle = _start(argv, name=_job_name(argv), output=output, owner=True)
    return headless.follow(handle, own=True)


@cli.command()
@click.argument("session", type=click.Path(path_type=Path))
def replay(session: Path) -> int | None:
    """Show a recorded SESSION in the same screens, with time travel. Needs no torch."""
    from pardbg.session.reader import SessionError, open_session
    from pardbg.session.replay import ReplayClock
    from pardbg.ui.app import PardbgApp

    try:
        source = open_session(session)
    except SessionError as error:
        raise UserError(str(error)) from None
    _need_terminal("replay", f"pardbg report {session}")
    try:
        PardbgApp(source, None, title=session.name, replay=ReplayClock()).run()
    finally:
        source.close()
    return None


@cli.command()
@click.argument("session")
@click.option("--json", "json_", is_flag=True, help="The report's data (stable; see its schema).")
def report(session: str, json_: bool) -> None:
    """Say in text what a SESSION file or a live run shows."""
    from pardbg.analysis.report import report as make_report
    from pardbg.render.report import text
    from pardbg.session.reader import SessionError, load

    try:
        path, growing = _session_path(session)
        data = make_report(load(path, growing=growing))
    except SessionError as error:
        raise UserError(str(error)) from None
    click.echo(json.dumps(data, indent=2) if json_ else text(data))


@cli.command()
@click.argument("words", nargs=-1, required=True, metavar="[RUN] VERB [RANKS]")
@click.option("--json", "json_", is_flag=True, help="The answer as JSON on stdout.")
@click.option("--lease", type=click.FloatRange(1, 86400), default=60.0, show_default=True,
              help="Seconds the ranks stay held without a further command.")  # fmt: skip
@click.option("--timeout", type=click.FloatRange(0.1, 3600), default=30.0, show_default=True,
              help="Seconds to wait for the ranks' acknowledgement.")  # fmt: skip
def ctl(words: tuple[str, ...], json_: bool, lease: float, timeout: float) -> int:
    """Control a live run from a script.

    VERB: pause, continue, step, tick, next, op, where, ranks, status, kill.

    RANKS is a rank set: 0, 0-3, stage=2, all, held.
    """
    from pardbg import headless

    run_name, verb, ranks = _ctl_words(words)
    if verb is Verb.KILL and run_name is None:
        raise UserError("kill ends the job: say which, as in `pardbg ctl RUN kill` (`pardbg ls`)")
    return headless.control(_find(run_name).path, verb, ranks, json_, lease, timeout)


@cli.command()
@click.option("--json", "json_", is_flag=True, help="As JSON.")
def ls(json_: bool) -> None:
    """List live runs."""
    from pardbg.hub.runs import list_runs

    runs = list_runs()
    if json_:
        click.echo(json.dumps([found.as_dict() for found in runs], indent=2))
    elif not runs:
        click.echo("no live run; start one with `pardbg demo` or `pardbg watch -- CMD`", err=True)
    for found in [] if json_ else runs:
        click.echo(found.line())


@cli.command()
@click.option("--json", "json_", is_flag=True, help="As JSON.")
def doctor(json_: bool) -> int:
    """Check what pardbg needs on this machine, a line each; exit 1 if something is missing."""
    from pardbg import doctor as checks

    results = checks.run_checks()
    if json_:
        click.echo(json.dumps([result.as_dict() for result in results], indent=2))
    else:
        for result in results:
            click.echo(result.line())
    return 0 if all(result.status != "bad" for result in results) else 1


# ------------------------------------------------------------------------------------- pieces


def _start(
    argv: list[str], *, name: str, output: Path | None, recipe: str | None = None,
    owner: bool = False, env: dict[str, str] | None = None,
) -> RunHandle:  # fmt: skip
    from pardbg.hub.launch import LaunchError, start_run

    session = _session_target(output, name)
    try:
        return start_run(argv, name=name, session=session, recipe=recipe, owner=owner, env=env)
    except LaunchError as error:
        raise UserError(str(error)) from None


def _watch_job(handle: RunHandle, start_screen: str = "overview") -> int:
    """TUI beside a job just started; without a terminal, its output and then the report."""
    from pardbg import headless

    if not _has_terminal():
        return headless.follow_and_report(handle)
    return _tui_live(handle.run_dir, start_screen)


def _tui_live(run_dir: Path, start_screen: str) -> int:
    from pardbg import headless
    from pardbg.hub.client import HubControl, LiveSource
    from pardbg.ui.app import PardbgApp

    source, control = LiveSource(run_dir), HubControl(run_dir)
    title = headless.run_facts(run_dir).name
    try:
        PardbgApp(source, control, title=title, start_screen=start_screen).run()
    finally:
        control.close()
        source.close()
    return headless.farewell(run_dir)


def _start_screen(recipe: str) -> str:
    from pardbg.recipes import catalogue

    return "pipeline" if catalogue.RECIPES[recipe].pipeline else "overview"


def _session_target(output: Path | None, name: str) -> Path:
    """Where the recording goes; refused before anything starts if it cannot be written."""
    from pardbg.headless import default_session_path

    path = output if output is not None else default_session_path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {path.parent}: {error.strerror}; choose another -o") from None
    if path.is_dir():
        raise UserError(f"{path} is a directory; give -o a file name such as {path / 'run.mcap'}")
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise UserError(f"cannot write {path}: permission denied; choose another -o")
    return path.resolve()


def _session_path(text: str) -> tuple[Path, bool]:
    """A session file, or the one that a live run is writing; and whether it still grows."""
    from pardbg.hub.runs import list_runs

    path, runs = Path(text), list_runs()
    writing = {run.session.resolve() for run in runs}
    if path.exists() or path.suffix == ".mcap":
        return path, path.resolve() in writing
    fitting = [run for run in runs if text in (run.run, run.name) or run.run.startswith(text)]
    return (fitting[-1].session, True) if fitting else (path, False)


def _find(name: str | None) -> Any:
    from pardbg.hub.runs import RunError, find_run

    try:
        return find_run(name)
    except RunError as error:
        raise UserError(str(error)) from None


def _job(job: list[str] | None) -> list[str]:
    if not job:
        raise UserError("no command: put it after `--`, as in `pardbg run -- torchrun … train.py`")
    return job


def _job_name(argv: list[str]) -> str:
    """The program's file name: ``train`` for ``torchrun --nproc-per-node 2 train.py``."""
    scripts = [Path(word) for word in argv if word.endswith(".py")]
    return (scripts[0] if scripts else Path(argv[0])).stem


def _ctl_words(words: tuple[str, ...]) -> tuple[str | None, Verb, str | None]:
    verbs = {verb.value: verb for verb in Verb}
    run_name = None if words[0] in verbs else words[0]
    rest = words if run_name is None else words[1:]
    if not rest or rest[0] not in verbs:
        what = f"no verb {rest[0]!r}" if rest else f"{words[0]!r} is not a verb"
        raise UserError(f"{what}; verbs: {', '.join(verbs)}")
    if len(rest) > 2:
        raise UserError(f"one rank set after the verb, as in `step 0-1`; got {' '.join(rest[1:])}")
    return run_name, verbs[rest[0]], rest[1] if len(rest) == 2 else None


def _need_torch() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise UserError("a demo trains for real and needs torch: pip install 'pardbg[train]'")


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _need_terminal(what: str, instead: str = "pardbg ctl ranks") -> None:
    if not _has_terminal():
        raise UserError(f"{what} draws on a terminal and there is none here; try `{instead}`")


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    main()
