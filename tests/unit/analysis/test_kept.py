"""What is computed once: per view, and per store where it is closed."""

from __future__ import annotations

from pardbg.analysis.base.asof import View, per_store, per_view
from tests.unit.trace_builder import Trace, ns


def test_a_value_is_computed_once_per_view_and_arguments() -> None:
    asked: list[int] = []

    @per_view
    def double(view: View, number: int, more: int = 0) -> int | None:
        """Doc."""
        asked.append(number)
        return 2 * number + more if number else None

    store = Trace(1).store()
    view = View(store, None)
    assert [double(view, 2), double(view, 2), double(view, 2, more=1)] == [4, 4, 5]
    assert [double(view, 0), double(view, 0)] == [None, None]  # also nothing is kept
    assert asked == [2, 2, 0] and double.__doc__ == "Doc."
    double(View(store, None), 2)  # another view may be of another moment
    assert asked == [2, 2, 0, 2]


def test_a_closed_value_is_computed_once_per_store_and_key() -> None:
    asked: list[int] = []

    @per_store(lambda view, number: number % 10)
    def digit(view: View, number: int) -> int:
        asked.append(number)
        return number % 10

    store = Trace(1).store()
    assert [digit(View(store, t), n) for t, n in ((None, 3), (ns(0), 13), (None, 4))] == [3, 3, 4]
    assert asked == [3, 4]
    assert digit(View(Trace(1).store(), None), 3) == 3 and asked == [3, 4, 3]
