"""Looks of style tokens: dark, light and 16-colour palettes, and the first two on the grounds of
Textual's themes.

Meaning never rests on colour alone: forward and backward carry letters, causes of idle carry
characters, states carry signs. Forward is blue and backward orange, which stay apart for every
common kind of colour blindness. A token that is not in the table falls back to its parent
(``comm.all_reduce`` -> ``comm``).
"""

from __future__ import annotations

import math
from functools import lru_cache
from importlib import resources
from typing import Final

from rich.color import Color, blend_rgb
from rich.segment import Segment
from rich.style import Style
from textual.color import Color as Tint
from textual.color import rgb_to_lab
from textual.filter import LineFilter
from textual.theme import BUILTIN_THEMES, Theme

from pardbg.render.draw.cells import PAIR, SELECTED
from pardbg.render.draw.regions import LETTER

HEADER = "+head"
"""Ending of tokens that are drawn on the header's background."""

_HUED: Final = 15
"""Distance from grey in CIELAB from which a colour is told by its hue."""
_FAR = 0.35
"""Share of a colour that is kept when it is dimmed behind the letters of a jump."""
PALETTES = ("dark", "light", "16")
EDGE = "+edge"
"""Ending of tokens that draw a line in the background's colour: the edge between two boxes."""
_EDGE_COLOUR = {"dark": "#0d1218", "light": "#fbfbf9", "16": "black"}
_GROUND = {
    SELECTED: {"dark": "#1f2b38", "light": "#dfe7ef", "16": ""},
    HEADER: {"dark": "#1a232d", "light": "#e6e9ec", "16": ""},
}


def _parse() -> dict[str, dict[str, tuple[str, str, str]]]:
    """Return the looks of each palette. ``palette.txt`` has lines ``token | dark | light | 16
    colours``; each look is ``foreground background attribute``, ``-`` for none."""
    tables: dict[str, dict[str, tuple[str, str, str]]] = {name: {} for name in PALETTES}
    text = resources.files("pardbg.ui").joinpath("palette.txt").read_text("utf-8")
    for row in text.splitlines():
        token, *looks = (part.strip() for part in row.split("|"))
        for name, look in zip(PALETTES, looks, strict=True):
            front, back, attribute = (*look.split(), "")[:3]
            tables[name][token.strip(".")] = (front.strip("-"), back.strip("-"), attribute)
    return tables


_LOOKS = _parse()


@lru_cache(maxsize=8192)
def style(palette: str, token: str, far: bool = False) -> Style:
    """Return the rich style of ``token`` in ``palette`` (``dark``, ``light`` or ``16``); ``far``:
    dimmed, behind the letters of a jump."""
    if far and token != LETTER:
        return _dimmed(palette, style(palette, token))
    name, mark, ending = token.partition("+")
    front, back, attribute = _look(palette, name.partition(PAIR)[0])
    if PAIR in name:
        back, attribute = _look(palette, name.partition(PAIR)[2])[0], ""
    if mark + ending == EDGE:
        return Style(color=_placed(palette, _EDGE_COLOUR[base_of(palette)]), bgcolor=back or None)
    reverse = attribute == "reverse"
    if mark and not back:
        back = _placed(palette, _GROUND[mark + ending][base_of(palette)])
        reverse = palette == "16" and mark + ending == SELECTED and not name.startswith("strip.")
        front = "" if reverse else front  # one bar, not one of many colours
    return Style(
        color=front or None, bgcolor=back or None,
        bold=attribute == "bold" or None, reverse=reverse or None,
    )  # fmt: skip


def _dimmed(palette: str, look: Style) -> Style:
    if palette == "16":
        return Style(color="bright_black")
    ground = Color.parse(_placed(palette, _EDGE_COLOUR[base_of(palette)])).get_truecolor()

    def near(colour: Color | None) -> Color | None:
        return colour and Color.from_triplet(blend_rgb(ground, colour.get_truecolor(), _FAR))

    return Style(color=near(look.color), bgcolor=near(look.bgcolor))


def _look(palette: str, token: str) -> tuple[str, str, str]:
    table = _LOOKS[base_of(palette)]
    while token not in table:
        token = token.rpartition(".")[0]
    front, back, attribute = table[token]
    return _placed(palette, front), _placed(palette, back), attribute


