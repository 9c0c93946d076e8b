"""The registry of actions: it makes the bindings, the ``?`` help, the hints at the bottom, the
``:`` command line, and the help of ``pardbg ctl``.

Handlers register by the action's id (``pardbg.ui.main``); a test checks that each action has one.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pardbg.control.language.arguments import PDB, USAGE
from pardbg.control.language.manual import RANKS_TEXT, manual, word_of
from pardbg.events.control_codes import Verb

Context = Literal["any", "live", "replay"]
Group = Literal["control", "time", "screens", "look", "app"]
Handlers = Mapping[str, Callable[[str], None]]
"""Action id -> what does it; it gets its command's argument, empty for a key, and raises
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
    """Keys and label as the hints line has them, where they differ; no label: it moves."""


def _control(verb: Verb, help_: str, key: str = "", hint: int = 0, usage: str = "") -> Action:
    return Action(verb.value, (key,) if key else (), key, verb.value, help_, "control", "live",
                  verb.value, usage or USAGE.get(verb, ""), verb, hint)  # fmt: skip


def _screen(number: int, id_: str, help_: str) -> Action:
    return Action(f"show_{id_}", (str(number),), str(number), id_.capitalize(), help_,
                  "screens", command=id_)  # fmt: skip


INSPECTIONS: tuple[tuple[str, str], ...] = (
    ("p", "A value in the frame where the rank is held (--allow-eval)."),
    ("pp", "The same, spread over lines."),
    ("whatis", "The type of a value."),
    ("tensor", "Shape, dtype, range, norm, NaN and infinities, a histogram."),
    ("compare", "A value on every held rank, differences marked; --hash params|grads|EXPR."),
    ("list", "The source around the place where the rank is held."),
    ("args", "The arguments of the function it is held in."),
    ("locals", "All local variables there."),
    ("exec", "Run a statement there; !STATEMENT for short."),
)


