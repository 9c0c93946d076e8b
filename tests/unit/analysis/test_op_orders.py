"""The odd one out among ranks that wait for each other, worked out by hand. Times in ms."""

from __future__ import annotations

import pytest

from pardbg.analysis.findings.kinds.stall_kinds import Deadlock
from pardbg.analysis.findings.registry import standstills
from pardbg.analysis.hangs.op_orders import followed, odd_one_out
from pardbg_agent import wire
from pardbg_agent.wire import Kind
from tests.unit.analysis.test_waitgraph import WAITING, at, stall
from tests.unit.facts import facts
from tests.unit.trace_builder import Trace

GROUPS = {"a": (0, 1), "b": (2, 3), "world": (0, 1, 2, 3)}
SKIPS, EXTRA = ("world",), ("pair", "pair")


def run(steps: int, last: tuple[str, ...], rank: int = 1) -> Trace:
    """Steps of a sum over the pair and one over the world; then a rank's ops are ``last``: it
    stands in the last one, as the others do in the first that it did not come to."""
    trace = Trace(4, GROUPS)
    for r, proc in enumerate(trace.ranks):
        pair, t = "a" if r < 2 else "b", 1.0 + r / 10
        for step in range(steps + 1):
            odd = step == steps and r == rank
            ops = last if odd else ("pair", "world")
            if step == steps and r == 0 and last == SKIPS:
                ops = ("pair",)
            for number, name in enumerate(ops):
                key = pair if name == "pair" else "world"
                stands = step == steps and number == len(ops) - 1
                proc.collective(key, "all_reduce", t, None if stands else t + 0.5, step=step)
                t += 1
    return trace


@pytest.mark.parametrize("steps", [0, 1, 9])
@pytest.mark.parametrize("last", [SKIPS, EXTRA])
def test_who_left_out_an_op_or_issued_one_too_many_is_the_culprit(
    steps: int, last: tuple[str, ...]
) -> None:
    """Ranks 0 and 1 wait for each other: 0 in the pair's sum, 1 in the world's (or the other way
    round). Without a step before, ranks 2 and 3 are what the order is compared with."""
    view = at(run(steps, last), 4000)
    assert odd_one_out(view, (0, 1)) == (1,)
    (found,) = standstills(view)
    assert (found.kind, found.culprits) == ("deadlock", (1,))


def test_of_two_ranks_without_earlier_ops_neither_is_odd() -> None:
    trace = Trace(2, {"a": (0, 1), "world": (0, 1)})
    trace.ranks[0].collective("a", "all_reduce", 1, None)
    trace.ranks[1].collective("world", "all_reduce", 1, None)
    assert odd_one_out(at(trace, 3000), (0, 1)) == ()


def test_two_groups_of_one_name_and_the_same_ranks_are_told_apart() -> None:
    """Torch numbers them; rank 1 takes the other one first in step 9."""
    trace = Trace(2, {"1@ff": (0, 1), "2@ff": (0, 1)})
    for rank, proc in enumerate(trace.ranks):
        for number, key in ((1, "1@ff"), (2, "2@ff")):
            proc.define(wire.DefKind.GROUP, id=number, key=key, name="side", axis=None,
                        ranks=[0, 1], backend="gloo")  # fmt: skip
            proc._groups[key] = number
        for t in range(10):
            for n, key in enumerate(("1@ff", "2@ff") if t < 9 else ("21"[1 - rank] + "@ff",)):
                begun = 10 * t + 3 * n + rank + 1
                proc.collective(key, "all_reduce", begun, None if t == 9 else begun + 2.5, step=t)
    (found,) = standstills(at(trace, 4000))
    assert isinstance(found.facts, Deadlock) and found.facts.odd == (1,)
    assert {wait.rank: wait.op.partition("side ")[2] for wait in found.facts.waits} == {
        0: "(1) #9", 1: "(2) #9",
    }  # fmt: skip


