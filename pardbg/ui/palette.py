"""What style tokens look like: dark, light and 16-colour palettes.

Meaning never rests on colour alone: forward and backward carry letters, causes of idle carry
characters, states carry signs. Forward is blue and backward orange, which stay apart for every
common kind of colour blindness. A token that is not in the table falls back to its parent
(``comm.all_reduce`` -> ``comm``).
"""

from __future__ import annotations

from functools import lru_cache

from rich.style import Style
from textual.theme import BUILTIN_THEMES, Theme

from pardbg.render.draw.cells import SELECTED

HEADER = "+head"
"""A token with this ending stands on the header's ground."""

_TABLE = """
.                  | #cdd5de -            | #2c343d -            | white -
strong             | #eef2f6 - bold       | #0d1218 - bold       | bright_white - bold
title              | #eef2f6 - bold       | #0d1218 - bold       | bright_white - bold
dim                | #8592a0 -            | #5d6874 -            | bright_black -
faint              | #566270 -            | #929ca7 -            | bright_black -
rule               | #2b3541 -            | #d3d8dd -            | bright_black -
accent             | #7fd1c7 - bold       | #00796b - bold       | bright_cyan - bold
good               | #67bb84 -            | #22743f -            | green -
warn               | #e9c767 -            | #8a6100 - bold       | bright_yellow -
bad                | #f0717b - bold       | #b3202e - bold       | bright_red - bold
held               | #c9a2f5 - bold       | #6d31b3 - bold       | bright_magenta - bold
chosen             | #0d1218 #eef2f6 bold | #ffffff #1b2430 bold | black bright_white bold
culprit            | #ffd166 - bold       | #8a5200 - bold       | bright_yellow - bold
cursor             | #eef2f6 -            | #0d1218 -            | bright_white -
key                | #7fd1c7 - bold       | #00796b - bold       | bright_cyan - bold
brand              | #0d1218 #7fd1c7 bold | #ffffff #00796b bold | black cyan bold
alarm              | #ffffff #94202c bold | #ffffff #b3202e bold | bright_white red bold
alarm.warn         | #1a1402 #d9b64f bold | #1a1402 #e3bd51 bold | black yellow bold
bar.header         | #cdd5de #1a232d      | #2c343d #e6e9ec      | white - reverse
tab                | #8592a0 -            | #5d6874 -            | bright_black -
tab.on             | #0d1218 #cdd5de bold | #ffffff #39434e bold | black white bold
busy               | #67bb84 -            | #3c9a5d -            | green -
flight             | #6f9fce -            | #3b7bb8 -            | bright_blue -
gap                | #7a5f9c -            | #b497d6 -            | magenta -
flight.curve       | #35506d -            | #a9c6e2 -            | blue -
bubble             | #c99a5b -            | #a8702a -            | yellow -
bar.rest           | #2b3541 -            | #d3d8dd -            | bright_black -
spark              | #6f9fce -            | #3b7bb8 -            | bright_blue -
loss               | #7fd1c7 -            | #00796b -            | bright_cyan -
compute            | #67bb84 -            | #3c9a5d -            | green -
waiting            | #c99a5b -            | #b57a2c -            | yellow -
moving             | #54a9b5 -            | #1f8796 -            | cyan -
observed           | #7fd1c7 -            | #00796b -            | bright_cyan -
modelled           | #8592a0 -            | #5d6874 -            | bright_black -
active             | #eef2f6 - bold       | #0d1218 - bold       | bright_white - bold
action.F.even      | #08121c #529fe8 bold | #ffffff #2d7cc7 bold | black bright_blue bold
action.F.odd       | #08121c #3d85c9 bold | #ffffff #1f64a6 bold | white blue bold
action.F.now       | #08121c #a5d0ff bold | #08121c #8fc3f5 bold | black bright_white bold
action.B.even      | #1a0f02 #e8a14d bold | #201202 #eda64f bold | black bright_yellow
action.B.odd       | #1a0f02 #c98536 bold | #201202 #d18a33 bold | black yellow
action.B.now       | #1a0f02 #ffd9a3 bold | #201202 #ffd9a3 bold | black bright_white bold
action.I.even      | #1a0712 #d88fb4 bold | #ffffff #b45c88 bold | black bright_magenta
action.I.odd       | #1a0712 #b87397 bold | #ffffff #96466f bold | black magenta
action.I.now       | #1a0712 #f5c4dc bold | #1a0712 #f0bcd6 bold | black bright_white bold
action.W.even      | #0f1404 #b9c763 bold | #171d05 #b4c254 bold | black bright_green
action.W.odd       | #0f1404 #98a64a bold | #171d05 #96a43d bold | black green
action.W.now       | #0f1404 #dfeaa0 bold | #171d05 #dfeaa0 bold | black bright_white bold
action             | #0d1218 #7d8794      | #ffffff #7d8794      | black white
action.X           | #0d1218 #7d8794      | #ffffff #7d8794      | black white
action.F           | #08121c #529fe8 bold | #ffffff #2d7cc7 bold | white blue bold
action.B           | #1a0f02 #e8a14d bold | #201202 #eda64f bold | black yellow
action.I           | #1a0712 #d88fb4 bold | #ffffff #b45c88 bold | black magenta
action.W           | #0f1404 #b9c763 bold | #171d05 #b4c254 bold | black green
action.F.even.low  | #0c2740 #529fe8      | #dcecfb #2d7cc7      | black bright_blue bold
action.F.odd.low   | #08203a #3d85c9      | #d0e4f7 #1f64a6      | white blue bold
action.B.even.low  | #4a2f0c #e8a14d      | #5c3a0a #eda64f      | black bright_yellow
action.B.odd.low   | #3a2407 #c98536      | #442a05 #d18a33      | black yellow
action.I.even.low  | #42182e #d88fb4      | #f9e3ee #b45c88      | black bright_magenta
action.I.odd.low   | #33101f #b87397      | #f5dae8 #96466f      | black magenta
action.W.even.low  | #343c0f #b9c763      | #3b4410 #b4c254      | black bright_green
action.W.odd.low   | #272d08 #98a64a      | #2c3309 #96a43d      | black green
plan.F             | #5f9bd3 -            | #2d6fae -            | bright_blue -
plan.B             | #c08d4f -            | #9a6420 -            | yellow -
plan.I             | #b87f9d -            | #96466f -            | magenta -
plan.W             | #9aa65c -            | #66722a -            | green -
plan.X             | #6b7683 -            | #5d6874 -            | white -
ahead.F            | #3d6287 -            | #7fa3c6 -            | blue -
ahead.B            | #7a5c36 -            | #c09a68 -            | bright_black -
ahead.I            | #77546a -            | #b98da4 -            | magenta -
ahead.W            | #656d40 -            | #98a16a -            | green -
ahead              | #566270 -            | #929ca7 -            | bright_black -
next.F             | #7fbdfb - bold       | #0f529a - bold       | bright_blue - bold
next.B             | #ffb964 - bold       | #8a5200 - bold       | bright_yellow - bold
next.I             | #f0a9cd - bold       | #8a2f60 - bold       | bright_magenta - bold
next.W             | #d3e178 - bold       | #565f10 - bold       | bright_green - bold
next               | #cdd5de - bold       | #2c343d - bold       | bright_white - bold
idle.warmup        | #47525f #161d25      | #a3acb5 #eff1f3      | bright_black -
idle.cooldown      | #47525f #161d25      | #a3acb5 #eff1f3      | bright_black -
idle.dependency    | #9c8a55 #1d2026      | #8a7431 #f3efe2      | yellow -
idle.communication | #54a9b5 #17222b      | #1f7784 #e4f1f3      | cyan -
idle.host          | #c2717c #221d26      | #a83a48 #f7e6e8      | red -
phase              | #cdd5de #2b3541      | #2c343d #d3d8dd      | black white
phase.forward      | #d5e6f7 #28527c      | #0c2a47 #b3d2ef      | white blue
phase.backward     | #fbe8d0 #7d5626      | #432a08 #f3d0a2      | black yellow
phase.optimizer    | #dcf2e4 #2f6a48      | #0c3219 #b4ddc2      | black green
phase.data         | #dfe4ea #4b5664      | #2c343d #ccd2d9      | black white
phase.pipeline     | #cdd5de #333f4d      | #2c343d #e0e4e8      | black white
phase.recompute    | #d5e6f7 #3d4f86      | #0c2a47 #c3c8ef      | white magenta
step               | #8592a0 #1d2630      | #5d6874 #eceff1      | white -
comm               | #e0f4f6 #1f6f7c      | #ffffff #1f8796      | black cyan
comm.all_gather    | #dff3e6 #2d6e5b      | #08301f #a9d9c5      | black green
comm.reduce_scatter | #fbe3d0 #8a4a2c     | #43200a #f3c3a2      | black yellow
comm.all_to_all    | #eee6fa #5d4d86      | #ffffff #75619f      | black magenta
comm.send          | #e0f4f6 #1f6f7c      | #ffffff #1f8796      | black bright_cyan
comm.recv          | #d8ecee #2c5560      | #0e3f46 #a3d3d9      | black cyan
wait               | #8a7c55 #1d2026      | #8a7431 #f3efe2      | yellow -
fsdp               | #d3dde6 #2f4453      | #1b2a35 #c4d3dd      | black white
fsdp.unshard       | #dff3e6 #2d6e5b      | #08301f #a9d9c5      | black green
fsdp.wait          | #8a7c55 #1d2026      | #8a7431 #f3efe2      | yellow -
fsdp.reshard       | #cdd5de #47525f      | #2c343d #c3cad1      | black white
fsdp.reduce        | #fbe8d0 #7d5626      | #432a08 #f3d0a2      | black yellow
user               | #eee6fa #5d4d86      | #ffffff #75619f      | black magenta
gate               | #f1e6fd #6b4694 bold | #ffffff #7c4db5 bold | black bright_magenta bold
many               | #8592a0 #2b3541      | #5d6874 #d3d8dd      | black white
mem.P              | #08121c #529fe8 bold | #ffffff #2d7cc7 bold | white blue bold
mem.G              | #1a0f02 #e8a14d bold | #201202 #eda64f bold | black yellow
mem.O              | #04140c #67bb84 bold | #ffffff #3c9a5d bold | black green
mem.A              | #170a24 #c9a2f5 bold | #ffffff #8a55c7 bold | black magenta
mem.U              | #cdd5de #47525f      | #2c343d #c3cad1      | black white
ink.P              | #529fe8 -            | #2d7cc7 -            | bright_blue -
ink.G              | #e8a14d -            | #9a6420 -            | yellow -
ink.O              | #67bb84 -            | #3c9a5d -            | green -
ink.A              | #c9a2f5 -            | #8a55c7 -            | magenta -
expected           | #eef2f6 - bold       | #0d1218 - bold       | bright_white - bold
on.time            | #6b7683 -            | #7d8794 -            | white -
late               | #e9c767 - bold       | #8a6100 - bold       | bright_yellow - bold
gone               | #f0717b - bold       | #b3202e - bold       | bright_red - bold
heat.1             | #5f7183 -            | #929ca7 -            | bright_black -
heat.2             | #6f9fce -            | #2d6fae -            | bright_blue -
heat.3             | #cdd5de -            | #0d1218 - bold       | white -
heat.4             | #e9c767 - bold       | #8a6100 - bold       | bright_yellow - bold
prompt             | #7fd1c7 - bold       | #00796b - bold       | bright_cyan - bold
stderr             | #e9c767 -            | #8a6100 -            | bright_yellow -
"""
"""token | dark | light | 16 colours; each ``foreground background attribute``, ``-`` for none."""

