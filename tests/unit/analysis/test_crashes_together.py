"""Ranks that crash at about the same time each have their own signal. Times in ms."""

from __future__ import annotations

import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.findings.finding import Finding
from pardbg.analysis.findings.kinds.end_kinds import Followed
from pardbg_agent import wire
from tests.unit.analysis.test_ends import CLOSED, IN_OP, ends, leaves, raises, three
from tests.unit.facts import facts
from tests.unit.trace_builder import Trace, ns

TOLD = "  exitcode  : -11 (pid: 102)  (SIGSEGV)"


def ended(trace: Trace) -> tuple[list[Finding], list[Followed], list[str]]:
    """(first failures, what followed from them, states of the ranks)"""
    shot = snapshot(trace.store(), None)
    first = [one for one in shot.findings if one.severity == "error"]
    after = [one.facts for one in shot.findings if isinstance(one.facts, Followed)]
    return first, after, [row.state for row in shot.ranks]


@pytest.mark.parametrize("code", [-11, -7, -4, -8])
def test_a_crash_that_is_seen_late_is_a_ranks_own(code: int) -> None:
    """Ranks 0 and 2 die of SIGBUS at once; the hub sees rank 1's end 150 ms later. What one signal
    ended is told once."""
    trace = three(waiting=())
    for rank in (0, 2):
        ends(trace, trace.ranks[rank], 50, "killed", -7)
    ends(trace, trace.ranks[1], 200, "killed", code)
    trace.end(300, code=1)
    first, after, states = ended(trace)
    found = {one.ranks: facts(one, "code", "beside") for one in first}
    apart = {(0, 2): (-7, (1,)), (1,): (code, (0, 2))}
    assert found == (apart if code != -7 else {(0, 1, 2): (-7, ())})
    assert not after and states == ["lost"] * 3


def test_a_crash_is_not_after_an_exception_that_is_known_sooner() -> None:
    """Rank 1 crashed; rank 2 raised before the hub saw that, and rank 0 lost its connection."""
    trace = three(waiting=())
    raises(trace.ranks[2], 20)
    raises(trace.ranks[0], 30, CLOSED, IN_OP)
    ends(trace, trace.ranks[1], 120, "killed", -11)
    for rank in (0, 2):
        ends(trace, trace.ranks[rank], 200, "killed", -15)
    trace.end(300, code=1)
    first, after, states = ended(trace)
    assert {one.ranks: facts(one, "beside") for one in first} == {(1,): (2,), (2,): (1,)}
    assert len({one.advice for one in first}) == 2
    assert [(one.after, one.code, one.error) for one in after] == [((1, 2), None, "")]
    assert states[1] == "lost"


def test_many_ranks_with_one_signal_are_named_once() -> None:
    """Five die of SIGSEGV at once, and rank 5 of SIGBUS."""
    trace = Trace(6)
    for rank, proc in enumerate(trace.ranks):
        proc.collective("world", "all_reduce", 1, 2, 8)
        ends(trace, proc, 50, "killed", -7 if rank == 5 else -11)
    trace.end(300, code=1)
    first, _, _ = ended(trace.flush())
    assert {one.ranks: facts(one, "code", "beside") for one in first} == {
        (0, 1, 2, 3, 4): (-11, (5,)),
        (5,): (-7, (0, 1, 2, 3, 4)),
    }


def test_one_signal_at_two_places_is_told_twice() -> None:
    """Two ranks crash in one line, the third in another."""
    trace = three(waiting=())
    for rank, proc in enumerate(trace.ranks):
        line = 40 + (rank == 1)
        proc.define(wire.DefKind.CRASH, t_ns=ns(49), frames=[["/job/train.py", line, "main"]],
                    beside=False)  # fmt: skip
        ends(trace, proc, 50, "killed", -11)
    trace.end(300, code=1)
    first, _, _ = ended(trace)
    assert {one.ranks: one.where for one in first} == {
        (0, 2): "train.py:40 in main", (1,): "train.py:41 in main",
    }  # fmt: skip


