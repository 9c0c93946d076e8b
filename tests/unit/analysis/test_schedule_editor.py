"""The schedule editor: what each change makes of a table, its history, and what is said of it."""

from __future__ import annotations

import pytest

from pardbg.errors import UserError
from pardbg.lab.schedules.compare import Durations
from pardbg.lab.schedules.editor import Draft, Editor
from pardbg.lab.schedules.schedule_table import dump, parse
from pardbg.lab.schedules.sheet import sheet

ONE = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
"""1F1B on two ranks with two microbatches."""
COSTS = Durations(1e9, 2e9, 1e9, 1e9)


def at(rank: int, place: int) -> Draft:
    return Draft(parse(ONE), rank, place)


@pytest.mark.parametrize(
    ("changed", "row", "cursor"),
    [
        (at(0, 1).shifted(1), "0F0,0B0,0F1,0B1", 2),
        (at(0, 1).shifted(-1), "0F1,0F0,0B0,0B1", 0),
        (at(0, 3).deleted(), "0F0,0F1,0B0", 2),
        (at(0, 1).inserted("0I7 0W7", after=False), "0F0,0I7,0W7,0F1,0B0,0B1", 2),
        (at(0, 1).inserted("0I7", after=True), "0F0,0F1,0I7,0B0,0B1", 2),
        (at(0, 2).split(), "0F0,0F1,0I0,0W0,0B1", 2),
        (at(0, 2).split().shifted(1).split(), "0F0,0F1,0B0,0B1", 2),  # joined where I or W is
        (at(0, 0).split_all(), "0F0,0F1,0I0,0W0,0I1,0W1", 0),
        (at(0, 3).split_all(), "0F0,0F1,0I0,0W0,0I1,0W1", 4),
        (at(0, 0).brought((0, 2)), "0B0,0F0,0F1,0B1", 0),
        (at(0, 3).brought((0, 0)), "0F1,0B0,0F0,0B1", 2),
        (at(0, 0).swapped((0, 3)), "0B1,0F1,0B0,0F0", 0),
    ],
)
def test_a_change(changed: Draft, row: str, cursor: int) -> None:
    assert dump(changed.table).splitlines()[0] == row
    assert changed.at == cursor
    assert [cell.column for cell in changed.row] == list(range(len(changed.row)))


def test_between_rows() -> None:
    brought = at(0, 1).brought((1, 2))
    assert dump(brought.table) == "0F0,1F1,0F1,0B0,0B1\n1F0,1B0,1B1\n"
    assert dump(at(0, 1).swapped((1, 2)).table) == "0F0,1F1,0B0,0B1\n1F0,1B0,0F1,1B1\n"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda: at(0, 0).shifted(-1), "first already"),
        (lambda: at(0, 3).shifted(1), "last already"),
        (lambda: at(0, 0).split(), "0F0 is no backward"),
        (lambda: at(0, 0).inserted("0G1", after=False), "'0G1' is no action"),
        (lambda: at(0, 0).inserted("0SEND_F0", after=False), "compute alone"),
        (lambda: Draft(parse("0I0\n1F0"), 0, 0).split(), "no other half"),
        (lambda: Draft(parse(",\n1F0"), 0, 0).deleted(), "rank 0 has no action"),
        (lambda: Draft(parse("0F0,0I0,0W0"), 0, 0).split_all(), "no B to split"),
        (lambda: Editor(parse(ONE)).undo(), "nothing to undo"),
        (lambda: Editor(parse(ONE)).marked(), "nothing is taken up"),
    ],
)
def test_what_cannot_be_done_is_said(change, says) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=says) as caught:
        change()
    assert "\n" not in str(caught.value)


def test_undo_and_redo_go_through_all_changes() -> None:
    editor = Editor(parse(ONE))
    texts = [dump(editor.draft.table)]
    for change in (lambda d: d.shifted(1), Draft.deleted, Draft.split_all):
        editor.apply(change(editor.draft))
        texts.append(dump(editor.draft.table))
    assert len(set(texts)) == 4 and editor.changed
    for text in texts[2::-1]:
        editor.undo()
        assert dump(editor.draft.table) == text
    assert not editor.changed
    for text in texts[1:]:
        editor.redo()
        assert dump(editor.draft.table) == text
    editor.undo()
    editor.apply(editor.draft.shifted(-1))  # another way: what was undone is gone
    with pytest.raises(UserError, match="nothing to redo"):
        editor.redo()


def test_ticks_times_and_peaks_of_a_table() -> None:
    found = sheet(parse(ONE), COSTS)
    # r0: F0 F1 .  B0 .  B1     1F0 1..2 s, 1B0 2..4, 1F1 4..5, 1B1 5..7; 0B0 4..6, 0B1 7..9
    # r1: .  F0 B0 F1 B1
    ticks = [[(one.op.text, one.tick) for one in row] for row in found.rows]
    assert ticks == [
        [("0F0", 1), ("0F1", 2), ("0B0", 4), ("0B1", 6)],
        [("1F0", 2), ("1B0", 3), ("1F1", 4), ("1B1", 5)],
    ]
    assert found.times["0B1"] == (7e9, 9e9) and found.predicted.step_ns == 9e9
    assert found.stage_peaks == (2, 1)
    grid = found.grid(3)
    assert grid.rows[0].coming == "0B0" and grid.rows[1].ran == ("1B0",)
    waits = found.grid(4).rows[0]
    assert (waits.waits_for, waits.waits_rank, waits.in_flight) == ("1B1", 1, 1)


def test_what_never_begins_stands_behind_the_rest() -> None:
    found = sheet(parse("0B0,0F0\n1F0,1B0\n"), COSTS)
    assert not found.times and found.predicted.step_ns is None
    assert [one.runs for row in found.rows for one in row] == [False] * 4
    assert [one.tick for one in found.rows[0]] == [1, 2]
    grid = found.grid(99)
    assert grid.rows[1].waits_for == "0F0" and grid.rows[1].waits_rank == 0
    (problem,) = found.problems_at(0, 0)
    assert problem.kind == "order"
