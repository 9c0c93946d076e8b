"""The real app on hand-made values: what a person sees, and what keys do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pardbg.analysis.answers.hang import Hang
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.events.commands import Reply, WhereFound
from pardbg.events.control_codes import Why
from pardbg.events.control_events import ControlEvent
from pardbg.events.control_facts import Refusal, Taken
from pardbg.ui.app import PardbgApp
from pardbg.ui.commands.actions import ACTIONS, SCREENS, ctl_help, for_mode
from pardbg.ui.palette import style
from pardbg.ui.screens.timeline import TimelinePage
from pardbg_agent.ctrl.agent_messages import Thread
from tests.ui import sample
from tests.ui.fakes import FakePort, FakeSource, FakeStore, app_on, shows, text_of, until

SIZES = ((80, 24), (120, 40), (200, 60))
WORDS = {
    "overview": ("held before 2F4", "recv F4 from r2", "step time"),
    "pipeline": ("implied 27.3%", "plan", "seen", "rank 0 at 40 ms", "dependency"),
    "timeline": ("compute", "wait", "across"),
    "collectives": ("p2p", "1 → 2", "F3"),
    "traffic": ("observed", "12.4 MB/s"),
    "memory": ("resident set", "expected", "394 MiB"),
    "debug": ("console", "stacks", "since"),
    "findings": ("slow-stage", "Move a layer"),
    "output": ("step 39 loss", "UserWarning"),
    "numbers": ("✗", "▶ blocks.1.mlp", "4.0"),
}


async def ready(app: PardbgApp) -> None:
    await until(lambda: app.main.shared.frame is not None, "the first frame")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_each_screen_shows_its_words(size: tuple[int, int]) -> None:
    """Number keys walk through the screens; header, tabs and hints stay."""
    app = app_on(sample.snapshot_1f1b(), FakePort())
    async with app.run_test(size=size) as pilot:
        await ready(app)
        for number, name, _ in SCREENS:
            await pilot.press(str(number))
            for word in WORDS[name]:
                await shows(app, word)
            text = text_of(app).split("\n")
            assert " pardbg  ● live" in text[0], text[0]
            assert "space pause" in text[-1], text[-1]


async def test_a_page_does_not_show_an_earlier_moment_while_its_frame_is_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine the frame with a page's sections may come seconds after the key."""
    app = app_on(sample.snapshot_1f1b())
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(app, "step 39 loss")
        frame = app.main.shared.frame
        assert frame is not None
        await pilot.press("9")
        await until(lambda: app.main.active == "output" and app.main.page.ready, "another page")
        monkeypatch.setattr(app.main, "take_frame", lambda _frame: None)
        app.main.shared.frame = replace(frame, sections=frozenset())
        await pilot.press("1")
        await until(lambda: "step time" not in text_of(app), "nothing of the earlier moment")
        monkeypatch.undo()
        app.main.take_frame(frame)
        await shows(app, "step time")


async def test_keys_walk_the_screens_both_ways() -> None:
    app = app_on(sample.snapshot_1f1b())
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app)
        await pilot.press("ctrl+pageup")
        await shows(app, "blocks.1.mlp")
        await pilot.press("ctrl+pagedown", "ctrl+pagedown")
        await shows(app, "implied 27.3%")


async def test_control_keys_ask_the_hub_and_show_only_what_agents_acknowledge() -> None:
    port = FakePort(wait=True)
    app = app_on(sample.snapshot_1f1b(), port)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app)
        await pilot.press("space")
        await shows(app, "pausing…")
        assert "● live" in text_of(app), "nothing is held before an agent says so"
        port.release.set()
        store = app._store
        assert isinstance(store, FakeStore)
        store.show(sample.held(sample.snapshot_1f1b()))
        await shows(app, "held at a cut · 4 ranks · lease 9 s · nothing pending")
        await shows(app, "space continue")
        await pilot.press("down", "s", "t", "n", "o", "space")
        await until(lambda: len(port.asked) == 6, "six commands")
    assert [verb for verb, _ in port.asked][:1] == ["pause"]
    assert sorted(port.asked[1:6], key=str) == [
        ("continue", None), ("next", None), ("op", None), ("step", "1"), ("tick", None),
    ]  # fmt: skip
    await until(lambda: ("leave", None) in port.asked, "control given up on the way out")


