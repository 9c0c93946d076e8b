"""What terminals without UTF-8, or with 16 colours, show in place of blocks, dots and grounds."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from rich.color import Color, ColorSystem, ColorType
from rich.segment import Segment
from textual.color import Color as Tint

from pardbg.analysis.answers.snapshot import Snapshot, snapshot
from pardbg.analysis.answers.timeline import LaneSpan
from pardbg.render.draw.axis import Axis
from pardbg.render.draw.cells import SELECTED, plain
from pardbg.render.draw.signs import ascii_of, keys_text
from pardbg.render.pages.collectives import CollectivesPageState, collectives
from pardbg.render.pages.memory import memory
from pardbg.render.pages.overview.page import OverviewPageState, overview
from pardbg.render.pages.pipeline.schedule import CAUSE_CHAR
from pardbg.render.pages.timeline import lane
from pardbg.session.reader import load
from pardbg.ui.commands.actions import OWN, footer
from pardbg.ui.palette import HEADER, Nearest, nearest, style
from tests.ui.fakes import until
from tests.ui.recorded import replayed

SESSIONS = Path(__file__).parents[2] / "sessions"
PALETTE = Path(__file__).parents[2] / "pardbg" / "ui" / "palette.txt"


@pytest.fixture(scope="module")
def creep() -> Snapshot:
    return snapshot(load(SESSIONS / "fault-memory-creep.mcap"), None)


def test_dots_of_a_chart_keep_their_half_of_the_cell() -> None:
    assert ascii_of("⠉⠒⣀⠤⡇⠁⢀") == "''..:'."
    assert ascii_of("━╸") == "--", "the end of a thin bar"


@pytest.mark.parametrize(("cells", "rows"), [(80, 20), (120, 36), (200, 56)])
def test_the_legend_of_the_strips_has_their_signs(creep: Snapshot, cells: int, rows: int) -> None:
    picture = overview(creep, cells, rows, OverviewPageState(ascii=True))
    rows_ = map(plain, (*picture.head, *picture.body))
    said = [row for row in rows_ if "compute" in row and "waiting" in row][-1]
    assert "# compute" in said and ". waiting" in said and "█" not in said


def test_areas_are_letters(creep: Snapshot) -> None:
    picture = memory(creep, 120, 36, 2, ascii_=True)
    rows = [plain(row) for row in picture.body]
    charts = rows[next(at for at, row in enumerate(rows) if "over time" in row) :]
    text = "\n".join(row[:58] for row in charts)
    for sign in ("PPP", "OOO", "AAA", "+++", "..."):
        assert sign in text
    assert not set("▁▂▃▄▅▆▇█") & set(text)


def test_the_mark_of_what_is_expected_hides_no_category(creep: Snapshot) -> None:
    """At 80 cells P, G, O and A have a cell each, and the expected end of O is in one of them."""
    rows = [plain(row) for row in memory(creep, 80, 20).body][:4]
    assert all("PGOA" in row for row in rows)


def test_a_selected_row_of_16_colours_is_one_bar() -> None:
    looks = {style("16", token + SELECTED) for token in ("", "dim", "spark", "warn")}
    assert len(looks) == 1 and looks.pop().reverse
    assert not style("16", "strip.compute" + SELECTED).reverse, "strips stay"
    assert style("dark", "warn" + SELECTED).color != style("dark", "dim" + SELECTED).color


@pytest.mark.parametrize("palette", ["dark", "light"])
def test_256_colours_keep_grounds_and_inks_apart(palette: str) -> None:
    """rich makes the ground of the header black, of a selected row navy, of a fill teal."""
    ground = Color.parse({"dark": "#0d1218", "light": "#fbfbf9"}[palette])
    shades = [style(palette, "x" + SELECTED).bgcolor, style(palette, "x" + HEADER).bgcolor]
    shades += [style(palette, f"fill.{ink}.0").color for ink in ("spark", "loss")]
    for shade in shades:
        red, green, blue = nearest(shade or ground).get_truecolor()
        assert max(red, green, blue) - min(red, green, blue) <= 16, "a grey, as it is faint"
        assert nearest(shade or ground) != nearest(ground)
    strips = [style(palette, f"strip.{part}").color for part in ("compute", "comm", "waiting")]
    assert len({nearest(strip).number for strip in strips if strip}) == 3


def test_colours_of_256_are_not_changed_again() -> None:
    look = style("dark", "brand")
    ((text, shown, _),) = Nearest().apply([Segment("pardbg", look)], Tint(0, 0, 0))
    assert text == "pardbg" and shown is not None and shown.bold
    for colour in (shown.color, shown.bgcolor):
        assert colour is not None and colour.downgrade(ColorSystem.EIGHT_BIT) == colour
        assert nearest(colour) == colour
    assert nearest(Color.parse("bright_cyan")) == Color.parse("bright_cyan"), "the terminal's own"


@pytest.mark.parametrize("signs", ["".join(CAUSE_CHAR.values()), "░▒ ", "●◆■▲×+"])
def test_signs_of_one_legend_stay_apart(signs: str) -> None:
    """Causes of idle, a sharded step, kinds of operations."""
    assert len(set(ascii_of(signs))) == len(signs)


def test_keys_of_a_footer_stay_apart_in_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both arrows and speed would be ``< >``."""
    monkeypatch.setenv("LC_ALL", "C")
    for screen, live in itertools.product(OWN, (False, True)):
        keys = [(one.hinted or (one.shown,))[0] for one, _ in footer(screen, live)]
        assert len({ascii_of(keys_text(key)) for key in keys}) == len(keys), screen


