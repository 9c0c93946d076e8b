"""Which actions are a screen's own: they come first in its footer and in its help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pardbg.ui.commands.actions import Action, for_mode, hints

OWN: Final[Mapping[str, Mapping[str, str]]] = {
    "overview": {"detail": "the rank"},
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
    "findings": {"detail": "go there"},
    "output": {"filter": "filter", "page_up": "page up", "page_down": "page down"},
}  # fmt: skip
"""Screen -> action id -> its label there, the most used first."""
_FOOTER: Final = 2
"""A footer has so many of them: there is more to say."""


def own(screen: str, live: bool) -> list[tuple[Action, str]]:
    """The screen's own actions that mean something in this mode, with their labels."""
    known = {action.id: action for action in for_mode(live)}
    return [(known[id_], label) for id_, label in OWN.get(screen, {}).items() if id_ in known]


def footer(screen: str, live: bool) -> list[tuple[Action, str]]:
    """What the bottom line offers: pause or play, the screen's own, then what works everywhere. A
    label is empty where the action's own is meant."""
    first, *rest = hints(live)
    mine = own(screen, live)[:_FOOTER]
    taken = {first.id, *(action.id for action, _ in mine)}
    return [(first, ""), *mine, *((action, "") for action in rest if action.id not in taken)]
