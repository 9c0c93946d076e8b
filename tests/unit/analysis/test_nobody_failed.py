"""Ranks that lost a connection, or were told to end, while no rank is known to have failed. Times
in ms, worked out by hand."""

from __future__ import annotations

import pytest

from tests.unit.analysis.test_destroyed import BY, call
from tests.unit.analysis.test_ends import CLOSED, IN_OP, ends, raises, said
from tests.unit.facts import facts
from tests.unit.trace_builder import Trace


@pytest.mark.parametrize(
    ("hosts", "gone", "told", "culprit"),
    [
        ("aaa", 120, 150, 2),  # torchelastic ends the rest 100 ms later
        ("aaa", 10, 150, None),  # rank 0 was gone before, by what is not known: this follows
        ("aaa", 120, 40, None),  # a launcher ends all of a host at once
        ("aba", 120, 40, None),
        ("bba", 120, 150, None),  # its host had this one alone: the launcher may have been told
    ],
)
def test_one_rank_alone_that_somebody_ended_by_sigterm_is_the_first(
    hosts: str, gone: int, told: int, culprit: int | None
) -> None:
    """Rank 0 loses its connection at 6, rank 2 is seen to have ended by SIGTERM at 30."""
    trace = Trace()
    trace.groups = {"world": (0, 1, 2)}
    trace.ranks = [trace.process(rank, host=host) for rank, host in enumerate(hosts)]
    for rank in (0, 1):
        trace.ranks[rank].collective("world", "all_reduce", 1, None)
    trace.flush()
    raises(trace.ranks[0], 6, CLOSED, IN_OP)
    ends(trace, trace.ranks[0], gone, code=1)
    ends(trace, trace.ranks[2], 30, "killed", -15)
    ends(trace, trace.ranks[1], told, "killed", -15)
    trace.end(200, code=1)
    found = {kind: one.culprits for kind, one in said(trace).items() if kind != "clock-uncertain"}
    assert found == ({"cut-off": ()} if culprit is None else {"rank-lost": (culprit,)})


@pytest.mark.parametrize("also_lost", [False, True])
def test_who_destroyed_its_group_and_lives_on_is_named(also_lost: bool) -> None:
    """Rank 2 destroys at 3 the group in which 0 and 1 wait since 2; they lose it at 6. If it lost
    a connection itself, its clean-up destroyed the group: that is no cause."""
    trace = Trace(3)
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 0, 1)
    for rank in (0, 1):
        trace.ranks[rank].collective("world", "all_reduce", 2, None)
    call(trace.ranks[2], "destroy_process_group", 3)
    trace.flush()
    for rank in (0, 1):
        raises(trace.ranks[rank], 6, CLOSED, IN_OP)
    if also_lost:
        raises(trace.ranks[2], 7, CLOSED, IN_OP)
    trace.end(200, code=1)
    found = said(trace)
    if also_lost:
        assert [(kind, one.culprits) for kind, one in found.items()] == [("cut-off", ())]
    else:
        (one,) = found.values()
        assert (one.kind, one.ranks, one.culprits, one.where) == ("missing-rank", (0, 1), (2,), BY)
        assert facts(one, "destroyed", "abrupt") == (True, False)


def test_of_ranks_that_left_only_one_that_an_op_misses_is_named() -> None:
    """Rank 3 left as rank 1 did, but nobody waits for it: it came to the op."""
    trace = Trace(4, {"a": (0, 1), "b": (2, 3)})
    trace.ranks[0].collective("a", "all_reduce", 1, None)
    for rank in (2, 3):
        trace.ranks[rank].collective("b", "all_reduce", 1, 2)
    trace.flush()
    for rank in (1, 3):
        ends(trace, trace.ranks[rank], 4, code=0)
    raises(trace.ranks[0], 6, CLOSED, IN_OP)
    trace.end(200, code=1)
    assert said(trace)["missing-rank"].culprits == (1,)


@pytest.mark.parametrize("skips", [True, False])
def test_a_rank_that_left_out_one_collective_is_told_apart_from_one_with_fewer_steps(
    skips: bool,
) -> None:
    """Two collectives a step. Rank 2 leaves out the second of step 1 and ends 4 steps, with 7
    collectives: the others are in their 8th, having ended 3. Or its data end after 3 steps, with 6:
    the others are in the 7th, having ended 3 as it did."""
    trace = Trace(3)
    num_ops = 7 if skips else 6
    for seq in range(num_ops):
        for proc in trace.ranks:
            own = seq + (skips and proc.rank == 2 and seq > 2)
            proc.collective("world", "all_reduce", 10 * seq, 10 * seq + 2, step=own // 2)
            if own % 2 or (skips and proc.rank == 2 and seq == 2):
                proc.step(own // 2, 10 * seq - 5, 10 * seq + 3)
    for rank in (0, 1):
        trace.ranks[rank].collective("world", "all_reduce", 80, None, step=3)
    trace.flush()
    ends(trace, trace.ranks[2], 90, code=0)
    for rank in (0, 1):
        raises(trace.ranks[rank], 95, CLOSED, IN_OP)
    trace.end(300, code=1)
    found = said(trace)["missing-rank"]
    assert found.culprits == (2,)
    of = facts(found, "left_out")
    assert (of and (of.issued, of.others)) == ((7, 8) if skips else None)


@pytest.mark.parametrize("sent", [1, 2])
def test_a_rank_that_sent_less_than_another_one_received_is_told_from_who_left_too(
    sent: int,
) -> None:
    """Rank 2 receives twice from 1, which sent once; 0 and 1 have left. If 1 sent twice, nobody can
    be told."""
    trace = Trace(3)
    for at in range(2):
        trace.ranks[2].p2p("world", 1, False, 10 * at, 10 * at + 2 if at < sent else None)
    for at in range(sent):
        trace.ranks[1].p2p("world", 2, True, 10 * at, 10 * at + 1)
    trace.flush()
    for rank in (0, 1):
        ends(trace, trace.ranks[rank], 90, code=0)
    raises(trace.ranks[2], 95, CLOSED, IN_OP)
    trace.end(300, code=1)
    found = said(trace)["missing-rank"]
    assert (found.culprits, facts(found, "unsent")) == (
        ((1,), (2, 1)) if sent == 1 else ((0, 1), None)
    )


@pytest.mark.parametrize("restarts", [0, 1])
def test_an_address_of_the_life_before_is_told_after_a_restart(restarts: int) -> None:
    """torchrun's store keeps the addresses that gloo wrote there."""
    trace = Trace(0)
    proc = trace.process(1, epoch=restarts, pid=21)
    raises(proc, 6, "RuntimeError: Gloo connectFullMesh failed with [x] timed out connecting: "
           "SO_ERROR: Connection refused", IN_OP)  # fmt: skip
    trace.end(3000, code=1)
    assert facts(said(trace)["cut-off"], "stale") == (restarts > 0)