async def test_nothing_is_asked_of_a_job_that_has_ended() -> None:
    """Its store has no process, so what is drawn of it is the made snapshot."""
    port = FakePort()
    app = app_on(sample.snapshot_1f1b(), port)
    app._source.__class__ = type("Over", (FakeSource,), {"finished": True})
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app)
        await until(lambda: (f := app.main.shared.frame) is not None and f.finished, "the end")
        before = text_of(app).split("\n")[-2]
        await pilot.press("b")
        await until(lambda: text_of(app).split("\n")[-2] != before, "an answer")
        assert not app.main._prompting
        await pilot.press("s", "t", "space")
        await pilot.press("4")
        await until(lambda: app.main.active == "collectives", "the key after them")
        assert port.asked == []


async def test_a_refused_command_is_one_line() -> None:
    port = FakePort(Reply(refusal=Refusal(Why.NOT_HELD, ranks=(1,))))
    app = app_on(sample.snapshot_1f1b(), port)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app)
        await pilot.press("s")
        await shows(app, "rank 1 not held")
        assert "pausing" not in text_of(app)


async def test_a_viewer_is_told_who_took_control_from_it() -> None:
    app = app_on(sample.snapshot_1f1b(), FakePort())
    async with app.run_test(size=(120, 40)):
        await ready(app)
        control = app.main.shared.frame.snapshot.control  # type: ignore[union-attr]
        other = "view-ada@pts:3-0123456789ab"
        taken = ControlEvent(Taken(FakePort.name), None, other, 9, 1)
        made = sample.snapshot_1f1b()
        app._store.show(replace(made, control=replace(control, log=(taken,))))
        await shows(app, "ada on pts/3")


async def test_the_job_is_killed_only_if_asked_in_so_many_words() -> None:
    port = FakePort()
    app = app_on(sample.snapshot_1f1b(), port)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app)
        await pilot.press("colon", *"kill", "enter")
        await shows(app, "type `:kill yes`")
        assert port.asked == []
        await pilot.press("colon", *"kill", "space", *"yes", "enter")
        await until(lambda: port.asked == [("kill", None)], "kill")


async def test_where_brings_merged_stacks() -> None:
    main = Thread("MainThread", True, (("/job/train.py", 88, "train_step"),))
    found = WhereFound(dict.fromkeys(range(4), (main,)))
    app = app_on(sample.held(sample.snapshot_1f1b()), FakePort(Reply(answer=found)))
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app)
        await pilot.press("w")
        await shows(app, "4 ranks 0–3  train.py:88 train_step")
        app._store.show(sample.snapshot_1f1b())
        await until(lambda: "train_step" not in text_of(app), "ranks that run on have left it")


async def test_the_command_line_completes_runs_and_explains() -> None:
    port = FakePort()
    app = app_on(sample.snapshot_1f1b(), port)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app)
        await pilot.press("colon", *"ste", "tab", *"0-2", "enter")
        await until(lambda: port.asked == [("step", "0-2")], "step 0-2")
        await pilot.press("colon", *"memory", "enter")
        await shows(app, "resident set")
        await pilot.press("colon", *"memori", "enter")
        await shows(app, "no command 'memori': did you mean 'memory'?")
        await pilot.press("colon", *"play", "enter")
        await shows(app, "'play' works only in a recording")
        await pilot.press("colon", *"go")
        await shows(app, "goto PLACE")
        await pilot.press("escape")
        await shows(app, "space pause")


