"""The player of rows: who runs when, and that nothing is looked at again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from pardbg.analysis.pipeline.play import Between, clock, in_order, play

Needs = Mapping[str, Sequence[str]]


def played(
    rows: Sequence[str], needs: Needs, by_one: bool = False
) -> tuple[list[str], list[int], int]:
    """(items in the order in which they ran, how far each row came, how often one was asked for)"""
    ran: list[str] = []
    asked = 0

    def missing(_row: int, item: str) -> Sequence[str]:
        nonlocal asked
        asked += 1
        forms = needs.get(item, ())
        return () if not forms or any(form in ran for form in forms) else forms

    def run(_row: int, item: str) -> Sequence[str]:
        ran.append(item)
        return (item,)

    reached = play(rows, missing, run, by_one)
    return ran, reached, asked


def test_a_row_goes_on_as_far_as_it_gets() -> None:
    # Row 0 waits for d; row 1 runs c and d and sets it free for the next turn.
    assert played(["ab", "cd"], {"b": ["d"]})[:2] == (["a", "c", "d", "b"], [2, 2])


def test_a_row_behind_moves_in_the_same_turn_one_before_in_the_next() -> None:
    needs = {"a": ["d"], "e": ["d"]}
    # d frees row 0 and row 2; row 2 is still to come in this turn.
    assert played(["a", "d", "e"], needs)[0] == ["d", "e", "a"]


def test_one_item_a_turn() -> None:
    assert played(["ab", "cd"], {}, by_one=True)[0] == ["a", "c", "b", "d"]
    # Turn 0: a, then e waits for b. Turn 1: b sets it free, and it runs in that turn.
    assert played(["ab", "ef"], {"e": ["b"]}, by_one=True)[0] == ["a", "b", "e", "f"]


def test_any_form_of_a_need_is_enough() -> None:
    ran, reached, _ = played(["a", "cd"], {"a": ["x", "c"]})
    assert (ran, reached) == (["c", "d", "a"], [1, 2])


def test_a_circle_stands_still() -> None:
    assert played(["ab", "cd"], {"a": ["d"], "c": ["b"]})[:2] == ([], [0, 0])


def test_rows_in_the_worst_order_are_each_asked_once_more() -> None:
    """Each row's item needs that of the row behind it: row by row, a turn each."""
    rows = [chr(1000 + at) for at in range(500)]
    needs = {one: [other] for one, other in pairwise(rows)}
    ran, _, asked = played(rows, needs)
    assert ran == rows[::-1]
    assert asked == 500 + 499


def test_an_order_names_its_needs_and_the_clock_runs_it() -> None:
    order = in_order({0: ["0F0", "0B0"], 1: ["1F0", "1B0"]}, 2)
    assert order is not None
    assert [(s.rank, s.action, s.needs, s.crosses) for s in order] == [
        (0, "0F0", -1, False), (1, "1F0", 0, True), (1, "1B0", 1, False), (0, "0B0", 2, True),
    ]  # fmt: skip
    # 0F0 0-10, 5 on the way; 1F0 15-35, a gap of 1, 1B0 36-66, 5 on the way; 0B0 71-111.
    ran = clock(order, [10, 20, 30, 40], Between(hops=(5.0,), gaps=(1.0,)))
    assert (ran.begins, ran.ends) == ([0, 15, 36, 71], [10, 35, 66, 111])
    assert (ran.free, ran.busy) == ({0: 111, 1: 66}, 100)


def test_an_order_that_cannot_run_is_none() -> None:
    assert in_order({0: ["0B0", "0F0"], 1: ["1F0", "1B0"]}, 2) is None
