"""The line under the prompt: what may be typed next."""

from __future__ import annotations

from collections.abc import Sequence

from pardbg.render.draw.cells import Line, Segment, fit, line
from pardbg.ui.commands import command_line


def note_line(cells: int) -> Line:
    """Under the prompt for a bookmark's note."""
    parts = (" ", Segment("enter", "key"), " keep   ", Segment("esc", "key"), " not")
    return fit(line(*parts), cells)


def candidates_line(text: str, live: bool, completions: Sequence[str], cells: int) -> Line:
    """Usages of the commands ``text`` may become; of a single one its help, or the words that may
    come next. ``completions``: whole lines."""
    found = command_line.candidates(text, live)
    if len(found) != 1:
        return fit(line(" ", *(Segment(f"{usage}  ", "key") for usage, _ in found)), cells)
    usage, help_ = found[0]
    coming = [whole.rstrip().rpartition(" ")[2] for whole in completions]
    more = "  ".join(coming) if " " in text and coming else help_
    return fit(line(" ", Segment(usage, "key"), Segment(f"  {more}", "dim")), cells)