def base_of(palette: str) -> str:
    """Return the palette whose looks a theme has: its own, else dark or light."""
    if palette in PALETTES:
        return palette
    return "dark" if BUILTIN_THEMES[palette].dark else "light"


@lru_cache(maxsize=8192)
def _placed(palette: str, colour: str) -> str:
    """Return a colour as it stands on a theme's ground: what is near the ground in brightness moves
    with it, and the ink for the focus is the theme's; other hues have a meaning and stay."""
    if palette in PALETTES or not colour.startswith("#"):
        return colour
    theme = BUILTIN_THEMES[palette]
    own = THEMES[not theme.dark]
    if colour == own.primary:
        return theme.primary
    wanted, old, new, text = (
        Tint.parse(one or "") for one in (colour, own.background, theme.background, own.foreground)
    )
    light, ground, ink = (rgb_to_lab(one).L for one in (wanted, old, text))
    share = 1 - min(1.0, max(0.0, (light - ground) / (ink - ground)))
    red, green, blue = (
        round(is_ + (to - from_) * share)
        for is_, from_, to in zip(wanted.rgb, old.rgb, new.rgb, strict=True)
    )
    return Tint(red, green, blue).clamped.hex


class Nearest(LineFilter):
    """The nearest colours of a 256-colour terminal, by look. (rich makes the dark grounds black,
    navy or olive, so that header, selection and the fills of charts are lost or too bright.)"""

    def apply(self, segments: list[Segment], background: Tint) -> list[Segment]:
        return [
            Segment(text, near and _nearest_style(near), control)
            for text, near, control in segments
        ]


@lru_cache(maxsize=8192)
def _nearest_style(look: Style) -> Style:
    return look + Style.from_color(
        look.color and nearest(look.color), look.bgcolor and nearest(look.bgcolor)
    )


@lru_cache(maxsize=4096)
def nearest(colour: Color) -> Color:
    """Return the colour of the 240 fixed ones of 256 that looks most like ``colour`` (by CIELAB);
    of a terminal's own colours itself. What has a hue keeps it: brown is not made grey."""
    if colour.triplet is None:
        return colour
    wanted = rgb_to_lab(Tint(*colour.triplet))

    hued = math.hypot(wanted.a, wanted.b) > _HUED

    def far(candidate: Color) -> float:
        lab = rgb_to_lab(Tint(*candidate.get_truecolor()))
        light, red, yellow = lab.L - wanted.L, lab.a - wanted.a, lab.b - wanted.b
        turn = math.atan2(lab.b, lab.a) - math.atan2(wanted.b, wanted.a)
        more = light**2 + math.degrees(math.acos(math.cos(turn))) ** 2 if hued else 0.0
        return light**2 + red**2 + yellow**2 + more

    return min(map(Color.from_ansi, range(16, 256)), key=far)


THEMES = (
    Theme(
        "pardbg-dark", primary="#7fd1c7", accent="#7fd1c7", foreground="#cdd5de",
        background="#0d1218", surface="#141b23", panel="#1a232d", warning="#e9c767",
        error="#f0717b", success="#67bb84", dark=True,
    ),
    Theme(
        "pardbg-light", primary="#00796b", accent="#00796b", foreground="#2c343d",
        background="#fbfbf9", surface="#f2f3f3", panel="#e6e9ec", warning="#8a6100",
        error="#b3202e", success="#22743f", dark=False,
    ),
    Theme(
        "pardbg-16", primary="ansi_cyan", accent="ansi_cyan", foreground="ansi_default",
        background="ansi_default", surface="ansi_default", panel="ansi_default",
        warning="ansi_yellow", error="ansi_red", success="ansi_green", boost="ansi_default",
        dark=True, ansi=True, variables=BUILTIN_THEMES["ansi-dark"].variables,
    ),
)  # fmt: skip
NAMES: Final = {
    **{theme.name.removeprefix("pardbg-"): theme.name for theme in THEMES},
    **{name: name for name, theme in sorted(BUILTIN_THEMES.items())
       if (theme.background or "").startswith("#")},
}  # fmt: skip
"""Name of a theme as one types it -> Textual's."""
