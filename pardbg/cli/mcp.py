"""Commands for coding agents."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from pardbg.cli.common import complete_sessions, echo, talk
from pardbg.errors import UserError


@click.command()
@click.argument(
    "target", required=False, metavar="[RUN|SESSION|LOG]", shell_complete=complete_sessions
)
@click.option("--control", is_flag=True, help="Also let the client hold, step and end the run, as "
              "`pardbg ctl` does.")  # fmt: skip
@click.option("--key", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Key file of the run, for RUN tcp://HOST:PORT.")  # fmt: skip
def mcp(target: str | None, control: bool, key: Path | None) -> None:
    """Serve a coding agent (MCP, on stdin and stdout) with a live run, a recording or a log.

    Read-only unless --control is given. Without a target, each question names one, or it is about
    the only live run. `pardbg skill` tells an agent how to use it; docs/mcp.md lists the tools.
    """
    try:
        from pardbg.doors.mcp_server import serve
    except ImportError:
        raise UserError(
            "the mcp package 2 or newer is missing: pip install 'pardbg[mcp]'"
        ) from None
    from pardbg.doors.tools import Tools

    tools = Tools(target, key)
    if sys.stdin.isatty():
        talk("waiting for an MCP client on standard input")
    serve(tools, control)


@click.command()
def skill() -> None:
    """Print a SKILL.md: how a coding agent finds a culprit with `pardbg mcp`."""
    from importlib import resources

    echo(resources.files("pardbg.doors").joinpath("SKILL.md").read_text("utf-8").rstrip())


COMMANDS: Final = (mcp, skill)