async def test_help_lists_every_action_of_the_mode() -> None:
    for live in (True, False):
        app = app_on(sample.snapshot_1f1b(), live=live)
        async with app.run_test(size=(200, 100)) as pilot:
            await ready(app)
            await pilot.press("question_mark")
            await shows(app, "pardbg help")
            text = text_of(app)
            for action in for_mode(live):
                assert action.help.split(":")[0][:40] in text, action.id
            await pilot.press("escape")
            await until(lambda app=app: "pardbg help" not in text_of(app), "help closed")


def test_every_action_can_be_done_and_keys_do_not_collide() -> None:
    handlers = app_on(sample.snapshot_1f1b()).main.handlers
    for live in (True, False):
        keys = [key for action in for_mode(live) for key in action.keys]
        assert len(keys) == len(set(keys))
    assert handlers.keys() == {action.id for action in ACTIONS}
    assert ctl_help().keys() >= {"pause", "continue", "step", "tick", "next"}


async def test_a_filter_narrows_the_output_and_escape_clears_it() -> None:
    app = app_on(sample.snapshot_1f1b(), start="output")
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(app, "torchrun: all ranks are up")
        await pilot.press("slash", *"Warning", "enter")
        await shows(app, "filter “Warning”")
        await until(lambda: "step 39" not in text_of(app), "other lines gone")
        await pilot.press("escape")
        await shows(app, "step 39 loss")


async def test_selecting_and_detail() -> None:
    app = app_on(sample.snapshot_ddp(), start="collectives")
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(app, "MISSING 2")
        await pilot.press("up", "enter")
        await shows(app, "░ waits for the last")
        await shows(app, "all_reduce dp #42")
        await pilot.press("escape", "1", "up", "enter")  # from rank 2, the culprit
        await shows(app, "pid 4101")


async def test_a_terminal_too_small_gets_one_line_and_what_is_wrong() -> None:
    healthy = replace(sample.snapshot_1f1b(), findings=())
    app = app_on(healthy)
    async with app.run_test(size=(50, 12)) as pilot:
        await shows(app, "pardbg needs 60×15; this is 50×12")
        assert text_of(app).strip() == "pardbg needs 60×15; this is 50×12"
        await pilot.resize_terminal(80, 24)
        await shows(app, "● live")
        app._store.show(sample.held(healthy))
        await shows(app, "held at a cut")
        await pilot.resize_terminal(40, 10)
        await until(
            lambda: text_of(app).strip() == "pardbg needs 60×15; this is 40×10", "that line alone"
        )
        await pilot.resize_terminal(80, 24)
        await shows(app, "held at a cut")
        app._store.show(wrong := sample.snapshot_ddp())
        await pilot.resize_terminal(40, 10)
        await shows(app, wrong.findings[0].kind)


async def test_a_run_without_a_pipeline_says_so() -> None:
    app = app_on(sample.snapshot_ddp(), start="pipeline")
    async with app.run_test(size=(80, 24)):
        await shows(app, "No pipeline in this run.")


async def test_sixty_four_ranks_scroll_to_the_selected_one() -> None:
    app = app_on(sample.snapshot_1f1b(p=64), start="pipeline")
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(app, "more")
        await pilot.press("colon", *"rank", "space", *"40", "enter")
        await shows(app, "▸r40")


async def test_trouble_is_visible() -> None:
    made = sample.snapshot_1f1b()
    ranks = (replace(made.ranks[0], state="stale"), *made.ranks[1:])
    app = app_on(replace(made, dropped_records=12, ranks=ranks))
    async with app.run_test(size=(120, 40)):
        await shows(app, "lost 12")
        await shows(app, "stale r0")


async def test_themes_keep_the_words() -> None:
    app = app_on(sample.snapshot_1f1b(), start="pipeline")
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app)
        for theme in ("light", "16", "dark"):
            await pilot.press("colon", *"theme", "space", *theme, "enter")
            await until(lambda theme=theme: app.theme == f"pardbg-{theme}", theme)
            await shows(app, "seen")


