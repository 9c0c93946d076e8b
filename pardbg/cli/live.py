"""Commands that start a job, or join a run: demo, watch, run."""

from __future__ import annotations

import os
import socket
import sys
import termios
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pardbg.cli import common
from pardbg.cli.here import find_target
from pardbg.cli.options import Recording, hang_options, node_options, recording, recording_options
from pardbg.cli.rc import RC, apply_rc, named_rc, rc_options, viewer_rc
from pardbg.errors import UserError
from pardbg.ui.commands.startup import Rc

if TYPE_CHECKING:
    from pardbg.doors.exporter import Doors
    from pardbg.hub.run.start import RunHandle
    from pardbg.hub.run.terminal import Streams
    from pardbg.hub.target import Target
    from pardbg.session.reader import SessionSource

    Reference = tuple[str, SessionSource]
    """Name and contents of the recording with which a run is compared."""

STDOUT, STDERR = 1, 2
MACHINE_LACKS = (OSError, termios.error, MemoryError, RuntimeError)
"""Errno values of a machine that lacks descriptors, processes, terminals, memory or threads."""


# A recipe's own options, such as `--staleness 2`, are not known here: they go on to the recipe.
@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("name", required=False, default="1f1b", shell_complete=common.complete_recipes)
@click.argument("own", nargs=-1, type=click.UNPROCESSED, metavar="[RECIPE'S OPTIONS]")
@click.option("--nproc", type=click.IntRange(1, 64), help="Ranks (default: the recipe's).")
@click.option(
    "--nnodes",
    type=click.IntRange(1, 16),
    default=1,
    help="Split the ranks over this many torchruns, as over machines.",
)
@click.option("--steps", type=click.IntRange(1), help="Training steps (default: the recipe's).")
@click.option("--device", type=click.Choice(("auto", "cuda", "sim")), default="auto",
              help="auto: a GPU per rank, or the CPU; cuda: shared; sim: simulated.")  # fmt: skip
@click.option("--schedule", metavar="S.csv", help="Train with this pipeline schedule (recipe csv).")
@click.option("--from", "session", metavar="SESSION",
              help="With --schedule: predict the step time from this run's durations.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Session file to write.")
@recording_options
@rc_options
@click.option("--keep", is_flag=True, help="Keep the job running when you leave the screen.")
@click.option("--list", "list_", is_flag=True, help="List the recipes, one per line.")
def demo(
    name: str, own: tuple[str, ...], nproc: int | None, nnodes: int, steps: int | None,
    device: str, schedule: str | None, session: str | None, output: Path | None, keep: bool,
    list_: bool, rc_file: Path | None, no_rc: bool, **how: Any,
) -> int | None:  # fmt: skip
    """Train a built-in recipe under torchrun, watched."""
    from pardbg.lab.recipes import catalogue

    if list_:
        _list_recipes()
        return None
    predicted, after = "", None
    if schedule is not None:
        from pardbg.cli.schedule import runnable, told

        if (name, own) != ("1f1b", ()):
            raise UserError("--schedule is a recipe of its own: give no other, and no options")
        name, (nproc, predicted) = "csv", runnable(schedule, session)
        own = ("--file", str(Path(schedule).resolve()), *own)
        own += ("--predicted", predicted) if predicted else ()
        after = told(predicted)
    elif session is not None:
        raise UserError("--from goes with --schedule S.csv")
    try:
        recipe = catalogue.find(name)
        _need_torch()
        argv = catalogue.command(name, nproc, steps, own, nnodes, device)
    except catalogue.RecipeError as error:
        raise UserError(str(error)) from None
    # As torchrun would set it, less its notice.
    env = {"OMP_NUM_THREADS": "1", **os.environ}
    if device == "sim":
        _build_simulated()
        # torch warns of what it does not know of a new kind of device.
        env = {"TORCH_CPP_LOG_LEVEL": "ERROR", **env}
    said, rc = recording(**how), _rc(rc_file, no_rc)
    return _watch_job(
        argv, said, rc, recipe.screen, not keep, after,
        name=f"{name} (simulated)" if device == "sim" else name, output=output, recipe=name,
        env=env,
    )  # fmt: skip


