"""``pardbg ctl``: control of a live run from a script."""

from __future__ import annotations

from pathlib import Path

import click

from pardbg.cli.common import complete_ctl, echo, help_width
from pardbg.cli.here import find_target
from pardbg.control.language import arguments
from pardbg.control.language.arguments import ctl_words
from pardbg.errors import UserError
from pardbg.events.control_codes import Verb
from pardbg.ui.commands.actions import explain, wrapped


class _Ctl(click.Command):
    """``ctl break --help`` and ``ctl help break`` explain the verb."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        asks = args[:1] == ["help"] or any(word in ("--help", "-h") for word in args)
        words = [word for word in args if not word.startswith("-") and word != "help"]
        lines = next((found for word in words if (found := explain(word))), []) if asks else []
        if lines:
            echo("\n".join(wrapped(lines, help_width())))
            ctx.exit()
        return super().parse_args(ctx, ["--help"] if args == ["help"] else args)


@click.command(cls=_Ctl)
@click.argument(
    "words", nargs=-1, required=True, metavar="[RUN] VERB [RANKS]", shell_complete=complete_ctl
)
@click.option("--json", "json_", is_flag=True, help="Print the answer as JSON.")
@click.option("--lease", type=click.FloatRange(1, 86400), default=60.0, show_default=True,
              help="Seconds that ranks stay held after the last command.")  # fmt: skip
@click.option("--timeout", type=click.FloatRange(0.1, 3600), default=30.0, show_default=True,
              help="Seconds to wait for the answer.")  # fmt: skip
@click.option(
    "--frame",
    type=click.IntRange(0),
    default=0,
    help="The program's frame of the held rank in which to evaluate; 0 is the innermost.",
)
@click.option("--all-frames", is_flag=True, help="--frame counts frames of libraries, too.")
@click.option(
    "--hash",
    "hash_",
    is_flag=True,
    help="With compare: find the first tensor that differs, of params, grads, optimizer or EXPR.",
)
@click.option("--key", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Key file of the run, for RUN tcp://HOST:PORT.")  # fmt: skip
def ctl(
    words: tuple[str, ...], json_: bool, lease: float, timeout: float, frame: int,
    all_frames: bool, hash_: bool, key: Path | None,
) -> int:  # fmt: skip
    """Control a live run from a script; elsewhere: RUN as `watch` takes it.

    VERB moves ranks: pause, continue, step, tick, next, op, until; holds them: break, tbreak,
    watch, condition, ignore, enable, disable, delete, breaks; shows them: where, ranks, status; or
    delay, level, mark, kill. `ctl VERB --help` explains one.

    RANKS is a rank set: 0, 0-3, stage=2, all, held. `pause` holds all ranks at a consistent cut;
    `pause 2` holds rank 2 alone, and releases it before others time out (`pause 2 hold`: not).
    `step 2 x5` gives a verb five times.

    `break EXPR [on RANKS]` holds all ranks where EXPR is true of what one is about to do:
    "action==B and mb==3 and stage==2", 2B3 for short, "op==all_reduce and bytes>1e6 and axis==dp",
    "step==100"; `tbreak` once; `until` continues to there and answers once it has stopped. `watch
    nan`, `mismatch`, `diverge`, `slow>5`, `skew>20ms`, `memory>2GiB` hold them where something goes
    wrong. `delay 2 50ms` delays rank 2 by so much in each step.

    `p EXPR [on RANKS]`, `pp`, `whatis`, `tensor`, `list`, `longlist`, `args`, `locals`, `exec`
    inspect held ranks; `compare EXPR` shows them side by side; `compare --hash grads` finds the
    first gradient that differs; `dap RANK` waits in a held rank for an editor. Evaluating code
    requires that the job was started with --allow-eval.

    `watch same REF.mcap` compares the run with its reference's recording (both with --tensors), and
    holds the ranks at the module whose output, or gradient, differs first (`pardbg same`).

    `level off|summary|full [RANKS] [30s]` sets the recording level, with a time for that long;
    `mark NOTE` bookmarks this moment in the recording.
    """
    from pardbg.cli import headless

    at = words.index("watch") if "watch" in words[:2] else -1
    if at >= 0 and words[at + 1 : at + 2] == ("same",):
        if len(words) != at + 3:
            raise UserError("watch same REF.mcap: the reference's recording (pardbg run --tensors)")
        named = find_target(words[0] if at else None, key)
        return headless.watch_same(named, Path(words[-1]), json_, lease, timeout)
    asked = _hashing(words) if hash_ else words
    run_name, verb, ranks, args = ctl_words(asked, frame, all_frames)
    compare = arguments.COMPARE in words[:2]
    if verb is Verb.KILL and run_name is None:
        raise UserError(
            "kill ends the job: name the run, as in `pardbg ctl RUN kill` (`pardbg ls`)"
        )
    return headless.control(
        find_target(run_name, key), verb, ranks, json_, lease, timeout, args, compare=compare
    )


def _hashing(words: tuple[str, ...]) -> tuple[str, ...]:
    if arguments.COMPARE not in words[:2]:
        raise UserError("--hash goes with compare, as in `pardbg ctl compare --hash grads`")
    at = words.index(arguments.COMPARE) + 1
    return (*words[:at], "--hash", *words[at:])


COMMANDS = (ctl,)
