"""Registry of the user's actions: source of the key bindings, the ``?`` help, the hints at the
bottom, the ``:`` command line, and the help of ``pardbg ctl``.

Handlers register by the action's id (``pardbg.ui.main``); a test checks that each action has one.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final, Literal, cast

from pardbg.control.language.arguments import PDB, USAGE
from pardbg.control.language.manual import RANKS_TEXT, manual, word_of
from pardbg.events.control_codes import Verb

Context = Literal["any", "live", "replay"]
Group = Literal["control", "time", "screens", "look", "app"]
Handlers = Mapping[str, Callable[[str], None]]
"""Action id -> its handler, which gets the command's argument (empty for a key) and raises
UserError."""

GROUP_TITLES: dict[Group, str] = {
    "control": "Control (live)", "time": "Time", "screens": "Screens", "look": "Look closer",
    "app": "pardbg",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Action:
    """An action of the user."""

    id: str
    keys: tuple[str, ...]
    """Textual key names; empty: only as a command."""
    shown: str
    """Keys as printed in the help."""
    label: str
    """One or two words for the action in the hints."""
    help: str
    """Help for the action in one sentence."""
    group: Group
    context: Context = "any"
    command: str = ""
    """Command word on the ``:`` line; empty: none."""
    usage: str = ""
    """Arguments of the command."""
    verb: Verb | None = None
    """Verb that the action sends to the hub; None: it sends none."""
    hint: int = 0
    """Position in the hints line, 1 first; 0: not in it."""
    hinted: tuple[str, str] | None = None
    """Keys and label for the hints line, if they differ; without label: the action moves."""


def _read() -> Iterator[Action]:
    """Read ``actions.txt``: an action per line, its fields in the order of ``row``. The usage of a
    hub's verb comes from the control language."""
    file = resources.files("pardbg.ui.commands").joinpath("actions.txt")
    for row in file.read_text("utf-8").splitlines():
        cells = (cell.strip() for cell in row.split(" | "))
        id_, keys, shown, label, group, context, command, usage, hint, hinted, help_ = cells
        verb = Verb(id_) if group == "control" and id_ in _VERBS else None
        yield Action(
            id_, tuple(keys.split()), shown, label, help_, cast(Group, group),
            cast(Context, context or "any"), command,
            usage or (USAGE.get(verb, "") if verb is not None else ""), verb, int(hint or 0),
            (hinted.partition(" /")[0], hinted.partition(" /")[2].strip()) if hinted else None,
        )  # fmt: skip


_VERBS: Final = frozenset(verb.value for verb in Verb)
ACTIONS: Final = tuple(_read())
SCREENS: Final = tuple(
    (int(one.shown), one.command, one.help) for one in ACTIONS if one.id.startswith("show_")
)
"""(number, name, help)"""
INSPECTIONS: Final = tuple(one.label for one in ACTIONS if one.id.startswith("inspect_"))
"""Words of the commands that inspect a held rank."""


def for_mode(live: bool) -> Iterator[Action]:
    """Return the actions of this mode."""
    other: Context = "replay" if live else "live"
    return (action for action in ACTIONS if action.context != other)


def hints(live: bool) -> list[Action]:
    """Return the actions that the bottom line offers, in order."""
    return sorted((a for a in for_mode(live) if a.hint), key=lambda action: action.hint)


def by_command(word: str, live: bool) -> list[Action]:
    """Return the actions whose command is ``word``; if there is none, those that start with it."""
    named = [action for action in for_mode(live) if action.command]
    exact = [action for action in named if action.command == word]
    return exact or [action for action in named if action.command.startswith(word)]


def ctl_help() -> dict[str, str]:
    """Return verb -> help, for all verbs of ``pardbg ctl``."""
    return {a.verb.value: a.help for a in ACTIONS if a.verb is not None}