def test_a_cut_is_no_end_of_a_sentence() -> None:
    assert ascii_of("8 stages on 8…") not in ("8 stages on 8.", "8 stages on 8-")


def test_a_product_is_no_decimal_point() -> None:
    assert ascii_of("2(N−1)/N⋅Z = 2⋅3/4 ⋅ 1.747 MB") == "2(N-1)/N*Z = 2*3/4 * 1.747 MB"


def test_kinds_of_operations_have_a_mark_each(creep: Snapshot) -> None:
    picture = collectives(creep, 200, 60, CollectivesPageState())
    shown = "".join(plain(row) for row in (*picture.head, *picture.body, *picture.foot))
    assert "● all_reduce  ◆ broadcast  ■ barrier" in shown
    assert "◆" in shown.replace("◆ broadcast", "")


@pytest.mark.parametrize(
    ("name", "size", "shown"),
    [
        ("send F3 to r1", 1, "s"),
        ("recv", 2, "r"),
        ("all_reduce #4", 1, "A"),
        ("pipeline", 7, "pipeli…"),
    ],
)
def test_a_narrow_box_has_a_letter(name: str, size: int, shown: str) -> None:
    style = "phase.pipeline" if name == "pipeline" else f"comm.{name.split()[0]}"
    box = lane((LaneSpan(0, size, name, style),), Axis(0, 20, 20))
    assert plain(box).rstrip().ljust(size)[:size] == shown.ljust(size)


def test_narrow_boxes_of_one_kind_stay_apart() -> None:
    boxes = [LaneSpan(at, at + 1, "send F0 to r1", "comm.send") for at in range(3)]
    assert plain(lane(boxes, Axis(0, 20, 20))).rstrip() == "s▏s"


def test_16_colours_are_readable_on_light_and_dark_terminals() -> None:
    """The ground is the terminal's own: ink that is black or white may be the same."""
    for row in PALETTE.read_text("utf-8").splitlines():
        token, ink, ground, *how = row.partition("|")[0].split() + row.split("|")[3].split()
        extreme = ink in ("black", "white", "bright_white")
        assert not extreme or ground != "-" or "reverse" in how, token


@pytest.mark.parametrize("palette", ["dark", "light"])
def test_words_stand_out_from_their_ground(palette: str) -> None:
    """3 : 1 at least, by WCAG's measure."""
    words = (
        "",
        "strong",
        "title",
        "dim",
        "faint",
        "accent",
        "good",
        "warn",
        "bad",
        "held",
        "key",
        "culprit",
        "tab",
        "prompt",
        "stderr",
        "late",
        "gone",
        "observed",
        "modelled",
        "heat.1",
        "heat.2",
        "heat.3",
        "heat.4",
        "plan.F",
        "plan.B",
        "next.F",
        "comm",
        "phase.optimizer",
        "comm.recv",
        "fsdp.unshard",
        "step",
        "launch",
        "chunk.1",
        "chosen",
        "alarm",
        "brand",
    )
    ground = {"dark": "#0d1218", "light": "#fbfbf9"}[palette]
    for token in words:
        look = style(palette, token)
        ratio = _ratio(look.color, look.bgcolor or Color.parse(ground))
        assert ratio >= 3, (token, ratio)


def _ratio(ink: Color | None, ground: Color) -> float:
    assert ink is not None
    low, high = sorted(map(_luminance, (ink, ground)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: Color) -> float:
    """WCAG's relative luminance of sRGB."""
    parts = [part / 255 for part in colour.get_truecolor()]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_every_page_keeps_to_16_colours_and_has_its_signs_in_ascii(
    size: tuple[int, int],
) -> None:
    async with replayed("fault-straggler", size) as (app, pilot):
        app.theme = "pardbg-16"
        for number in "1234567890":
            await pilot.press(number)
            await until(lambda: app.main.page.ready, number)
            for row in app.screen._compositor.render_strips():
                for run in row:
                    assert ascii_of(run.text).count("?") == run.text.count("?"), (number, run.text)
                    for colour in (run.style.color, run.style.bgcolor) if run.style else ():
                        kind = colour.type if colour is not None else ColorType.DEFAULT
                        assert kind <= ColorType.STANDARD, (number, run)
