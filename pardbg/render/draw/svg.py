"""SVG as text: a few shapes, placed in pixels.

Shapes carry classes (``act F odd``), never colours, so one drawing serves light and dark: the
page's style sheet decides their look.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Final

from pardbg.plain_text import plain_lines


def escape(text: str) -> str:
    """Return untrusted text, escaped for a page or a picture."""
    return html.escape(plain_lines(text))


CHAR_PX: Final = 6.3
"""Width of a character in the charts' 11 px type, an upper estimate."""


class Svg:
    """A picture of ``width`` × ``height`` px that scales to the available space."""

    def __init__(self, width: float, height: float, label: str) -> None:
        self.width, self.height, self._label = width, height, label
        self._parts: list[str] = []

    def rect(self, x: float, y: float, w: float, h: float, style: str, title: str = "") -> None:
        """Add a box; ``title`` is the tooltip."""
        inner = f"<title>{escape(title)}</title>" if title else ""
        at = f'x="{_n(x)}" y="{_n(y)}" width="{_n(max(w, 0))}" height="{_n(h)}"'
        self._parts.append(f'<rect class="{style}" {at}>{inner}</rect>')

    def text(self, x: float, y: float, words: str, style: str = "t", anchor: str = "start") -> None:
        """Add text with its baseline at ``y``; ``anchor``: start, middle or end."""
        place = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self._parts.append(
            f'<text class="{style}" x="{_n(x)}" y="{_n(y)}"{place}>{escape(words)}</text>'
        )

    def line(self, x0: float, y0: float, x1: float, y1: float, style: str = "axis") -> None:
        ends = f'x1="{_n(x0)}" y1="{_n(y0)}" x2="{_n(x1)}" y2="{_n(y1)}"'
        self._parts.append(f'<line class="{style}" {ends}/>')

    def path(self, points: Sequence[tuple[float, float]], style: str) -> None:
        """Add a line through points."""
        if points:
            joined = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
            self._parts.append(f'<polyline class="{style}" points="{joined}"/>')

    def markup(self) -> str:
        """Return the whole element."""
        size = f'viewBox="0 0 {_n(self.width)} {_n(self.height)}"'
        parts = "".join(self._parts)
        return f'<svg {size} role="img" aria-label="{escape(self._label)}">{parts}</svg>'


def fits(words: str, px: float) -> bool:
    """Return whether the text fits into ``px`` pixels."""
    return len(words) * CHAR_PX + 4 <= px


def ticks(top: float, number: int = 4) -> list[float]:
    """Return about ``number`` round values from 0 to ``top``."""
    if not 0 < top < math.inf:
        return [0.0]
    raw = top / number
    scale = 10 ** math.floor(math.log10(raw))
    step = next(m * scale for m in (1, 2, 2.5, 5, 10) if m * scale >= raw * 0.999)
    return [step * i for i in range(int(top / step + 1e-9) + 1)]


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
