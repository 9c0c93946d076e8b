"""Commands that read session files."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pardbg.cli import complete
from pardbg.cli.common import UserError, echo, load_session, need_terminal, new_file, new_folder

if TYPE_CHECKING:
    pass


def talk(line: str) -> None:
    """A line of ours, on stderr."""
    echo(f"pardbg: {line}", err=True)


@click.command()
@click.argument("session", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path), required=False)
def replay(session: Path, second: Path | None) -> int | None:
    """Show a recorded SESSION in the same screens, with time travel. Needs no torch.

    With a SECOND recording, overview and pipeline show both, one over the other, at the same
    training step; `pardbg diff` says the same in text.
    """
    from pardbg.cli.headless import history_path
    from pardbg.session.navigation.replay import ReplayClock
    from pardbg.session.reader import SessionError, open_session
    from pardbg.ui.app import PardbgApp

    need = f"pardbg diff {session} {second}" if second else f"pardbg report {session}"
    with ExitStack() as opened:
        try:
            sources = [opened.enter_context(closing(open_session(path)))
                       for path in (session, second) if path is not None]  # fmt: skip
        except SessionError as error:
            raise UserError(str(error)) from None
        need_terminal("replay", need)
        other = (second.name, sources[1]) if second is not None else None
        PardbgApp(
            sources[0], None, title=session.name, replay=ReplayClock(), second=other,
            history=history_path(),
        ).run()  # fmt: skip
    return None


@click.command()
@click.argument("session", shell_complete=complete.sessions)
@click.option("--json", "json_", is_flag=True, help="The report's data (stable; see its schema).")
@click.option("--html", type=click.Path(path_type=Path), help="Write it as one page with pictures.")
@click.option("--force", is_flag=True, help="Replace what is there.")
def report(session: str, json_: bool, html: Path | None, force: bool) -> None:
    """Say what a SESSION file or a live run shows: as text, JSON or a page."""
    from pardbg.analysis.answers.report import as_json
    from pardbg.analysis.answers.report import report as make_report
    from pardbg.render.reports.text import text
    from pardbg.ui.engine.gc_pauses import Collecting

    with Collecting().alone():
        store = load_session(session)
        data = make_report(store)
    if html is None or json_:
        echo(json.dumps(as_json(data), indent=2) if json_ else text(data))
    if html is not None:
        from pardbg.render.reports.html import page

        with new_file(html, force) as fresh:
            fresh.write_text(page(data, Path(session).name), encoding="utf-8")
        talk(f"wrote {html}")


@click.command()
@click.argument("session", shell_complete=complete.sessions)
@click.option(
    "--to",
    "format_",
    type=click.Choice(["perfetto", "parquet", "csv"]),
    required=True,
    help="perfetto: a trace, also for chrome://tracing; parquet, csv: tables.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="File (perfetto: .json.gz) or folder (parquet, csv) to write.",
)
@click.option("--force", is_flag=True, help="Replace what is there.")
def export(session: str, format_: str, output: Path, force: bool) -> None:
    """Write a SESSION for other tools; docs/export.md has the columns."""
    from pardbg.session.export import tables, trace, write

    store = load_session(session)
    if format_ == "perfetto":
        with new_file(output, force) as fresh:
            made = trace.write_trace(store, fresh)
        talk(
            f"wrote {output}: {made.slices:,} slices, {made.flows:,} arrows, "
            f"{made.counters:,} counter values; open it in ui.perfetto.dev"
        )
        return
    try:
        with new_folder(output, force) as fresh:
            rows = write.TABLE_WRITERS[format_](tables.sheets(store), fresh)
    except write.MissingLibrary as error:
        raise UserError(str(error)) from None
    listed = ", ".join(f"{name} {number:,}" for name, number in rows.items())
    talk(f"wrote {output}: rows of {listed}")


@click.command()
@click.argument("session", required=False, shell_complete=complete.sessions)
@click.argument("checks", nargs=-1, metavar="CHECK...")
@click.option("--junit", type=click.Path(path_type=Path), help="Write the results as JUnit XML.")
@click.option(
    "--skip",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Leave the first N steps out (warm-up).",
)
@click.option("--list", "list_", is_flag=True, help="List the metrics, a line each.")
def check(
    session: str | None, checks: tuple[str, ...], junit: Path | None, skip: int, list_: bool
) -> int:
    """Test a SESSION: `check S "bubble<12%" "step.p95<450ms" no-findings:error`.

    Exit code 0 if all hold, 1 if not. docs/check.md has the grammar.
    """
    from pardbg.analysis.answers import checks as rules
    from pardbg.render.reports import checks as words

    if list_:
        echo(words.metric_list())
        return 0
    if session is None or not checks:
        raise UserError('give a session and checks: `pardbg check S "bubble<12%" no-mismatch`')
    try:
        parsed = [rules.parse(text) for text in checks]
    except rules.CheckError as error:
        raise UserError(str(error)) from None
    results = rules.run(load_session(session), parsed, skip)
    if junit is not None:
        with new_file(junit, force=True) as fresh:
            fresh.write_text(words.junit(results, session), encoding="utf-8")
    for line in words.lines(results):
        echo(line)
    return 0 if all(result.ok for result in results) else 1


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--json", "json_", is_flag=True, help="As JSON.")
@click.option(
    "--skip",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    metavar="N",
    help="Leave the first N steps out (warm-up).",
)
def diff(a: str, b: str, json_: bool, skip: int) -> None:
    """Compare session B with A: what changed beyond noise, most first."""
    from pardbg.analysis.answers import diff as compare
    from pardbg.render.reports.diff import text

    found = compare.diff(load_session(a), load_session(b), skip)
    echo(json.dumps(compare.as_dict(found), indent=2) if json_ else text(found))


@click.command()
@click.argument("run", metavar="RUN|DIR")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="Session file to write."
)
@click.option("--force", is_flag=True, help="Replace what is there.")
def postmortem(run: str, output: Path, force: bool) -> None:
    """Make a session of what a killed RUN left in memory (`pardbg ls --dead` lists them).

    Its session file, up to the last whole chunk, and what the ranks' rings have beyond it.
    """
    from pardbg.analysis.base.asof import View
    from pardbg.analysis.findings import findings
    from pardbg.hub.postmortem import PostmortemError, recover
    from pardbg.render.reports.postmortem import lines

    try:
        with new_file(output, force) as fresh:
            found = recover(run, fresh)
    except PostmortemError as error:
        raise UserError(str(error)) from None
    for line in lines(found.ranks, findings(View(load_session(str(output)), None))):
        echo(line)
    if found.file_problem:
        talk(f"{found.file_problem}: the rings alone")
    talk(
        f"wrote {output}: {found.from_file:,} messages of the session file, "
        f"{sum(rank.from_ring for rank in found.ranks):,} records of {len(found.ranks)} rings; "
        f"see it with `pardbg replay {output}`"
    )


@click.command()
@click.argument("session", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="Session file to write."
)
@click.option("--force", is_flag=True, help="Replace what is there.")
def repair(session: Path, output: Path, force: bool) -> None:
    """Rewrite a damaged or cut-off SESSION whole, with all that can still be read."""
    from pardbg.session.reader import SessionError
    from pardbg.session.repair import repair as rewrite

    try:
        with new_file(output, force) as fresh:
            done = rewrite(session, fresh)
    except SessionError as error:
        raise UserError(str(error)) from None
    talk(f"wrote {output}: {done.text()}")


@click.command("import")
@click.argument(
    "paths", nargs=-1, required=True, metavar="DIR|FILE...", type=click.Path(path_type=Path)
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="Session file to write."
)
@click.option("--force", is_flag=True, help="Replace what is there.")
def import_(paths: tuple[Path, ...], output: Path, force: bool) -> None:
    """Open Flight Recorder dumps or profiler traces of several ranks in these screens."""
    from pardbg.session.importers.build import ForeignError
    from pardbg.session.importers.read import import_files

    try:
        with new_file(output, force) as fresh:
            made = import_files(paths, fresh)
    except ForeignError as error:
        raise UserError(str(error)) from None
    talk(
        f"wrote {output}: {made.source} of {len(made.ranks)} ranks, {made.num_ops:,} ops, "
        f"{made.num_records:,} records"
    )
    for line in made.lacks:
        talk(f"lacking: {line}")


COMMANDS = (replay, report, export, check, diff, postmortem, repair, import_)
