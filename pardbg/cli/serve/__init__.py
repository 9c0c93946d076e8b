"""``pardbg serve``: the screens in a browser on this machine, with an app process per tab."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Final

import click

from pardbg.cli.common import complete_sessions, talk
from pardbg.errors import UserError


@click.command()
@click.argument("target", required=False, metavar="[RUN|SESSION]", shell_complete=complete_sessions)
@click.option("--port", type=click.IntRange(0, 65535), default=0,
              help="Port on 127.0.0.1 (default: a free one).")  # fmt: skip
@click.option("--control", is_flag=True, help="Also let the browser hold, step and end the run, "
              "bookmark and save pictures.")  # fmt: skip
def serve(target: str | None, port: int, control: bool) -> None:
    """Show a live run or a recording in a browser, at an address that only this machine reaches.

    View only unless --control is given. The address has a token: who has it sees the run.
    """
    from pardbg.cli.here import find_target

    if target is not None and target.endswith(".mcap"):
        if not Path(target).is_file():
            raise UserError(f"{target}: no such recording")
    else:
        find_target(target, None).close()  # says now what would be wrong
    try:
        from pardbg.cli.serve.guarded import Guarded, free_port
    except ImportError:
        raise UserError(
            "the textual-serve package is missing: pip install 'pardbg[serve]'"
        ) from None
    words = [sys.executable, "-m", "pardbg.cli.serve", *(["--control"] if control else [])]
    words += [target] if target is not None else []
    server = Guarded(shlex.join(words), port or free_port())
    who = "control" if control else "view only"
    talk(f"serving on {server.address} ({who}); ctrl c ends it")
    server.serve()


COMMANDS: Final = (serve,)
