"""System calls that ranks are blocked in, in words: what they wait for, and what to do."""

from __future__ import annotations

from pardbg.analysis.findings.wording import word
from pardbg.analysis.hangs.blocking_calls import Blocking
from pardbg.sentences import filled


def blocking_text(of: Blocking) -> str:
    """Return the blocked call in words, such as ``it sleeps``, to follow a place."""
    case: str = of.call
    if of.call == "socket" and of.holder is not None:
        case += " of rank"
    elif of.call == "file lock" and of.other:
        case += " of process" if of.holder is None else " of rank"
    elif of.call in ("lock file", "worker", "file", "poll", "socket", "pipe", "full pipe"):
        does = of.does or ("named" if of.file else "")
        case += f" {does}" if word(Blocking, f"text {case} {does}") else ""
    return filled(word(Blocking, f"text {case}"), of)


def blocking_advice(of: Blocking, about: object) -> str:
    """Return a command to run and the usual causes. ``about`` has the ``rank`` and its ``pid``."""
    case, does = f"try {of.call}", of.does if of.holder is None else "of rank"
    return filled(word(Blocking, f"{case} {does}") or word(Blocking, case), of, about)