def _build_simulated() -> None:
    from pardbg.lab.sim import extension
    from pardbg_agent.native import Unusable

    try:
        if not extension.place().exists():
            common.talk("the simulated accelerator is built, once: half a minute")
        extension.built()
    except (Unusable, OSError) as error:
        raise UserError(f"no simulated accelerator: {error}") from None


@click.command()
@click.argument("run", required=False, shell_complete=common.complete_runs)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Session file to write.")
@recording_options
@hang_options
@node_options
@rc_options
@click.option("--reference", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              metavar="REF.mcap", help="Compare the tensors that --tensors captures with this "
              "recording's, at 0 Numbers.")  # fmt: skip
@click.pass_obj
def watch(
    job: list[str] | None, /, run: str | None, output: Path | None, rc_file: Path | None,
    no_rc: bool, reference: Path | None, **how: Any,
) -> int | None:  # fmt: skip
    """Join the live run RUN (default: the only one), or start one: `watch torchrun … train.py`.

    RUN elsewhere: tcp://HOST:PORT with --key, or ssh://[USER@]HOST[/RUN].
    """
    second = None if reference is None else (reference.name, _opened(reference))
    if job is not None:
        if run is not None:
            raise UserError(f"{run!r} before `--`: name a run to join or give a command, not both")
        said, rc = recording(**how), _rc(rc_file, no_rc)
        return _watch_job(_job(job), said, rc, second=second, name=job_name(job), output=output)
    key = how.pop("key")
    if output is not None or any(how.values()):
        raise UserError("-o and recording options need a command: `pardbg watch … -- torchrun …`")
    common.need_terminal("watch")
    rc = viewer_rc(rc_file, no_rc)
    return _tui_live(find_target(run, key), "overview", rc, second=second)


@click.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Session file to write.")
@recording_options
@hang_options
@node_options
@RC
@click.pass_obj
def run(job: list[str] | None, /, output: Path | None, rc_file: Path | None, **how: Any) -> int:
    """Record a job without a screen: `run -o S.mcap -- torchrun … train.py`.

    Output and exit code are the job's.
    """
    from pardbg.cli import headless
    from pardbg.cli.as_the_job import end_as, run_plain
    from pardbg.hub.run.config import SetupError

    argv, said, rc = _job(job), recording(**how), named_rc(rc_file)
    try:
        handle, streams = _start_own(argv, said, name=job_name(argv), output=output)
    except SetupError as why:
        run_plain(argv, str(why))
    _give(handle, rc)
    return end_as(headless.follow(handle, streams, attentive=said.attentive))


COMMANDS = (demo, watch, run)


# ------------------------------------------------------------------------------------- pieces


def _start(
    argv: list[str], how: Recording, *, name: str, output: Path | None, recipe: str | None = None,
    env: dict[str, str] | None = None, streams: Streams | None = None,
) -> RunHandle:  # fmt: skip
    from pardbg.cli.headless import default_session_path
    from pardbg.hub.launched_tasks import tasks_of
    from pardbg.hub.place import find_place
    from pardbg.hub.run.jobs import adopt_orphans
    from pardbg.hub.run.runs import tidy
    from pardbg.hub.run.start import start_run

    place = find_place(how.hub, how.key, how.node_rank, how.nnodes, argv, os.environ, common.talk)
    elsewhere = place is not None and place.node > 0  # where the hub records
    tasks, recorded = tasks_of(os.environ), place.nnodes if place is not None else 1
    beside, stem = tasks is not None and tasks.total > recorded, name
    if output is not None and tasks is not None:
        output = tasks.file(output, beside, place is None and tasks.here > 1, os.environ)
    elif beside:  # hosts may share the folder
        stem = f"{name}-{socket.gethostname().partition('.')[0]}"
    # Elsewhere a name alone: nothing is made there.
    session = default_session_path(name) if elsewhere else session_target(output, stem, how.force)
    doors = _doors(how.metrics, elsewhere)
    tidy()
    adopt_orphans()
    handle = start_run(
        argv, name=name, session=session, recipe=recipe or "", env=how.env(env), limits=how.limits,
        allow_eval=how.allow_eval, on_exception_s=how.on_exception,
        loss_pattern=how.loss_pattern or "", on_hang=how.on_hang, streams=streams, place=place,
    )  # fmt: skip
    if doors is not None:
        try:
            doors.start(handle.run_dir)
        except OSError as error:
            common.talk(f"no metrics: {error}")
    return handle


