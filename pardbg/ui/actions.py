"""The one registry of actions: it makes the bindings, the ``?`` help, the hints at the bottom, the
``:`` command line, and the help of ``pardbg ctl``.

An action's handler is the method ``do_<id>`` of the main screen (``pardbg.ui.screens.main``); a
test checks that each has one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pardbg.control.model import Verb

Context = Literal["any", "live", "replay"]
Group = Literal["control", "time", "screens", "look", "app"]

GROUP_TITLES: dict[Group, str] = {
    "control": "Control (live)", "time": "Time", "screens": "Screens", "look": "Look closer",
    "app": "pardbg",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Action:
    """Something a user can do."""

    id: str
    keys: tuple[str, ...]
    """Textual key names; empty: only as a command."""
    shown: str
    """The keys as printed."""
    label: str
    """One or two words, for the hints."""
    help: str
    """One sentence."""
    group: Group
    context: Context = "any"
    command: str = ""
    """Its word on the ``:`` line; empty: none."""
    usage: str = ""
    """Arguments of the command."""
    verb: Verb | None = None
    """What it asks of the hub."""
    hint: int = 0
    """Place in the hints line, 1 first; 0: not there."""
    hinted: tuple[str, str] | None = None
    """Keys and label as the hints line has them, where they differ."""


def _control(
    verb: Verb, keys: tuple[str, ...], shown: str, help_: str, hint: int = 0, usage: str = ""
) -> Action:
    return Action(verb.value, keys, shown, verb.value, help_, "control", "live",
                  verb.value, usage, verb, hint)  # fmt: skip


def _screen(number: int, id_: str, help_: str) -> Action:
    return Action(f"show_{id_}", (str(number),), str(number), id_.capitalize(), help_,
                  "screens", command=id_)  # fmt: skip


SCREENS: tuple[tuple[int, str, str], ...] = (
    (1, "overview", "Every rank: what it does now, step time, memory, lag."),
    (2, "pipeline", "The schedule as planned and as seen, bubbles and their causes."),
    (3, "timeline", "Phases, compute, communication and waits of each rank over time."),
    (4, "collectives", "Each collective matched over its ranks: arrivals, skew, verdict."),
    (5, "traffic", "Bytes between ranks, observed and modelled; rates per operation."),
    (6, "memory", "Parameters, gradients, optimizer, activations beside what is expected."),
    (7, "debug", "Held ranks, what each waits for, stacks, the audit trail."),
    (8, "findings", "What is wrong, in plain words."),
    (9, "output", "What the job prints."),
)

ACTIONS: tuple[Action, ...] = (
    Action("toggle", ("space",), "space", "pause", "Pause to a consistent cut, or run on.",
           "control", "live", hint=1),
    Action("play", ("space",), "space", "play", "Play the recording, or stop.",
           "time", "replay", "play", hint=1),
    _control(Verb.PAUSE, (), "", "Stop every rank at its next gate and settle to a cut."),
    _control(Verb.CONTINUE, (), "", "Let every rank run on."),
    _control(Verb.STEP, ("s",), "s", "One action of the selected rank, or of RANKS.", 2, "[RANKS]"),
    _control(Verb.TICK, ("t",), "t", "Each pipeline rank whose input is there runs one action.", 3),
    _control(Verb.NEXT, ("n",), "n", "One training step.", 4),
    _control(Verb.OP, ("o",), "o", "To the next collective."),
    _control(Verb.WHERE, ("w",), "w", "All ranks' stacks, merged (7 Debug).", 5),
    _control(Verb.RANKS, (), "", "Where each rank is."),
    _control(Verb.STATUS, (), "", "Who holds control, the lease, what is pending."),
    _control(Verb.KILL, (), "", "End the job. It asks for `kill yes`; q only leaves.", usage="yes"),
    Action("take", (), "", "take", "Take control over from another viewer.", "control", "live",
           "take"),
    Action("leave", (), "", "leave", "Give control up; every rank runs on.", "control", "live",
           "leave"),
    Action("back", ("left",), "←", "back", "Back in time (live: look back).", "time",
           hint=6, hinted=("← →", "time")),
    Action("forward", ("right",), "→", "forward", "Forward in time.", "time"),
    Action("step_back", ("shift+left", "comma"), "shift ← ,", "step back",
           "Back by one training step.", "time"),
    Action("step_forward", ("shift+right", "full_stop"), "shift → .", "step on",
           "Forward by one training step.", "time"),
    Action("begin", ("home",), "home", "begin", "To the begin of the run.", "time"),
    Action("end", ("end",), "end", "end", "To the end of the recording (live: follow).", "time"),
    Action("follow", ("f",), "f", "follow", "Follow the live run again.", "time", "live",
           "follow", hint=7),
    Action("slower", ("left_square_bracket",), "[", "slower", "Play at half the speed.", "time",
           "replay", hint=3),
    Action("faster", ("right_square_bracket",), "]", "faster", "Play at twice the speed.", "time",
           "replay", hint=4),
    Action("reverse", ("r",), "r", "reverse", "Play the other way.", "time", "replay", "reverse",
           hint=5),
    Action("speed", (), "", "speed", "Play FACTOR times as fast as it ran.", "time", "replay",
           "speed", "FACTOR"),
    Action("seek", (), "", "seek", "To a time from the run's begin: 12.5, 2m03s or 40%.", "time",
           command="seek", usage="TIME"),
    Action("zoom_in", ("plus", "equals_sign"), "+", "zoom", "Half as much time across the screen.",
           "time", command="zoom", usage="in|out|all"),
    Action("zoom_out", ("minus",), "−", "zoom out", "Twice as much time across the screen.",
           "time"),
    *(_screen(*screen) for screen in SCREENS),
    Action("next_screen", ("tab",), "tab", "next screen", "The next screen.", "screens"),
    Action("previous_screen", ("shift+tab",), "shift tab", "previous screen",
           "The screen before.", "screens"),
    Action("up", ("up", "k"), "↑ k", "up", "Select the rank or row above.", "look"),
    Action("down", ("down", "j"), "↓ j", "down", "Select the rank or row below.", "look"),
    Action("page_up", ("pageup",), "pgup", "page up", "A page up.", "look"),
    Action("page_down", ("pagedown",), "pgdn", "page down", "A page down.", "look"),
    Action("detail", ("enter",), "enter", "detail", "More about the selected one.", "look"),
    Action("escape", ("escape",), "esc", "back", "Close, clear the filter, or follow again.",
           "look"),
    Action("other", ("p",), "p", "p2p", "Collectives or p2p (4), ring or matrix (5).", "look"),
    Action("filter", ("slash",), "/", "filter", "Show only what contains TEXT.", "look",
           command="filter", usage="[TEXT]", hint=8),
    Action("rank", (), "", "rank", "Select rank N.", "look", command="rank", usage="N"),
    Action("command", ("colon",), ":", "command", "Type a command; tab completes.", "app", hint=9),
    Action("help", ("question_mark", "f1"), "?", "help", "This list.", "app", command="help",
           hint=10),
    Action("theme", (), "", "theme", "Colours: dark, light or 16 (the terminal's own).", "app",
           command="theme", usage="dark|light|16"),
    Action("quit", ("q", "ctrl+c", "ctrl+q"), "q", "leave", "Leave; the job goes on.", "app",
           command="quit", hint=11),
)  # fmt: skip


def for_mode(live: bool) -> Iterator[Action]:
    """The actions that mean something in this mode."""
    other: Context = "replay" if live else "live"
    return (action for action in ACTIONS if action.context != other)


def hints(live: bool) -> list[Action]:
    """What the bottom line offers, in order."""
    return sorted((a for a in for_mode(live) if a.hint), key=lambda action: action.hint)


def by_command(word: str, live: bool) -> list[Action]:
    """Actions whose command is ``word``, or else starts with it; most exact first."""
    named = [action for action in for_mode(live) if action.command]
    exact = [action for action in named if action.command == word]
    return exact or [action for action in named if action.command.startswith(word)]


def ctl_help() -> list[tuple[str, str, str]]:
    """(verb, usage, help) of everything ``pardbg ctl`` can ask of a run."""
    rows = [(a.verb.value, a.usage, a.help) for a in ACTIONS if a.verb is not None]
    return list(dict.fromkeys(rows))
