"""Alerts that call the user to the terminal, once per finding: a bell, or a desktop notification by
the terminal's own sequences (OSC 9: iTerm2, WezTerm, Windows; OSC 777: Ghostty, foot, urxvt).

Off by default. An error is reported at once; ranks that do not progress, once that has lasted as
long as ``--on-hang`` waits before it counts as a hang.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.plain_text import plain

AFTER_NS: Final = 60_000_000_000
MAX_TEXT: Final = 200
OFF: Final = "off"
FORMS: Final = {
    "bell": "\a",
    "osc9": "\x1b]9;{}\x1b\\",
    "osc777": "\x1b]777;notify;pardbg;{}\x1b\\",
}
"""Form of an alert -> the terminal sequence, with a placeholder for the text."""
Key = tuple[str, tuple[int, ...], str | None, int | None]


class Alerts:
    """Alerts already sent; ``form`` is one of FORMS, or OFF."""

    def __init__(self) -> None:
        self.form = OFF
        self._told: set[Key] = set()

    def news(self, snapshot: Snapshot) -> str:
        """Return the text to write to the terminal; empty: no new alert, or alerts are off."""
        new = [(key, text) for key, text in _standing(snapshot) if key not in self._told]
        self._told.update(key for key, _ in new)
        if self.form == OFF or not new:
            return ""
        more = f" (and {len(new) - 1} more)" if len(new) > 1 else ""
        return FORMS[self.form].format(plain(new[0][1])[:MAX_TEXT] + more)


def _standing(snapshot: Snapshot) -> Iterator[tuple[Key, str]]:
    hang = snapshot.hang
    if hang is not None and snapshot.t_ns - hang.since_ns >= AFTER_NS:
        yield ("hang", hang.culprits, None, None), hang.text
    for one in snapshot.findings:
        if one.severity == "error":
            yield (one.kind, tuple(one.culprits or one.ranks), one.group, one.seq), one.text
