"""Commands that read session files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pardbg.cli import common
from pardbg.errors import UserError
from pardbg.words import whole

if TYPE_CHECKING:
    from pardbg.analysis.answers.checks import Result
    from pardbg.analysis.same.comparison import Sameness
    from pardbg.store.store import Store

SESSION = click.argument("session", shell_complete=common.complete_sessions)


@click.command()
@click.argument("session", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path), required=False)
def replay(session: Path, second: Path | None) -> None:
    """Open a recorded SESSION in the same screens, with time travel. Needs no torch.

    With a SECOND recording, overview and pipeline show both, one over the other, at the same
    training step; `pardbg diff` says the same in text. If both were recorded with --tensors,
    0 Numbers compares the first with the second as its reference.
    """
    need = f"pardbg diff {session} {second}" if second else f"pardbg report {session}"
    show_screens(session, second, need, "overview")


def show_screens(session: Path, second: Path | None, need: str, start: str) -> None:
    """Show a recording, and a second one beside it; ``need``: advice if there is no terminal."""
    from pardbg.cli.headless import history_path
    from pardbg.cli.rc import own_rc
    from pardbg.session.navigation.replay import ReplayClock
    from pardbg.session.reader import open_session
    from pardbg.ui.app import PardbgApp

    with ExitStack() as opened:
        sources = [opened.enter_context(closing(open_session(path)))
                   for path in (session, second) if path is not None]  # fmt: skip
        common.need_terminal("replay", need)
        other = (second.name, sources[1]) if second is not None else None
        PardbgApp(
            sources[0], None, title=session.name, replay=ReplayClock(), second=other,
            history=history_path(), start_screen=start, rc=own_rc(),
        ).run()  # fmt: skip


@click.command()
@SESSION
@click.option("--json", "json_", is_flag=True,
              help="Print the report as JSON; its schema is stable.")  # fmt: skip
@click.option("--html", type=click.Path(path_type=Path),
              help="Write one self-contained HTML page with charts.")  # fmt: skip
@common.PART
@common.FORCE
def report(session: str, json_: bool, html: Path | None, part: int | None, force: bool) -> None:
    """Report on a SESSION file or a live run, as text, JSON or HTML."""
    from pardbg.analysis.answers.report import as_json
    from pardbg.analysis.answers.report import report as make_report
    from pardbg.render.reports.text import text
    from pardbg.ui.engine.pace import GcPauses

    with GcPauses().suppressed():
        store = common.load_session(session, part)
        data = make_report(store)
    if html is None or json_:
        common.echo(json.dumps(as_json(data), indent=2) if json_ else text(data))
    if html is not None:
        from pardbg.analysis.answers.moments import moments
        from pardbg.render.reports.html import page

        drawn = page(data, Path(session).name, moments(store, data))
        with common.new_file(html, force) as fresh:
            fresh.write_text(drawn, encoding="utf-8")
        common.talk(f"wrote {html}")


@click.command()
@SESSION
@click.option("--to", "format_", required=True, type=click.Choice(["perfetto", "parquet", "csv"]),
              help="perfetto: a trace, for chrome://tracing too; parquet, csv: tables."
              )  # fmt: skip
@common.writes("File (perfetto: .json.gz) or folder (parquet, csv) to write.")
@common.PART
def export(session: str, format_: str, output: Path, part: int | None, force: bool) -> None:
    """Convert a SESSION for other tools; docs/export.md lists the columns."""
    from pardbg.session.export import tables, trace

    store = common.load_session(session, part)
    if format_ == "perfetto":
        with common.new_file(output, force) as fresh:
            made = trace.write_trace(store, fresh)
        common.talk(
            f"wrote {output}: {made.slices:,} slices, {made.flows:,} arrows, "
            f"{made.counters:,} counter values; open it in ui.perfetto.dev"
        )
        return
    with common.new_folder(output, force) as fresh:
        rows = tables.TABLE_WRITERS[format_](tables.sheets(store), fresh)
    listed = ", ".join(f"{name} {number:,}" for name, number in rows.items())
    common.talk(f"wrote {output}: rows of {listed}")


@click.command()
@click.argument("session", required=False, shell_complete=common.complete_sessions)
@click.argument("checks", nargs=-1, metavar="CHECK...")
@click.option("--junit", type=click.Path(path_type=Path), help="Write the results as JUnit XML.")
@common.skips()
@click.option("--reference", metavar="REF", help="Recording that same<10floors compares with.")
@click.option("--list", "list_", is_flag=True, help="List the metrics, one per line.")
@common.PART
def check(
    session: str | None, checks: tuple[str, ...], junit: Path | None, skip: int,
    reference: str | None, list_: bool, part: int | None,
) -> int:  # fmt: skip
    """Test a SESSION: `check S "bubble<12%" "step.p95<450ms" no-findings:error`.

    Exit code 0 if all hold, 1 if not. docs/check.md has the grammar.
    """
    from pardbg.analysis.answers import checks as rules
    from pardbg.render.reports import verdicts as words

    if list_:
        common.echo(words.metric_list())
        return 0
    if session is None or not checks:
        raise UserError('give a session and checks: `pardbg check S "bubble<12%" no-mismatch`')
    parsed = [rules.parse(text) for text in checks]
    store = common.load_session(session, part)
    store.reference = None if reference is None else common.load_session(reference)
    results = rules.run(store, parsed, skip)
    if junit is not None:
        _write_junit(junit, results, session)
    for line in words.check_lines(results):
        common.echo(line)
    return 0 if all(result.ok for result in results) else 1


def _write_junit(path: Path, results: Sequence[Result], session: str) -> None:
    from pardbg.render.reports.verdicts import junit

    with common.new_file(path, force=True) as fresh:
        fresh.write_text(junit(results, session), encoding="utf-8")


@click.command()
@click.argument("a")
@click.argument("b")
@common.JSON
@common.skips(1)
def diff(a: str, b: str, json_: bool, skip: int) -> None:
    """Compare session B with A: what changed beyond noise, largest first."""
    from pardbg.analysis.answers import diff as compare
    from pardbg.render.reports.verdicts import diff_text

    found = compare.diff(common.load_session(a), common.load_session(b), skip)
    common.echo(json.dumps(compare.as_dict(found), indent=2) if json_ else diff_text(found))


def _rename(run: Store, names: Path) -> None:
    from pardbg.analysis.same import names as own

    try:
        changed = own.rename(run, own.parse(names.read_text()))
    except (ValueError, OSError) as error:
        raise UserError(f"--map {names}: {error}") from None
    if not changed:
        raise UserError(f"--map {names}: no rule fits a name of this run")


def _write_numbers(html: Path, force: bool, found: Sameness, title: str) -> None:
    from pardbg.analysis.same.module_rows import numbers_of
    from pardbg.render.reports.same_page import same_page
    from pardbg.session.source_files import place_of, source_around

    place = None if found.place is None else place_of(found.place.source)
    source = None if place is None else source_around(place)
    with common.new_file(html, force) as fresh:
        fresh.write_text(same_page(numbers_of(found), title, source), encoding="utf-8")
    common.talk(f"wrote {html}")


@click.command()
@click.argument("a")
@click.argument("b", required=False)
@click.option("--floor", metavar="F", help="A second recording of A: its difference is the noise.")
@click.option(
    "--map",
    "names",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="RULES",
    help="A file of rules PATTERN => NAME that name B's tensors as A does.",
)
@click.option("--junit", type=click.Path(path_type=Path), help="Write the answer as JUnit XML.")
@click.option("--html", type=click.Path(path_type=Path),
              help="Write the answer as one self-contained HTML page.")  # fmt: skip
@click.option("--show", is_flag=True, help="Open B in the screens instead, at 0 Numbers.")
@common.JSON
@common.FORCE
def same(
    a: str, b: str | None, floor: str | None, names: Path | None, junit: Path | None,
    html: Path | None, show: bool, json_: bool, force: bool,
) -> int | None:  # fmt: skip
    """Tell whether session B computes what its reference A does, and which tensor differs first.

    Both recorded with `pardbg run --tensors 0-1`. With A alone: whether its replicas are equal.
    Exit code 0: the same, 1: not, 2: it cannot be compared. docs/same.md says how.
    """
    from pardbg.analysis.answers import checks as rules
    from pardbg.analysis.same import comparison, module_rows
    from pardbg.analysis.same.noise import RED
    from pardbg.render.frame.same_words import verdict
    from pardbg.render.reports.sameness import same_text

    if b is None and (floor or names):
        raise UserError("--floor and --map are of two sessions: `pardbg same A B --floor F`")
    if show and (floor or names or junit or html or json_):
        raise UserError("--show has no --floor, --map, --junit, --html or --json")
    if show:
        show_screens(Path(b or a), Path(a) if b else None, f"pardbg same {a}", "numbers")
        return None
    first = common.load_session(a)
    if b is None:
        found = comparison.alone(first)
    else:
        second = None if floor is None else common.load_session(floor)
        run = common.load_session(b)
        if names is not None:
            _rename(run, names)
        found = comparison.compare(first, run, second)
    if junit is not None:
        check = rules.parse(f"same<{RED}floors")
        result = rules.Result(check, found.exit_code == 0, None, verdict(found))
        _write_junit(junit, [result], b or a)
    if html is not None:
        _write_numbers(html, force, found, " and ".join(Path(s).name for s in (a, b) if s))
    common.echo(json.dumps(module_rows.as_dict(found), indent=2) if json_ else same_text(found))
    return found.exit_code


@click.command()
@click.argument("run", metavar="RUN|DIR")
@common.writes("Session file to write.")
def postmortem(run: str, output: Path, force: bool) -> None:
    """Recover a session from a killed RUN (`pardbg ls --dead` lists them).

    Joins its session file, up to the last complete chunk, with what its ranks' rings still hold.
    """
    from pardbg.analysis.base.asof import View
    from pardbg.analysis.findings import findings
    from pardbg.hub.postmortem import recover
    from pardbg.render.reports.verdicts import postmortem_lines

    with common.new_file(output, force) as fresh:
        found = recover(run, fresh)
    for line in postmortem_lines(
        found.ranks, findings(View(common.load_session(str(output)), None))
    ):
        common.echo(line)
    if found.file_problem:
        common.talk(f"{found.file_problem}: recovered from the rings alone")
    common.talk(
        f"wrote {output}: {found.from_file:,} messages from the session file, "
        f"{sum(rank.from_ring for rank in found.ranks):,} records from {len(found.ranks)} rings; "
        f"open it with `pardbg replay {output}`"
    )


@click.command()
@click.argument("session", type=click.Path(path_type=Path))
@common.writes("Session file to write.")
def repair(session: Path, output: Path, force: bool) -> None:
    """Rewrite a damaged or truncated SESSION with everything that can still be read."""
    from pardbg.session.repair import repair as rewrite

    with common.new_file(output, force) as fresh:
        done = rewrite(session, fresh)
    common.talk(f"wrote {output}: {done.text()}")


@click.command("import")
@click.argument(
    "paths", nargs=-1, required=True, metavar="DIR|FILE...", type=click.Path(path_type=Path)
)
@common.writes("Session file to write.")
def import_(paths: tuple[Path, ...], output: Path, force: bool) -> None:
    """Convert Flight Recorder dumps or profiler traces of several ranks to a session."""
    from pardbg.session.importers.read import import_files

    with common.new_file(output, force) as fresh:
        made = import_files(paths, fresh)
    common.talk(
        f"wrote {output}: {made.source} of {len(made.ranks)} ranks, {made.num_ops:,} ops, "
        f"{made.num_records:,} records"
    )
    for line in made.lacks:
        common.talk(f"missing: {line}")


@click.command()
@SESSION
@click.option("--schedule", default="all", show_default=True,
              help="all, or names separated by commas: 1f1b,zbv,…")  # fmt: skip
@click.option("--microbatches", help="Numbers to try, as in 8,16 (default: the run's own).")
@click.option("--stages-per-rank", help="Numbers to try where a schedule has several (default: 2).")
@common.JSON
def whatif(
    session: str, schedule: str, microbatches: str | None, stages_per_rank: str | None, json_: bool
) -> None:
    """Predict the step time of SESSION (a file or a live run) in other pipeline schedules.

    Simulated from the run's own durations; the model's error on the run itself stands beside it.
    """
    from pardbg.analysis.base.asof import View
    from pardbg.analysis.whatif import plans
    from pardbg.analysis.whatif.answer import whatif as ask
    from pardbg.render.pages.pipeline.whatif import text

    names = _schedules(schedule)
    counts = _numbers("--microbatches", microbatches, 1, 512)
    virtual = _numbers("--stages-per-rank", stages_per_rank, 2, 16)
    answer = ask(View(common.load_session(session), None), names, counts, virtual)
    if isinstance(answer, str):
        raise UserError(f"{common.session_path(session)[0].name}: {answer}")
    common.echo(json.dumps(asdict(answer), indent=2) if json_ else text(answer))
    if not plans.torch_there():
        there = " and ".join(plans.ONE_STAGE)
        common.echo(f"pardbg: torch is not installed here: only {there} are answered", err=True)


def _schedules(text: str) -> tuple[str, ...]:
    from pardbg.analysis.whatif import plans

    if text == "all":
        return plans.SCHEDULES
    names = [plans.known(word.strip()) for word in text.split(",")]
    for word, name in zip(text.split(","), names, strict=True):
        if name is None:
            there = ", ".join(plans.SCHEDULES)
            raise UserError(f"no schedule {word.strip()!r}; choose from {there}")
    return tuple(name for name in names if name is not None)


def _numbers(option: str, text: str | None, least: int, most: int) -> tuple[int, ...]:
    found = [whole(word.strip(), most) for word in ([] if text is None else text.split(","))]
    numbers = [number for number in found if number is not None and number >= least]
    if len(numbers) < len(found):
        raise UserError(f"{option} {text}: give numbers from {least} to {most}, as in 8,16")
    return tuple(dict.fromkeys(numbers))


COMMANDS = (replay, report, export, check, diff, same, postmortem, repair, import_, whatif)