def _at(made: Snapshot, t_ns: int | None) -> Snapshot:
    return made if t_ns is None else replace(made, t_ns=t_ns)


async def test_looking_back_in_a_live_run_and_following_again() -> None:
    app = app_on(sample.snapshot_1f1b(), at=_at)
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(app)
        end = sample.snapshot_1f1b().t_end_ns
        await pilot.press("shift+left")
        await shows(app, "◂ look back")
        frame = app.main.shared.frame
        assert frame is not None and frame.snapshot.t_ns == end - 412 * sample.MS  # one step back
        await pilot.press("f")
        await shows(app, "● live")


async def test_space_acts_on_now_not_on_the_moment_looked_back_at() -> None:
    port = FakePort()
    app = app_on(sample.snapshot_1f1b(), port, at=_at)
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(app)
        await pilot.press("shift+left")
        await shows(app, "◂ look back")
        await pilot.press("space")
        await shows(app, "● live")
        assert port.asked == []
        await pilot.press("space")
        await until(lambda: port.asked == [("pause", None)], "pause")


async def test_a_recording_seeks_plays_and_stops() -> None:
    app = app_on(sample.snapshot_1f1b(), live=False, at=_at)
    made = sample.snapshot_1f1b()

    def now() -> int:
        frame = app.main.shared.frame
        assert frame is not None
        return frame.snapshot.t_ns - made.t_begin_ns

    async with app.run_test(size=(100, 30)) as pilot:
        await shows(app, "‖ replay")
        await pilot.press("colon", *"goto", "space", *"10", "enter")
        await until(lambda: now() == 10 * sample.S, "ten seconds")
        await pilot.press("colon", *"goto", "space", *"4000", "enter")
        await shows(app, "goto step 42")  # it says why one stays, and what may be meant
        assert now() == 10 * sample.S
        await pilot.press("greater_than_sign", "space")
        await shows(app, "▶ play 2×")
        await until(lambda: now() > 10 * sample.S, "time moves")
        await pilot.press("space")
        await shows(app, "‖ stop")
        await pilot.press("home")
        await until(lambda: now() == 0, "the begin")
        await pilot.press("r", "end")
        await until(lambda: now() == made.t_end_ns - made.t_begin_ns, "the end")
        await pilot.press("space")
        await shows(app, "◀ back")
        await pilot.press("colon", *"goto", "space", *"soon", "enter")
        await shows(app, "no time 'soon'")


async def test_the_timeline_zooms() -> None:
    app = app_on(sample.snapshot_1f1b(), start="timeline")
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(app, "1.24 s across")  # three steps of 412 ms
        await pilot.press("plus")
        await shows(app, "618 ms across")
        await pilot.press("minus", "minus")
        await shows(app, "2.47 s across")


async def test_enter_says_where_it_opens_nothing() -> None:
    app = app_on(sample.snapshot_1f1b(), start="traffic")
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app)
        await pilot.press("enter")
        await shows(app, "enter opens nothing here")


async def test_a_key_that_does_nothing_here_says_so() -> None:
    app = app_on(sample.snapshot_1f1b(), live=False)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app)
        await pilot.press("t")
        await shows(app, "t (tick) works only in a live run")
        await pilot.press("v")
        await shows(app, "v does nothing here")
        await pilot.press("2")
        await until(lambda: app.main.active == "pipeline", "a key that does")
        assert "does nothing" not in text_of(app)


HUNG_NS = 60 * sample.S


