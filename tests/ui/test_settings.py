"""Settings of the user's file: theme, own keys, columns, the page to begin with; the gallery."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from textual.binding import BindingsMap

from pardbg.errors import UserError
from pardbg.render.pages.overview.rank_table import COLUMNS, DRAWN, SHARES, columns_of
from pardbg.ui.commands.startup import Rc, RcLine, keep_setting, split_rc
from pardbg.ui.main.main_screen import MainScreen
from pardbg.ui.main.own_keys import OwnKeys
from pardbg.ui.palette import NAMES, style
from tests.ui import sample
from tests.ui.fakes import app_on, shows, text_of, until

pytestmark = pytest.mark.timeout(60)


def rc_of(*lines: str, own: Path | None = None) -> Rc:
    return Rc(tuple(RcLine(f"rc:{n}", line) for n, line in enumerate(lines, 1)), (), own)


def test_settings_are_told_from_commands_of_a_live_run() -> None:
    rc = rc_of("theme nord", "break step==3", "key G goto end", "braek", "timeline")
    settings, rest = split_rc(rc, live=True)
    assert [found.action.command for _, found in settings] == ["theme", "key", "timeline"]
    assert [line.text for line in rest.lines] == ["break step==3", "braek"]
    # A recording has no breakpoints; what is wrong is told there, too.
    assert [line.text for line in split_rc(rc, live=False)[1].lines] == ["braek"]


def test_a_setting_takes_the_place_of_the_last_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "pardbg" / "rc"
    keep_setting(link, "theme", "nord")
    assert link.read_text() == "theme nord\n" and stat.S_IMODE(link.stat().st_mode) == 0o600
    link.rename(real)
    real.chmod(0o664)
    real.write_text("theme a\n# mine\ntheme b\nwatch nan\n")
    link.symlink_to(real)
    keep_setting(link, "theme", "light")
    assert stat.S_IMODE(real.stat().st_mode) == 0o664
    assert link.is_symlink() and real.read_text() == "theme a\n# mine\ntheme light\nwatch nan\n"


def test_own_keys_take_free_keys_alone() -> None:
    keys = OwnKeys(BindingsMap(MainScreen.BINDINGS))
    for argument, key, line in (
        ("G goto end", "G", "goto end"), ("% goto 40%", "percent_sign", "goto 40%"),
        ("F5 step all", "f5", "step all"), ("alt+x marks", "alt+x", "marks"),
    ):  # fmt: skip
        keys.bind(argument)
        assert keys.line_of(key) == line
    keys.bind("G goto step 3")  # one's own again
    assert keys.line_of("G") == "goto step 3"
    assert next(row[1:] for row in keys.help_rows()) == ("G", "", "goto step 3")
    for wrong, word in (
        ("s tick", "step"), ("colon tick", "no key"), (": tick", "command"),
        ("hyper+x tick", "no key"),
        ("X", "KEY COMMAND"), ("X braek", "did you mean"), ("X kill yes", "kill"),
        ("enter tick", "detail"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=word):
            keys.bind(wrong)


def test_chosen_columns_stand_in_their_order_after_the_rank() -> None:
    snapshot = sample.snapshot_ddp()
    titles = [one.title for one in columns_of(snapshot, 120, False, ("memory", "now", "node"))]
    assert titles == ["rank", "memory", "now"]  # one node: it has no column
    every = {one.title for one in columns_of(snapshot, 120)}
    assert every | {SHARES} <= set(COLUMNS) | {DRAWN[1]}


def test_other_themes_keep_the_hues_that_mean_something() -> None:
    for name in NAMES:
        ground, ahead, back = (style(name, token) for token in ("dim", "ink.P", "ink.G"))
        assert len({ground.color, ahead.color, back.color}) == 3, name


async def test_settings_hold_in_a_recording() -> None:
    rc = rc_of("theme nord", "key G overview", "columns now, memory", "key s tick", "timeline")
    app = app_on(sample.snapshot_ddp(), live=False, rc=rc)
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(app, "rc:4: s is step")
        assert app.theme == "nord" and app.main.active == "timeline"
        await pilot.press("G")
        await shows(app, "rank  now")
        assert "step time" not in text_of(app).partition("rank  now")[2]
        await pilot.press("question_mark")
        await shows(app, "Your keys")


async def test_the_gallery_wears_each_theme_and_keeps_one(tmp_path: Path) -> None:
    own = tmp_path / "rc"
    app = app_on(sample.snapshot_ddp(), rc=rc_of(own=own))
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(app, "rank")
        app.main.run_line("theme")
        await shows(app, "enter keeps")
        await pilot.press("down")
        await until(lambda: app.theme == "pardbg-light", "worn")
        await pilot.press("escape")
        await until(lambda: app.theme == "pardbg-dark" and app.screen is app.main, "as before")
        app.main.run_line("theme")
        await shows(app, "enter keeps")
        await pilot.press("j", "enter")
        await until(lambda: own.exists() and own.read_text() == "theme light\n", "kept")
        app.main.run_line("theme nonesuch")
        await shows(app, "no theme 'nonesuch'")