PALETTES = ("dark", "light", "16")
EDGE = "+edge"
"""A token with this ending draws a line in the ground's colour: the edge between two boxes."""
_EDGE_COLOUR = {"dark": "#0d1218", "light": "#fbfbf9", "16": "black"}
_GROUND = {
    SELECTED: {"dark": "#1f2b38", "light": "#dfe7ef", "16": ""},
    HEADER: {"dark": "#1a232d", "light": "#e6e9ec", "16": ""},
}


def _parse() -> dict[str, dict[str, tuple[str, str, str]]]:
    tables: dict[str, dict[str, tuple[str, str, str]]] = {name: {} for name in PALETTES}
    for row in _TABLE.strip().splitlines():
        token, *looks = (part.strip() for part in row.split("|"))
        for name, look in zip(PALETTES, looks, strict=True):
            front, back, attribute = (*look.split(), "")[:3]
            tables[name][token.strip(".")] = (front.strip("-"), back.strip("-"), attribute)
    return tables


_LOOKS = _parse()


@lru_cache(maxsize=4096)
def style(palette: str, token: str) -> Style:
    """The rich style of ``token`` in ``palette`` (``dark``, ``light`` or ``16``)."""
    name, mark, ending = token.partition("+")
    front, back, attribute = _look(palette, name)
    if mark + ending == EDGE:
        return Style(color=_EDGE_COLOUR[palette], bgcolor=back or None)
    reverse = attribute == "reverse"
    if mark and not back:
        back = _GROUND[mark + ending][palette]
        reverse = palette == "16" and mark + ending == SELECTED
    return Style(
        color=front or None, bgcolor=back or None,
        bold=attribute == "bold" or None, reverse=reverse or None,
    )  # fmt: skip


def _look(palette: str, token: str) -> tuple[str, str, str]:
    table = _LOOKS[palette]
    while token not in table:
        token = token.rpartition(".")[0]
    return table[token]


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


def palette_of(theme: str) -> str:
    """``pardbg-dark`` -> ``dark``."""
    return theme.removeprefix("pardbg-")