def _inspect(word: str, help_: str) -> Action:
    usage = "[on RANKS]" if word in ("list", "args", "locals") else "EXPR [on RANKS]"
    return Action(f"inspect_{word}", (), "", word, help_, "control", "live", word, usage)


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
    _control(Verb.PAUSE, "Stop every rank at its next gate and settle to a cut; or RANKS alone."),
    _control(Verb.BREAK, "Stop where EXPR is true: action==2B3, op==send and step>5."),
    _control(Verb.TBREAK, "The same, once."),
    _control(Verb.UNTIL, "Run until EXPR is true."),
    _control(Verb.WATCH, "Stop at a NaN, a mismatch, something slow …"),
    _control(Verb.CONDITION, "Change the condition of breakpoint or watch N."),
    _control(Verb.IGNORE, "Ignore the next COUNT matches of breakpoint N."),
    _control(Verb.DELETE, "Remove breakpoints and watches; without N all."),
    _control(Verb.BREAKS, "List breakpoints and watches with their hit counts."),
    _control(Verb.DELAY, "Delay RANKS by TIME in each step, as a straggler."),
    *(_inspect(word, help_) for word, help_ in INSPECTIONS),
    Action("frame_up", (), "", "up", "Select the caller's frame, for p, list, args and locals.",
           "control", command="up"),
    Action("frame_down", (), "", "down", "Go back to the frame below.", "control", command="down"),
    Action("break_here", ("b",), "b", "break here", "Break at the selected op or action.",
           "control", "live"),
    _control(Verb.CONTINUE, "Let every rank run on."),
    _control(Verb.STEP, "Run one action on the selected rank, or on RANKS.", "s", 2),
    _control(Verb.TICK, "Run one action on each rank whose input has come.", "t", 3),
    _control(Verb.NEXT, "Run one training step.", "n", 4),
    _control(Verb.OP, "Run to the next collective.", "o"),
    _control(Verb.WHERE, "Show all ranks' stacks, merged (7 Debug).", "w", 5),
    _control(Verb.RANKS, "Show where each rank is."),
    _control(Verb.STATUS, "Show who has control, the lease, what is pending."),
    _control(Verb.LEVEL, "Set how much ranks record, with a time for that long."),
    _control(Verb.KILL, "End the job. It asks for `kill yes`; q only leaves.", usage="yes"),
    Action("take", (), "", "take", "Take control over from another viewer.", "control", "live",
           "take"),
    Action("leave", (), "", "leave", "Give control up; every rank runs on.", "control", "live",
           "leave"),
    Action("back", ("left",), "←", "back", "Go back in time (live: look back).", "time",
           hint=6, hinted=("← →", "time")),
    Action("forward", ("right",), "→", "forward", "Go forward in time.", "time"),
    Action("step_back", ("shift+left",), "shift ←", "step back",
           "Go back by the time of one training step.", "time"),
    Action("step_forward", ("shift+right",), "shift →", "step on",
           "Go on by the time of one training step.", "time"),
    Action("last", ("comma",), ",", "last", "Go to the previous step, action, op or finding.",
           "time", hint=7, hinted=(", .", "")),
    Action("following", ("full_stop",), ".", "next",
           "Go to the next one; actions and ops are the selected rank's.", "time"),
    Action("unit", ("u",), "u", "unit",
           "What , and . move by: step, action, op, tick, finding or bookmark.", "time",
           command="unit", usage="step|action|op|tick|finding|bookmark"),
    Action("goto", (), "", "goto",
           "Go to a place: step 42, 2B5, finding 3, mark 1, 18:22:07.3, 2m03s, +250ms, 40%, end.",
           "time", command="goto", usage="PLACE"),
    Action("mark", ("m",), "m", "bookmark", "Bookmark this moment, with a note; kept in the file.",
           "time", command="mark", usage="[NOTE]"),
    Action("unmark", (), "", "unmark", "Remove bookmark N.", "time", command="unmark",
           usage="N"),
    Action("marks", (), "", "marks", "List the bookmarks.", "time", command="marks"),
    Action("begin", ("home",), "home", "begin", "Go to the start of the run.", "time"),
    Action("end", ("end",), "end", "end", "Go to the end of the recording (live: follow).", "time"),
    Action("follow", ("f",), "f", "follow", "Follow the live run again.", "time", "live",
           "follow", hint=5),
    Action("slower", ("less_than_sign",), "<", "slower", "Play slower, down to 0.01×.", "time",
           "replay", hint=3, hinted=("< >", "speed")),
    Action("faster", ("greater_than_sign",), ">", "faster", "Play faster, up to 100×.", "time",
           "replay"),
    Action("reverse", ("r",), "r", "reverse", "Play in reverse.", "time", "replay", "reverse",
           hint=5),
    Action("speed", (), "", "speed", "Play FACTOR times as fast as it ran.", "time", "replay",
           "speed", "FACTOR"),
    Action("zoom_in", ("plus", "equals_sign"), "+", "zoom", "Zoom in: half the time on screen.",
           "time", command="zoom", usage="in|out|all"),
    Action("zoom_out", ("minus",), "−", "zoom out", "Zoom out: twice the time on screen.",
           "time"),
    *(_screen(*screen) for screen in SCREENS),
    Action("next_screen", ("tab",), "tab", "next screen", "The next screen.", "screens"),
    Action("previous_screen", ("shift+tab",), "shift tab", "previous screen",
           "The previous screen.", "screens"),
    Action("up", ("up", "k"), "↑ k", "up", "Select the rank or row above.", "look"),
    Action("down", ("down", "j"), "↓ j", "down", "Select the rank or row below.", "look"),
    Action("page_up", ("pageup",), "pgup", "page up", "A page up.", "look"),
    Action("page_down", ("pagedown",), "pgdn", "page down", "A page down.", "look"),
    Action("detail", ("enter",), "enter", "detail", "More about the selected one.", "look"),
    Action("escape", ("escape",), "esc", "back", "Close, clear the filter, or follow again.",
           "look"),
    Action("other", ("p",), "p", "p2p",
           "Schedule or what-if (2), collectives or p2p (4), ring or matrix (5).", "look"),
    Action("grid", ("g",), "g", "by tick",
           "Ticks instead of time (2), most waiting first (4), or back.", "look", command="grid"),
    Action("cell_before", ("h",), "h", "cell before",
           "The previous action, by ticks (2); the previous box (3).", "look"),
    Action("cell_after", ("l",), "l", "next cell",
           "The next action, by ticks (2); the next box (3).", "look"),
    Action("turn_back", ("left_square_bracket",), "[", "pipeline before",
           "The previous pipeline (2), life or role, where a run has several.", "look"),
    Action("turn_on", ("right_square_bracket",), "]", "next pipeline",
           "The next pipeline (2), life or role, where a run has several.", "look"),
    Action("filter", ("slash",), "/", "filter", "Show only what contains TEXT.", "look",
           command="filter", usage="[TEXT]", hint=8),
    Action("rank", (), "", "rank", "Select rank N.", "look", command="rank", usage="N"),
    Action("command", ("colon",), ":", "command", "Type a command; tab completes.", "app", hint=9),
    Action("help", ("question_mark", "f1"), "?", "help", "This list; help WORD explains one.",
           "app", command="help", usage="[WORD]", hint=10),
    Action("picture", ("ctrl+s",), "ctrl s", "picture", "Save this screen as an SVG file.", "app",
           command="picture", usage="[FILE]"),
    Action("theme", (), "", "theme", "Colours: dark, light or 16 (the terminal's own).", "app",
           command="theme", usage="dark|light|16"),
    Action("quit", ("q", "ctrl+c", "ctrl+q"), "q", "leave", "Leave; the job goes on.", "app",
           command="quit", hint=11),
)  # fmt: skip


