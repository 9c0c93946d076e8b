"""The audit trail of control: a line per verb with its outcome, and the names of viewers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pardbg import words
from pardbg.events.control_events import ControlEvent
from pardbg.events.control_facts import (
    Asked,
    Cut,
    Edited,
    Fact,
    Hit,
    Inspected,
    Loose,
    Raised,
    Refused,
    Released,
    RunsOn,
    UnderWay,
)
from pardbg.events.device_facts import DeviceNews
from pardbg.events.log_facts import LogSays
from pardbg.render.frame.control_words import breakpoint_name, fact_text, refusal_text, why_text


@dataclass(frozen=True, slots=True)
class TrailLine:
    """A line of the audit trail: a verb with its outcome, or another event."""

    t_ns: int
    text: str


_OUTCOMES: Final = (Cut, RunsOn, UnderWay, Loose, Released, Hit)
_SOON_NS: Final = 2_000_000_000
"""Maximum time between a verb and a hit that counts as the verb's outcome."""


def trail(events: Iterable[ControlEvent], you: str = "") -> list[TrailLine]:
    """Return a line per verb, with its outcome: ``tick by you → tick 7 ran …``; other events have a
    line of their own, except this viewer's (``you``) evaluations, which the console shows as
    typed."""
    lines: list[TrailLine] = []
    asked = ""
    verbs: list[int] = []
    """Newest lines that are of one verb, ``asked``, and that no cut has answered, but for the last;
    empty: the newest line is of no verb."""
    for event in events:
        fact = event.fact
        if fact is None or (isinstance(fact, Inspected) and you and event.by == you):
            continue
        if isinstance(fact, (DeviceNews, LogSays)):
            continue  # findings say what is wrong
        late = isinstance(fact, Hit) and bool(lines) and event.t_ns - lines[-1].t_ns > _SOON_NS
        if verbs and isinstance(fact, _OUTCOMES) and not late:
            last = lines[verbs[0]]
            came = "; ".join(part for part in _came(event).split("; ") if part not in last.text)
            text = f"{last.text} → {came}" if came else last.text
            lines[verbs[0]] = TrailLine(last.t_ns, text)
            if isinstance(fact, Cut) and len(verbs) > 1:  # commands are answered in order
                verbs.pop(0)
            continue
        text = _line(event, you)
        if lines and text == lines[-1].text and not isinstance(fact, Asked):  # it is said again
            lines[-1] = TrailLine(lines[-1].t_ns, text)
            continue
        lines.append(TrailLine(event.t_ns, text))
        if isinstance(fact, Asked):
            again = bool(verbs) and lines[verbs[-1]].text == text == asked  # the last has no answer
            waits = verbs if again else []
            verbs, asked = [*waits, len(lines) - 1], text
        else:
            verbs = []
    return lines


def _came(event: ControlEvent) -> str:
    """Return the text of an event that follows a verb; a cut without more text is as requested."""
    fact = event.fact
    assert fact is not None
    why = why_text(event.status.why) if isinstance(fact, Cut) and event.status is not None else ""
    text = "; ".join(filter(None, (why, fact_text(fact))))
    return text or ("held at a cut" if isinstance(fact, Cut) else _name(fact))


def _line(event: ControlEvent, you: str) -> str:
    """Return a line such as ``pause by ada on pts/3: 0-1``. The named viewer caused the event: no
    viewer hits a breakpoint, and a refused viewer is not the one who refuses."""
    fact = event.fact
    assert fact is not None
    name, text = _name(fact), _came(event) if isinstance(fact, Cut) else fact_text(fact)
    who = viewer(event.by, you)
    if isinstance(fact, Asked):
        text = text.removeprefix(name).strip()
    elif isinstance(fact, Refused):
        whose = f"{fact.verb} of {who}" if who else fact.verb
        whose = f"your {fact.verb}" if you and event.by == you else whose
        name, text, who = f"{whose} refused", refusal_text(fact.refusal, event.by), ""
    elif isinstance(fact, Hit):
        stop = breakpoint_name(fact.number, fact.watch)
        name, text, who = f"{stop} hit", text.removeprefix(f"{stop}: "), ""
    elif isinstance(fact, Raised):
        who = ""
    by = f" by {who}" if who else ""
    return f"{name}{by}: {text}" if text and text != name else name + by


def _name(fact: Fact) -> str:
    return fact.verb.value if isinstance(fact, (Asked, Edited)) else fact.TAG.replace("_", " ")


def viewer(name: str, you: str = "") -> str:
    """Return ``you`` for this viewer, else the viewer's user and terminal."""
    return "you" if name == you and you else words.viewer(name)
