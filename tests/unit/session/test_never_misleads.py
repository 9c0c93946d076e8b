"""What recorded sessions must never be made to say: values worked out from what was planted."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from pardbg.analysis.answers.checks import parse, run
from pardbg.analysis.answers.diff import as_dict, diff
from pardbg.analysis.answers.report import as_json, report
from pardbg.analysis.answers.snapshot import Snapshot, snapshot
from pardbg.analysis.answers.timeline import lanes
from pardbg.analysis.base.losses import NotFinite
from pardbg.events.control_codes import Mode, Verb
from pardbg.events.control_events import ControlEvent, Status
from pardbg.events.control_facts import Asked, Cut, Hit, Outcome, Raised, Stall, UnderWay
from pardbg.render.draw.cells import Picture, plain
from pardbg.render.frame import chrome
from pardbg.render.frame.activity import activity_text
from pardbg.render.frame.audit_trail import trail
from pardbg.render.frame.stacks import Entry, console, fold
from pardbg.render.pages.debug import DebugPageState, debug
from pardbg.render.pages.overview.page import overview
from pardbg.render.pages.pipeline.page import PipelinePageState, longest_ns, pipeline
from pardbg.render.reports.html import page as html_page
from pardbg.render.reports.text import text as report_text
from pardbg.render.reports.verdicts import diff_text as diff_text
from pardbg.session.navigation.travel import step_end
from pardbg.session.reader import load
from pardbg.session.source_files import Place, source_around
from pardbg.store.store import Store

SESSIONS = Path(__file__).parents[3] / "sessions"
RECIPES = Path(__file__).parents[3] / "pardbg" / "lab" / "recipes"


@cache
def store_of(name: str) -> Store:
    store = load(SESSIONS / f"{name}.mcap")
    store.settle()
    return store


@cache
def at_end(name: str) -> Snapshot:
    return snapshot(store_of(name), None)


def after_step(name: str, step: int) -> Snapshot:
    """The snapshot at the end of a training step."""
    t_ns = step_end(store_of(name), step)
    assert t_ns is not None
    return snapshot(store_of(name), t_ns)


def lines_of(picture: Picture) -> list[str]:
    return [plain(row) for row in (*picture.head, *picture.body, *picture.foot)]


def test_a_loss_that_went_nan_is_nan_wherever_a_loss_is_shown() -> None:
    """``fault:nan --fault-rank 2 --fault-step 5``: ten steps, the losses of 0 to 4 are finite."""
    now = at_end("fault-nan")
    assert now.not_finite == NotFinite("NaN", 5, (2,))
    header = plain(chrome.header("fault-nan", now, chrome.Mode(replay=True), 120))
    assert "loss NaN since step 5 r2" in header
    shown = lines_of(overview(now, 120, 36))
    assert any("5.746 → NaN" in line for line in shown)
    assert "".join(shown).count("✗") == 5 + 2  # steps 5 to 9 in the chart, verdict and finding
    found = report(store_of("fault-nan"))
    made = as_json(found)
    assert [row["loss"] for row in made["steps"]][4:] == [pytest.approx(4.681, abs=1e-3)] + [
        "NaN"
    ] * 5
    assert made["loss_not_finite"] == {"value": "NaN", "since_step": 5, "ranks": [2]}
    json.dumps(made, allow_nan=False)
    assert "NaN since step 5 (rank 2)" in report_text(found)
    assert "NaN since step 5 (rank 2)" in html_page(found, "fault-nan.mcap")
    (result,) = run(store_of("fault-nan"), [parse("loss.max<100")])
    assert not result.ok and result.text.startswith("NaN")
    compared = diff(store_of("ddp"), store_of("fault-nan"))
    json.dumps(as_dict(compared), allow_nan=False)
    (loss,) = (line for line in diff_text(compared).split("\n") if "loss of step" in line)
    assert loss.endswith("not finite")


def test_before_it_went_nan_nothing_is_said_of_it() -> None:
    now = after_step("fault-nan", 4)
    assert now.not_finite is None
    assert now.loss == pytest.approx(4.681, abs=1e-3)


def test_steps_are_numbered_one_way() -> None:
    """Ten steps, 0 to 9: after its end a run is not in step 10, nor at the end of 4 in 5."""
    for now, step in ((at_end("fault-nan"), 9), (after_step("fault-nan", 4), 4)):
        assert now.step == step
        assert {row.step for row in now.ranks} <= {step, step - 1}
        assert now.steps[-1].step == now.loss_history[-1][0] == step


HANGS = {
    "fault-missing-rank": ("missing-rank", "r2", "all_reduce default #21", "missing_rank.py:45"),
    "fault-group-order": ("deadlock", "r2", "all_reduce guesses #3", "group_order.py:46"),
    "fault-p2p-cycle": ("p2p-cycle", "r1–3", "recv from r3", "p2p_cycle.py:52"),
    "fault-mismatch-op": ("op-mismatch", "r2", "all_reduce default #21", "mismatch_op.py:37"),
    "fault-unpaired-recv": ("unpaired-recv", "r2", "recv from r3", "unpaired_recv.py:37"),
}
"""Session -> what the banner says: kind, culprits, op, place (of ``sessions/``' own faults)."""


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_is_said_on_every_page_with_rank_op_place_and_age(name: str) -> None:
    """While it lasts, and after it ended the job; also where findings are still looked for."""
    store = store_of(name)
    stalls = [
        t for t, event in store.controls.last(store.end_ns, 64) if isinstance(event.fact, Stall)
    ]
    during = snapshot(store, stalls[-1] + 2_000_000_000, partial=True)
    assert during.hang is not None and during.hang.until_ns is None
    shown = plain(chrome.banner(during, 120))
    assert len(shown) == 120
    assert all(word in shown for word in HANGS[name]), shown
    age = (during.t_ns - during.hang.since_ns) / 1e9
    assert 2 < age < 8 and f" {age:.3g} s" in shown and "wait" in shown
    after = at_end(name)
    assert after.hang is not None and after.hang.until_ns is not None
    assert "then the job failed" in plain(chrome.banner(after, 160))
    assert HANGS[name][3] in plain(chrome.banner(after, 160))


@pytest.mark.parametrize("name", ["ddp", "1f1b", "moe", "fault-nan", "fault-straggler"])
def test_no_hang_is_said_where_every_rank_gets_on(name: str) -> None:
    store = store_of(name)
    span = store.end_ns - store.begin_ns
    for part in range(1, 9):
        now = snapshot(store, store.begin_ns + span * part // 8, partial=True)
        assert now.hang is None and chrome.banner(now, 80) == ()


def test_the_stacks_of_a_standstill_are_in_the_recording() -> None:
    now = at_end("fault-missing-rank")
    assert [stack.rank for stack in now.stacks] == [0, 1, 2, 3]
    culprit = now.stacks[2].frames
    assert any(file.endswith("missing_rank.py") and line == 45 for file, line, _ in culprit)


def test_debug_names_the_culprit_its_place_and_its_stack_in_a_recording() -> None:
    """While ranks 0, 1 and 3 wait for rank 2: never "running, no pending op"."""
    store = store_of("fault-missing-rank")
    events = store.controls.last(store.end_ns, 64)
    stall = next(t for t, event in events if isinstance(event.fact, Stall))
    now = snapshot(store, stall + 2_000_000_000)
    place = now.stacks[2].frames[-1]
    listing = source_around(Place(str(RECIPES / "faults" / "missing_rank.py"), 45))
    for cells, rows in ((80, 19), (120, 35), (200, 55)):
        look = DebugPageState(2, can_control=False, source=listing)
        text = "\n".join(lines_of(debug(now, cells, rows, look)))
        assert "rank 2 holds ranks 0,1,3 up" in text
        assert "running" not in text and "pending" not in text
        assert "missing_rank.py:45" in text and "stacks" in text and place[2] == "wait_for"
        assert "▶         time.sleep(0.1)" in text, "the current line is in sight"
        assert len(text.split("\n")) <= rows + len(now.control.log)


def test_the_audit_trail_has_a_line_per_verb_with_what_came_of_it() -> None:
    you = "view-0a1b2c3d4e5f"
    hit = Hit(2, 1, "mb==3", next="2B3")
    facts = [(Asked(Verb.PAUSE), you), (Cut(), ""), (Asked(Verb.TICK, "0-1"), "ctl"), (Cut(), ""),
             (Asked(Verb.NEXT), "ctl"), (hit, "ctl"), (Cut(), "")]  # fmt: skip
    log = tuple(
        ControlEvent(fact, Status(Mode.HELD, why=(hit,) if at == 6 else ()), by, at + 1, at)
        for at, (fact, by) in enumerate(facts)
    )
    where = "breakpoint 1: rank 2 before 2B3 (mb==3)"
    assert [line.text for line in trail(log, you)] == [
        "pause by you → held at a cut", "tick by ctl: 0-1 → held at a cut", f"next by ctl → {where}"
    ]  # fmt: skip
    now = replace(at_end("ddp"), control=replace(at_end("ddp").control, log=log))
    (first, *_) = [plain(row) for row in console(now, (), "", 80)]
    assert first.strip().endswith("pause by view-0a1b → held at a cut")
    answers = (Entry(0, where, n=7), Entry(0, "something else"))
    shown = [plain(row) for row in console(now, answers, "", 80)]
    assert sum(where in row for row in shown) == 1, "the trail has it"
    assert any("something else" in row for row in shown)


def test_the_audit_trail_answers_verbs_in_the_order_of_asking() -> None:
    """Two ticks were asked for before the first one's cut came: each line has its own answer."""
    cuts = [Cut(Outcome(Verb.TICK, tick=tick, ran={0: ("0F1",)})) for tick in (71, 72, 73)]
    facts = [Asked(Verb.TICK), Asked(Verb.TICK), UnderWay((0,)), *cuts]
    log = [ControlEvent(fact, Status(Mode.HELD), "ctl", at, at) for at, fact in enumerate(facts)]
    first, second = (line.text for line in trail(log))
    assert "71" in first and "72" not in first
    assert "72" in second and "73" in second and "71" not in second


def test_the_audit_trail_says_nothing_twice() -> None:
    """What is still awaited, every 2 s; the breakpoint that a tick met, once more with its cut."""
    hit = Hit(2, 1, "mb==3", next="2B3")
    facts = [Stall(1), *[UnderWay((0, 1))] * 3, UnderWay((1,)), Asked(Verb.TICK), hit, Cut()]
    log = [ControlEvent(fact, Status(Mode.HELD, why=(hit,) if isinstance(fact, Cut) else ()), "",
                        at + 1, at * 2_000_000_000) for at, fact in enumerate(facts)]  # fmt: skip
    log[6] = replace(log[6], t_ns=log[5].t_ns)  # soon after the verb
    lines = trail(log)
    assert [line.t_ns // 1_000_000_000 for line in lines] == [0, 2, 8, 10]
    assert lines[3].text.count("breakpoint 1") == 1


@pytest.mark.parametrize("fact", [Hit(2, 1, "mb==3"), Raised(2, "ValueError: no labels")])
def test_the_audit_trail_says_of_what_nobody_did_no_doer(fact: Hit | Raised) -> None:
    """Such an event's viewer set the breakpoint, or holds control."""
    you = "view-0a1b2c3d4e5f"
    texts = {trail([ControlEvent(fact, None, by, 1, 1)], you)[0].text for by in (you, "bob", "")}
    assert len(texts) == 1


def test_a_console_line_keeps_its_indentation_where_it_is_folded() -> None:
    assert fold("    aaaa bbbb cccc", 14) == ["    aaaa bbbb", "      cccc"]
    assert fold("  " + "x" * 10, 8) == ["  xxxxxx", "    xxxx"]
    assert fold("", 8) == [""]


def around(store: Store, rank: int, t_ns: int, lane: str) -> list[str]:
    """What the timeline draws at a moment in a lane of a rank, where it is drawn alone."""
    drawn = lanes(store, t_ns - 20_000_000, t_ns + 1, 10_000, (rank,)).get(rank, {}).get(lane, ())
    return [span.label for span in drawn if span.t0_ns <= t_ns < span.t1_ns]


@pytest.mark.parametrize("name", ["zero3", "moe", "ddp-ring", "fault-group-order"])
def test_now_is_what_the_records_around_the_cursor_say_on_every_page(name: str) -> None:
    """All through a step, ten moments: Overview and Debug say what the timeline draws there, and
    who is said to wait in a collective has issued it and is not through."""
    store = store_of(name)
    first, last = step_end(store, 2), step_end(store, 3) or step_end(store, 2)
    assert first is not None and last is not None
    first = first if last > first else (step_end(store, 1) or store.begin_ns)
    waits = 0
    for part in range(10):
        now = snapshot(store, first + (last - first) * part // 10, partial=True)
        debug_lines = lines_of(debug(now, 160, 40))
        picture = overview(now, 160, 40)
        for row in now.ranks:
            shown = plain(picture.body[picture.rows.index(row.rank)])
            activity = activity_text(row.now)
            assert activity in shown and any(activity in text for text in debug_lines)
            if row.state == "running" and activity in ("forward", "backward", "optimizer"):
                assert activity in around(store, row.rank, now.t_ns, "phase")
            for op in now.collectives if row.state == "waiting" else ():
                if activity == f"{op.op} {op.label} #{op.seq}":
                    waits += 1
                    mine = next(a for a in op.arrivals if a.rank == row.rank)
                    assert mine.issued_ns is not None and mine.issued_ns <= now.t_ns
                    assert mine.completed_ns is None or mine.completed_ns >= now.t_ns
    if name == "zero3":
        assert waits >= 5


def test_the_bubble_of_each_step_stands_beside_what_the_schedule_implies() -> None:
    """Nine steps of 1F1B, p = 4, m = 8: each has both, the measured one is the larger."""
    view = at_end("1f1b").pipeline
    assert view is not None
    assert [step for step, _ in view.implied_history] == [step for step, _ in view.bubble_history]
    assert len(view.implied_history) == 9
    for (_, measured), (_, implied) in zip(view.bubble_history, view.implied_history, strict=True):
        assert 0.25 < implied < measured < 0.4


def test_two_runs_over_one_another_have_one_time_scale() -> None:
    """gpipe's step beside mp's, which takes longer: a cell is the same time in both."""
    pair = [at_end("gpipe"), at_end("mp")]
    most = max(map(longest_ns, pair))
    assert most > min(map(longest_ns, pair)) > 0
    places = []
    for one in pair:
        shown = lines_of(pipeline(one, 120, 30, PipelinePageState(0, least_span_ns=most)))
        ruler = next(text for text in shown if "╷0" in text)
        ticks = [at for at, char in enumerate(ruler) if char == "╷"]
        places.append((ticks[0], ticks[1]))
    assert places[0] == places[1]
    alone = lines_of(pipeline(min(pair, key=longest_ns), 120, 30, PipelinePageState(0)))
    ruler = next(text for text in alone if "╷0" in text)
    assert [at for at, char in enumerate(ruler) if char == "╷"][1] != places[0][1]


def test_an_action_seen_in_the_middle_of_a_step_has_its_time() -> None:
    """Pipelines without a schedule object: phases that say where rank 0's forward began are seen
    at their end only, when all else of the step is over."""
    store = store_of("mp")
    whole = at_end("mp").pipeline
    assert whole is not None and whole.last_complete is not None
    spans = [span for rank in whole.last_complete.ranks for span in rank.actions]
    took = {(s.rank, s.kind): s.t1_ns - s.t0_ns for s in spans if s.t1_ns is not None}
    assert len(took) == 8
    looked = 0
    for end in sorted(s.t1_ns for s in spans if s.t1_ns is not None)[:-1]:
        view = snapshot(store, end).pipeline
        assert view is not None and view.step is not None
        if view.step.step != whole.last_complete.step:
            continue  # nothing of it was seen at its first action's end: that is its send
        looked += 1
        for s in (span for rank in view.step.ranks for span in rank.actions):
            assert s.t1_ns is not None
            assert s.t1_ns - s.t0_ns == pytest.approx(took[s.rank, s.kind], rel=0.02)
    assert looked >= 4
