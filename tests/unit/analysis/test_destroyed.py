"""A rank that others wait for in an op of a group that it has destroyed. Times in ms."""

from __future__ import annotations

import pytest

from pardbg.analysis.findings.kinds.absence import Absence
from pardbg_agent import wire
from pardbg_agent.wire import Flag
from tests.unit.analysis.test_waitgraph import AT, FORWARD, found, stall
from tests.unit.facts import facts
from tests.unit.trace_builder import Proc, Trace

BY = "train.py:40 in main"


def call(
    proc: Proc, name: str, t: float, *, of: str = "", done: bool = True, known: bool = True,
    flags: int = 0,
) -> None:  # fmt: skip
    """A call of this rank alone; ``of``: the group that it destroys."""
    if "calls" not in proc._groups:
        proc._groups["calls"] = len(proc._groups) + 1
        proc.define(wire.DefKind.GROUP, id=proc._groups["calls"], key=f"calls.of.{proc.rank}",
                    name="set-up", axis=None, ranks=[proc.rank], backend=wire.CALLS)  # fmt: skip
    op = proc.op(name, "", f"group {of}" if of else "", tag=proc.group(of) if of else 0,
                 at=["/job/train.py", 40, "main"] if known else None)  # fmt: skip
    seq, number = proc.next_seq("calls", False), proc._groups["calls"]
    proc.record(wire.Kind.CALL_BEGIN, t, t, op, seq=seq, group_id=number)
    if done:
        proc.record(wire.Kind.CALL, t, t + 1, op, seq=seq, group_id=number, flags=flags)


def waited_for(groups: str = "world") -> Trace:
    """Both issued an op of each group at 1; since 100 rank 0 is in the world's second, alone."""
    trace = Trace(2, dict.fromkeys(groups.split(), (0, 1)))
    for proc in trace.ranks:
        for name in groups.split():
            proc.collective(name, "all_reduce", 1, 2)
    trace.ranks[0].collective("world", "all_reduce", 100, None)
    return trace


def said(trace: Trace) -> tuple[str, Absence, str | None]:
    """(severity, what rank 1 does, where): it is seen in its forward."""
    trace.flush()
    stall(trace, 2400, r1=FORWARD)
    one = found(trace, 2500)["missing-rank"]
    assert one.culprits == (1,)
    return one.severity, facts(one, "absences")[0], one.where


@pytest.mark.parametrize("of", ["", "world"])
def test_who_destroyed_the_group_never_comes(of: str) -> None:
    trace = waited_for()
    call(trace.ranks[1], "destroy_process_group", 10, of=of)
    assert said(trace) == ("error", Absence("destroyed", BY, name=BY), BY)


@pytest.mark.parametrize("before", [False, True])
def test_where_it_was_destroyed_is_not_known_of_the_second_call(before: bool) -> None:
    """A place is of the first one; here that is of the group's namesake before, or of no record."""
    trace = waited_for()
    if before:
        call(trace.ranks[1], "destroy_process_group", 0.5)
    call(trace.ranks[1], "destroy_process_group", 10, known=before)
    assert said(trace) == ("error", Absence("destroyed", AT), AT)


@pytest.mark.parametrize(
    "name", ["init_process_group", "new_group", "split_group", "init_device_mesh"]
)
def test_who_makes_groups_since_may_come_again(name: str) -> None:
    """The others may wait in a group of the same name: nothing says which one it is."""
    trace = waited_for()
    call(trace.ranks[1], "destroy_process_group", 10)
    call(trace.ranks[1], name, 20)
    assert said(trace)[::2] == ("warning", AT)


def test_who_used_the_group_since_is_in_it() -> None:
    """It was made anew while nothing was recorded: rank 1 is two ops behind now."""
    trace = waited_for()
    call(trace.ranks[1], "destroy_process_group", 10)
    trace.ranks[0].collective("world", "all_reduce", 101, None)
    trace.ranks[1].collective("world", "all_reduce", 100, 101)
    assert said(trace)[::2] == ("warning", AT)


@pytest.mark.parametrize("part", ["another group", "failed", "under way", "never in it"])
def test_what_destroys_no_group_that_the_others_are_in(part: str) -> None:
    """Another group of the same ranks; a call that raised, or is under way; a group that it never
    issued an op of, as one that it is about to make."""
    trace = waited_for("world other") if part != "never in it" else Trace(2)
    if part == "never in it":
        trace.ranks[0].collective("world", "all_reduce", 100, None)
        trace.ranks[1].group("world")
    call(trace.ranks[1], "destroy_process_group", 10, of="other" * (part == "another group"),
         done=part != "under way", flags=Flag.FAILED if part == "failed" else 0)  # fmt: skip
    assert said(trace)[0] == "warning"


def test_ranks_that_destroy_their_group_one_by_one_are_no_news() -> None:
    """Rank 0 is still in an op that both issued, or in its exit: nobody is missing."""
    trace = waited_for()
    trace.ranks[1].collective("world", "all_reduce", 5, 6)
    call(trace.ranks[1], "destroy_process_group", 10)
    trace.flush()
    stall(trace, 2400, r1=FORWARD)
    assert found(trace, 2500) == {}
