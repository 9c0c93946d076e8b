"""``pardbg schedule``: pipeline schedules as files to make, check and compare."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pardbg import words
from pardbg.cli.common import all_of, has_terminal, load_session, need_terminal, new_file
from pardbg.errors import UserError

if TYPE_CHECKING:
    from pardbg.analysis.whatif.costs import Costs
    from pardbg.lab.schedules.compare import Durations
    from pardbg.lab.schedules.schedule_table import Table
    from pardbg.lab.schedules.sheet import Sheet

MAX_BYTES = 64 << 20
DEFAULT_COSTS = "F=1s,B=2s"


cost_options = all_of(
    click.option("--costs", "costs_", metavar="F=T,B=T,…",
                 help="Durations of a microbatch on a rank: F, B, also I, W and hop "
                 f"(default: {DEFAULT_COSTS})."),
    click.option("--from", "session", metavar="SESSION", help="Durations as measured in a run."),
)  # fmt: skip
output_options = all_of(
    click.option("-o", "--output", type=click.Path(path_type=Path), help="File (default: stdout)."),
    click.option("--force", is_flag=True, help="Replace an existing file."),
)


@click.group(no_args_is_help=False)
def schedule() -> None:
    """Make, check and compare pipeline schedules, in torch's CSV grammar.

    A row is a rank, a cell an action: 0F0 is stage 0, forward, microbatch 0; B backward, or I and W
    its halves for inputs and weights.
    """


@schedule.command()
@click.argument("name")
@click.option("--pp", type=click.IntRange(1, 512), required=True, help="Ranks of the pipeline.")
@click.option("--mb", type=click.IntRange(1, 4096), required=True, help="Microbatches.")
@click.option(
    "--v", "virtual", type=click.IntRange(1, 16), help="Stages per rank (default: 1 or 2)."
)
@output_options
def new(name: str, pp: int, mb: int, virtual: int | None, output: Path | None, force: bool) -> None:
    """Write one of torch's schedules: gpipe, 1f1b, interleaved, looped-bfs, zb, zbv, dualpipev."""
    from pardbg.lab.schedules.schedule_table import dump

    _put(dump(_built_in(name, pp, mb, virtual)), output, force)


@schedule.command()
@click.argument("files", nargs=-1, required=True)
@click.option("--mb", type=click.IntRange(1, 4096),
              help="Microbatches it must have (default: as many as it has).")  # fmt: skip
@click.option("--transport", type=click.Choice(["all", "buffered", "pair", "rank"]), default="all",
              show_default=True,
              help="buffered: sends never wait (gloo); pair: a stream for each two ranks (NCCL's "
              "p2p); rank: a stream for each rank.")  # fmt: skip
@click.option("--json", "json_", is_flag=True, help="As JSON.")
def lint(files: tuple[str, ...], mb: int | None, transport: str, json_: bool) -> None:
    """Check schedules: every action once and in its place, an order that can run, no deadlock.

    A transport is a model of how messages travel, not of a version of a library. Exit code 1 if
    something was found.
    """
    from pardbg.lab.schedules.lint import lint as check
    from pardbg.lab.schedules.schedule_text import verdict
    from pardbg.lab.schedules.transports import TRANSPORTS

    chosen = [one for one in TRANSPORTS if transport in ("all", one)]
    found = {name: check(_read(name), mb, chosen) for name in files}
    if json_:
        click.echo(json.dumps({name: asdict(one) for name, one in found.items()}, indent=2))
    else:
        for name, one in found.items():
            click.echo(verdict(name, one))
    sys.exit(0 if all(one.good for one in found.values()) else 1)


@schedule.command()
@click.argument("file")
@cost_options
@click.option("--text", is_flag=True, help="Print the grid (as without a terminal).")
@click.option("--svg", type=click.Path(path_type=Path), help="Write a picture instead.")
@click.option("--force", is_flag=True, help="Replace an existing picture.")
def show(
    file: str, costs_: str | None, session: str | None, text: bool, svg: Path | None, force: bool
) -> None:
    """Look at a schedule on the tick grid: step through it, inspect cells, predicted figures."""
    from pardbg.lab.schedules import page
    from pardbg.lab.schedules.schedule_text import grid

    table = _compute(_read(file), file)
    if svg is not None:
        sheet = _sheets(costs_, session)[0](table)
        _put(page.svg(sheet), svg, force)
    elif text or not has_terminal():
        click.echo(grid(table))
    else:
        _screen(file, table, costs_, session, None)


