"""Front of the command line: start screen or help of ``pardbg`` alone, ``pardbg help TOPIC``, and
recognition of a job's command."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from pardbg.cli.common import completions, help_width
from pardbg.control.language.manual import RANKS_TEXT
from pardbg.errors import UserError
from pardbg.ui.commands.actions import ACTIONS, GLOSSARY, GROUP_TITLES, explain, wrapped

if TYPE_CHECKING:
    from pardbg.render.frame.start_page import Entry

FIRST: Final = {
    "demo": "Train a built-in recipe and watch it: `pardbg demo 1f1b`.",
    "watch": "Watch a job: `pardbg watch torchrun … train.py`; or join a live run.",
    "replay": "Open a recording in the same screens, with time travel.",
    "report": "Report on a recording or a live run: findings, steps, bubbles.",
    "ctl": "Control a live run from a script: `pardbg ctl pause`.",
}
"""Commands listed first in the help."""
MORE: Final = {
    "learn": "Twelve lessons on real runs: from a parameter server to a hang found.",
    "run": "Record a job without a screen.",
    "ls": "List live runs.",
    "check": "Test a recording in CI: exit 0 or 1.",
    "diff": "Compare two recordings: what changed beyond noise.",
    "same": "Tell which tensor of a parallel run differs first from its reference.",
    "whatif": "Predict a run's step time with another schedule or stage split.",
    "rehearse": "Run a program as every rank of a large job, on one machine without GPUs.",
    "schedule": "Make, check and compare pipeline schedules.",
    "export": "Convert a recording for Perfetto, or to Parquet or CSV.",
    "attach": "Look at a job that was started without pardbg.",
    "explain": "Say what a job's log tells: which rank is missing, which failed first.",
    "serve": "Show a live run or a recording in a browser on this machine.",
    "mcp": "Serve a coding agent with a run, a recording or a log.",
    "skill": "Print how a coding agent finds a culprit with `pardbg mcp`.",
    "import": "Convert Flight Recorder dumps or profiler traces to a recording.",
    "postmortem": "Recover a recording from a killed run.",
    "repair": "Rewrite a damaged recording.",
    "doctor": "Check what pardbg needs on this machine.",
    "native": "Build the agent's hot path in C++: `pardbg native build`.",
    "help": "Explain a command, a verb, a word or a topic: keys, words, ranks, expr.",
}
STARTS: Final = ("watch", "run", "rehearse")
"""Commands that take a job's command, with or without ``--`` before it."""


class _Refused(click.ClickException):
    def __init__(self, error: UserError) -> None:
        super().__init__(str(error))
        setattr(self, "exit_code", error.exit_code)  # noqa: B010 - a class variable in click


class Front(click.Group):
    """The group of all commands; the help lists those to start with first."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except UserError as error:
            raise _Refused(error) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rest = sorted(self.commands.keys() - FIRST.keys() - MORE.keys())
        others = {name: self.commands[name].get_short_help_str(200) for name in rest}
        for title, rows in (("Start here", FIRST), ("More commands", {**MORE, **others})):
            with formatter.section(title):
                formatter.write_dl([(n, text) for n, text in rows.items() if n in self.commands])

    def job_start(self, args: Sequence[str]) -> int | None:
        """Return the index of the job's command in ``watch -o S.mcap torchrun … train.py``, or of
        the ``--`` before it; a later ``--`` belongs to the job."""
        command = self.commands.get(args[0]) if args and args[0] in STARTS else None
        if command is None:
            return None
        options = [one for one in command.params if isinstance(one, click.Option)]
        valued = {n for one in options if not one.is_flag and not one.count for n in one.opts}
        known = {name for one in options for name in (*one.opts, *one.secondary_opts)}
        at = 1
        while at < len(args) and args[at].startswith("-") and args[at] != "--":
            at += 2 if args[at] in valued else 1
        if args[at:][:1] == ["--"]:
            return at
        if at >= len(args):
            return None
        more = len(args) > at + 1 and args[at + 1].partition("=")[0] not in known
        return at if _begins_job(args[0], args[at], more) else None


def _begins_job(command: str, word: str, more: bool) -> bool:
    """Return whether a word begins a job's command, rather than naming a live run. ``more``:
    further words follow that are not options of pardbg."""
    from pardbg.hub.run.runs import RunError, find_run

    if shutil.which(word) is None:
        if word.endswith(".py"):
            raise UserError(f"{word} is not a program: `pardbg {command} python {word}`")
        if command != "run" and not more:
            return False
    if command == "run":
        return True
    try:
        find_run(word)
    except RunError:
        return True  # one that is not there is said when it is to be run
    return False


def _topics(ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    group = ctx.find_root().command
    names = sorted(group.commands) if isinstance(group, click.Group) else []
    words = [*names, *TOPICS, *(action.command for action in ACTIONS if action.command),
             *(word for known, _ in GLOSSARY for word in known)]  # fmt: skip
    return completions(dict.fromkeys(words), typed)


@click.command("help")
@click.argument("words", nargs=-1, metavar="[TOPIC]", shell_complete=_topics)
@click.pass_context
def help_(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Explain TOPIC: a command, a verb of the console, a word of the screens, keys, ranks, expr."""
    root = ctx.find_root()
    group = root.command
    assert isinstance(group, click.Group)
    topic = " ".join(words)
    if not topic:
        click.echo(root.get_help())
        click.echo(f"\nTopics: {', '.join(TOPICS)}, any command, any verb (`pardbg help break`), "
                   "any word of the screens (`pardbg help bubble`).")  # fmt: skip
        return
    command = group.commands.get(topic)
    lines = TOPICS[topic]() if topic in TOPICS else explain(topic)
    if command is not None:
        with click.Context(command, info_name=topic, parent=root) as made:
            click.echo(command.get_help(made))
        lines = ["", "On the `:` line of the screens:", *lines] if lines else []
    elif not lines:
        raise UserError(f"no help on {topic!r}; `pardbg help` lists what there is")
    if lines:
        click.echo("\n".join(wrapped(lines, help_width())))


