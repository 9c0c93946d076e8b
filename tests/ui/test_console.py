"""The ``:`` line as a user has it: completion, lines typed before, help, ``.pardbgrc``, frames."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.errors import UserError
from pardbg.events.commands import Answers, Reply, WhereFound
from pardbg.events.control_codes import Mode, Verb, Why
from pardbg.events.control_events import Status
from pardbg.events.control_facts import Breakpoint, Edited, Hit, Refusal
from pardbg.ui.app import PardbgApp
from pardbg.ui.commands.command_line import parse
from pardbg.ui.commands.startup import Rc, RcLine
from pardbg.ui.screens.debug import DebugPage
from pardbg_agent.ctrl.agent_messages import Evaluated, NoAnswer, Thread
from tests.ui import sample
from tests.ui.fakes import FakePort, app_on, shows, text_of, until
from tests.ui.recorded import type_


def typed(app: PardbgApp) -> str:
    return app.main._prompt.value


async def ready(app: PardbgApp) -> None:
    await until(lambda: app.main.shared.frame is not None, "a frame")


async def test_tab_goes_as_far_as_all_agree_and_then_round() -> None:
    app = app_on(sample.snapshot_1f1b(), FakePort())
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app)
        await pilot.press("colon", *"tb", "tab")
        assert typed(app) == "tbreak "
        await pilot.press(*"op==all_r", "tab")
        assert typed(app) == "tbreak op==all_reduce"
        await pilot.press("space", *"on", "space", "tab")
        assert typed(app) == "tbreak op==all_reduce on all"
        await pilot.press("tab", "tab")
        assert typed(app) == "tbreak op==all_reduce on waiting"
        await shows(app, "tbreak EXPR [on RANKS]")
        await pilot.press("escape")
        # What the line will probably be stands behind the cursor; → takes it.
        await pilot.press("colon", *"conti")
        await until(lambda: app.main._prompt._suggestion == "continue", "a suggestion")
        await pilot.press("right")
        assert typed(app) == "continue"


async def test_lines_are_there_again_in_the_next_session(tmp_path: Path) -> None:
    path = tmp_path / "history"
    for lines in (("pause", "step 2"), ("where",)):
        app = app_on(sample.snapshot_1f1b(), FakePort(), history=path)
        async with app.run_test(size=(80, 24)) as pilot:
            await ready(app)
            for text in lines:
                keys = ["space" if char == " " else char for char in text]
                await pilot.press("colon", *keys, "enter")
            await until(lambda text=text: path.exists() and text in path.read_text(), text)
    app = app_on(sample.snapshot_1f1b(), FakePort(), history=path)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app)
        await pilot.press("colon", *"dra", "up")
        assert typed(app) == "where"
        await pilot.press("up", "up", "up")
        assert typed(app) == "pause"
        await pilot.press("down", "down", "down")
        assert typed(app) == "dra", "what was being typed is still there"
    assert path.read_text().splitlines() == ["pause", "step 2", "where"]


async def test_a_run_held_on_its_way_to_a_place_is_not_said_to_run_there() -> None:
    runs, port = sample.snapshot_1f1b(), FakePort(wait=True)
    app = app_on(runs, port)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app)
        await pilot.press("colon", *"until", "space", *"step==9", "enter")
        await shows(app, "space: pause here")
        app._store.show(sample.held(runs))
        said = "held at a cut · 4 ranks · lease 9 s"
        await until(lambda: said in text_of(app), said, 6)  # the port answers after 10 s
        port.release.set()


async def test_help_explains_a_word() -> None:
    app = app_on(sample.snapshot_1f1b(), FakePort())
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app)
        await pilot.press("colon", *"h", "space", *"b", "enter")
        await shows(app, "Pause all ranks to a cut")
        await shows(app, "pdb's abbreviation: b")
        await pilot.press("escape", "colon", *"help", "space", *"dance", "enter")
        await shows(app, "no word 'dance'")


async def test_the_rc_files_commands_are_given_and_what_is_wrong_is_said() -> None:
    lines = ("break step==3", "pipeline", "braek 1")
    rc = Rc(tuple(RcLine(f".pardbgrc:{n}", text) for n, text in enumerate(lines, 1)))
    port = FakePort(Reply(answer=Edited(Verb.BREAK, (Breakpoint(1, "step==3"),))))
    app = app_on(sample.snapshot_1f1b(), port, rc=rc)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: port.asked == [("break", None)], "the breakpoint")
        await until(lambda: app.main._active == "pipeline", "the screen")
        await shows(app, ".pardbgrc:3: no command 'braek': did you mean 'break'?")
        await pilot.press("7")
        await shows(app, ".pardbgrc:1: break step==3: breakpoint 1:")


class Frames(FakePort):
    """Ranks with two frames."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[int] = []

    def command(
        self, verb: Verb, ranks: str | None = None, timeout_s: float = 30.0, **args: Any
    ) -> Reply:
        self.asked.append((verb.value, ranks))
        frame = int(args.get("frame", 0))
        self.frames.append(frame)
        refusal = NoAnswer.NO_FRAME if frame > 1 else None
        return Reply(answer=Answers({0: Evaluated(0, refusal, f"in frame {frame}", frames=2)}))


