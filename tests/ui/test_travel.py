"""Travel in a recording: the real store and analysis behind the real screens."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot

from pardbg.session.navigation.replay import ReplayClock
from pardbg.session.reader import load, open_session
from pardbg.session.writer import RunFacts, SessionWriter
from pardbg.ui.app import PardbgApp
from tests.ui.fakes import shows, text_of, until
from tests.unit.trace_builder import BEGIN, MS, Trace, ns, one_f_one_b

NAMED = {" ": "space", "+": "plus", ":": "colon", ".": "full_stop", "%": "percent_sign"}
STEP = 100
"""ms."""


def recorded(path: Path, steps: int = 5) -> Path:
    """Two ranks, 1F1B with two microbatches, a step every 100 ms.

    rank 0: 0F0 0-10, 0F1 10-20, 0B0 40-60, 0B1 70-90; rank 1: 1F0 10-20, 1B0 20-40, 1F1 40-50,
    1B1 50-70; rank 0 ends the step at 95, rank 1 at 90.
    """
    trace = Trace(2)
    trace.plan("Schedule1F1B", one_f_one_b(2, 2), 2)
    rows = (
        (("0F0", 0, 10), ("0F1", 10, 20), ("0B0", 40, 60), ("0B1", 70, 90)),
        (("1F0", 10, 20), ("1B0", 20, 40), ("1F1", 40, 50), ("1B1", 50, 70)),
    )
    for step in range(steps):
        begin = step * STEP
        for proc, row in zip(trace.ranks, rows, strict=True):
            for text, t0, t1 in row:
                proc.action(text, begin + t0, begin + t1, step)
            proc.collective("world", "all_reduce", begin + 80, begin + 85, step=step)
            proc.step(step, begin, begin + 95 - 5 * (proc.rank or 0))
            proc.flush()
    trace.end(steps * STEP)
    facts = RunFacts("r-1", "made", "host", ("train.py",), "/", "", BEGIN, 1_760_000_000 * 10**9)
    writer = SessionWriter(path, facts)
    for message in trace.messages:
        writer.write(message.key, message.payload, message.received_ns)
    writer.close(0)
    return path


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return recorded(tmp_path / "made.mcap")


@asynccontextmanager
async def showing(path: Path) -> AsyncIterator[tuple[PardbgApp, Pilot[None]]]:
    source = open_session(path)
    app = PardbgApp(
        source, None, title=path.name, start_screen="pipeline", replay=ReplayClock()
    )  # fmt: skip
    try:
        async with app.run_test(size=(120, 40)) as pilot:
            yield app, pilot
    finally:
        source.close()


def at_ms(app: PardbgApp) -> float:
    frame = app.main.shared.frame
    return -1.0 if frame is None else (frame.snapshot.t_ns - BEGIN) / MS


async def command(pilot: Pilot[None], text: str) -> None:
    """Typed in one go: the pilot waits for an idle app after each key of its own."""
    for char in ":" + text:
        pilot.app.post_message(events.Key(NAMED.get(char, char), char))
    await pilot.press("enter")


async def to_the_second_step(app: PardbgApp, pilot: Pilot[None]) -> None:
    await until(lambda: at_ms(app) == 495, "opened at the last step's end")
    await command(pilot, "goto step 1")
    await until(lambda: at_ms(app) == 195, "the second step's end")


async def test_goto_every_kind_of_place(session: Path) -> None:
    async with showing(session) as (app, pilot):
        await until(lambda: at_ms(app) == 495, "it opens where the last step has ended")
        await command(pilot, "goto step 3")
        await until(lambda: at_ms(app) == 395, "step 3 ends on rank 0 at 395 ms")
        await command(pilot, "goto 1B0")
        await until(lambda: at_ms(app) == 320, "1B0 of step 3 begins at 320 ms")
        await command(pilot, "goto 0b1")
        await until(lambda: at_ms(app) == 370, "any case")
        await command(pilot, "goto +25ms")
        await until(lambda: at_ms(app) == 395, "from here")
        await command(pilot, "goto 50%")
        await until(lambda: at_ms(app) == 250, "half of 500 ms")
        await command(pilot, "goto end")
        await until(lambda: at_ms(app) == 500, "the end")
        await command(pilot, "goto step 9")
        await shows(app, "no step 9: steps 0 to 4 have ended")
        await command(pilot, "goto 3F0")
        await shows(app, "no action 3F0 in this run")
        await command(pilot, "goto soon")
        await shows(app, "no time 'soon'")
        for text in ("rank ²", "goto step ²", "goto ²", "goto +²", "goto ²:²²", "unmark ²", "/²"):
            await command(pilot, text)
        assert app.is_running
        await command(pilot, "rank ²")
        await shows(app, "no rank '²' in this run")
        await command(pilot, "goto 0:0:99")
        await shows(app, "no time")


async def test_steps_back_and_forth_by_step_action_and_op(session: Path) -> None:
    async with showing(session) as (app, pilot):
        await to_the_second_step(app, pilot)
        await pilot.press("full_stop")
        await until(lambda: at_ms(app) == 295, "the next step's end")
        await pilot.press("comma")
        await until(lambda: at_ms(app) == 195, "and back")
        await pilot.press("comma")
        await until(lambda: at_ms(app) == 95, "and back")
        await pilot.press("u", "full_stop")
        await until(lambda: at_ms(app) == 100, "rank 0 begins 0F0 of step 1")
        await shows(app, "rank 0 begins 0F0")
        await pilot.press("full_stop", "full_stop")
        await until(lambda: at_ms(app) == 140, "then 0F1 at 110, then 0B0 at 140")
        await pilot.press("comma")
        await until(lambda: at_ms(app) == 110, "back to 0F1")
        await pilot.press("u", "full_stop")
        await until(lambda: at_ms(app) == 180, "the next op of rank 0")
        await shows(app, "rank 0 all_reduce world #1")
        await pilot.press("comma")
        await until(lambda: at_ms(app) == 80, "the one before")


async def test_bookmarks_are_kept_in_the_file(session: Path) -> None:
    async with showing(session) as (app, pilot):
        await to_the_second_step(app, pilot)
        await pilot.press("m", *"slow", "space", *"here", "enter")
        await shows(app, "bookmark kept in made.mcap: slow here")
        await shows(app, "◆")
        await command(pilot, "goto step 4")
        await command(pilot, "mark the end")
        await shows(app, "bookmark kept in made.mcap: the end")
        await command(pilot, "goto mark 1")
        await until(lambda: at_ms(app) == 195, "back at the first")
        await command(pilot, "marks")
        await shows(app, "slow here")
        await pilot.press("escape")
        await command(pilot, "unmark 2")
        await shows(app, "bookmark removed")
    async with showing(session) as (again, pilot):
        await shows(again, "◆ 1 bookmark")
        await command(pilot, "goto mark slow")
        await until(lambda: at_ms(again) == 195, "found by its note")
        assert "loaded" not in text_of(again)
    store = load(session)
    assert [(mark.t_ns, mark.text) for mark in store.bookmarks.all()] == [(ns(195), "slow here")]
    assert not store.truncated and store.end_ns == ns(500)


async def test_a_bookmark_in_a_file_cut_off_is_said_not_to_be_kept(session: Path) -> None:
    cut = session.with_name("cut.mcap")
    shutil.copyfile(session, cut)
    with open(cut, "r+b") as file:
        file.truncate(file.seek(0, 2) - 40)
    async with showing(cut) as (app, pilot):
        await until(lambda: at_ms(app) >= 0, "opened")
        before = cut.read_bytes()
        await pilot.press("m", "x", "enter")
        await shows(app, "has no whole summary")
        assert cut.read_bytes() == before
        assert list(cut.parent.glob(".*")) == []


async def test_the_screen_is_saved_as_a_picture(
    session: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    async with showing(session) as (app, pilot):
        await to_the_second_step(app, pilot)
        await pilot.press("ctrl+s")
        await shows(app, "saved")
        await pilot.press("ctrl+s")
        await until(lambda: len(list(tmp_path.glob("*.svg"))) == 2, "the first is kept")
    picture = tmp_path / "made-pipeline-0.195s.svg"
    text = picture.read_text(encoding="utf-8")
    assert text.startswith("<svg") and 'xml:space="preserve"' in text and "0F0" not in picture.name


async def test_two_recordings_over_one_another_at_the_same_step(tmp_path: Path) -> None:
    """The second has three steps only: at step 4 it shows its last one, and says so."""
    sources = [open_session(recorded(tmp_path / name, steps)) for name, steps in
               (("a.mcap", 5), ("b.mcap", 3))]  # fmt: skip
    app = PardbgApp(
        sources[0], None, title="a.mcap", start_screen="pipeline", replay=ReplayClock(),
        second=("b.mcap", sources[1]),
    )  # fmt: skip
    try:
        async with app.run_test(size=(120, 40)) as pilot:
            await shows(app, "── B b.mcap at step 2 (it has no step 4)")
            await command(pilot, "goto step 1")
            await shows(app, "── B b.mcap at step 1")
            assert text_of(app).count("seen") == 4, "two ranks of each"
            await command(pilot, "goto step 2")
            await shows(app, "── B b.mcap at step 2")
            await command(pilot, "goto step 4")
            await shows(app, "── B b.mcap at step 2 (it has no step 4)")
            await pilot.press("1")
            await shows(app, "── B b.mcap at step 2 (it has no step 4)")
    finally:
        for source in sources:
            source.close()


async def test_what_is_typed_ahead_of_the_prompt_goes_into_it(session: Path) -> None:
    """A colon and a command in one go, as a paste or a slow terminal brings them."""
    async with showing(session) as (app, pilot):
        await to_the_second_step(app, pilot)
        for key in (":", "m", "a", "r", "k", " ", "q"):
            app.post_message(events.Key(NAMED.get(key, key), key))
        await shows(app, "(pardbg)")
        await until(lambda: app.main._prompt.value == "mark q", "the line")
        assert app.is_running and pilot is not None
