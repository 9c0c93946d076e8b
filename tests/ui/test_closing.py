"""What reaches the app while it closes."""

from __future__ import annotations

from textual.events import Key

from pardbg.events.commands import Answers, Reply
from pardbg.events.control_codes import Verb
from pardbg.ui.engine.messages import Answered, Arrived, FrameReady, Loading, Trouble
from pardbg_agent.ctrl.agent_messages import Evaluated
from tests.ui import sample
from tests.ui.fakes import app_on, until

ANSWERS = Answers({rank: Evaluated(0, None, "4.25") for rank in range(40)})
"""More than fit on a page: they are shown on Debug."""


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
            app.on_loading(Loading(0.5))
            app.on_arrived(Arrived("there", 1))
            app.on_trouble(Trouble("too late"))
            app.on_answered(Answered(Verb.INSPECT, Reply(answer=ANSWERS)))
        finally:
            app._screen_stack.extend(screens)
