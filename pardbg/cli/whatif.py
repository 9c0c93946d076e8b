"""Commands that ask what-if of a session."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from pardbg.cli import complete
from pardbg.cli.common import UserError, echo, session_path
from pardbg.words import whole


@click.command()
@click.argument("session", shell_complete=complete.sessions)
@click.option("--schedule", default="all", show_default=True,
              help="all, or names separated by commas: 1f1b,zbv,…")  # fmt: skip
@click.option("--microbatches", help="Numbers to try, as in 8,16 (default: the run's own).")
@click.option("--stages-per-rank", help="Numbers to try where a schedule has several (default: 2).")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
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
    from pardbg.session.reader import SessionError, load

    names = _schedules(schedule)
    counts = _numbers("--microbatches", microbatches, 1, 512)
    virtual = _numbers("--stages-per-rank", stages_per_rank, 2, 16)
    try:
        path, growing = session_path(session)
        store = load(path, growing=growing)
    except SessionError as error:
        raise UserError(str(error)) from None
    answer = ask(View(store, None), names, counts, virtual)
    if isinstance(answer, str):
        raise UserError(f"{path.name}: {answer}")
    echo(json.dumps(asdict(answer), indent=2) if json_ else text(answer))
    if not plans.torch_there():
        there = " and ".join(plans.ONE_STAGE)
        echo(f"pardbg: torch is not installed here: {there} alone are answered", err=True)


COMMANDS: tuple[click.Command, ...] = (whatif,)


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