OWN: Final[Mapping[str, Mapping[str, str]]] = {
    "overview": {"detail": "the rank", "grid": "mesh", "other": "measure",
                 "swap_axes": "axes", "cell_before": "left", "cell_after": "right"},
    "pipeline": {
        "grid": "ticks", "other": "what-if", "tick": "tick", "cell_before": "cell before",
        "cell_after": "next cell", "turn_back": "pipeline before", "turn_on": "next pipeline",
    },
    "timeline": {
        "zoom_in": "closer", "cell_after": "next box", "cell_before": "box before",
        "zoom_out": "wider", "detail": "the box",
    },
    "collectives": {"other": "p2p", "grid": "most waiting", "detail": "the operation"},
    "traffic": {"other": "matrix"},
    "memory": {"detail": "the rank"},
    "debug": {"where": "stacks", "break_here": "break", "step": "step", "next": "next step"},
    "findings": {"detail": "go there", "copy": "copy"},
    "output": {"filter": "filter", "page_up": "page up", "page_down": "page down"},
    "numbers": {"detail": "its tensors", "filter": "filter", "break_here": "break"},
}  # fmt: skip
"""Screen -> action id -> its label on the screen, the most used first."""
FILTERED: Final = frozenset({"overview", "timeline", "collectives", "output", "numbers"})
"""Screens with rows that ``/`` filters."""
_FOOTER: Final = 2
"""Number of the screen's own actions in a footer; there is room for few."""
_FEW: Final = {"overview": 1}
"""Screens with another number: a mesh is of use only to the few runs with many ranks."""


def own(screen: str, live: bool) -> list[tuple[Action, str]]:
    """Return the screen's own actions in this mode, with their labels."""
    known = {action.id: action for action in for_mode(live)}
    return [(known[id_], label) for id_, label in OWN.get(screen, {}).items() if id_ in known]


def footer(screen: str, live: bool, lists: bool = True) -> list[tuple[Action, str]]:
    """Return the actions of the bottom line: pause or play, the screen's own if it ``lists`` rows,
    then those of all screens. An empty label means the action's own."""
    first, *rest = hints(live)
    first_own = own(screen, live)[: _FEW.get(screen, _FOOTER) * lists]
    taken = {first.id, *(action.id for action, _ in first_own)}
    taken |= set() if lists and screen in FILTERED else {"filter"}
    return [(first, ""), *first_own, *((action, "") for action in rest if action.id not in taken)]


INDENT: Final = "  "


def _read_glossary() -> Iterator[tuple[tuple[str, ...], str]]:
    file = resources.files("pardbg.ui.commands").joinpath("glossary.txt")
    for row in file.read_text("utf-8").splitlines():
        names, _, text = row.partition(" | ")
        yield tuple(names.split(", ")), text


GLOSSARY: Final = tuple(_read_glossary())
"""(a term and its other names, its definition)"""


def glossary(text: str) -> list[str]:
    """Return a term with its other names, and its definition; empty for an unknown term."""
    word = " ".join(text.lower().split())
    return [line for names, meaning in GLOSSARY if word in (name.lower() for name in names)
            for line in (", ".join(names), f"{INDENT}{meaning}")]  # fmt: skip


def explain(text: str) -> list[str]:
    """Return usage, one sentence, and further text about a command, examples indented twice, and
    the definition of the word; empty for an unknown word. Lines may be long."""
    word = word_of(text)
    found = [action for action in ACTIONS if action.command == word]
    if not found:
        return glossary(text)
    lines = [*glossary(text), ""] if glossary(text) else []
    for action in found:
        keys = f"   (key {action.shown})" if action.shown else ""
        lines += [f"{action.command} {action.usage}".strip() + keys, f"{INDENT}{action.help}"]
    more, *examples = manual(word) or ("",)
    lines += [f"{INDENT}{more}"] if more else []
    lines += [f"{INDENT}{INDENT}{example}" for example in examples]
    if "RANKS" in found[0].usage:
        lines += ["", RANKS_TEXT]
    short = [abbreviation for abbreviation, full in PDB.items() if full == word]
    return [*lines, "", f"pdb's abbreviation: {', '.join(short)}"] if short else lines


def wrapped(lines: Sequence[str], cells: int) -> list[str]:
    """Return the lines wrapped to a width, each with its indentation."""
    out: list[str] = []
    for text in lines:
        indent = text[: len(text) - len(text.lstrip())]
        out += textwrap.wrap(
            text, cells, initial_indent="", subsequent_indent=indent, break_on_hyphens=False
        ) or [""]  # fmt: skip
    return out