@pytest.mark.parametrize("stands", ["held", "hung"])
async def test_the_timeline_shows_what_ran_before_ranks_stood(stands: str) -> None:
    """Held for 2 s: the window of three steps (1.236 s) ends at the cut. Hung for 60 s: its first
    half is before the wait."""
    made = sample.snapshot_1f1b()
    since = made.t_ns - HUNG_NS
    hang = Hang("missing-rank", "warning", (2,), (0, 1), "all_reduce", None, since, None, "waits")
    shown = sample.held(made) if stands == "held" else replace(made, hang=hang)
    app = app_on(shown, start="timeline")
    async with app.run_test(size=(120, 40)):
        await shows(app, "1.24 s across")
        frame = app.main.shared.frame
        assert frame is not None
        span = 3 * 412 * sample.MS
        end = made.t_ns - 2 * sample.S if stands == "held" else since + span // 2
        assert (frame.lanes_t0_ns, frame.lanes_t1_ns) == (end - span, end)


@pytest.mark.parametrize(("keys", "across"), [("plus", "309 ms"), ("minus", "4.94 s")])
async def test_the_timeline_zooms_before_it_is_drawn(keys: str, across: str) -> None:
    """The frame at hand is another page's, and has no window."""
    app = app_on(sample.snapshot_1f1b())
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app)
        page = app.query_one(TimelinePage)
        assert page.zoom(1 if keys == "plus" else -1)
        await pilot.press("3", keys)
        await shows(app, f"{across} across")


async def test_a_moment_that_cannot_be_shown_is_said_and_the_next_one_is() -> None:
    broken = {"now": True}

    def at(made: Snapshot, _t: int | None) -> Snapshot:
        if broken["now"]:
            raise ValueError("odd record")
        return made

    app = app_on(sample.snapshot_1f1b(), at=at)
    async with app.run_test(size=(80, 24)):
        await shows(app, "cannot show this moment: ValueError: odd record")
        broken["now"] = False
        store = app._store
        assert isinstance(store, FakeStore)
        store.show(sample.snapshot_1f1b())
        await shows(app, "● live")


async def test_quit_leaves_at_once() -> None:
    app = app_on(sample.snapshot_1f1b(), FakePort())
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app)
        await pilot.press("q")
        await until(lambda: not app.is_running, "the app ended")


def test_the_viewer_needs_neither_sockets_nor_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys, pardbg.ui.app;"
        "bad = [m for m in ('zmq', 'torch', 'pardbg.hub') if m in sys.modules];"
        "sys.exit(repr(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


async def test_records_that_cannot_be_moved_do_not_end_the_feed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is said once, and the next frame comes."""
    app = app_on(sample.snapshot_ddp(4))

    def broken(store: FakeStore) -> None:
        raise ValueError("bad")

    async with app.run_test(size=(80, 24)):
        await until(lambda: app.main.shared.frame is not None, "the first frame")
        with monkeypatch.context() as patch:
            patch.setattr(FakeStore, "settle", broken)
            app.engine.wake()
            await until(lambda: bool(app.engine._errors), "the error")
        before = app.main.shared.frame
        app.engine.wake()
        await until(lambda: app.main.shared.frame is not before, "a frame after it")
        assert app.engine._errors == {"cannot show this moment: ValueError: bad"}


async def test_a_change_of_theme_reaches_lines_that_do_not_change() -> None:
    """Also of those that are drawn before the new one's ground is known."""
    app = app_on(sample.snapshot_1f1b())
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app)
        page = app.main.page

        def grounds() -> set[str]:
            strips = [page.render_line(y) for y in range(page.size.height)]
            return {run.style.bgcolor.name for strip in strips for run in strip
                    if not run.text.strip() and run.style and run.style.bgcolor}  # fmt: skip

        app.theme = "pardbg-light"
        assert "#0d1218" in grounds()
        await pilot.pause()
        light = {style("light", f"fill.{ink}.{shade}").color.name
                 for ink in ("spark", "loss") for shade in range(3)}  # fmt: skip
        await until(
            lambda: grounds() <= {"#fbfbf9", "#dfe7ef"} | light, "a light ground everywhere"
        )