def test_who_waits_for_one_of_several_lost_ranks_waits_for_them() -> None:
    """Rank 1's message does not come; ranks 1 and 2 are missing in rank 0's op."""
    trace = three(waiting=(0,))
    for rank in (1, 2):
        ends(trace, trace.ranks[rank], 50, "killed", -9)
    trace.ranks[0].phase("x", 50, 60)
    first, _, _ = ended(trace)
    assert {one.ranks: facts(one, "waiting") for one in first} == {(1, 2): (0,)}


def test_one_failure_is_beside_none() -> None:
    trace = three(waiting=())
    ends(trace, trace.ranks[2], 50, "killed", -11)
    for rank in (0, 1):
        ends(trace, trace.ranks[rank], 200, "killed", -15)
    trace.end(300, code=1)
    first, after, states = ended(trace)
    assert [facts(one, "beside") for one in first] == [()]
    assert [(one.after, one.code) for one in after] == [((2,), None)]
    assert states == ["ended", "ended", "lost"]


@pytest.mark.parametrize(("t", "code"), [(300, -9), (300, -6), (3000, -11)])
def test_a_later_signal_that_no_launcher_sends_is_told(t: float, code: int) -> None:
    """Rank 1 is killed, and rank 2 after it: launchers end ranks by SIGTERM first."""
    trace = three(waiting=())
    ends(trace, trace.ranks[1], 50, "killed", -9)
    ends(trace, trace.ranks[2], t, "killed", code)
    ends(trace, trace.ranks[0], t + 50, "killed", -15)
    trace.end(4000, code=1)
    first, after, states = ended(trace)
    assert [one.ranks for one in first] == [(1,)]
    assert {(one.after, one.code) for one in after} == {((1,), code), ((1,), None)}
    assert states == ["ended", "lost", "lost"]


def test_a_rank_that_sigterm_did_not_end_is_the_launchers_to_kill() -> None:
    trace = three(waiting=())
    ends(trace, trace.ranks[1], 50, "killed", -11)
    ends(trace, trace.ranks[0], 200, "killed", -15)
    ends(trace, trace.ranks[2], 30_200, "killed", -9)
    trace.end(30_300, code=1)
    _, after, states = ended(trace)
    assert [one.code for one in after] == [None]
    assert states == ["ended", "lost", "ended"]


def test_a_crash_on_the_way_out_follows() -> None:
    """SIGTERM lets rank 2 leave by Python's exit, in which C code crashes."""
    trace = three(waiting=())
    raises(trace.ranks[1], 50)
    leaves(trace.ranks[2], 160)
    ends(trace, trace.ranks[2], 300, "killed", -11)
    trace.end(400, code=1)
    first, after, _ = ended(trace)
    assert [one.ranks for one in first] == [(1,)] and facts(first[0], "beside") == ()
    assert [(one.after, one.code) for one in after] == [((1,), -11)]


def test_a_later_exception_of_its_own_is_told() -> None:
    trace = three(waiting=())
    raises(trace.ranks[1], 50)
    raises(trace.ranks[2], 500, "KeyError: 'x'")
    trace.end(900, code=1)
    _, after, _ = ended(trace)
    assert [one.error for one in after] == ["KeyError: 'x'"]


@pytest.mark.parametrize(("line", "code"), [(TOLD, -11), (TOLD.replace("102", "999"), None)])
def test_a_signal_that_torchrun_alone_has_seen(line: str, code: int | None) -> None:
    """Rank 2 (pid 102) was reaped before the hub looked; torchrun's summary names its signal."""
    trace = three(waiting=())
    ends(trace, trace.ranks[2], 50, "killed")
    trace.output(80, line)
    trace.end(3000, code=1)
    first, _, _ = ended(trace)
    assert [facts(one, "killed", "code") for one in first] == [(True, code)]
