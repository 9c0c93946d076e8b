"""Conclusions of logs as text and as JSON."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Set
from typing import Any, Final

from pardbg.events.log_facts import LogLine, LogSays
from pardbg.joblog.conclusion import Conclusion
from pardbg.joblog.events import Line
from pardbg.joblog.joined import WAITS
from pardbg.joblog.scan import Log
from pardbg.joblog.verdict import Verdict
from pardbg.joblog.words import KINDS, UNTOLD
from pardbg.words import plural, ranks_text, size

SIGNS: Final = {"error": "✗", "note": "i"}
MAX_UNKNOWN: Final = 3


def text(verdict: Verdict, log: Log, width: int) -> Iterator[str]:
    """Yield the verdict on a log as lines."""
    names = _names({line.file for one in verdict.conclusions for line in one.lines})
    for one in verdict.conclusions:
        kind = KINDS[one.kind]
        note = "follows: " if one.follows else ""
        sign = SIGNS["note" if one.follows else kind.severity]
        yield from _wrapped(f"{note}{kind.sentence(one)}", width, f"{sign} ")
        if not one.follows:
            yield from _wrapped(kind.advice, width, "  → ")
        for line in one.lines[: 1 if one.follows else None]:
            yield f"    {names[line.file]}:{line.number}: {line.text}"[:width]
        yield ""
    if not verdict.conclusions:
        yield "Nothing found: no line of these logs tells of a failure that pardbg knows."
    if verdict.untold:
        yield f"Not told by these logs: {'; '.join(UNTOLD[one] for one in verdict.untold)}."
    if verdict.unknown:
        number = plural(len(verdict.unknown), "watchdog line")
        yield f"{number} in words that pardbg does not know:"
        names = _names({one.file for one in verdict.unknown})
        for line in verdict.unknown[:MAX_UNKNOWN]:
            yield f"    {names[line.file]}:{line.number}: {line.text}"[:width]
    seen = f"; lines of {ranks_text(verdict.ranks)}" if verdict.ranks else ""
    world = f" of {verdict.world_size}" if verdict.world_size and verdict.ranks else ""
    yield f"Read {size(log.num_bytes)}{seen}{world}."


def said(verdict: Verdict) -> tuple[list[LogSays], list[LogLine]]:
    """Return the conclusions, with the lines that support them, as facts of a session."""
    facts: list[LogSays] = []
    lines: dict[tuple[str, int], LogLine] = {}
    for one in verdict.conclusions:
        kind = KINDS[one.kind]
        facts.append(LogSays(
            one.kind, kind.sentence(one), kind.advice, stop=one.kind in WAITS,
            error=kind.severity == "error" and not one.follows, culprits=one.culprits,
            ranks=one.ranks, group=one.group, seq=one.seq, where=_where(one),
        ))  # fmt: skip
        lines |= {(line.file, line.number): LogLine(line.origin.rank, line.text)
                  for line in one.lines}  # fmt: skip
    return facts, list(lines.values())


def _where(one: Conclusion) -> str:
    """Return a place in the form used in findings: ``train.py:88 in forward``."""
    file, line, function = one.place or (one.fact("file"), one.fact("line"), one.fact("function"))
    return f"{str(file).rpartition('/')[2]}:{line} in {function}" if file and line else ""


def _wrapped(text: str, width: int, lead: str) -> list[str]:
    rest = " " * len(lead)
    return textwrap.wrap(text, width, initial_indent=lead, subsequent_indent=rest)


def _names(files: Set[str]) -> dict[str, str]:
    """Return as much of the end of each path as tells it from the others."""
    names: dict[str, str] = {}
    for parts in (1, 2, 3):
        names |= {file: "/".join(file.split("/")[-parts:]) for file in files - names.keys()}
        counts = Counter(names.values())
        names = {file: name for file, name in names.items() if counts[name] == 1}
    return {file: names.get(file, file) for file in files}


def as_json(verdict: Verdict, log: Log) -> dict[str, Any]:
    """Return the conclusions of a log in JSON form."""
    return {
        "findings": [_conclusion(one) for one in verdict.conclusions],
        "untold": list(verdict.untold),
        "unknown_watchdog_lines": [_line(one) for one in verdict.unknown],
        "ranks": list(verdict.ranks),
        "world_size": verdict.world_size,
        "bytes": log.num_bytes,
        "dropped_events": log.dropped,
    }


def _conclusion(one: Conclusion) -> dict[str, Any]:
    kind = KINDS[one.kind]
    return {
        "kind": one.kind, "severity": "note" if one.follows else kind.severity,
        "culprits": list(one.culprits), "ranks": list(one.ranks), "group": one.group or None,
        "seq": one.seq, "op": one.op or None, "follows": one.follows, "facts": dict(one.facts),
        "place": one.place and dict(zip(("file", "line", "function"), one.place, strict=True)),
        "text": kind.sentence(one), "advice": kind.advice,
        "lines": [_line(line) for line in one.lines],
    }  # fmt: skip


def _line(line: Line) -> dict[str, Any]:
    return {"file": line.file, "line": line.number, "rank": line.origin.rank, "text": line.text}
