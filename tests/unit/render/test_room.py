"""Pages use the room that they have: no third of one is empty, and what fills it is true."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.answers.timeline import LaneSpan
from pardbg.render.draw.cells import plain
from pardbg.render.pages.collectives import collectives
from pardbg.render.pages.debug import DebugPageState, debug
from pardbg.render.pages.finding_lanes import ran_last
from pardbg.render.pages.findings import Around, findings
from pardbg.render.pages.memory import memory
from pardbg.render.pages.timeline import Window, timeline
from pardbg.session.reader import load
from tests.ui.recorded import SESSIONS
from tests.ui.sample import MS, lanes, output, snapshot_1f1b

Boxes = dict[int, dict[str, tuple[LaneSpan, ...]]]


def text_of(lines: object) -> list[str]:
    return [plain(row) for row in lines]  # type: ignore[attr-defined]


def two_ranks(begin: int) -> Boxes:
    """Two ranks, the second 5 ms longer in the step and the op that both come to."""

    def at(t0: int, t1: int, label: str, style: str, **more: int) -> LaneSpan:
        return LaneSpan(begin + t0 * MS, begin + t1 * MS, label, style, **more)

    return {
        rank: {
            "step": (
                at(10, 50 + 5 * rank, "step 1", "step"),
                at(60, 100, "step 2", "step", is_open=True),
            ),
            "comm": (
                at(0, 30, "all_reduce default #3", "comm.all_reduce"),  # begins before the window
                at(20, 40 + 5 * rank, "all_reduce default #4", "comm.all_reduce"),
                at(41, 42, "send F1 to r1", "comm.send"),
                at(45, 49, "", "comm.send", number=3),
            ),
        }
        for rank in (0, 1)
    }


def test_the_timelines_rest_lists_the_longest_ops_and_the_whole_steps() -> None:
    made = snapshot_1f1b()
    begin = made.t_ns - 100 * MS
    window = Window(begin, made.t_ns)
    rows = text_of(timeline(made, two_ranks(begin), window, 120, 34).body)
    (title,) = [row for row in rows if "longest ops" in row]
    assert "of 4 boxes" in title and "whole steps" in title
    ops = [row for row in rows[rows.index(title) + 1 :] if "all_reduce" in row or "send" in row]
    assert len(ops) == 3 and " r1 " in ops[0] and "#4 " in ops[0] and " 25 ms" in ops[0]
    assert " 40 ms r0 to 45 ms r1" in ops[0]  # the step that is whole on both
    assert not any("step 2" in row for row in ops)


def test_the_timelines_rest_is_left_where_the_lanes_need_it() -> None:
    made = snapshot_1f1b()
    begin = made.t_ns - 100 * MS
    rows = text_of(timeline(made, two_ranks(begin), Window(begin, made.t_ns), 80, 16).body)
    assert not any("longest ops" in row for row in rows)


def test_memory_on_a_small_screen_has_its_course_where_no_ladder_is() -> None:
    made = snapshot(load(SESSIONS / "1f1b.mcap"), None)
    shown = memory(made, 80, 20, 0)
    rows = text_of((*shown.head, *shown.body, *shown.foot))
    assert len(rows) <= 20 and sum(not row.strip() for row in rows) <= 3
    assert any("by category" in row for row in rows)


@pytest.mark.parametrize("name", ["1f1b", "ddp", "fault-mismatch-op"])
def test_collectives_and_messages_begin_with_a_verdict_on_a_small_screen(name: str) -> None:
    made = snapshot(load(SESSIONS / f"{name}.mcap"), None)
    shown = collectives(made, 80, 20)
    assert plain(shown.head[0])[1] in "●✗▲✓" and len(shown.head) + len(shown.foot) <= 14


def test_a_chosen_finding_s_line_has_its_time_and_not_its_sentence_twice() -> None:
    made = snapshot(load(SESSIONS / "fault-straggler.mcap"), None)
    found = [one for one in made.findings if one.kind == "straggler"]
    rows = text_of(findings(replace(made, findings=tuple(found)), 80, 20).body)
    assert sum("ank 2 came last to" in row for row in rows) == 1 and "since " in rows[0]


@pytest.mark.parametrize(("cells", "rows"), [(120, 36), (200, 56)])
def test_a_page_without_findings_shows_what_ran_and_was_printed_last(cells: int, rows: int) -> None:
    made = replace(snapshot_1f1b(), findings=())
    t0, t1 = made.t_ns - 240 * MS, made.t_ns
    around = Around(lanes(t0, t1, spans=12), Window(t0, t1), output=output())
    shown = text_of(findings(made, cells, rows, 0, around).body)
    assert len(shown) <= rows and sum("what ran last" in row for row in shown) == 1
    bare = text_of(findings(made, cells, rows, 0, Around({}, Window(0, 0))).body)
    assert not any("what ran last" in row or "printed last" in row for row in bare)


def test_debug_shows_what_ran_last_as_far_as_there_is_room() -> None:
    made = replace(snapshot_1f1b(), findings=())
    t0, t1 = made.t_ns - 240 * MS, made.t_ns
    boxes = lanes(t0, t1, spans=12)
    for rows in (16, 46, 56):
        look = DebugPageState(
            0, more=lambda cells, room: ran_last(made, boxes, Window(t0, t1), cells, room)
        )
        shown = debug(made, 200, rows, look)
        drawn = [row for row in text_of(shown.head) if "what ran last" in row]
        assert len(shown.head) <= rows and len(drawn) == (rows > 16), rows
