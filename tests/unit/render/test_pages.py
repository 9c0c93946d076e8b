"""The other pages as strings: right words, right width, any number of ranks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from pardbg import words
from pardbg.analysis.answers.ranks import Activity
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.comm.traffic import GroupView
from pardbg.analysis.findings.finding import Finding
from pardbg.events.commands import WhereFound
from pardbg.events.control_facts import Breakpoint, Hit
from pardbg.render.draw.cells import Picture, plain
from pardbg.render.frame import chrome
from pardbg.render.frame.control_words import fact_text
from pardbg.render.frame.stacks import stacks_of, tree
from pardbg.render.frame.timebar import Playing, Track, legend, time_bar
from pardbg.render.pages.collectives import CollectivesPageState as CollectivesLook
from pardbg.render.pages.collectives import collectives, detail, strip
from pardbg.render.pages.debug import DebugPageState as DebugLook
from pardbg.render.pages.debug import debug, source
from pardbg.render.pages.findings import Around, findings
from pardbg.render.pages.memory import memory
from pardbg.render.pages.output import output
from pardbg.render.pages.overview.page import OverviewPageState, overview
from pardbg.render.pages.timeline import Window, timeline
from pardbg.render.pages.traffic import TrafficPageState as TrafficLook
from pardbg.render.pages.traffic import matrix, traffic
from pardbg.session.navigation.marks import Mark
from pardbg.session.source_files import Place, SourceLines
from pardbg_agent.ctrl.agent_messages import Thread
from tests.ui.sample import MS, S, held, lanes, snapshot_1f1b, snapshot_ddp
from tests.ui.sample import output as printed

Draw = Callable[[Snapshot, int, int], Picture]
PAGES: dict[str, Draw] = {
    "overview": lambda s, w, h: overview(s, w, h, OverviewPageState(1)),
    "timeline": lambda s, w, h: timeline(
        s, lanes(s.t_ns - S, s.t_ns, len(s.ranks)), Window(s.t_ns - S, s.t_ns), w, h, 1
    ),
    "collectives": lambda s, w, h: collectives(s, w, h),
    "p2p": lambda s, w, h: collectives(s, w, h, CollectivesLook(p2p=True)),
    "traffic": lambda s, w, h: traffic(s, w, h),
    "matrix": lambda s, w, h: traffic(s, w, h, TrafficLook(matrix=True)),
    "memory": lambda s, w, h: memory(s, w, h, 1),
    "debug": lambda s, w, h: debug(s, w, h, DebugLook(1)),
    "findings": lambda s, w, h: findings(s, w, h),
    "output": lambda s, w, h: output(s, printed(), "", w, h),
}


def text_of(picture: Picture) -> str:
    return "\n".join(plain(row) for row in (*picture.head, *picture.body, *picture.foot))


@pytest.mark.parametrize(("cells", "rows"), [(60, 11), (80, 20), (120, 36), (200, 56)])
@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("ranks", [1, 4, 64])
def test_every_page_fits(name: str, cells: int, rows: int, ranks: int) -> None:
    made = snapshot_ddp(ranks) if ranks != 4 else snapshot_1f1b()
    picture = PAGES[name](made, cells, rows)
    lines = [line.rstrip() for line in text_of(picture).split("\n")]
    assert max(map(len, lines)) <= cells, max(lines, key=len)
    assert len(picture.head) + len(picture.foot) < rows


def _nothing(snapshot: Snapshot) -> Snapshot:
    empty = replace(snapshot.traffic, edges=(), groups=(), ops=())
    return replace(
        snapshot, ranks=(), pipeline=None, steps=(), collectives=(), p2p=(), traffic=empty,
        memory=(), findings=(), loss_history=(), step=None, step_ns=None, loss=None,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["overview", "collectives", "traffic", "memory", "findings"])
def test_an_empty_page_says_why(name: str) -> None:
    text = text_of(PAGES[name](_nothing(snapshot_ddp()), 80, 20))
    assert any(word in text for word in ("yet", "Nothing found")), text


def test_the_overview_says_what_each_rank_does() -> None:
    text = text_of(overview(snapshot_1f1b(), 120, 36))
    assert "▶ 0F5" in text
    assert "‖ held before 2F4" in text
    assert "◷ recv F4 from r2 1.20 s" in text
    assert "slow-stage" in text and "loss" in text


def test_a_filter_keeps_matching_ranks() -> None:
    picture = overview(snapshot_1f1b(), 120, 36, OverviewPageState(contains="recv"))
    assert picture.rows == (3,)


def test_arrivals_show_who_was_late_and_who_is_missing() -> None:
    rows = snapshot_ddp().collectives
    # Rank 2 comes 80 ms after the first; ranks 0, 1, 3 within 3 ms of it.
    assert plain(strip(rows[1], 4)) == "▁▁█▁"
    assert plain(strip(rows[-1], 4)) == "▁▃·█"
    text = text_of(collectives(snapshot_ddp(), 120, 36))
    assert "MISSING 2" in text and "has not come" in text


def test_many_arrivals_keep_the_latest_of_each_bucket() -> None:
    row = snapshot_ddp(64).collectives[1]
    made = plain(strip(row, 16))
    # Rank 2 is by far the last: its bucket of four is the first one. Others come in rank order.
    assert len(made) == 16 and made[0] == "█"


def test_one_op_in_full_has_a_line_per_rank() -> None:
    snapshot = snapshot_ddp()
    text = text_of(detail(snapshot.collectives[1], snapshot, 100, 30))
    assert "all_reduce dp #5" in text and text.count("completed") == 4 and "+80 ms" in text


def test_traffic_tells_observed_from_modelled() -> None:
    seen, modelled = (
        text_of(traffic(snapshot_1f1b(), 120, 36)),
        text_of(traffic(snapshot_ddp(), 120, 36)),
    )
    assert "━━▶" in seen and "12.4 MB/s" in seen and "observed" in seen
    assert "┄┄▶" in modelled and "modelled" in modelled


def test_memory_names_its_parts_and_the_expectation() -> None:
    # 12 + 12 + 24 MiB, expected 48 MiB.
    assert "expected P+G+O 48 MiB, as measured" in text_of(memory(snapshot_1f1b(), 200, 36))
    text = text_of(memory(snapshot_1f1b(), 120, 36))
    assert "expected P+G+O 48 MiB, as measured" in text
    for letter in "PGOA":
        assert f" {letter} " in text


def test_debug_shows_what_is_held_and_the_trail() -> None:
    made = held(snapshot_1f1b())
    for cells in (80, 120):
        text = text_of(debug(made, cells, 34))
        assert "held at a cut" in text and "lease 9 s" in text and "nothing pending" in text
        assert "pause by view-3f → held at a cut" in text


def test_equal_stacks_share_a_line() -> None:
    def threads(*frames: tuple[str, int, str]) -> tuple[Thread, ...]:
        return (Thread("MainThread", True, frames),)

    main, step = ("/job/train.py", 12, "<module>"), ("/job/train.py", 88, "train_step")
    found = WhereFound({
        0: threads(main, step, ("/x/pardbg_agent/control/gate.py", 3, "wait")),
        1: threads(main, step, ("/usr/lib/threading.py", 331, "wait")),
        2: threads(main, ("/job/data.py", 5, "__next__")),
    })  # fmt: skip
    lines = [plain(row).strip() for row in tree(stacks_of(found), 100)]
    assert lines == [
        "├ 3 ranks 0–2  train.py:12 <module>",
        "├ 2 ranks 0,1  train.py:88 train_step",
        "├ 1 rank 2  data.py:5 __next__",
    ]


def test_a_stack_that_does_not_fit_keeps_the_programs_own_line() -> None:
    torch = "/env/lib/python3.11/site-packages/torch/distributed"
    frames = (
        ("/job/main.py", 3, "<module>"), ("/job/train.py", 88, "train_step"),
        (f"{torch}/c10d_logger.py", 83, "wrapper"),
        (f"{torch}/distributed_c10d.py", 3014, "all_reduce"),
    )  # fmt: skip
    stacks = stacks_of(WhereFound({0: (Thread("MainThread", True, frames),)}))
    told = {cells: plain(tree(stacks, cells)[0]).strip() for cells in (130, 90, 50)}
    assert told[130] == (
        "├ 1 rank 0  main.py:3 <module> › train.py:88 train_step › c10d_logger.py:83 wrapper › "
        "distributed_c10d.py:3014 all_reduce"
    )
    assert told[90] == (
        "├ 1 rank 0  … › train.py:88 train_step › … › distributed_c10d.py:3014 all_reduce"
    )
    assert told[50] == "├ 1 rank 0  … › train.py:88 train_step › …"


def test_output_cannot_reach_the_terminal() -> None:
    text = text_of(output(snapshot_1f1b(), printed(), "", 80, 20))
    assert "\x1b" not in text and "! UserWarning: slow loader" in text


def test_findings_are_wrapped_in_full() -> None:
    text = text_of(findings(snapshot_ddp(), 80, 20))
    assert "culprit  rank 2" in text and "next(loader)" in text
    assert "Look at its data loader." in text and "enter goes to the moment on Coll" in text


def test_the_header_keeps_what_matters_when_narrow() -> None:
    made = replace(snapshot_1f1b(), dropped_records=12)
    live = chrome.Mode(replay=False)
    wide, narrow = (plain(chrome.header("x", made, live, cells)) for cells in (200, 60))
    assert len(narrow) == 60 and len(wide) == 200
    shown = ("● live", "gpt-1f1b", "412 ms/step", "bubble 31.9%", "agent 0.4%", "▲1", "lost 12")
    for word in shown:
        assert word in wide
    assert "● live" in narrow and "lost 12" in narrow and "agent" not in narrow


@pytest.mark.parametrize("cells", [60, 80, 120])
def test_tabs_shorten(cells: int) -> None:
    names = [(number, name) for number, name in enumerate(chrome.SHORT, 1)]
    line, spans = chrome.tabs(names, "pipeline", cells)
    assert len(plain(line)) == cells
    assert len(spans) == len(names) and spans[0][0] == 0


def test_the_control_line_says_what_was_acknowledged() -> None:
    control = held(snapshot_1f1b()).control
    text = plain(chrome.control_line(control, "", ("", ""), 120))
    assert "held at a cut · 4 ranks · lease 9 s · nothing pending" in text
    assert "pausing…" in plain(chrome.control_line(control, "pausing…", ("", ""), 80))
    assert "no such rank" in plain(chrome.control_line(control, "x", ("no such rank", "bad"), 80))


WHY = Hit(
    2, 2, "nan", True,
    "3 of 16384 values are not finite (3 NaN; the first at 17) in the input of all_reduce dp #42; "
    "so is the gradient of layers.0.weight", "all_reduce dp #42", 41,
)  # fmt: skip


def test_why_it_is_held_comes_first_and_in_full_on_the_debug_page() -> None:
    made = held(snapshot_1f1b())
    control = replace(
        made.control, why=(WHY,),
        breaks=(
            Breakpoint(1, "mb==3", (0, 1), once=True), Breakpoint(2, "nan", hits=1, kind="nan"),
        ),
    )  # fmt: skip
    text = plain(chrome.control_line(control, "", ("", ""), 160))
    assert "nothing pending · watch 2: rank 2 step 41, nan: 3 of 16384" in text
    assert "next" in plain(chrome.control_line(replace(control, why=()), "", ("", ""), 160))
    for cells in (80, 120, 200):
        text = text_of(debug(replace(made, control=control), cells, 34))
        assert fact_text(WHY) in " ".join(text.split()), cells
        assert "◉  2  watch nan  matched 1 ×" in text, text
        assert "●  1  mb==3  on 0,1  once  not matched yet" in text


def test_the_time_bar_marks_place_and_events() -> None:
    made = replace(snapshot_1f1b(), t_begin_ns=0, t_end_ns=100 * S, t_ns=50 * S)
    marks = (Mark(25 * S, 25 * S, "warning", "rank 2 is slow"), Mark(75 * S, 80 * S, "pause"))
    text = plain(time_bar(made, Playing(True, 2.0, True, marks=marks), 100))
    assert text.startswith(" ▶ play 2×") and "50.00 s" in text and "step 128" in text
    track = text[text.index("━") : text.rindex("─") + 1]
    assert abs(track.index("●") / len(track) - 0.5) < 0.03
    assert abs(track.index("▲") / len(track) - 0.25) < 0.03
    assert abs(track.index("‖") / len(track) - 0.75) < 0.03
    assert abs(track.rindex("‖") / len(track) - 0.80) < 0.04
    words = plain(legend(replace(made, t_ns=25 * S), Playing(True, 2.0, True, marks=marks), 120))
    assert "▲ 1 warning" in words and "‖ 1 pause" in words and "▲ rank 2 is slow" in words
    assert ", . by step (u changes)" in words and "bookmark" not in words
    twice = (*marks, *marks)
    words = plain(legend(replace(made, t_ns=25 * S), Playing(True, 2.0, True, marks=twice), 120))
    assert "▲ 2 warnings" in words and "‖ 2 pauses" in words


def test_the_time_bar_says_what_is_not_read_yet() -> None:
    made = replace(snapshot_1f1b(), t_begin_ns=0, t_end_ns=40 * S, t_ns=20 * S)
    state = Playing(False, 1.0, True, 0, 100 * S, (), "step", 0.42, None)
    text = plain(time_bar(made, state, 100))
    assert "loaded 42%" in text and "1 m 40" in text  # of the whole session, not of what is read
    text = plain(time_bar(made, replace(state, awaited_ns=90 * S), 100))
    assert "wait 42%" in text and "shown: 20.00 s" in text


def test_a_timeline_lane_draws_boxes_with_labels() -> None:
    picture = PAGES["timeline"](snapshot_1f1b(), 120, 36)
    text = text_of(picture)
    assert "phase" in text and "wait" in text and "░" in text
    window = Window(0, 1000 * MS)
    empty = timeline(snapshot_1f1b(), {}, window, 80, 20)
    assert "Nothing ran in this window." in text_of(empty)


def test_start_up_and_wind_down_take_few_cells_of_the_time_bar() -> None:
    """100 s of which ranks act from 40 s to 90 s, on 101 cells: 4 cells for each end."""
    track = Track.of(0, 100 * S, (40 * S, 90 * S), 101)
    assert [track.cell(t * S) for t in (0, 40, 65, 90, 100)] == [0, 4, 50, 96, 100]
    assert [track.time(cell) // S for cell in (0, 4, 50, 96, 100)] == [0, 40, 65, 90, 100]
    assert [Track.of(0, 100 * S, None, 101).cell(t * S) for t in (0, 40, 100)] == [0, 40, 100]
    short = Track.of(0, 100 * S, (1 * S, 100 * S), 101)  # a short start is drawn as it was
    assert [short.cell(t * S) for t in (1, 50, 100)] == [1, 50, 100]
    made = replace(snapshot_1f1b(), t_begin_ns=0, t_end_ns=100 * S, t_ns=65 * S)
    bar = plain(time_bar(made, Playing(False, 1.0, True, active=(40 * S, 90 * S)), 100))
    assert "╌" in bar and bar.index("●") - bar.index("╌") < 45


@pytest.mark.parametrize(
    ("line", "function", "ran"),
    [(3, "train", True), (3, "load", False), (2, "train", False), (3, "<module>", True)],
    ids=["as it ran", "another function", "a blank line", "no name to compare"],
)
def test_a_file_changed_since_is_not_shown_as_what_ran(line: int, function: str, ran: bool) -> None:
    lines = ("def train(x):", "", "    step(x)")
    found = SourceLines(Place("job.py", line), 1, lines)
    drawn = source(found, f"job.py:{line} {function}", 60, 9, function=function)
    assert ("another version of this file ran" in "".join(map(plain, drawn))) is not ran


def test_phases_of_a_step_and_the_rest_are_all_of_it() -> None:
    made = snapshot_1f1b()
    last = replace(made.steps[-1], duration_ns=300, phases={"forward": 100, "optimizer": 100})
    text = text_of(overview(replace(made, steps=(last,)), 120, 36))
    found = dict(re.findall(r"(forward|optimizer|other) +\S+ +(?:\d+ ns) +(\d+)%", text))
    assert set(found) == {"forward", "optimizer", "other"}
    assert sum(map(int, found.values())) == 100, found


def test_traffic_names_every_axis_with_all_its_groups() -> None:
    """Two groups of tp with 30 MB, one of dp with 20 MB, and the default one that moved nothing."""
    made = snapshot_ddp()
    groups = (
        GroupView("g0", "default", None, (0, 1, 2, 3), "gloo", 0, 0),
        GroupView("g1", "tp0", "tp", (0, 1), "gloo", 10, 10_000_000),
        GroupView("g2", "tp1", "tp", (2, 3), "gloo", 20, 20_000_000),
        GroupView("g3", "dp0", "dp", (0, 2), "gloo", 5, 20_000_000),
    )
    view = replace(made.traffic, groups=groups)
    title = text_of(traffic(replace(made, traffic=view), 120, 36)).splitlines()[1]
    assert "tp (2 × 2 ranks, gloo) 30 ops 30 MB  dp (2 ranks, gloo) 5 ops 20 MB" in title
    assert "default" not in title


@pytest.mark.parametrize(
    ("here", "ended", "says"),
    [(0, 0, "No rank"), (2, 0, "2 of 4 ranks"), (2, 9, "2 of 4 ranks"), (4, 0, "no whole step")],
)
def test_nothing_is_called_healthy_while_ranks_are_still_coming(
    here: int, ended: int, says: str
) -> None:
    made = snapshot_ddp()
    ranks = tuple(replace(rank, step_ns=(MS,) * ended) for rank in made.ranks[:here])
    run = replace(made.run, world_size=4 if here else 0)
    early = replace(made, run=run, ranks=ranks, findings=(), live=True)
    begun = replace(early, live=False, t_end_ns=early.t_ns + 1, run=replace(run, exit_code=None))
    for text in (text_of(findings(early, 100, 30)), text_of(overview(begun, 120, 40))):
        assert says in text and "No rank is missing" not in text
    whole = replace(early, ranks=made.ranks, findings=())
    assert "Nothing" not in text_of(findings(whole, 100, 30, 0, Around({}, Window(0, 0), (), True)))
    assert "No rank is missing" in text_of(findings(whole, 100, 30))


@pytest.mark.parametrize(("num_steps", "judged"), [(0, True), (1, False), (7, False), (8, True)])
def test_of_too_few_steps_nothing_is_said_of_their_speed(num_steps: int, judged: bool) -> None:
    """Two steps warm up, and six have to be alike; without steps, ops are judged by themselves."""
    made = replace(snapshot_ddp(), findings=(), hang=None)
    made = replace(made, steps=(made.steps[-1],) * num_steps)
    verdict = text_of(overview(made, 120, 36, OverviewPageState())).splitlines()[0]
    assert ("too few steps" not in verdict) == judged
    assert ("no stage stands out" in text_of(findings(made, 100, 30))) == judged


def test_the_overview_begins_with_a_verdict() -> None:
    made = replace(snapshot_1f1b(), findings=(), hang=None)

    def verdict(shown: Snapshot, looking: bool = False, row: int = 0) -> str:
        look = OverviewPageState(looking=looking)
        return text_of(overview(shown, 120, 36, look)).splitlines()[row]

    assert "✓" in verdict(made) and words.duration(made.step_ns) in verdict(made)
    bubble = verdict(made, row=1)
    whole, implied, excess = map(float, re.findall(r"([\d.]+)%", bubble))
    assert "=" in bubble and round(implied + excess, 1) == whole, "they add up as shown"
    slow = Finding(kind="straggler", severity="warning", culprits=(2,), t_ns=made.t_ns, text="…")
    note = replace(slow, kind="host-overloaded", severity="info", culprits=())
    slow = replace(slow, text="rank 2 comes last")
    assert verdict(replace(made, findings=(note, slow))).split()[:3] == ["▲", "Rank", "2"]
    assert "✓" in verdict(replace(made, findings=(note,)))
    noted = verdict(replace(made, findings=(note, replace(slow, severity="info"))))
    assert "✓" not in noted and "straggler r2" in noted and "Nothing wrong" not in noted
    coming = replace(made, run=replace(made.run, world_size=8))
    assert "4 of 8 ranks" in verdict(coming) and "✓" not in verdict(coming)
    assert verdict(made, looking=True) == "", "nothing is said before it is known"


def test_the_verdict_is_of_the_whole_run_once_it_has_ended_and_never_hides_what_comes() -> None:
    made = replace(snapshot_1f1b(), findings=(), hang=None)
    ended = replace(made, live=False, run=replace(made.run, exit_code=0))
    early = replace(ended, run=made.run, t_end_ns=made.t_ns + S)
    first = {said_first(made), said_first(ended), said_first(early)}
    assert len(first) == 3, "live, ended, and in the middle of a recording"
    slow = Finding(kind="straggler", severity="warning", culprits=(2,), t_ns=made.t_ns + S // 2,
                   text="…")  # fmt: skip
    to_come = said_first(early, (slow, replace(slow, t_ns=made.t_ns + S)))
    assert "straggler r2" in to_come and "✓" not in to_come
    at = words.offset(slow.t_ns - made.t_begin_ns, 1e7)
    assert at in to_come, "the first of both"
    failed = replace(ended, run=replace(made.run, exit_code=7))
    assert "7" in said_first(failed) and "✗" in said_first(failed)
    asked = Finding(kind="interrupted", severity="info", t_ns=made.t_ns, text="ada ended the run.")
    assert "Ada ended the run." in said_first(replace(failed, findings=(asked,)))


def said_first(shown: Snapshot, known: tuple[Finding, ...] = ()) -> str:
    return text_of(overview(shown, 120, 36, OverviewPageState(known=known))).splitlines()[0]


def test_a_culprit_and_its_cost_stand_out_in_the_colour_of_what_costs() -> None:
    made = snapshot_ddp()
    slow = Finding(kind="straggler", severity="warning", culprits=(2,), t_ns=made.t_ns, text="…",
                   cost_ns_per_step=62_500_000)  # fmt: skip
    picture = overview(replace(made, findings=(slow,), hang=None), 120, 36)
    loud = {run.text.strip() for row in picture.body for run in row if run.style == "culprit"}
    assert {"2", "+62.5 ms a step"} <= loud


def test_debug_says_who_is_gone_and_that_a_job_has_ended() -> None:
    made = replace(snapshot_ddp(), hang=None)
    killed = replace(made.ranks[2], state="lost", now=Activity("lost", "killed"))
    one_gone = replace(made, ranks=(*made.ranks[:2], killed, made.ranks[3]))

    def status(shown: Snapshot, look: DebugLook) -> str:
        return text_of(debug(shown, 120, 34, look)).splitlines()[0]

    assert "▶" not in status(one_gone, DebugLook(1)) and "rank 2" in status(one_gone, DebugLook(1))
    over = replace(made, ranks=tuple(replace(r, state="ended") for r in made.ranks))
    here, recorded = DebugLook(1, can_control=False, ended=True), DebugLook(1, can_control=False)
    assert status(over, here) != status(over, recorded), "it is no recording"
    raised = replace(made.ranks[1], state="ended", now=Activity("ended", "IndexError"))
    assert "IndexError" in text_of(debug(replace(made, ranks=(raised,)), 120, 34, DebugLook(1)))


def test_a_message_under_way_is_no_trouble_until_the_job_has_ended() -> None:
    made = snapshot_1f1b()
    row = replace(made.p2p[-1], recv_ns=made.t_ns, done_ns=None, verdict="incomplete")
    loud = {}
    for code in (None, 0):
        shown = replace(made, p2p=(row,), run=replace(made.run, exit_code=code))
        picture = collectives(shown, 120, 36)
        runs = [run for line in (*picture.head, *picture.body) for run in line]
        loud[code] = any(run.style.startswith("warn") for run in runs)
    assert loud == {None: False, 0: True}


def test_an_op_that_waited_for_a_rank_makes_no_straggler_of_it() -> None:
    made = snapshot_ddp()
    rows = tuple(replace(row, skew_ns=90 * MS, transfer_ns=MS) for row in made.collectives)
    assert made.collectives and "straggler" not in text_of(
        collectives(replace(made, collectives=rows, findings=()), 120, 36)
    )


def test_what_comes_next_follows_what_a_rank_does_now() -> None:
    """A rank's state is newer than its records, of which the pipeline's step is made."""
    made = snapshot_1f1b()
    assert made.pipeline is not None and made.pipeline.step is not None
    step = made.pipeline.step
    planned = replace(step.ranks[1], plan=("", "1F0", "1F1", "", "1B0"), next_action="1F1")
    view = replace(made.pipeline, step=replace(step, ranks=(planned,)))
    for now, coming in (("1F1", "1B0"), ("1B0", ""), ("recv from 0", "")):
        row = replace(made.ranks[1], since_ns=made.t_ns + MS, now=Activity("in", now))
        shown = text_of(debug(replace(made, pipeline=view, ranks=(row,)), 90, 34, DebugLook(1)))
        assert re.search(rf"(?m) {now} +{coming} *$", shown), shown
        waits = replace(made, ranks=(replace(row, state="waiting"),))
        assert "0 ns" not in text_of(overview(waits, 120, 34)), "not known for how long"


def test_the_key_of_a_matrix_leaves_the_receivers_names() -> None:
    for cells in (60, 80, 120):
        head = plain(matrix(range(8), {}, cells, 12)[0])
        assert "".join(f"{rank:>3}" for rank in range(8)) in head and "up to" in head, cells


def test_arrivals_lie_on_one_time_axis_and_the_last_is_named() -> None:
    """Rank 2 comes 73 to 80 ms after the first, 80 · 1.1 is below 100 ms; rank 3 after 3 ms."""
    picture = collectives(replace(snapshot_ddp(), findings=()), 120, 36)
    rows = text_of(picture).splitlines()
    assert any("0 – 100 ms" in row for row in rows)
    ends = {}
    for skew in (80, 73):
        row = next(row for row in rows if f" {skew} ms    1.30" in row)
        assert row.count("●") == 3, "ranks 0 and 1 in one cell, 3 and 2"
        ends[skew] = row.index("r2") - 1 - row.index("●")
    assert abs(ends[80] / ends[73] - 80 / 73) < 0.05
    assert "rank 2" in rows[0].lower(), "who keeps the others waiting comes first"
    assert "▲" not in rows[0], "no finding says that it is wrong"
    said = text_of(collectives(all_late_in_turn(), 120, 36)).splitlines()[0]
    assert not re.search(r"[Rr]ank \d", said) and "50 ms" in said
    bars = {row.split()[0]: row for row in rows if re.match(r" r\d .*last", row)}
    assert set(bars) == {"r0", "r1", "r2", "r3"}
    assert bars["r2"].count("━") > 5 * bars["r1"].count("━")


def all_late_in_turn() -> Snapshot:
    """Each of four ranks is 50 ms late in its turn."""
    made = snapshot_ddp()
    rows = []
    for at, row in enumerate(made.collectives[:8]):
        came = (a._replace(issued_ns=made.t_ns + 50 * MS * (a.rank == at % 4), held_ns=0)
                for a in row.arrivals)  # fmt: skip
        rows.append(replace(row, arrivals=tuple(came), skew_ns=50 * MS, last_rank=at % 4))
    return replace(made, collectives=tuple(rows), findings=())
