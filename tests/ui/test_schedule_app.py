"""Schedules on the tick grid, by keys: the editor, and looking at a table."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from textual.pilot import Pilot

from pardbg.errors import UserError
from pardbg.lab.schedules.compare import Durations
from pardbg.lab.schedules.schedule_app import ScheduleApp
from pardbg.lab.schedules.schedule_table import Table, dump, parse
from pardbg.lab.schedules.sheet import sheet
from pardbg.render.draw.cells import plain
from tests.ui.fakes import until

ONE = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


class File:
    """Where `w` writes to."""

    def __init__(self) -> None:
        self.text, self.refuses = "", False

    def __call__(self, table: Table, other: str) -> str:
        if self.refuses:
            raise UserError("one.csv is not as it was read")
        assert threading.current_thread() is not threading.main_thread()  # the UI's is for drawing
        self.text = dump(table)
        return f"wrote {other or 'one.csv'}"


def app_of(text: str = ONE, save: File | None = None) -> ScheduleApp:
    costs = Durations(1e9, 2e9, 1e9, 1e9)
    return ScheduleApp(parse(text), lambda table: sheet(table, costs), name="one.csv",
                       costs="F=1s,B=2s", save=save)  # fmt: skip


def seen(app: ScheduleApp) -> str:
    return "\n".join(plain(row) for row in (*app._pane.shown, *app._bar.shown))


async def press(app: ScheduleApp, pilot: Pilot[None], *keys: str) -> None:
    await pilot.press(*keys)
    await until(lambda: not app.look.stale, "the sheet of the newest draft")


async def test_figures_and_lint_follow_each_key_and_undo_takes_them_back() -> None:
    app = app_of(save=File())
    async with app.run_test(size=(100, 30)) as pilot:
        await until(lambda: "step 9 s" in seen(app), "the first picture")
        await press(app, pilot, "l", ">")
        # r0: F0 B0 F1 B1: 1F1 waits for 0F1, 4 s longer: 0F1 6..7, 1F1 7..8, 1B1 8..10, 0B1 10..12
        assert "step 12 s (was 9 s)" in seen(app) and "changed" in seen(app)
        await press(app, pilot, ">")
        assert "✗ wrong" in seen(app) or "✕ deadlock" in seen(app)
        assert "never begins" in seen(app)
        await press(app, pilot, "u", "u")
        assert "step 9 s" in seen(app) and "changed" not in seen(app)
        await press(app, pilot, "u")
        assert "nothing to undo" in seen(app)
        await press(app, pilot, "r")
        assert "step 12 s (was 9 s)" in seen(app)


async def test_cells_go_to_another_row_and_are_typed_in() -> None:
    app, file = app_of(save=(file := File())), file
    async with app.run_test(size=(100, 30)) as pilot:
        await press(app, pilot, "j", "l", "m")
        assert "taken up: 1B0" in seen(app)
        await press(app, pilot, "k", "p", "d", "i", *"0F7", "enter", "w")
        assert file.text.splitlines()[1] == "1F0,1F1,1B1"
        assert "0F7" in file.text.splitlines()[0] and "wrote one.csv" in seen(app)
        assert app.focused is None and "changed" not in seen(app)
        await press(app, pilot, "W", *"b.csv", "enter")
        assert "wrote b.csv" in seen(app)


async def test_leaving_and_saving_are_careful() -> None:
    file = File()
    app = app_of(save=file)
    async with app.run_test(size=(100, 30)) as pilot:
        await press(app, pilot, "S")
        file.refuses = True
        await press(app, pilot, "w")
        assert "is not as it was read" in seen(app) and "changed" in seen(app)
        await press(app, pilot, "q")
        assert "changes are not saved" in seen(app) and app.is_running
        await press(app, pilot, "l", "q")
        assert "changes are not saved" in seen(app)  # a key between: it asks again
        await press(app, pilot, "m", "escape", "escape")
        assert app.is_running and "taken up" not in seen(app)  # that lets go, and never leaves
        await press(app, pilot, "q")
        await pilot.press("q")
        await until(lambda: not app.is_running, "the end")


async def test_a_table_is_stepped_through_and_played_to_a_break() -> None:
    app = app_of()
    async with app.run_test(size=(80, 24)) as pilot:
        await press(app, pilot, "0", "t", "t", "t")
        assert "tick 3 of 6" in seen(app) and "◂ 1B0" not in seen(app)
        await press(app, pilot, "t", "T")
        assert app.look.now == 3
        await press(app, pilot, ">", "d")  # not an editor
        assert dump(app.editor.draft.table) == ONE
        await press(app, pilot, "down", "end", "b", "0", "space")
        await until(lambda: "before 1B1" in seen(app), "the break")
        assert app.look.now == 4  # 1B1 is the fifth tick
        await press(app, pilot, "g")
        assert "by time" in seen(app)
        await pilot.click(app._pane, offset=(13, 2))
        await press(app, pilot, "q")


def test_nothing_of_torch_is_imported(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text(ONE)
    code = ("import sys; from pardbg.cli import main; sys.argv = ['pardbg', 'schedule', 'show', "
            f"{str(path)!r}, '--svg', {str(tmp_path / 'one.svg')!r}]\n"
            "try: main()\nexcept SystemExit as e: assert not e.code, e.code\n"
            "import pardbg.lab.schedules.schedule_app\n"
            "assert 'torch' not in sys.modules")  # fmt: skip
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert (tmp_path / "one.svg").read_text().count("<rect") == 2 + 8


@pytest.mark.parametrize("size", [(40, 8), (80, 24), (200, 60)])
async def test_every_size_draws(size: tuple[int, int]) -> None:
    app = app_of("0B0,0F0\n1F0,1B0\n", File())
    async with app.run_test(size=size) as pilot:
        await press(app, pilot, "l", "l", "j")
        assert all(len(plain(row)) <= size[0] for row in app._pane.shown)