def _doors(places: Sequence[str], elsewhere: bool) -> Doors | None:
    """Open the destinations of figures; in a run of several nodes only the hub's node has them."""
    if not places:
        return None
    if elsewhere:
        common.talk("metrics of all nodes are exported on node 0")
        return None
    from pardbg.doors.exporter import open_doors

    return open_doors(places, common.talk)


def _start_own(
    argv: list[str], how: Recording, out: int = STDOUT, **more: Any
) -> tuple[RunHandle, Streams]:
    """Start a run owned by this process; ``out`` takes the job's stdout. Raises UserError;
    SetupError if this machine lacks what a recording needs."""
    from pardbg.hub.run.config import SetupError
    from pardbg.hub.run.terminal import own_streams

    streams = None
    try:
        streams = own_streams(out)
        return _start(argv, how, streams=streams, **more), streams
    except (UserError, *MACHINE_LACKS) as error:
        if streams is not None:
            streams.signals.again()
        if isinstance(error, UserError):
            raise
        text = common.trouble(error) if isinstance(error, OSError) else None
        raise SetupError(text or f"{type(error).__name__}: {error}") from None


def _give(handle: RunHandle, rc: Rc) -> None:
    """Run the first commands in the run; a failure is reported and does not end the run."""
    try:
        apply_rc(handle.run_dir, rc, common.talk)
    except Exception as error:  # noqa: BLE001
        common.talk(f"commands not given: {error}")


def _rc(rc_file: Path | None, no_rc: bool) -> Rc:
    """Return the first commands; without a terminal only those of a named file."""
    return viewer_rc(rc_file, no_rc) if common.has_terminal() else named_rc(rc_file)


def _watch_job(
    argv: list[str],
    how: Recording,
    rc: Rc,
    start_screen: str = "overview",
    ends: bool = False,
    after: Callable[[Path], None] | None = None,
    second: Reference | None = None,
    **more: Any,
) -> int:
    """Start a job and show it in the TUI, whose end ``ends`` the job or not; without a terminal
    show the job's output and then the report. ``after`` gets the recording of an ended job."""
    from pardbg.cli import headless
    from pardbg.cli.as_the_job import end_as, ending_with_us, run_plain
    from pardbg.hub.run.config import SetupError
    from pardbg.hub.target import local

    if not common.has_terminal():
        if sys.stdin.isatty() and sys.stdout.isatty():
            common.talk(f"{common.cannot_draw()}: running without a screen; the report follows")
        try:
            handle, streams = _start_own(argv, how, STDERR, **more)
        except SetupError as why:
            run_plain(argv, str(why))
        _give(handle, rc)
        code = headless.follow_and_report(handle, streams, attentive=how.attentive)
    else:
        common.talk(f"starting {more['name']}")  # a second or two pass until the screen is there
        handle = _start(argv, how, **more)
        with (
            ending_with_us(handle if ends else None),
            headless.raised_level(handle.run_dir if how.attentive else None),
        ):
            code = _tui_live(local(handle.run_dir), start_screen, rc, ends, second)
    if after is not None and handle.ended():
        after(handle.parts()[-1])
    return end_as(code)


