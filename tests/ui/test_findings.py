"""Screen 8: the list with the chosen finding in full, and enter going to what shows it."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pardbg.analysis.answers.hang import RankStack
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.findings.finding import Evidence, Finding
from pardbg.ui.commands.actions import OWN
from pardbg.ui.engine.engine import OWN_PERIOD_S
from tests.ui import sample
from tests.ui.fakes import FakeStore, app_on, shows, text_of, until
from tests.ui.recorded import replayed, settled, type_


def made() -> Snapshot:
    """A deadlock 5 s before the end, and a note 30 s before it."""
    base = sample.snapshot_1f1b()
    t = base.t_end_ns
    deadlock = Finding(
        kind="deadlock", severity="error", ranks=(0, 1, 2, 3), culprits=(2,), group="a", seq=5,
        where="train.py:48 in step", t_ns=t - 5 * sample.S, text="ranks wait for each other.",
        steps=("Call the groups' ops in the same order.",),
        evidence=Evidence(t - 5 * sample.S, 2, "timeline", op="all_reduce a #5"),
    )  # fmt: skip
    late = Finding(
        kind="late-rank", severity="info", culprits=(3,), t_ns=t - 30 * sample.S,
        text="rank 3 came 4 s late.", evidence=Evidence(t - 30 * sample.S, 3, "collectives"),
    )  # fmt: skip
    return replace(base, findings=(deadlock, late))


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_chosen_one_is_shown_in_full(size: tuple[int, int]) -> None:
    app = app_on(made(), start="findings")
    async with app.run_test(size=size) as pilot:
        await shows(app, "1 error, 1 note")
        await shows(app, "train.py:48 in step")
        assert "Call the groups' ops" in text_of(app)
        await pilot.press("down")
        await shows(app, "Rank 3 came 4 s late.")
        await shows(app, "enter goes to the moment on Collectives, rank 3")
        assert "train.py:48 in step" not in text_of(app)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_line_at_which_the_culprit_stands_is_shown(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    file = tmp_path / "train.py"
    file.write_text("def step(x):\n" + 46 * "    x += 1\n" + "    forty_eight(x)\n    x += 2\n")
    frames = ((str(file), 48, "step"), ("/lib/site-packages/torch/x.py", 9, "all_reduce"))
    stack = RankStack(2, 0, frames)
    app = app_on(replace(made(), stacks=(stack,)), start="findings")
    async with app.run_test(size=size) as pilot:
        await shows(app, "48 ▶     forty_eight(x)")
        assert "47       x += 1" in text_of(app)
        await pilot.press("down")  # the other finding is on no line
        await until(lambda: "forty_eight" not in text_of(app), "no source")


async def test_y_copies_the_chosen_finding_with_what_is_known() -> None:
    app = app_on(made(), start="findings")
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(app, "1 error, 1 note")
        await pilot.press("y")
        await until(lambda: bool(app.clipboard), "copied")
        first, text, *facts = app.clipboard.splitlines()
        assert (first, text) == ("error: deadlock", "ranks wait for each other.")
        assert {"culprit: rank 2", "op: all_reduce a #5", "place: train.py:48 in step",
                "try: Call the groups' ops in the same order."} <= set(facts)  # fmt: skip
        await pilot.press("1", "y")
        await shows(app, "8 Findings")
        assert app.clipboard.startswith("error: deadlock")


async def test_without_a_finding_nothing_is_offered_to_do_with_one() -> None:
    app = app_on(replace(made(), findings=()), start="findings")
    async with app.run_test(size=(160, 40)) as pilot:
        await until(lambda: " leave" in text_of(app).split("\n")[-1], "the footer")
        labels = OWN["findings"].values()
        assert not [label for label in labels if f" {label} " in text_of(app).split("\n")[-1]]
        for key in ("y", "enter"):
            app.main.say("")
            await pilot.press(key)
            await until(lambda: bool(app.main._bars.message[0]), f"{key} answers")
        assert not app.clipboard


async def test_enter_goes_to_the_moment_the_rank_and_the_screen() -> None:
    def at(now: Snapshot, t_ns: int | None) -> Snapshot:
        return now if t_ns is None else replace(now, t_ns=t_ns)

    app = app_on(made(), live=False, start="findings", at=at)
    async with app.run_test(size=(100, 30)) as pilot:
        await shows(app, "1 error, 1 note")
        await pilot.press("enter")
        await until(lambda: app.main.page.name_ == "timeline", "the timeline")
        assert app.main.shared.rank == 2

        def moment() -> int:
            frame = app.main.shared.frame
            return frame.snapshot.t_ns if frame is not None else 0

        await until(lambda: moment() == made().t_end_ns - 5 * sample.S, "the moment")


async def test_the_badge_counts_errors_and_warnings_apart_and_no_notes() -> None:
    warned = replace(made().findings[0], severity="warning")
    base = made()
    app = app_on(replace(base, findings=(*base.findings, warned, warned)))
    async with app.run_test(size=(160, 30)):
        await shows(app, "✗1 ▲2")


async def test_the_choice_stays_on_a_finding_when_another_one_comes() -> None:
    base = made()
    app = app_on(replace(base, findings=base.findings[1:]), start="findings")
    async with app.run_test(size=(100, 30)) as pilot:
        await shows(app, "1 note")
        await pilot.press("down")  # chooses the note, the only one
        store = app._store
        assert isinstance(store, FakeStore)
        store.show(base)
        await shows(app, "1 error, 1 note")
        await shows(app, "enter goes to the moment on Collectives, rank 3")


async def test_a_hang_is_drawn_with_all_of_the_wait() -> None:
    """The only finding has the page's width; its window ends where the wait does, or at the
    cursor."""
    async with replayed("fault-missing-rank", (120, 40)) as (app, pilot):
        await settled(app)
        await type_(pilot, "goto 80%")
        await settled(app)
        await pilot.press("8")
        await settled(app)
        frame = app.main.shared.frame
        assert frame is not None
        (finding,) = frame.snapshot.findings
        assert frame.lanes_t0_ns < finding.t_ns < frame.lanes_t1_ns == frame.snapshot.t_ns
        text = text_of(app)
        assert finding.kind in text
        rows = text.split("\n")
        waits = [row.count("░") for row in rows]
        # Three ranks wait across most of the window, the fourth does not.
        assert sum(count > 80 for count in waits) == 3, text


async def test_a_finding_whose_time_moves_does_not_ask_for_frames_without_end() -> None:
    """An overloaded host's is the newest moment: with each frame the page wants another window."""
    base = made()
    times = itertools.count(base.t_ns)

    def later(_: Snapshot, __: int | None) -> Snapshot:
        at = next(times)
        note = Finding(kind="host-overloaded", severity="info", t_ns=at, text="too few cores.")
        return replace(base, t_ns=at, findings=(note,))

    app = app_on(base, start="findings", at=later)
    async with app.run_test(size=(120, 40)):
        await shows(app, "Too few cores.")
        looks, begun = app.engine._maker.num_looks, time.monotonic()
        await asyncio.sleep(2.5)
        made_since = app.engine._maker.num_looks - looks
        assert 1 <= made_since <= (time.monotonic() - begun) / OWN_PERIOD_S + 1
