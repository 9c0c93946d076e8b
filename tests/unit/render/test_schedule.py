"""The schedule's rows, drawn from spans worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.answers.snapshot import snapshot as snapshot_at
from pardbg.analysis.pipeline.implied import Planned, lay_out, makespan, schedule_detail
from pardbg.analysis.pipeline.in_flight import in_flight_curve
from pardbg.analysis.pipeline.values import ActionSpan, Cause, Idle, PipelineRank
from pardbg.render.draw.axis import Axis, gaps, nice_step, ruler
from pardbg.render.draw.cells import line_width, plain
from pardbg.render.pages.pipeline.ledger import explain, figures
from pardbg.render.pages.pipeline.page import PipelinePageState, pipeline
from pardbg.render.pages.pipeline.schedule import (
    LAUNCH,
    even,
    label,
    launch_row,
    legend,
    plan_row,
    seen_row,
    short_next,
)
from tests.ui.sample import MS, held, pipeline_step, snapshot_1f1b, snapshot_ddp
from tests.unit.trace_builder import Trace, ns, one_f_one_b


def _rank(actions: list[ActionSpan], idles: list[Idle]) -> PipelineRank:
    return PipelineRank(0, (0,), (), tuple(actions), tuple(idles), 0, {}, 0, 1, 1, None, None)


def test_boxes_lie_in_proportion_to_time() -> None:
    """40 ns on 20 cells: F0 takes 5 cells, then an idle wait of 5, then B0 running to the end."""
    rank = _rank(
        [ActionSpan(0, 0, "F", 0, 0, 10), ActionSpan(0, 0, "B", 0, 20, None)],
        [Idle(0, 10, 20, "dependency", None, 1)],
    )
    row = seen_row(rank, Axis(0, 40, 20), 40, many_stages=False)
    assert plain(row.line()) == "F0   ░░░░░B0       ▸"
    styles = [run.style for run in row.line()]
    assert styles == ["action.F.even", "idle.dependency", "action.B.now"]


def test_an_idle_stretch_names_what_it_waits_for_where_that_fits() -> None:
    rank = _rank([], [Idle(0, 0, 10, "dependency", "1B0", 1)])
    assert plain(seen_row(rank, Axis(0, 10, 10), 10, False).line()) == "░◂1B0░░░░░"
    assert plain(seen_row(rank, Axis(0, 10, 5), 10, False).line()) == "░░░░░"


@pytest.mark.parametrize(
    ("cells", "many", "text"), [(3, True, "4F5"), (2, True, "F5"), (1, True, "F"), (0, True, "")]
)
def test_labels_shorten(cells: int, many: bool, text: str) -> None:
    assert label(4, "F", 5, cells, many) == text


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (95, ["warm-up", "dependency", "communication", "host", "cool-down"]),
        (94, ["warm", "dep", "comm", "host", "cool"]),
        (71, ["warm", "dep", "comm", "host", "cool"]),
        (70, ["warm", "dep", "comm", "host"]),
    ],
)
def test_the_legend_names_each_cause_of_idle_time_that_fits(cells: int, words: list[str]) -> None:
    """The two kinds of actions take 21 cells; idle time 8 + 66 in whole words, 8 + 42 in short."""
    causes: list[Cause] = ["warmup", "dependency", "communication", "host", "cooldown"]
    drawn = legend(["F", "B"], cells, causes)
    signs = [at for at, run in enumerate(drawn) if run.style.startswith("idle.")]
    assert [drawn[at].text for at in signs] == ["··", "░░", "~~", "╱╱", "˙˙"][: len(words)]
    assert [drawn[at + 1].text.strip() for at in signs] == words
    assert line_width(drawn) <= cells


def test_next_actions_are_short() -> None:
    assert short_next("2F4", False) == "F4"
    assert short_next("2F4", True) == "2F4"
    assert short_next("send F4 to r3", False) == "send F4 to r3"
    assert short_next("all_reduce dp #42", False) == "all_reduce dp #42"


def test_the_plan_in_time_is_the_implied_schedule() -> None:
    """p=4 m=8, forward 10 ms, backward 20 ms, free transfers: (m + p - 1) x 30 ms = 330 ms."""
    step = pipeline_step(1, 0)
    boxes = lay_out(step, step, 4)
    assert makespan(boxes) == pytest.approx(330 * MS)
    assert [box.text for box in boxes[3][:3]] == ["3F0", "3B0", "3F1"]
    row = plan_row(boxes[0], Axis(0, 330 * MS, 66), False)
    assert plain(row.line()).startswith("F0F1F2F3")


def test_time_in_which_nothing_ran_is_cut_short() -> None:
    """Two actions of 10 ns, a second of nothing between them: the break takes three cells."""
    cut = gaps([(0, 10), (1010, 1020)], 1020)
    assert cut == ((10, 1010),)
    axis = Axis(0, 26, 26, cut)  # one ns a cell; the break keeps three
    assert (axis.x(10), axis.x(1010), axis.x(1020)) == (10, 13, 23)
    assert gaps([(0, 10), (30, 40)], 45) == ()


@pytest.mark.parametrize("ended", [False, True])
def test_an_action_that_never_ends_leaves_the_step_its_room(ended: bool) -> None:
    """p=2 m=4, forwards of 10 ms: 1F1 runs since 30 ms, at 5 s still, or until its rank is ended.
    The axis has some 40 ms of the step, so each forward takes over five cells, and a break."""
    trace = Trace(2)
    trace.plan("Schedule1F1B", one_f_one_b(2, 4), 4)
    for text, t0 in (("0F0", 0), ("0F1", 10), ("1F0", 15)):
        trace.ranks[int(text[0])].action(text, t0, t0 + 10)
    trace.flush()
    runs = {"rank": 1, "action": "F", "stage": 1, "mb": 1, "since_ns": ns(30), "alive": True}
    trace.state(4500, **{trace.ranks[1].proc: runs})
    if ended:
        for proc in trace.ranks:
            trace.define_end(proc, 4900, "exit 1")
        trace.end(4900, 1)
    shown = snapshot_at(trace.store(), ns(5000))
    picture = pipeline(shown, 120, 36, None, schedule_detail(shown.pipeline))
    texts = [plain(row) for row in picture.body]
    assert any("⋯4.96 s▾" in plain(row) for row in picture.head)
    first, second = (text[15:] for text in texts if text[9:13] == "seen")
    assert first.index("F1") - first.index("F0") > 5
    assert second.index("F1") - second.index("F0") > 5
    assert "╎╎╎" in second[second.index("F1") :] and "╎╎ " in plain(picture.foot[-1])


def test_a_ruler_counts_from_its_origin() -> None:
    text = plain(ruler(Axis(0, 400 * MS, 80)).line())
    assert text.startswith("╷0 ") and "╷100 ms" in text and "╷300 ms" in text
    assert [nice_step(n) for n in (1, 3, 70, 200)] == [1, 5, 100, 200]


def test_the_ledger_adds_up() -> None:
    """Rank 3 of p=4 m=8 with 1 ms transfers: busy 240 ms of a window of 338..."""
    step = pipeline_step(1, 0)
    rank = step.ranks[3]
    window = step.t1_ns - step.t0_ns
    assert rank.busy_ns + sum(rank.idle_ns.values()) == window
    text = plain(figures(rank, 120, tuple(rank.idle_ns)))
    assert f"{rank.busy_ns / window * 100:.0f}%" in text


def test_the_sentence_names_the_producer() -> None:
    step = pipeline_step(1, 0)
    idle = next(i for i in step.ranks[0].idles if i.cause == "dependency")
    text = plain(explain(step, idle, True, 200))
    # Rank 0 has done F0..F3 at 40 ms and waits for 1B0.
    assert "rank 0 at 40 ms" in text and "waits for 1B0 on rank 1" in text
    assert plain(explain(step, idle, True, 60)).startswith("▌ step 1: rank 0 at 40 ms idle for")


@pytest.mark.parametrize(("cells", "rows"), [(60, 11), (80, 20), (120, 36), (200, 56)])
@pytest.mark.parametrize("ranks", [1, 4, 64])
def test_the_page_fits_every_terminal(cells: int, rows: int, ranks: int) -> None:
    for snapshot in (snapshot_1f1b(p=ranks, m=8), held(snapshot_1f1b(p=ranks, m=8))):
        look = PipelinePageState(selected=ranks - 1)
        picture = pipeline(snapshot, cells, rows, look, schedule_detail(snapshot.pipeline))
        lines = [*picture.head, *picture.body, *picture.foot]
        assert max(len(plain(row)) for row in lines) <= cells
        assert len(picture.head) + len(picture.foot) < rows
        assert picture.focus is not None
        assert len(picture.rows) <= len(picture.body)


def test_a_run_without_a_pipeline_says_where_to_look() -> None:
    text = "\n".join(plain(row) for row in pipeline(snapshot_ddp(), 80, 20).body)
    assert "No pipeline in this run." in text and "3 Timeline" in text


def test_a_recording_that_has_not_got_to_its_first_step_denies_no_pipeline() -> None:
    ranks = tuple(replace(rank, step=None, step_ns=()) for rank in snapshot_ddp().ranks)
    early = replace(snapshot_ddp(), live=False, ranks=ranks, t_ns=0, t_end_ns=1)
    text = "\n".join(plain(row) for row in pipeline(early, 80, 20).body)
    assert "No pipeline up to here." in text


def test_a_ranks_later_stage_is_written_small_where_its_number_does_not_fit() -> None:
    assert label(4, "F", 5, 3, True, later=True) == "4F5"
    assert label(4, "F", 5, 2, True, later=True) == "f5"
    assert label(4, "I", 5, 1, True, later=True) == "i"


def test_boxes_of_a_row_are_called_alike() -> None:
    """Three boxes of 1 cell and one of 2: all say their letter, none its number too."""
    spans = [ActionSpan(0, 0, "F", i, i, i + 1) for i in range(3)]
    row = seen_row(_rank([*spans, ActionSpan(0, 0, "B", 0, 3, 5)], []), Axis(0, 5, 5), 5, False)
    assert plain(row.line()) == "FFFB "
    assert even([1, 0, 1, 1, 2]) == 1


def test_long_forwards_have_their_numbers_beside_short_backwards() -> None:
    """Forwards of 5 cells, backwards of 1, in turn: half of the boxes have no room for a number."""
    spans = [ActionSpan(0, 0, "F", i, 6 * i, 6 * i + 5) for i in range(3)]
    spans += [ActionSpan(0, 0, "B", i, 6 * i + 5, 6 * i + 6) for i in range(3)]
    spans.sort(key=lambda span: span.t0_ns)
    row = seen_row(_rank(spans, []), Axis(0, 18, 18), 18, False)
    assert plain(row.line()) == "F0   BF1   BF2   B"
    boxes = [Planned(a.text, 0, a.kind, a.microbatch, a.t0_ns, a.t1_ns or 0) for a in spans]
    assert plain(plan_row(boxes, Axis(0, 18, 18), False).line()) == "F0───BF1───BF2───B"


def test_a_planned_pair_has_a_double_line() -> None:
    """DualPipeV: 0F7 and 1B3 are one action; 0F8 is not in a pair."""
    boxes = (
        Planned("0F7", 0, "F", 7, 0, 4), Planned("1B3", 1, "B", 3, 4, 10),
        Planned("0F8", 0, "F", 8, 10, 14),
    )  # fmt: skip
    row = plan_row(boxes, Axis(0, 14, 14), True, pairs=(("0F7", "1B3"),))
    assert plain(row.line()) == "0F7═1B3═══0F8─"


def test_two_actions_at_once_are_both_there() -> None:
    """0F1 from 0 to 6 and, by a function of the program's own, 1B0 from 2 to 10."""
    rank = _rank([ActionSpan(0, 0, "F", 1, 0, 6), ActionSpan(0, 0, "B", 0, 2, 10)], [])
    assert plain(seen_row(rank, Axis(0, 10, 10), 10, False).line()) == "F1 ▚▚▚B0  "