async def test_what_is_displayed_is_shown_wherever_ranks_are_held_next() -> None:
    port = FakePort(Reply(answer=Answers({0: Evaluated(0, None, "4.25")})))
    held = sample.held(sample.snapshot_1f1b())
    app = app_on(held, port)

    def asked(what: str = "expr") -> list[Any]:
        return [args[what] for args in port.args if args.get("expr")]

    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app)
        await type_(pilot, "frames all")
        await type_(pilot, "display loss")
        await until(lambda: asked() == ["loss"], "now")
        assert asked("every_frame") == [True], "in the frame that is shown"
        await type_(pilot, "display lr on 1")
        await until(lambda: asked() == ["loss", "lr"], "another rank's")
        assert ("inspect", "1") in port.asked
        control = replace(held.control, held={**held.control.held, 1: "1B5"})
        app._store.show(replace(held, control=control))
        await until(lambda: asked()[2:] == ["loss", "lr"], "both where they are held next")
        assert asked("every_frame")[2:] == [False, False], "in the program's own"
        await pilot.press("3")
        app._store.show(replace(held, control=replace(control, held={0: "0B5"})))
        await until(lambda: asked()[4:] == ["loss", "lr"], "both once more")
        assert app.main._active == "timeline", "it was not asked for"
        await type_(pilot, "undisplay loss")
        await type_(pilot, "display")
        await until(lambda: asked()[6:] == ["lr"], "the other one")
        await shows(app, "lr on 1 · rank 0: 4.25")
        await type_(pilot, "undisplay loss")
        await shows(app, "no display 'loss'")


async def test_what_is_displayed_is_not_asked_for_again_after_a_look_back() -> None:
    port = FakePort(Reply(answer=Answers({0: Evaluated(0, None, "4.25")})))
    held = sample.held(sample.snapshot_1f1b())
    app = app_on(held, port)

    def asked() -> int:
        return sum(bool(args.get("expr")) for args in port.args)

    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app)
        await type_(pilot, "display loss")
        await until(lambda: asked() == 1, "now")
        now = app.main.shared.frame
        assert now is not None
        control = replace(held.control, held={0: "0B5"})
        back = replace(now, snapshot=replace(held, control=control), following=False)
        app.main.control.on_frame(back)
        app.main.control.on_frame(now)
        assert not app.main.control._to_display and asked() == 1
        app.main.control.on_frame(replace(back, following=True))
        await until(lambda: asked() == 2, "where they are held next")


@pytest.mark.parametrize(
    "reply",
    [
        Reply(refusal=Refusal(Why.TAKEN)),
        Reply(answer=Answers({0: Evaluated(0, NoAnswer.EVAL_OFF)})),
    ],
)
async def test_a_display_that_is_refused_is_forgotten(reply: Reply) -> None:
    port = FakePort(reply)
    held = sample.held(sample.snapshot_1f1b())
    app = app_on(held, port)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app)
        await type_(pilot, "display loss")
        await until(lambda: not app.main.control._displays, "refused")
        said = app.main.shared.typed
        assert [one.style for one in said if "display loss" in one.text][1:] == ["warn"], said
        control = replace(held.control, held={**held.control.held, 1: "1B5"})
        app._store.show(replace(held, control=control))
        await until(lambda: app.main.control._displayed_at[2:3] == ((1, "1B5"),), "elsewhere")
        assert sum(bool(args.get("expr")) for args in port.args) == 1