def _keys() -> list[str]:
    lines = []
    for group, title in GROUP_TITLES.items():
        lines += [title]
        for action in ACTIONS:
            if action.group == group and action.shown:
                lines += [f"  {action.shown:<12} {action.help}"]
        lines += [""]
    return lines[:-1]


def _ranks() -> list[str]:
    return ["RANKS: a set of ranks, wherever one is asked for.", "", RANKS_TEXT]


def _expr() -> list[str]:
    from pardbg.control.language.expr import FIELDS

    return [
        "EXPR: a condition over what comes next on a rank, for break, tbreak, until, condition.",
        "",
        f"  Fields: {', '.join(sorted(FIELDS))}.",
        "  Comparison, arithmetic, and, or, not, in. 2B3 is short for stage 2, B, microbatch 3.",
        "",
        *explain("break"),
    ]


def _words() -> list[str]:
    return [line for names, text in GLOSSARY for line in (", ".join(names), f"  {text}")]


TOPICS: Final[dict[str, Any]] = {"keys": _keys, "words": _words, "ranks": _ranks, "expr": _expr}


# ------------------------------------------------------------------------------------- start screen


def entries(folder: Path) -> list[Entry]:
    """Return live runs, killed runs, and recordings, each the newest first."""
    from pardbg.hub.run.runs import list_run_rings, list_runs
    from pardbg.render.frame.start_page import Entry
    from pardbg.words import binary_size, plural

    runs = list_runs()
    made = [Entry("live", run.name or run.run, run.run, run.started_ns, "starting",
                  path=str(run.session)) for run in reversed(runs)]  # fmt: skip
    made += [
        Entry("dead", rings.run, rings.run, round(rings.died_s * 1e9),
              f"{plural(rings.num_rings, 'ring')} left, {binary_size(rings.num_bytes)}"
              if rings.num_rings else f"exit code {rings.untold}")
        for rings in reversed(list_run_rings())
    ]  # fmt: skip
    written = {str(run.session) for run in runs}
    return made + [
        Entry("recording", path.stem, str(path), at, path=str(path))
        for path, at in _recordings(folder) if str(path) not in written
    ]  # fmt: skip


def _recordings(folder: Path) -> Iterator[tuple[Path, int]]:
    """Return (path, last write in ns) of recordings, the newest first."""
    found = []
    for path in folder.glob("*.mcap"):
        with contextlib.suppress(OSError):  # it was deleted meanwhile
            found.append((path, path.stat().st_mtime_ns))
    yield from sorted(found, key=lambda one: -one[1])


def start(perform: Callable[[Sequence[str]], object]) -> None:
    """Show the start screen; ``perform`` the chosen command, and show the screen again."""
    from pardbg.cli.headless import default_session_path
    from pardbg.cli.learn import listed
    from pardbg.cli.rc import own_rc
    from pardbg.ui.start_app import StartApp

    folder, said = default_session_path("run").parent, ""
    while True:
        app = StartApp(lambda: entries(folder), str(folder), said, listed(), own_rc())
        app.run()
        if app.chosen is None:
            return
        what, target = app.chosen
        said = ""
        try:
            perform([what, target] if target else [what])
        except click.ClickException as error:
            said = error.format_message()
        if what == "report":
            return
