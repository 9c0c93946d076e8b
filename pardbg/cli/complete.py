"""Words for the shell's tab completion (click's): recipes, live runs, recordings, verbs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def items(words: Iterable[str], typed: str) -> list[CompletionItem]:
    """Return the words that complete what was typed."""
    return [CompletionItem(word) for word in words if word.startswith(typed)]


def recipes(_ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete recipes, with their summaries."""
    from pardbg.recipes.catalogue import RECIPES

    return [
        CompletionItem(name, help=recipe.summary)
        for name, recipe in RECIPES.items() if name.startswith(typed)
    ]  # fmt: skip


def runs(_ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete live runs."""
    from pardbg.hub.run.runs import list_runs

    return items((run.run for run in list_runs()), typed)


def sessions(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete live runs and files."""
    return [*runs(ctx, param, typed), CompletionItem(typed, type="file")]


def ctl_words(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete a live run or verb, then the verb's arguments."""
    from pardbg.control.language.arguments import INSPECT
    from pardbg.ui.commands.actions import ctl_help
    from pardbg.ui.commands.command_line import complete

    verbs = {verb: help_ for verb, _, help_ in ctl_help()}
    known = [*verbs, *INSPECT]
    said = list(ctx.params.get(param.name or "") or ())
    at = next((i for i, word in enumerate(said[:2]) if word in known), None)
    if at is not None:
        line = " ".join([*said[at:], typed])
        return items((whole.rpartition(" ")[2] for whole in complete(line.rstrip(), True)), typed)
    found = [CompletionItem(w, help=verbs.get(w)) for w in known if w.startswith(typed)]
    return found if said else [*runs(ctx, param, typed), *found]
