"""What reaches the app while it closes."""

from __future__ import annotations

from textual.events import Key

from pardbg.ui.engine.messages import FrameReady
from tests.ui import sample
from tests.ui.fakes import app_on, until


async def test_what_comes_while_the_screens_close_is_dropped() -> None:
    app = app_on(sample.snapshot_1f1b())
    async with app.run_test(size=(80, 24)):
        await until(lambda: app.main.shared.frame is not None, "the first frame")
        frame, screens = app.main.shared.frame, app.screen_stack
        assert frame is not None
        app._screen_stack.clear()
        try:
            app.on_frame_ready(FrameReady(frame))
            app.on_key(Key("a", "a"))
        finally:
            app._screen_stack.extend(screens)
