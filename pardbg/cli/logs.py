"""Commands that read what jobs printed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from typing import Final

import click

from pardbg.cli.common import JSON, echo

MAX_WIDTH: Final = 100


@click.command()
@click.argument("logs", nargs=-1, required=True, metavar="LOG… | -")
@JSON
def explain(logs: Sequence[str], json_: bool) -> None:
    """Say what the LOGs of a job tell: which rank is missing, which disagrees, which failed first.

    Reads logs of one rank or of all, with the prefixes of torchrun, Slurm, Ray, Kubernetes and
    journald, plain, gzip or zstd; a directory stands for the logs in it, `-` for standard input.
    """
    from pardbg.joblog.scan import read
    from pardbg.joblog.told import as_json, text
    from pardbg.joblog.verdict import judge

    log = read(logs)
    verdict = judge(log)
    if json_:
        echo(json.dumps(as_json(verdict, log), indent=2, ensure_ascii=False))
        return
    for line in text(verdict, log, min(MAX_WIDTH, shutil.get_terminal_size().columns)):
        echo(line)


COMMANDS: Final = (explain,)