def test_a_backward_in_two_parts_keeps_its_activations_until_w() -> None:
    spans = [
        ActionSpan(0, 0, "F", 0, 0, 1), ActionSpan(0, 0, "I", 0, 1, 2),
        ActionSpan(0, 0, "W", 0, 4, 5),
    ]  # fmt: skip
    assert in_flight_curve(_rank(spans, [])) == [(1, 1), (5, 0)]


def test_launches_are_a_thin_line_where_the_host_was() -> None:
    """On 20 cells of 2 ns: F0 launched from 0 to 4, B0 in no time at 10; the device is behind."""
    launched = [ActionSpan(0, 0, "F", 0, 0, 4), ActionSpan(0, 0, "B", 0, 10, 10)]
    row = launch_row(launched, Axis(0, 40, 20))
    assert plain(row.line()) == f"{LAUNCH * 2}   {LAUNCH}" + " " * 14
    assert [run.style for run in row.line() if run.text.strip()] == ["plan.F", "plan.B"]


def test_a_lane_of_launches_lies_beside_the_devices_where_there_is_room() -> None:
    snapshot = snapshot_1f1b(p=2, m=4)
    view = snapshot.pipeline
    assert view is not None and view.step is not None
    at = view.step.t0_ns
    launches = {rank: (ActionSpan(rank, rank, "F", 0, at, at + MS),) for rank in (0, 1)}
    on_device = replace(snapshot, pipeline=replace(view, times="device", launches=launches))

    def lanes(shown: Snapshot, rows: int) -> list[str]:
        picture = pipeline(shown, 120, rows, None, schedule_detail(shown.pipeline))
        texts = (plain(row) for row in picture.body)
        return [text[15:] for text in texts if text[9:13] == "host"]

    wide = lanes(on_device, 40)
    assert len(wide) == 2 and all(text.startswith(LAUNCH) for text in wide)
    assert lanes(snapshot, 40) == [] and lanes(on_device, 14) == []


def test_launches_are_in_the_legend_where_they_are_drawn() -> None:
    snapshot = snapshot_1f1b()
    view = snapshot.pipeline
    assert view is not None and view.step is not None
    at = view.step.t0_ns
    one = (ActionSpan(0, 0, "F", 0, at, at + MS),)
    shown = replace(snapshot, pipeline=replace(view, times="device", launches={0: one}))

    def explained(rows: int) -> bool:
        picture = pipeline(shown, 120, rows, None, schedule_detail(shown.pipeline))
        return f"{LAUNCH} launch" in plain(picture.foot[-1])

    assert explained(40) and not explained(22)
