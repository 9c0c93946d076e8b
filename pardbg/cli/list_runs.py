"""Commands about this machine: its live runs, and what pardbg needs here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pardbg.cli.common import UserError, echo

if TYPE_CHECKING:
    from pardbg.hub.run.runs import Run


@click.command()
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
@click.option(
    "--dead", is_flag=True, help="List killed runs whose rings were kept, for postmortem."
)
def ls(json_: bool, dead: bool) -> None:
    """List live runs."""
    from pardbg.hub.run.config import refused_roots
    from pardbg.hub.run.runs import list_run_rings, list_runs, tidy

    tidy()
    for line in refused_roots():
        echo(f"pardbg: {line}", err=True)
    runs, killed = list_runs(), list_run_rings()
    if json_:
        echo(json.dumps([found.as_dict() for found in (killed if dead else runs)], indent=2))
        return
    for found in killed if dead else runs:
        echo(found.line())
    if dead and not killed:
        echo("no killed run left its rings behind", err=True)
    elif not dead and not runs:
        echo("no live run; start one with `pardbg demo` or `pardbg watch -- CMD`", err=True)
    if killed:
        last = killed[-1].run
        echo(
            f"{len(killed)} killed: `pardbg postmortem {last} -o S.mcap`"
            + ("" if dead else ", `pardbg ls --dead` lists them"),
            err=True,
        )


@click.command()
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def doctor(json_: bool) -> int:
    """Check what pardbg needs on this machine; exit 1 if something is missing."""
    from pardbg.cli import doctor as checks

    results = checks.run_checks()
    if json_:
        echo(json.dumps([result.as_dict() for result in results], indent=2))
    else:
        for result in results:
            echo(result.line())
    return 0 if all(result.status != "bad" for result in results) else 1


def find_live(name: str | None) -> Run:
    """Return the live run of that name, or the only one. Raises UserError."""
    from pardbg.hub.run.runs import RunError, find_run, list_runs

    if name is None and len(runs := list_runs()) > 1:
        for found in runs:
            echo(found.line(), err=True)
        raise UserError(f"{len(runs)} runs are live: name one; a prefix is enough")
    try:
        return find_run(name)
    except RunError as error:
        raise UserError(str(error)) from None


@click.group()
def native() -> None:
    """The agent's hot path in C++: an op costs a tenth of what it costs in Python."""


@native.command()
@click.option("--python", default=sys.executable, help="The Python that runs the job.")
def build(python: str) -> int:
    """Build it for this Python's torch, into the user's cache: half a minute, once per torch. Jobs
    that start later use it."""
    import pardbg_agent

    agent = str(Path(pardbg_agent.__file__).parent.parent)
    code = (
        f"import sys; sys.path.append({agent!r}); from pardbg_agent.native import __main__; "
        "sys.exit(__main__.main())"
    )
    try:
        return subprocess.run([python, "-c", code], check=False).returncode
    except OSError as error:
        raise UserError(f"--python {python}: {error.strerror}") from None


COMMANDS = (ls, doctor, native)
