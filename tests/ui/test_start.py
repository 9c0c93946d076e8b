"""The start screen on real recordings."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pardbg.analysis.findings.finding import Finding
from pardbg.cli.front import entries, start
from pardbg.render.draw.cells import plain
from pardbg.render.frame.start_page import Entry, start_page
from pardbg.session.digest import Digest, digest
from pardbg.ui.start_app import StartApp
from tests.ui.fakes import until
from tests.ui.recorded import SESSIONS

NAMES = ("1f1b", "fault-straggler", "fault-missing-rank")
"""The oldest first."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for at, name in enumerate(NAMES):
        path = shutil.copy(SESSIONS / f"{name}.mcap", tmp_path / f"{name}.mcap")
        os.utime(path, (1_790_000_000 + at, 1_790_000_000 + at))
    (tmp_path / "torn.mcap").write_bytes(b"not a recording")
    os.utime(tmp_path / "torn.mcap", (1, 1))
    return tmp_path


def recordings(folder: Path) -> list[Entry]:
    """Those of the folder alone: this machine may have live runs of others."""
    return [entry for entry in entries(folder) if entry.kind == "recording"]


def text_of(app: StartApp) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips(app.size))


async def read(app: StartApp) -> None:
    await until(lambda: len(app._read) == 4 and "missing-rank r2" in text_of(app), "all read")


def test_recordings_are_listed_newest_first(folder: Path) -> None:
    found = recordings(folder)
    assert [Path(entry.target).stem for entry in found] == [*reversed(NAMES), "torn"]


def test_recordings_that_were_copied_are_listed_by_when_they_were_made(folder: Path) -> None:
    app = StartApp(lambda: recordings(folder), str(folder))
    app._look()
    app._read = {str(folder / f"{name}.mcap"): digest(SESSIONS / f"{name}.mcap") for name in NAMES}
    # Straggler 10:41, missing rank 11:17, 1f1b 11:54; the files were written in another order.
    names = [Path(entry.target).stem for entry in app.shown()]
    assert names == ["1f1b", "fault-missing-rank", "fault-straggler", "torn"]


def test_a_digest_says_what_the_report_says() -> None:
    found = digest(SESSIONS / "fault-straggler.mcap")
    assert (found.name, found.num_ranks, found.exit_code) == ("fault:straggler", 4, 0)
    assert [(f.kind, f.culprits) for f in found.findings][:1] == [("straggler", (2,))]
    assert len(found.times) == 20 and found.times[-1][0] == 19


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_runs_have_their_worst_finding(folder: Path, size: tuple[int, int]) -> None:
    app = StartApp(lambda: recordings(folder), str(folder))
    async with app.run_test(size=size) as pilot:
        await read(app)
        for name, worst in (("fault:straggler", "straggler r2"), ("1f1b", "✓ nothing"),
                            ("torn", "cannot be read")):  # fmt: skip
            await until(
                lambda n=name, w=worst: any(  # type: ignore[misc]
                    n in row and w in row for row in text_of(app).split("\n")
                ),
                text_of(app),
            )
        await pilot.press("down", "down", "enter")
    assert app.chosen == ("replay", str(folder / "fault-straggler.mcap"))


@pytest.mark.parametrize("size", [(120, 40), (120, 30), (200, 60)])
async def test_the_preview_has_a_border_and_stays_as_the_list_scrolls(
    size: tuple[int, int],
) -> None:
    found = digest(SESSIONS / "1f1b.mcap")
    listed = [Entry("recording", f"run{at}", f"run{at}", 0, path=str(SESSIONS / "1f1b.mcap"))
              for at in range(70)]  # fmt: skip
    app = StartApp(lambda: listed, "folder")
    async with app.run_test(size=size) as pilot:
        app._read.update((entry.target, found) for entry in listed)
        await pilot.press("down")
        await until(lambda: "command" in text_of(app), "a preview")
        await pilot.press(*("pagedown",) * 7)
        await until(lambda: "▲" in text_of(app), "the end of the list")
        rows = text_of(app).split("\n")
        top = next(at for at, row in enumerate(rows) if row.rstrip().endswith("╮"))
        x = rows[top].index("╭")
        assert rows[-2][x] == "╰" and rows[-2].rstrip().endswith("╯")
        assert all(row[x] == row[-1] == "│" for row in rows[top + 1 : -2])
        assert "command" in text_of(app), "still there"
        beyond = next(row for row in rows if "▲" in row)
        assert beyond.index("▲") < x, "rows beyond are counted in the list"


async def test_a_search_leaves_what_it_finds_and_escape_brings_all_back(folder: Path) -> None:
    app = StartApp(lambda: recordings(folder), str(folder))
    async with app.run_test(size=(120, 40)) as pilot:
        await read(app)
        await pilot.press("slash", *"straggler")
        assert [entry.name for entry in app.shown()] == ["fault-straggler"]
        await pilot.press("escape")
        assert len(app.shown()) == 4
        await pilot.press("slash", *"1f1b", "enter")
    assert app.chosen == ("replay", str(folder / "1f1b.mcap"))