def all_to_all(sent: dict[tuple[int, int], int], expected: dict[tuple[int, int], int]) -> Trace:
    """One of three ranks, 100 bytes between each two but where said."""
    trace = Trace(3)
    for r, proc in enumerate(trace.ranks):
        proc.collective("world", "all_to_all", 1, None)
        for peer in {0, 1, 2} - {r}:
            a, b = sent.get((r, peer), 100), expected.get((r, peer), 100)
            proc.record(Kind.PART, 1, 1, proc.op("all_to_all"), group_id=proc.group("world"),
                        peer=peer, a=a, b=b)  # fmt: skip
    return trace


@pytest.mark.parametrize(
    ("sent", "expected", "culprits"),
    [
        ({}, {}, []),
        ({(1, 2): 150}, {}, [(1,)]),  # of two, the sender
        ({}, {(2, 1): 0, (2, 0): 0}, [(2,)]),  # who differs from both others
    ],
)
def test_splits_of_both_sides_are_compared(
    sent: dict[tuple[int, int], int], expected: dict[tuple[int, int], int],
    culprits: list[tuple[int, ...]],
) -> None:  # fmt: skip
    found = standstills(at(all_to_all(sent, expected), 50))
    assert [f.culprits for f in found if f.kind == "size-mismatch"] == culprits


def test_the_places_of_two_sides_of_which_one_is_ended_and_the_other_has_gone_on() -> None:
    """The backend ended rank 2, the receiver, in its second all_to_all; rank 1, the sender, stands
    in the sum that follows, so both have the line of their first such op."""
    trace = Trace(3)
    for proc in trace.ranks:
        proc.op("all_to_all", at=["/job/model.py", 7, "exchange"])
        proc.collective("world", "all_to_all", 1, 2, reduce="")
        if proc.rank != 2:  # an op's own record comes once the backend has taken it
            proc.collective("world", "all_to_all", 5, None, reduce="")
            proc.collective("world", "all_reduce", 7, None)
        for peer in {0, 1, 2} - {proc.rank}:
            proc.record(Kind.PART, 5, 5, proc.op("all_to_all"), seq=1, peer=peer,
                        group_id=proc.group("world"), b=100,
                        a=150 if (proc.rank, peer) == (1, 2) else 100)  # fmt: skip
    stall(trace, 2100, r0=WAITING, r1=WAITING)
    (found,) = (f for f in standstills(at(trace, 2200)) if f.kind == "size-mismatch")
    assert (found.culprits, found.where, facts(found, "places")) == ((1,), None, ())
    assert facts(found, "first_places") == tuple((r, "model.py:7 in exchange") for r in (1, 2))


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("number", [2, 86, 200])
@pytest.mark.parametrize("ranks", [4, 7])
def test_only_whole_ops_of_many_all_to_alls_are_compared(
    ranks: int, number: int, odd: bool, lost: bool
) -> None:
    """Op k takes k + src + 2 * dst bytes, the last one 7 more if odd; of each op's parts the table
    that is looked at may have some, or some were lost with the first half of op 1's."""
    trace = Trace(ranks)
    for r, proc in enumerate(trace.ranks):
        op, group = proc.op("all_to_all"), proc.group("world")
        for k in range(number):
            for peer in sorted({*range(ranks)} - {r}):
                more = 7 if odd and k == number - 1 and (r, peer) == (1, 2) else 0
                a, b = k + r + 2 * peer + more, k + peer + 2 * r
                proc.record(Kind.PART, k, k, op, seq=k, group_id=group, peer=peer, a=a, b=b)
                if lost and k == 1 and peer == ranks // 2:
                    proc.lose() if r == 0 else proc.flush()
    found = [f.culprits for f in standstills(at(trace, 1000)) if f.kind == "size-mismatch"]
    assert found == ([(1,)] if odd else [])