def show_live(run_dir: Path) -> int:
    """Show a run that was just joined."""
    from pardbg.hub.target import local

    return _tui_live(local(run_dir), "overview", viewer_rc(None, False))


def _opened(reference: Path) -> SessionSource:
    """Open a reference before the job is started, so that an invalid file is reported at once."""
    from pardbg.session.reader import open_session

    common.need_terminal("--reference", "pardbg ctl RUN watch same REF.mcap")
    return open_session(reference)


def _tui_live(
    target: Target, start_screen: str, rc: Rc, ends: bool = False,
    second: Reference | None = None,
) -> int:  # fmt: skip
    from pardbg.cli import headless
    from pardbg.hub.client import HubControl, LiveSource
    from pardbg.ui.app import PardbgApp

    source, control = LiveSource(target), HubControl(target)
    try:
        PardbgApp(
            source, control, title=target.name, start_screen=start_screen, rc=rc, second=second,
            history=headless.history_path(),
        ).run()  # fmt: skip
        ended = source.finished
    finally:
        control.close()
        source.close()
        target.close()
    if target.path is not None:
        return headless.farewell(target.path, ends)
    now = "has ended" if ended else f"keeps running; rejoin: `pardbg watch {target.where}`"
    common.talk(f"{target.name} {now}")
    return 0


def _list_recipes() -> None:
    from pardbg.lab.recipes.catalogue import RECIPES, by_kind

    width = max(map(len, RECIPES))
    for kind, recipes in by_kind().items():
        common.echo(kind.value)
        for recipe in recipes:
            own = "".join(f" [--{option.name}]" for option in recipe.options)
            ranks = f"{recipe.nproc} {'rank ' if recipe.nproc == 1 else 'ranks'}"
            common.echo(f"  {recipe.name:<{width}}  {ranks}  {recipe.summary}{own}")


def session_target(output: Path | None, name: str, force: bool) -> Path:
    """Return the file to record to: new, empty, or with ``force`` an existing one. Raises UserError
    if ``output`` cannot be written; SetupError if a file of our own choice cannot. The hub makes a
    new file, so a run killed early leaves none."""
    from pardbg.cli.headless import default_session_path
    from pardbg.hub.removal import remove_empty
    from pardbg.hub.run.config import SetupError
    from pardbg.hub.run.runs import list_runs

    path = output if output is not None else default_session_path(name)
    refused = UserError if output is not None else SetupError
    common.refuse_planted(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused(f"cannot create {path.parent}: {error.strerror}; choose another -o") from None
    if path.is_dir():
        raise UserError(f"{path} is a directory; give -o a file name such as {path / 'run.mcap'}")
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file; choose another -o")
    path = Path(os.path.realpath(path))
    if writing := next((run for run in list_runs() if path == run.session.resolve()), None):
        raise UserError(f"{writing.run} is being recorded to {path}: choose another -o")
    if path.exists() and path.stat().st_size and not force:
        raise UserError(f"{path} exists: choose another -o, or --force to replace it")
    new = not path.exists()
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_CREAT, 0o600))
    except OSError as error:
        raise refused(f"cannot write {path}: {error.strerror}; choose another -o") from None
    if new and output is not None:  # a name of our own is kept from others
        remove_empty(path)
    return path


def _job(job: list[str] | None) -> list[str]:
    if not job:
        raise UserError("no command: put it after `--`, as in `pardbg run -- torchrun … train.py`")
    return job


def job_name(argv: Sequence[str]) -> str:
    """Return the name of a job's run: by its script, its module, or its program."""
    scripts = [Path(word).stem for word in argv if word.endswith(".py")]
    modules = [argv[n + 1].rpartition(".")[2] for n, word in enumerate(argv[:-1]) if word == "-m"]
    return [*scripts[:1], *modules[::-1], Path(argv[0]).stem][0]


def _need_torch() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise UserError("a demo trains for real and needs torch: pip install 'pardbg[train]'")
