"""Commands that read session files."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from pathlib import Path

import click

from pardbg.cli import complete
from pardbg.cli.common import (
    UserError,
    echo,
    load_session,
    need_terminal,
    new_file,
    new_folder,
    talk,
    writes,
)


@click.command()
@click.argument("session", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path), required=False)
def replay(session: Path, second: Path | None) -> int | None:
    """Open a recorded SESSION in the same screens, with time travel. Needs no torch.

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
@click.option(
    "--json", "json_", is_flag=True, help="Print the report as JSON; its schema is stable."
)
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    help="Write one self-contained HTML page with charts.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def report(session: str, json_: bool, html: Path | None, force: bool) -> None:
    """Report on a SESSION file or a live run, as text, JSON or HTML."""
    from pardbg.analysis.answers.report import as_json
    from pardbg.analysis.answers.report import report as make_report
    from pardbg.render.reports.text import text
    from pardbg.ui.engine.pace import GcPauses

    with GcPauses().alone():
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
    help="perfetto: a trace, for chrome://tracing too; parquet, csv: tables.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="File (perfetto: .json.gz) or folder (parquet, csv) to write.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def export(session: str, format_: str, output: Path, force: bool) -> None:
    """Convert a SESSION for other tools; docs/export.md lists the columns."""
    from pardbg.session.export import tables, trace

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
            rows = tables.TABLE_WRITERS[format_](tables.sheets(store), fresh)
    except tables.MissingLibrary as error:
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
    help="Skip the first N steps (warm-up).",
)
@click.option("--list", "list_", is_flag=True, help="List the metrics, one per line.")
def check(
    session: str | None, checks: tuple[str, ...], junit: Path | None, skip: int, list_: bool
) -> int:
    """Test a SESSION: `check S "bubble<12%" "step.p95<450ms" no-findings:error`.

    Exit code 0 if all hold, 1 if not. docs/check.md has the grammar.
    """
    from pardbg.analysis.answers import checks as rules
    from pardbg.render.reports import verdicts as words

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
    for line in words.check_lines(results):
        echo(line)
    return 0 if all(result.ok for result in results) else 1


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
@click.option(
    "--skip",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    metavar="N",
    help="Skip the first N steps (warm-up).",
)
def diff(a: str, b: str, json_: bool, skip: int) -> None:
    """Compare session B with A: what changed beyond noise, largest first."""
    from pardbg.analysis.answers import diff as compare
    from pardbg.render.reports.verdicts import diff_text

    found = compare.diff(load_session(a), load_session(b), skip)
    echo(json.dumps(compare.as_dict(found), indent=2) if json_ else diff_text(found))


@click.command()
@click.argument("run", metavar="RUN|DIR")
@writes("Session file to write.")
def postmortem(run: str, output: Path, force: bool) -> None:
    """Recover a session from a killed RUN (`pardbg ls --dead` lists them).

    Joins its session file, up to the last complete chunk, with what its ranks' rings still hold.
    """
    from pardbg.analysis.base.asof import View
    from pardbg.analysis.findings import findings
    from pardbg.hub.postmortem import PostmortemError, recover
    from pardbg.render.reports.verdicts import postmortem_lines

    try:
        with new_file(output, force) as fresh:
            found = recover(run, fresh)
    except PostmortemError as error:
        raise UserError(str(error)) from None
    for line in postmortem_lines(found.ranks, findings(View(load_session(str(output)), None))):
        echo(line)
    if found.file_problem:
        talk(f"{found.file_problem}: recovered from the rings alone")
    talk(
        f"wrote {output}: {found.from_file:,} messages from the session file, "
        f"{sum(rank.from_ring for rank in found.ranks):,} records from {len(found.ranks)} rings; "
        f"open it with `pardbg replay {output}`"
    )


@click.command()
@click.argument("session", type=click.Path(path_type=Path))
@writes("Session file to write.")
def repair(session: Path, output: Path, force: bool) -> None:
    """Rewrite a damaged or truncated SESSION with everything that can still be read."""
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
@writes("Session file to write.")
def import_(paths: tuple[Path, ...], output: Path, force: bool) -> None:
    """Convert Flight Recorder dumps or profiler traces of several ranks to a session."""
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
        talk(f"missing: {line}")


COMMANDS = (replay, report, export, check, diff, postmortem, repair, import_)