async def test_lines_are_given_when_their_breakpoint_stops_a_rank() -> None:
    port = FakePort(Reply(answer=Answers({0: Evaluated(0, None, "4.25")})))
    held = sample.held(sample.snapshot_1f1b())
    app = app_on(held, port)

    def given() -> list[str]:
        return [verb for verb, _ in port.asked if verb in ("inspect", "continue")]

    async def hit(number: int, step: int) -> None:
        why = (Hit(0, number, "step>3", step=step),)
        app._store.show(replace(held, control=replace(held.control, why=why)))
        await until(lambda: app.main.control._followed == why, "the hit")

    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app)
        await type_(pilot, "commands 2 p loss; continue")
        await type_(pilot, "commands 3 jump 5")
        await shows(app, "a rank cannot go back")
        await hit(1, 4)
        await hit(2, 5)
        await until(lambda: given() == ["inspect", "continue"], "both")
        port.release.clear()
        await hit(2, 6)
        await until(lambda: given()[2:] == ["inspect"], "the first")
        assert list(app.main.control._given) == ["continue"], "only once that is answered"
        port.release.set()
        await until(lambda: given()[2:] == ["inspect", "continue"], "the second")


async def test_breakpoints_are_listed_with_the_lines_given_at_them() -> None:
    listed = (Breakpoint(1, "mb==3"), Breakpoint(2, "step>3"))
    port = FakePort(Reply(status=Status(Mode.HELD, breaks=listed)))
    app = app_on(sample.held(sample.snapshot_1f1b()), port)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app)
        await type_(pilot, "commands 1 p loss; continue")
        await type_(pilot, "b")
        await shows(app, "2  step>3")
        rows = [row.strip(" │") for row in text_of(app).splitlines()]
        at = next(at for at, row in enumerate(rows) if row.startswith("1  mb==3"))
        assert rows[at + 1 : at + 3] == ["p loss", "continue"]
        assert rows[at + 3].startswith("2  step>3")


async def test_lines_after_one_that_is_refused_are_not_given() -> None:
    port = FakePort(Reply(refusal=Refusal(Why.VIEW_ONLY)))
    held = sample.held(sample.snapshot_1f1b())
    app = app_on(held, port)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app)
        await type_(pilot, "commands 2 p loss; continue")
        why = (Hit(0, 2, "step>3", step=5),)
        app._store.show(replace(held, control=replace(held.control, why=why)))
        await until(lambda: bool(port.asked), "the first")
        await until(lambda: not app.main.control._given, "its answer")
        assert [verb for verb, _ in port.asked] == ["inspect"]


async def test_up_and_down_stay_within_the_frames() -> None:
    port = Frames()
    app = app_on(sample.snapshot_1f1b(), port)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app)
        for word, says in (("u", "in frame 1"), ("u", "no such frame"), ("p x", "in frame 1"),
                           ("d", "in frame 0"), ("d", "this is the innermost frame")):  # fmt: skip
            before = len(port.frames)
            keys = ["space" if char == " " else char for char in word]
            await pilot.press("colon", *keys, "enter")
            await shows(app, says)
            if says.startswith("in"):
                await until(lambda before=before: len(port.frames) > before, word)
        assert port.frames == [1, 2, 1, 0]
        assert "in frame 1" in text_of(app)


async def test_the_console_shows_the_newest_answer_keeps_indentation_and_scrolls() -> None:
    """At 80x24 a listing of eleven lines does not fit: its end is in view, its begin a key away."""
    listing = "\n".join(f"{n:>5}     code of line {n}" for n in range(1, 12))
    port = FakePort(Reply(answer=Answers({0: Evaluated(text=listing)})))
    app = app_on(sample.snapshot_1f1b(), port)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app)
        await pilot.press("colon", *"list", "enter")
        await shows(app, "   11     code of line 11")
        assert "code of line 1 " not in text_of(app)
        await pilot.press("pageup", "pageup")
        await shows(app, "    1     code of line 1")
        await pilot.press("colon", *"list", "enter")
        await shows(app, "   11     code of line 11")


