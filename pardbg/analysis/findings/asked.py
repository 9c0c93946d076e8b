"""Finds what had the job end: Ctrl-C, a viewer, a scheduler, the launcher's own signal."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.run import lines
from pardbg.analysis.findings.reasons import signal_name
from pardbg.analysis.findings.shared import BadEnd
from pardbg.events.control_facts import Killed
from pardbg.words import whole

TOGETHER_NS: Final = 60_000_000
"""A signal reaches ranks within this; whose end is told first is chance."""
_SIGNALLED: Final = (-signal.SIGINT, 128 + signal.SIGINT)
_EVENTS: Final = 64
_OUTPUT_LINES: Final = 400
_SAID_LATE_NS: Final = 250_000_000
"""The launcher's output is read a little later than it is written."""
_DEATH: Final = re.compile(r"Received (\S+) death signal|Process \d+ got signal: (\d+)")


@dataclass(frozen=True, slots=True)
class Told:
    """Somebody had the job end."""

    t_ns: int
    by: str
    """``Ctrl-C (SIGINT)``, ``SIGTERM``, ``kill by view-1a2b``"""


def interrupted(view: View, end: BadEnd) -> bool:
    """Return whether the rank ended by SIGINT or its KeyboardInterrupt."""
    rank, _, how = end
    process = view.ranks[rank]
    if how == "exception":
        mains = (f for f in process.failures if f.thread == "MainThread")
        return next(mains).type == "KeyboardInterrupt"
    return process.exit_code in _SIGNALLED


def told(view: View, bad: Sequence[BadEnd]) -> Told | None:
    """Return the first time that anybody told the job to end, as the launcher, the hub or the
    ranks' own ends say it; None where nobody did."""
    found = [*_by_viewers(view), *_passed_on(view), *_by_launcher(view)]
    found += [Told(end[1], "Ctrl-C (SIGINT)") for end in bad if interrupted(view, end)][:1]
    if not found and bad and all(_terminated(view, end) for end in bad):
        found.append(Told(bad[0][1], "SIGTERM, as a scheduler or `kill` sends it"))
    return min(found, key=lambda one: one.t_ns, default=None)


def after(end: BadEnd, asked: Told | None) -> bool:
    """Return whether it follows from that."""
    return asked is not None and end[1] >= asked.t_ns - TOGETHER_NS


def _by_viewers(view: View) -> list[Told]:
    """``:kill yes`` and the like."""
    events = view.store.controls.last(view.t_ns, _EVENTS)
    return [
        Told(t_ns, f"kill by {event.by or 'a viewer'}")
        for t_ns, event in events
        if isinstance(event.fact, Killed)
    ]


def _passed_on(view: View) -> list[Told]:
    """Signals that ``pardbg run`` got and gave to the job; known once it has ended."""
    if view.run_end is None:
        return []
    names = {signal.SIGINT.value: "Ctrl-C (SIGINT)", signal.SIGTERM.value: "SIGTERM"}
    return [
        Told(t_ns, names.get(number, f"signal {number}"))
        for t_ns, number in view.store.told
        if t_ns <= view.t_ns
    ]


def _terminated(view: View, end: BadEnd) -> bool:
    return end[2] == "killed" and view.ranks[end[0]].exit_code == -signal.SIGTERM


def _by_launcher(view: View) -> list[Told]:
    """A signal that torchrun got itself: it says so before it ends the ranks."""
    for line in lines(view.store, view.t_ns, _OUTPUT_LINES):
        said = _DEATH.search(line.text)
        if said is not None:
            number = next(word for word in said.groups() if word is not None)
            return [Told(line.t_ns - _SAID_LATE_NS, f"{_signal(number)} to the launcher")]
    return []


def _signal(word: str) -> str:
    """``SIGTERM`` of ``15``, ``SIGTERM`` or ``Signals.SIGTERM``."""
    number = whole(word)
    return word.rpartition(".")[2] if number is None else signal_name(-number)
