"""The command line: a thin composition root that joins hub, session, analysis and screens.

stdout is data, stderr is talk. Exit codes: 0 ok, 1 a check failed, 2 bad usage or input, else the
job's own. What a user can get wrong is answered in one line, never with a traceback. Commands
import what they need when they run: ``pardbg --help`` waits for no toolkit.
"""

from __future__ import annotations

import io
import os
import sys
from typing import NoReturn

import click

from pardbg.cli import attach, ctl, files, here, learn, live, mcp, rehearse, schedule, serve
from pardbg.cli.common import MAX_HELP, USAGE_EXIT, echo, has_terminal, trouble, write_no_more
from pardbg.cli.front import Front, help_, start
from pardbg.errors import UserError
from pardbg.render.draw.signs import ERRORS
from pardbg.version import __version__

__all__ = ["UserError", "cli", "main"]


def main(argv: list[str] | None = None) -> NoReturn:
    """Run one command; turn every error a user can cause into one line on stderr."""
    args = list(sys.argv[1:] if argv is None else argv)
    job: list[str] | None = None
    _open_standard_streams()
    try:
        at = cli.job_start(args)
        if at is None and "--" in args:
            at = args.index("--")
        if at is not None:
            args, job = args[:at], args[at:]
            job = job[1:] if job[0] == "--" else job
        code = cli.main(args, prog_name="pardbg", standalone_mode=False, obj=job)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.Abort:
        code = 130
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "pardbg"
        echo(
            f"pardbg: {_one_line(error.format_message()).rstrip('.')} (see `{where} --help`)",
            err=True,
        )
        code = USAGE_EXIT
    except click.ClickException as error:
        echo(f"pardbg: {_one_line(error.format_message())}", err=True)
        code = error.exit_code
    except BrokenPipeError:  # the reader of our stdout went away (`| head`): say nothing
        write_no_more(sys.stdout)
        code = 0
    except OSError as error:
        if (said := trouble(error)) is None:
            raise
        echo(f"pardbg: {said}", err=True)
        write_no_more(sys.stdout)
        code = USAGE_EXIT
    sys.exit(code if isinstance(code, int) else 0)


def _open_standard_streams() -> None:
    """Open closed standard streams (`>&-`) on /dev/null, so that no file of ours gets their
    numbers. Characters that stdout and stderr cannot encode are replaced."""
    while (fd := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(fd)
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115 - as the others
    sys.stdout, sys.stderr = (
        open(os.devnull, "w") if stream is None else stream  # noqa: SIM115 - open to our end
        for stream in (sys.stdout, sys.stderr)
    )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ERRORS)


@click.group(
    cls=Front,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": MAX_HELP},
)
@click.version_option(__version__, prog_name="pardbg")
@click.pass_context
def _cli(ctx: click.Context) -> None:
    """Watch, record, replay and step parallel PyTorch training."""
    if ctx.invoked_subcommand is not None:
        return
    if has_terminal():
        start(lambda words: cli.main([*words], prog_name="pardbg", standalone_mode=False))
    else:
        click.echo(ctx.get_help())


assert isinstance(_cli, Front)
cli: Front = _cli


for _command in (
    *live.COMMANDS, *ctl.COMMANDS, *here.COMMANDS, *files.COMMANDS,
    *attach.COMMANDS, *mcp.COMMANDS, *schedule.COMMANDS, *rehearse.COMMANDS, *learn.COMMANDS,
    *serve.COMMANDS,
    help_,
):  # fmt: skip
    cli.add_command(_command)


def _one_line(text: str) -> str:
    return " ".join(text.split())