async def test_every_key_of_the_start_screen_answers(folder: Path) -> None:
    app = StartApp(lambda: recordings(folder), str(folder))
    async with app.run_test(size=(120, 40)) as pilot:
        await read(app)
        await pilot.press("x")
        await until(lambda: "x does nothing here" in text_of(app), "a word about x")
        await pilot.press("question_mark")
        await until(lambda: "Delete the recording" in text_of(app), "the keys")
        assert "A process of the job" in text_of(app), "words"
        await pilot.press("escape")
        await until(lambda: "Delete the recording" not in text_of(app), "the list again")
        await pilot.press("down")
        await until(lambda: "does nothing" not in text_of(app), "the hints again")


def test_a_live_run_that_has_written_nothing_yet_is_starting() -> None:
    entry = Entry("live", "job", "run-1", 1, digest="not written yet")
    rows = [plain(row) for row in start_page([entry], 0, 120, 40, 2).body]
    assert any("job" in row and "starting" in row for row in rows)
    assert not any("cannot be read" in row for row in rows)


async def test_a_recording_is_deleted_only_if_asked_twice(folder: Path) -> None:
    app, path = (
        StartApp(lambda: recordings(folder), str(folder)),
        folder / "fault-missing-rank.mcap",
    )
    async with app.run_test(size=(120, 40)) as pilot:
        await read(app)
        await pilot.press("delete", "escape", "delete", "down", "delete")
        assert path.exists() and (folder / "1f1b.mcap").exists()
        await pilot.press("delete")
        await until(lambda: not path.exists(), "deleted")
        assert len(app.shown()) == 3


def test_what_was_chosen_is_done_and_the_screen_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = iter([("replay", "a.mcap"), ("report", "b.mcap")])
    done: list[Sequence[str]] = []
    monkeypatch.setattr(StartApp, "run", lambda app: setattr(app, "chosen", next(chosen)))
    start(done.append)
    assert done == [["replay", "a.mcap"], ["report", "b.mcap"]]


def test_nothing_is_said_to_be_fine_before_a_step_has_ended() -> None:
    found = replace(digest(SESSIONS / "1f1b.mcap"), times=())
    for kind in ("live", "recording"):
        entry = Entry(kind, "a", "a", 0, digest=found)  # type: ignore[arg-type]
        body = start_page([entry], 0, 120, 40, 10**9).body
        assert not any("✓" in plain(row) for row in body)


def test_a_live_run_is_not_said_to_be_without_findings_for_good() -> None:
    found = digest(SESSIONS / "1f1b.mcap")
    assert isinstance(found, Digest)
    said = []
    for kind in ("live", "recording"):
        entry = Entry(kind, "a", "a", 0, digest=found)  # type: ignore[arg-type]
        body = start_page([entry], 0, 80, 24, 10**9).body
        said.append(next(plain(row) for row in body if "✓" in plain(row)))
    assert said[0].split("✓")[1].split("  ")[0] != said[1].split("✓")[1].split("  ")[0]


def row_of(entry: Entry) -> str:
    body = start_page([entry], 0, 120, 40, time.time_ns()).body
    return next(plain(row) for row in body if entry.name in plain(row))


def test_a_recording_began_when_its_run_did_and_not_at_its_last_write() -> None:
    made = replace(digest(SESSIONS / "1f1b.mcap"), name="job", began_ns=1_790_000_000 * 10**9)
    entry = Entry("recording", "job", "job", made.began_ns + 9 * 86_400 * 10**9)
    began = time.strftime("%d %b", time.localtime(1_790_000_000))
    assert began in row_of(replace(entry, digest=made))
    for unknown in (entry, replace(entry, digest=replace(made, began_ns=0))):
        assert time.strftime("%b", time.localtime(1_790_000_000)) not in row_of(unknown)


def test_what_was_ended_on_purpose_is_no_failure() -> None:
    note = Finding("interrupted", "info", 1, "")
    made = replace(digest(SESSIONS / "1f1b.mcap"), name="job", exit_code=1)
    told = [replace(made, findings=found) for found in ((note,), ())]
    signs = ["✗" in row_of(Entry("recording", "job", "job", 0, digest=one)) for one in told]
    assert signs == [False, True]


def test_killed_runs_leave_room_for_the_recordings() -> None:
    """Of nine killed runs three are listed, until one is chosen; where all fits, all are."""
    runs = [Entry("dead", f"dead{at}", f"d{at}", 1) for at in range(9)]
    files = [Entry("recording", f"file{at}", f"f{at}", 1) for at in range(6)]
    entries = [Entry("live", "live", "l", 1), *runs, *files]

    def shown(at: int, rows: int) -> list[str]:
        picture = start_page(entries, at, 80, rows, 10**9)
        assert len(picture.rows) == len(picture.body) and picture.rows[picture.focus or 0] == at
        return [plain(row) for row in picture.body]

    assert sum("dead" in row for row in shown(0, 21)) == 3
    assert sum("file" in row for row in shown(0, 21)[:18]) == 6, "on the first screen"
    assert sum("dead" in row for row in shown(1, 21)) >= 9, "one of them is chosen"
    assert sum("dead" in row for row in shown(0, 40)) == 9
    assert sum("dead" in row for row in shown(0, 21)) == 3
    assert sum("dead" in plain(row) for row in start_page(entries[:10], 0, 80, 12, 1).body) == 9