@schedule.command()
@click.argument("file")
@cost_options
def edit(file: str, costs_: str | None, session: str | None) -> None:
    """Change a schedule on the tick grid; lint and predicted figures follow each key."""
    path, text = Path(file), _text(file)
    table = _compute(_parsed(file, text), file)
    need_terminal("schedule edit", f"pardbg schedule show --text {file}")
    _screen(file, table, costs_, session, saver(path, text))


def saver(path: Path, text: str) -> Callable[[Table, str], str]:
    """Return a function that writes a table to ``path``, whose content was ``text``, or to another
    file: whole or not at all, and never over another program's later content."""
    known = {path.resolve(): text}

    def save(changed: Table, other: str) -> str:
        from pardbg.lab.schedules.schedule_table import dump

        to = (path.parent / other if other else path).resolve()
        try:
            there = _text(str(to)) if to.exists() else None
            if there != known.get(to):
                why = "was changed by another program" if to in known else "already exists"
                raise UserError(f"{to.name} {why}: W saves as another file")
            with new_file(to, force=True) as fresh:
                fresh.write_text(dump(changed))
                if there is not None:
                    fresh.chmod(to.stat().st_mode)
        except OSError as error:
            raise UserError(str(error)) from None
        known[to] = dump(changed)
        return f"wrote {to.name}"

    return save


def _screen(
    file: str, table: Table, costs_: str | None, session: str | None,
    save: Callable[[Table, str], str] | None,
) -> None:  # fmt: skip
    from pardbg.lab.schedules.schedule_app import ScheduleApp

    sheet_of, words = _sheets(costs_, session)
    ScheduleApp(table, sheet_of, name=Path(file).name, costs=words, save=save).run()


def _sheets(costs_: str | None, session: str | None) -> tuple[Callable[[Table], Sheet], str]:
    from pardbg.lab.schedules.sheet import sheet

    taken = _taken(costs_, session)
    words = f"durations of {Path(session).name}" if session else costs_ or DEFAULT_COSTS
    return (lambda table: sheet(table, taken)), words


def _compute(table: Table, file: str) -> Table:
    if all(op.is_compute for _, _, op in table.ops()):
        return table
    raise UserError(
        f"{file} has sends and receives written out; the grid takes tables of compute, to which"
        " torch adds them (lint and compare take both)"
    )


@schedule.command()
@click.argument("schedules", nargs=-1, required=True)
@cost_options
@click.option("--pp", type=click.IntRange(1, 512), help="Ranks, for schedules given by name.")
@click.option("--mb", type=click.IntRange(1, 4096), help="Microbatches, likewise.")
def compare(
    schedules: tuple[str, ...], costs_: str | None, session: str | None, pp: int | None,
    mb: int | None,
) -> None:  # fmt: skip
    """Predict step time, bubble, activations in flight and messages of files or named schedules."""
    from pardbg.lab.schedules.compare import predict
    from pardbg.lab.schedules.schedule_text import compared

    taken = _taken(costs_, session)
    files = {name: _read(name) for name in schedules if Path(name).suffix == ".csv"}
    first = next(iter(files.values()), None)
    ranks = pp or (len(first.rows) if first is not None else None)
    count = mb or (first.num_microbatches if first is not None else None)
    if len(files) < len(schedules) and (ranks is None or count is None):
        raise UserError("a schedule by name needs --pp and --mb (or a CSV beside it to take from)")
    tables = {
        name: files[name] if name in files else _built_in(name, ranks or 0, count or 0, None)
        for name in schedules
    }
    click.echo(compared([predict(name, table, taken) for name, table in tables.items()]))


@schedule.command()
@click.option("--pp", type=click.IntRange(2, 64), help="Ranks (default: as in --from).")
@click.option("--mb", type=click.IntRange(1, 512), help="Microbatches, likewise.")
@click.option("--memory", type=float, metavar="N",
              help="Maximum activations on a rank, in microbatches over all its stages: 1F1B "
              "needs as many as there are ranks (default: no limit).")  # fmt: skip
@click.option("--placement", type=click.Choice(["any", "one", "v", "loop"]), default="any",
              help="One stage per rank; two, V-shaped; two, looped (default: any).")  # fmt: skip
@cost_options
@click.option("--seconds", type=click.FloatRange(0.0, 3600.0), default=20.0, show_default=True,
              help="Time limit of the solver; 0: only the heuristic.")  # fmt: skip
