"""The guard: what a hook does wrong stays with us."""

from __future__ import annotations

import pytest

from pardbg_agent.guard import Guard


def fail() -> None:
    raise ValueError("bad tensor")


def test_a_result_passes() -> None:
    assert Guard().call("x", lambda a, b: a + b, 2, 3) == 5


def test_a_failing_hook_is_off_reported_once_and_counted() -> None:
    reports: list[tuple[str, str, int]] = []
    guard = Guard(lambda *args: reports.append(args))
    calls: list[int] = []

    def hook() -> None:
        calls.append(1)
        fail()

    for _ in range(3):
        assert guard.call("collectives", hook) is None
    assert calls == [1]
    assert guard.errors == 1
    assert guard.disabled == {"collectives"}
    where, text, t_ns = reports[0]
    assert len(reports) == 1
    assert where == "collectives"
    assert "ValueError: bad tensor" in text
    assert t_ns > 0


def test_one_failing_hook_does_not_stop_another() -> None:
    guard = Guard()
    guard.call("a", fail)
    assert guard.call("b", lambda: 1) == 1


def test_the_programs_own_exits_pass_through() -> None:
    guard = Guard()

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard.call("x", interrupt)
    assert guard.disabled == set()


def test_a_report_that_fails_is_swallowed() -> None:
    guard = Guard(lambda *_: fail())
    guard.call("x", fail)
    assert guard.errors == 2
