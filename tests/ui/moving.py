"""Several screens as one SVG that moves: what a row shows is drawn once for as long as it stays.

A screen is what ``App.export_screenshot`` returns: rectangles and texts whose ``y`` says their row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_RULE = re.compile(r"\.terminal-\d+-r(\d+) \{ ([^}]*?) \}")
_RECT = re.compile(r'<rect fill="([^"]+)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"[^>]*/>')
_TEXT = re.compile(
    r'<text class="terminal-\d+-r(\d+)" x="([\d.]+)" y="([\d.]+)" textLength="([\d.]+)"[^>]*>'
    r"(.*?)</text>"
)
_SIZE = re.compile(r'-clip-terminal">\s*<rect x="0" y="0" width="([\d.]+)" height="([\d.]+)"')
ROW = 24.4
"""Height of a row in Rich's pictures; a text's base line is 20 below the first row's top."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Part of a picture: what one row shows in frames ``first`` to before ``last``."""

    first: int
    last: int
    drawn: str


def _rows(screen: str, styles: dict[str, str]) -> dict[int, str]:
    """Return what each row draws. ``styles``: names by style, of all screens; gets new ones."""
    named = {
        number: styles.setdefault(style, f"s{len(styles)}")
        for number, style in _RULE.findall(screen)
    }
    rows: dict[int, list[str]] = {}
    for fill, x, y, width in _RECT.findall(screen):
        row = round((float(y) - 1.5) / ROW)
        rows.setdefault(row, []).append(
            f'<rect fill="{fill}" x="{x}" y="{y}" width="{width}" height="24.65"/>'
        )
    for number, x, y, length, text in _TEXT.findall(screen):
        if text.replace("&#160;", "").strip():
            rows.setdefault(round((float(y) - 20) / ROW), []).append(
                f'<text class="{named[number]}" x="{x}" y="{y}" textLength="{length}">'
                + text.replace("&#160;", "\u00a0") + "</text>"
            )  # fmt: skip
    return {row: "".join(parts) for row, parts in rows.items()}


def runs(screens: Sequence[str], styles: dict[str, str]) -> list[Shown]:
    """Return what the rows of all screens show, and in which of them."""
    frames = [_rows(screen, styles) for screen in screens]
    found = []
    for row in sorted({row for frame in frames for row in frame}):
        first = 0
        for at in range(1, len(frames) + 1):
            drawn = frames[first].get(row, "")
            if at == len(frames) or frames[at].get(row, "") != drawn:
                found.append(Shown(first, at, drawn))
                first = at
    return [part for part in found if part.drawn]


def moving(screens: Sequence[str], seconds: Sequence[float]) -> str:
    """Return the SVG; ``seconds``: how long each screen stays. It begins again at its end."""
    size = _SIZE.search(screens[0])
    assert size is not None, "no picture of a terminal"
    width, height = size.groups()
    styles: dict[str, str] = {}
    parts = runs(screens, styles)
    whole = sum(seconds)
    until = [100 * sum(seconds[:frame]) / whole for frame in range(len(seconds) + 1)]
    kept = {(part.first, part.last) for part in parts} - {(0, len(screens))}
    rules = [f".{name} {{ {style} }}" for style, name in styles.items()]
    rules += [_rule(span, until, whole) for span in sorted(kept)]
    body = (
        f"<g>{part.drawn}</g>"
        if (part.first, part.last) not in kept
        else f'<g class="f{part.first}-{part.last}">{part.drawn}</g>'
        for part in parts
    )
    ground = f'<rect width="{width}" height="{height}" fill="#0d1218"/>'
    return "\n".join((
        f'<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">',
        "<style>text { font-family: 'Fira Code', 'DejaVu Sans Mono', monospace; font-size: 20px }",
        *rules, "</style>", ground, *body, "</svg>", "",
    ))  # fmt: skip


def _rule(span: tuple[int, int], until: Sequence[float], whole_s: float) -> str:
    """Return CSS by which frames ``span`` are seen; ``until``: frames' ends in percent."""
    first, last = span
    name = f"f{first}-{last}"
    seen = (0.0, first == 0), (until[first], True), (until[last], last == len(until) - 1)
    frames = " ".join(
        f"{at:.3f}% {{ visibility: {'visible' if is_seen else 'hidden'} }}" for at, is_seen in seen
    )
    animation = f"{name} {whole_s:g}s step-end infinite"
    return f".{name} {{ animation: {animation} }} @keyframes {name} {{ {frames} }}"