@pytest.mark.parametrize("steps", [True, False])
@pytest.mark.parametrize(("takes", "culprit"), [(None, 0), (300, 0), (500, 1)])
def test_of_two_the_sender_that_brings_what_it_always_brings_is_right(
    takes: int | None, culprit: int, steps: bool
) -> None:
    """In step 5 (without steps, op 5) rank 0 sends 100 bytes to rank 1, which expects 110. Rank 0
    brings 400 in each; rank 1 takes 300 in each, or another number in each, as a router decides."""
    trace = Trace(2)
    for rank, proc in enumerate(trace.ranks):
        for n in range(6):
            usual, step = 300 if takes == 300 else 300 + n, n if steps else 0
            sent, got = (400, 400) if rank == 0 else (200, usual)
            seq = proc.collective("world", "all_to_all", 10 * n, 10 * n + 1, sent, got,
                                  step=step)  # fmt: skip
            a, b = 100, 110 if (rank, n) == (1, 5) else 100
            proc.record(Kind.PART, 10 * n, 10 * n, proc.op("all_to_all"), seq=seq, step=step,
                        group_id=proc.group("world"), peer=1 - rank, a=a, b=b)  # fmt: skip
    if takes is None:
        trace = all_to_all({(0, 1): 110}, {})
    found = standstills(at(trace, 60))
    assert [f.culprits for f in found if f.kind == "size-mismatch"] == [(culprit,)]


@pytest.mark.parametrize("odd", [True, False])
def test_a_rank_of_a_ring_that_sends_to_another_rank_than_before_is_the_culprit(odd: bool) -> None:
    """Rank 1 sends to 3 instead of 2: 2 waits for 1, 3 for 2, and 0 for them. Else all three send
    to one another at once, as they never did: none is odd."""
    trace = Trace(4)
    for rank, proc in enumerate(trace.ranks):
        after, before = (rank + 1) % 4, (rank - 1) % 4
        for n in range(6):
            proc.p2p("world", after, True, 10 * n + 1, 10 * n + 2)
            proc.p2p("world", before, False, 10 * n + 3, 10 * n + 4)
        if rank == 0:
            proc.collective("world", "all_reduce", 70, None)
        elif odd and rank > 1:
            proc.p2p("world", after, True, 70, 70.5)
            if rank == 3:
                proc.p2p("world", before, False, 71, 71.5)
                proc.p2p("world", after, True, 72, 72.5)
            proc.p2p("world", before, False, 73, None)
        else:
            proc.p2p("world", 3 if rank == 1 else rank - 1, True, 70, None)
    trace.flush()
    (found,) = (f for f in standstills(at(trace, 4000)) if f.kind == "p2p-cycle")
    assert found.culprits == ((1,) if odd else (1, 2, 3))


TRAIN, EVAL = ["all_reduce"] * 4, ["all_gather"] * 6
EPOCH = ["broadcast", *TRAIN, *EVAL]


@pytest.mark.parametrize(
    ("rank_0", "rank_1", "culprits"),
    [
        (EPOCH[:-1], [*EPOCH[:-2], "broadcast"], (1,)),  # one evaluation of two gathers less
        (["broadcast"], ["all_gather"], (1,)),  # ... one gather more
        (["broadcast"], ["barrier"], (1,)),
        (["all_reduce"], ["barrier"], ()),  # neither came before
    ],
)
def test_who_differs_from_what_followed_the_same_ops_before(
    rank_0: list[str], rank_1: list[str], culprits: tuple[int, ...]
) -> None:
    """Two epochs without steps to compare with, as an evaluation has none, then a rank's ops."""
    trace = Trace(2)
    for proc, last in zip(trace.ranks, (rank_0, rank_1), strict=True):
        ops = [*EPOCH, *EPOCH, *last]
        for number, op in enumerate(ops):
            t, stands = 10.0 * number, number == len(ops) - 1
            proc.collective("world", op, t, None if stands else t + 1, 256, step=0)
    (found,) = (f for f in standstills(at(trace, 4000)) if f.kind == "op-mismatch")
    assert found.culprits == culprits
    assert facts(found, "by_order") == bool(culprits)


@pytest.mark.parametrize(
    ("order", "next_op"),
    [
        ("abbbbbbbbcabbbbbbbb", "c"),  # as many of b before c
        ("abbbbbbbbcabbbb", None),  # so few ops say too little
        ("bbbbbbbbbb", None),  # one op alone, however often
        ("abbbbbbbbcabbbbbbbbdabbbbbbbb", None),  # c once, d once
        ("", None),
    ],
)
def test_what_follows_is_told_by_the_same_ops_before(order: str, next_op: str | None) -> None:
    assert followed([*order]) == next_op