@output_options
def search(
    pp: int | None, mb: int | None, memory: float | None, placement: str, costs_: str | None,
    session: str | None, seconds: float, output: Path | None, force: bool,
) -> None:  # fmt: skip
    """Look for a schedule that beats torch's under a limit of activations.

    A heuristic, and where ortools is installed (pardbg[search]) its solver, which also proves how
    much better any could be. Exit code 1 if none was found that beats the built-ins.
    """
    from pardbg.cli.schedule.schedule_search import look

    taken = _taken(costs_, session)
    ranks = pp or getattr(taken, "num_ranks", None)
    count = mb or getattr(taken, "num_microbatches", None)
    if ranks is None or count is None:
        raise UserError("search needs --pp and --mb (or --from a run to take them from)")
    words, text = look(ranks, count, taken, memory, placement, seconds)
    click.echo(words, err=text is not None and output is None)
    if text is None:
        sys.exit(1)
    _put(text, output, force, f"; try it: pardbg demo --schedule {output}")


def runnable(file: str, session: str | None) -> tuple[int, str]:
    """Return (ranks of a schedule that can run with gloo, predicted step time as text, or "")."""
    from pardbg.lab.schedules.compare import predict

    table = _compute(_read(file), file)
    one = predict(file, table, _taken(None, session))
    if one.step_ns is None:
        raise UserError(f"{file} would not run: {one.verdict.problems[0].line()}")
    step = f"{words.duration(one.step_ns)}/step by {Path(session).name}" if session else ""
    return len(table.rows), step


def told(predicted: str) -> Callable[[Path], None]:
    """Return a function that prints a recording's step times beside the predicted ones."""

    def tell(path: Path) -> None:
        from pardbg.analysis.base.asof import View
        from pardbg.analysis.whatif.answer import whatif

        answer = whatif(View(load_session(str(path)), None), ())
        if isinstance(answer, str):
            click.echo(f"pardbg: {answer}", err=True)
            return
        took = f"took {words.duration(answer.step_ns)}/step, median of {answer.num_steps}"
        own = words.duration(answer.predicted_ns)
        model = f"the model with this run's own durations: {own} ({words.change(answer.error)})"
        click.echo("; ".join([f"predicted {predicted}"] * bool(predicted) + [took, model]))

    return tell


COMMANDS: tuple[click.Command, ...] = (schedule,)


def _put(text: str, path: Path | None, force: bool, then: str = "") -> None:
    if path is None:
        click.echo(text, nl=False)
        return
    with new_file(path, force) as fresh:
        fresh.write_text(text)
    click.echo(f"wrote {path}{then}", err=True)


def _read(name: str) -> Table:
    return _parsed(name, _text(name))


def _text(name: str) -> str:
    path = Path(name)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(
                f"{path} is larger than {words.binary_size(MAX_BYTES)}: is it a schedule?"
            )
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a schedule: it is not text") from None


def _parsed(name: str, text: str) -> Table:
    from pardbg.lab.schedules.schedule_table import parse

    try:
        return parse(text)
    except UserError as error:
        raise UserError(f"{name} is not a schedule: {error}") from None


def _built_in(name: str, pp: int, mb: int, virtual: int | None) -> Table:
    from pardbg.analysis.whatif import plans
    from pardbg.lab.schedules.schedule_table import from_plan

    known = plans.known(name)
    if known is None:
        raise UserError(f"no schedule {name!r}; there are {', '.join(plans.SCHEDULES)}")
    stages = virtual or (1 if known in plans.ONE_STAGE else 2)
    try:
        return from_plan(plans.plan(known, pp, stages, mb))
    except plans.NoPlan as why:
        raise UserError(f"{known} with pp {pp}, mb {mb}, v {stages}: {why}") from None


def _taken(text: str | None, session: str | None) -> Durations | Costs:
    from pardbg.analysis.base.asof import View
    from pardbg.lab.schedules.compare import measured

    if session is not None:
        found = measured(View(load_session(session), None))
        if isinstance(found, str):
            raise UserError(f"{session}: {found}")
        return found
    return _durations(text or DEFAULT_COSTS)


def _durations(text: str) -> Durations:
    from pardbg.lab.schedules.compare import Durations

    found: dict[str, float] = {}
    for word in text.split(","):
        kind, _, value = word.partition("=")
        try:
            found[kind.strip()] = float(words.parse_duration(value))
        except ValueError:
            raise UserError(f"--costs: {word!r} is no duration; write F=10ms,B=20ms") from None
    if not {"F", "B"} <= found.keys() <= {"F", "B", "I", "W", "hop"}:
        raise UserError("--costs needs F and B, and may have I, W and hop: F=10ms,B=20ms,hop=1ms")
    half = found["B"] / 2
    return Durations(
        found["F"], found["B"], found.get("I", half), found.get("W", half), found.get("hop", 0.0)
    )