async def test_a_colon_over_a_popup_opens_the_prompt() -> None:
    app = app_on(sample.snapshot_1f1b(), FakePort())
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app)
        await pilot.press("question_mark")
        await shows(app, "esc closes")
        await pilot.press("colon", *"findings", "enter")
        await until(lambda: app.main.active == "findings", "the page that was typed")
        assert "esc closes" not in text_of(app)


async def test_comparing_errors_says_that_they_are_errors() -> None:
    raised = Evaluated(raised=True, text="NameError: name 'loss' is not defined")
    port = FakePort(Reply(answer=Answers({0: raised, 1: raised})))
    app = app_on(sample.snapshot_1f1b(), port)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app)
        await pilot.press("colon", *"compare", "space", *"loss", "enter")
        await shows(app, "1 ✗ NameError: name 'loss' is not defined")
        await shows(app, "nothing to compare: no rank has a value")
        assert "equal" not in text_of(app)


async def test_each_typed_line_has_its_answer_under_it_errors_too() -> None:
    app = app_on(sample.snapshot_1f1b(), FakePort())
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app)
        for text in ("dance", "goto step x", "goto 9999", "jump 3"):
            keys = ["space" if char == " " else char for char in text]
            await pilot.press("colon", *keys, "enter")
            debug = app.main.pages["debug"]
            assert isinstance(debug, DebugPage)
            await until(lambda page=debug: not page.asked, f"an answer to {text}")
            asked, answer = debug.shared.typed[-2:]
            assert asked.text == f"(pardbg) {text}"
            assert (answer.style, answer.text != "") == ("bad", True)
        assert "goto step 3" in answer.text  # what there is instead


@pytest.mark.parametrize("word", ["ll", "foo", "jump", "interact"])
def test_a_near_miss_is_near_in_meaning(word: str) -> None:
    if word == "ll":  # pdb's
        assert parse(word, live=True).action.command == "longlist"
        return
    with pytest.raises(UserError) as said:
        parse(word, live=True)
    assert not {"kill", "follow", "up"} & set(re.findall(r"'(\w+)'", str(said.value)))


def looking_back(made: Snapshot, t_ns: int | None) -> Snapshot:
    return made if t_ns is None else replace(made, t_ns=t_ns)


@pytest.mark.parametrize("key", ["t", "s", "n"])
async def test_keys_that_move_ranks_first_return_to_now(key: str) -> None:
    port = FakePort()
    app = app_on(sample.snapshot_1f1b(), port, at=looking_back)
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(app)
        await pilot.press("left")
        await shows(app, "◂ look back")
        await pilot.press(key)
        await shows(app, "● live")
        assert port.asked == [], "what would have moved was not on the screen"
        await pilot.press(key)
        await until(lambda: port.asked != [], "now it is")


async def test_stacks_asked_for_while_looking_back_are_of_now() -> None:
    main = Thread("MainThread", True, (("/job/train.py", 88, "train_step"),))
    port = FakePort(Reply(answer=WhereFound({0: (main,)})))
    app = app_on(sample.snapshot_1f1b(), port, at=looking_back, start="debug")
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app)
        await pilot.press("left", "left")
        await shows(app, "◂ look back")
        await pilot.press("w")
        await shows(app, "after this moment")
        await pilot.press("f")
        await shows(app, "0 ns ago")


async def test_the_prompt_has_the_sign_of_what_it_asks_for() -> None:
    """It is hidden while nobody types, and has no size then."""
    app = app_on(sample.snapshot_1f1b(), FakePort())
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app)
        signs = []
        for key in ("colon", "slash", "m", "colon"):
            await pilot.press(key)
            await until(lambda: app.main._prompt.has_focus, "the prompt")
            sign = app.main._sign
            await until(lambda sign=sign: sign.size.width > 0, "its sign")  # type: ignore[misc]
            signs.append(sign.render_lines(sign.size.region)[0].text)
            await pilot.press("escape")
        assert len(set(signs)) == 3 and signs[0] == signs[3]