def for_mode(live: bool) -> Iterator[Action]:
    """Return the actions of this mode."""
    other: Context = "replay" if live else "live"
    return (action for action in ACTIONS if action.context != other)


def hints(live: bool) -> list[Action]:
    """Return the actions that the bottom line offers, in order."""
    return sorted((a for a in for_mode(live) if a.hint), key=lambda action: action.hint)


def by_command(word: str, live: bool) -> list[Action]:
    """Return the actions whose command is ``word``, or else starts with it."""
    named = [action for action in for_mode(live) if action.command]
    exact = [action for action in named if action.command == word]
    return exact or [action for action in named if action.command.startswith(word)]


def ctl_help() -> dict[str, str]:
    """Return verb -> help, for all verbs of ``pardbg ctl``."""
    return {a.verb.value: a.help for a in ACTIONS if a.verb is not None}


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
"""Number of them in a footer: there is more to say."""


def own(screen: str, live: bool) -> list[tuple[Action, str]]:
    """Return the screen's own actions in this mode, with their labels."""
    known = {action.id: action for action in for_mode(live)}
    return [(known[id_], label) for id_, label in OWN.get(screen, {}).items() if id_ in known]


def footer(screen: str, live: bool) -> list[tuple[Action, str]]:
    """Return the actions of the bottom line: pause or play, the screen's own, then those of all
    screens. An empty label means the action's own."""
    first, *rest = hints(live)
    first_own = own(screen, live)[:_FOOTER]
    taken = {first.id, *(action.id for action, _ in first_own)}
    return [(first, ""), *first_own, *((action, "") for action in rest if action.id not in taken)]


INDENT: Final = "  "


def explain(text: str) -> list[str]:
    """Return usage, one sentence, and further text about a word, examples indented twice; empty for
    an unknown word. Lines may be long."""
    word = word_of(text)
    found = [action for action in ACTIONS if action.command == word]
    if not found:
        return []
    lines = []
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
    """Return the lines wrapped to a width, with their indentation."""
    out: list[str] = []
    for text in lines:
        indent = text[: len(text) - len(text.lstrip())]
        out += textwrap.wrap(
            text, cells, initial_indent="", subsequent_indent=indent, break_on_hyphens=False
        ) or [""]  # fmt: skip
    return out
