"""0 Numbers in the real app: a recording beside its reference, and one alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from pardbg.session.navigation.replay import ReplayClock
from pardbg.session.reader import open_session
from pardbg.store.source import Message
from pardbg.ui.app import PardbgApp
from tests.ui.fakes import FakePort, FakeSource, shows, text_of, until
from tests.ui.recorded import app_of
from tests.unit.analysis.same.captured import changed, run

pytestmark = pytest.mark.timeout(60)


async def test_the_second_recording_is_the_reference(tmp_path: Path) -> None:
    ref = run().file(tmp_path / "ref.mcap")
    par = changed(run(2, 3), lambda grad: grad * 2, "blocks.1.norm").file(tmp_path / "par.mcap")
    sources = [open_session(par), open_session(ref)]
    app = PardbgApp(
        sources[0], None, title="par.mcap", replay=ReplayClock(), second=("ref.mcap", sources[1])
    )
    try:
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.press("8")
            await shows(app, "diverges")
            await pilot.press("0")
            await shows(app, " ▶ blocks.1 ")  # the module of the first that differs
            await pilot.press("enter")
            await shows(app, "floors  tensor")
            assert "blocks.1.norm" in text_of(app)
    finally:
        for source in sources:
            source.close()


async def test_one_recording_shows_whether_its_replicas_are_equal(tmp_path: Path) -> None:
    source = open_session(run(2).file(tmp_path / "a.mcap"))
    app = PardbgApp(source, None, title="a.mcap", replay=ReplayClock(), start_screen="numbers")
    try:
        async with app.run_test(size=(80, 24)):
            await shows(app, "✓")
            assert "REF.mcap" in text_of(app)  # how to compare more than replicas
    finally:
        source.close()


async def test_no_key_is_offered_for_rows_that_are_not_there() -> None:
    with app_of("1f1b") as app:
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.press("0")
            await shows(app, "--tensors")
            hints = text_of(app).splitlines()[-1]
            assert "space" in hints and "enter" not in hints and "/" not in hints, hints


class Live(FakeSource):
    """A run whose ranks tell of their tensors when the test says so."""

    def __init__(self, messages: list[Message]) -> None:
        super().__init__()
        self.messages, self.told = messages, 0

    def poll(self, timeout_ms: int) -> list[Message]:
        super().poll(timeout_ms)
        told, self.messages = self.messages[: self.told], self.messages[self.told :]
        self.told = 0
        return told


async def test_a_live_run_is_compared_once_all_ranks_have_told_of_a_step(tmp_path: Path) -> None:
    ref = open_session(run().file(tmp_path / "ref.mcap"))
    made = changed(run(2, 3), lambda grad: grad * 2, "blocks.1.norm").trace().messages
    source = Live(made)
    port = FakePort()
    app = PardbgApp(source, port, title="live", start_screen="numbers", second=("ref", ref))
    try:
        async with app.run_test(size=(120, 40)) as pilot:
            source.told = len(made) - 1
            await until(lambda: len(source.messages) == 1, "told")
            await shows(app, "comparing …")
            source.told = 1
            await shows(app, " ▶ blocks.1 ")
            await pilot.press("b")
            at = 'module=="blocks.1" and action==B'  # its gradient differs, not what it puts out
            await shows(app, f"break {at}")
            await pilot.press("escape", "colon", *"watch", "space", *"same", "enter")
            await until(lambda: ("until", None) in port.asked, "ranks to be held")
            assert port.args[-1] == {"expr": at}
    finally:
        ref.close()
