"""Who waits for whom, worked out by hand: sinks are culprits, cycles are deadlocks, and nobody who
only waits is named. Times in ms; an op that is open for 2 s counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.finding import Finding, Label
from pardbg.analysis.findings.kinds.absence import Absence
from pardbg.analysis.findings.kinds.stall_kinds import Waiting
from pardbg.analysis.findings.registry import standstills
from pardbg.analysis.hangs.waitgraph import wait_graph
from pardbg_agent import wire
from tests.unit.facts import facts
from tests.unit.trace_builder import MS, Proc, Trace, ns

FORWARD = [["/job/train.py", 88, "step"], ["/job/model.py", 12, "forward"]]
AT = "model.py:12 in forward"
C10D = "/x/site-packages/torch/distributed/distributed_c10d.py"
WAITING = [["/job/train.py", 90, "step"], [C10D, 3000, "all_reduce"]]
PDB = [["/job/train.py", 77, "step"], ["/usr/lib/python3.11/bdb.py", 90, "trace_dispatch"],
       ["/usr/lib/python3.11/pdb.py", 300, "interaction"]]  # fmt: skip


def stall(trace: Trace, t: float, **stacks: list[list[Any]]) -> None:
    """The hub's CONTROL message: ``r0=frames``."""
    parts = [
        {"ranks": [int(name[1:])], "frames": frames, "inside": {}}
        for name, frames in stacks.items()
    ]
    source = {name[1:]: "agent" for name in stacks}
    trace.hub(wire.Key.CONTROL, t, event="stall", since_ns=ns(t), stacks=parts, source=source)


def at(trace: Trace, t: float) -> View:
    trace.flush()
    return View(trace.store(), ns(t))


def found(trace: Trace, t: float) -> dict[str, Finding]:
    return {f.kind: f for f in findings(at(trace, t)) if f.severity != "info"}


def blamed(view: View) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """[(ranks, victims)]"""
    return [(blame.ranks, blame.victims) for blame in wait_graph(view).blames]


def test_who_has_not_issued_it_is_waited_for() -> None:
    trace = Trace(3)
    for proc in trace.ranks[:2]:
        proc.collective("world", "all_reduce", 1, None)
    trace.ranks[2].phase("forward", 0, 1)
    assert blamed(at(trace, 1500)) == []  # 1.5 s: no news yet
    assert blamed(at(trace, 2002)) == [((2,), (0, 1))]
    said = found(trace, 2002)["missing-rank"]
    assert (said.severity, said.culprits, said.ranks) == ("warning", (2,), (0, 1))
    op = Label("all_reduce world #0")
    assert facts(said, "until_ns") == ns(2002)
    assert facts(said, "waits") == tuple(Waiting(rank, op, ns(1)) for rank in (0, 1))


def test_only_the_last_of_a_chain_is_to_blame() -> None:
    """0 waits for 1 in group a, 1 for 2 in group b, 2 for 3 in group c; 3 computes."""
    trace = Trace(4, {"a": (0, 1), "b": (1, 2), "c": (2, 3)})
    for rank, group in enumerate("abc"):
        trace.ranks[rank].collective(group, "all_reduce", 1 + rank, None)
    trace.ranks[3].phase("data", 0, 1)
    assert blamed(at(trace, 3000)) == [((3,), (0, 1, 2))]
    said = found(trace, 3000)["missing-rank"]
    assert said.culprits == (3,) and facts(said, "victims") == (0, 1, 2)
    assert said.ranks == (2, 0, 1)  # in that order: who waits for it itself is seen first


def test_two_groups_in_another_order_are_a_deadlock_and_the_odd_rank_is_named() -> None:
    """Ranks 0, 1, 3 in a, rank 2 in b: each waits for the other side. Three of four stand in a."""
    everyone = range(4)
    trace = Trace(4, {"a": everyone, "b": everyone})
    for proc in trace.ranks:
        proc.collective("b" if proc.rank == 2 else "a", "all_reduce", 1, None)
    trace.flush()
    stall(trace, 2100, r0=WAITING, r1=WAITING, r2=WAITING, r3=WAITING)
    said = found(trace, 2200)["deadlock"]
    assert (said.severity, said.culprits, said.ranks) == ("error", (2,), (0, 1, 2, 3))
    ops = {wait.rank: wait.op for wait in facts(said, "waits")}
    assert ops == {r: f"all_reduce {'b' if r == 2 else 'a'} #0" for r in range(4)}
    assert said.where == "train.py:90 in step"


def test_of_two_ranks_nobody_can_be_told_from_the_other() -> None:
    trace = Trace(2, {"a": (0, 1), "b": (0, 1)})
    for proc, group in zip(trace.ranks, "ab", strict=True):
        proc.collective(group, "all_reduce", 1, None)
    assert found(trace, 2500)["deadlock"].culprits == (0, 1)


def test_a_deadlock_without_stacks_is_a_warning_only() -> None:
    """Both may have issued with async_op=True and compute: nothing says that they wait."""
    trace = Trace(2, {"a": (0, 1), "b": (0, 1)})
    for proc, group in zip(trace.ranks, "ab", strict=True):
        proc.collective(group, "all_reduce", 1, None)
    assert found(trace, 2500)["deadlock"].severity == "warning"


def test_a_rank_with_an_async_op_that_computes_waits_for_nobody() -> None:
    """Rank 0 is in group a; rank 1 posted group b's op and computes: rank 1 alone is waited for."""
    trace = Trace(2, {"a": (0, 1), "b": (0, 1)})
    for proc, group in zip(trace.ranks, "ab", strict=True):
        proc.collective(group, "all_reduce", 1, None)
    trace.flush()
    stall(trace, 2100, r0=WAITING, r1=FORWARD)
    said = found(trace, 2500)
    assert list(said) == ["missing-rank"]
    assert said["missing-rank"].culprits == (1,)
    assert said["missing-rank"].where == "model.py:12 in forward"


def test_a_ring_of_receives_is_a_cycle_and_who_waits_beside_it_is_not_in_it() -> None:
    """0 receives from 2, 1 from 0, 2 from 1; 3 waits for all in an all_reduce."""
    trace = Trace(4)
    for rank, before in ((0, 2), (1, 0), (2, 1)):
        trace.ranks[rank].p2p("world", before, False, 1, None)
    trace.ranks[3].collective("world", "all_reduce", 2, None)
    said = found(trace, 2500)["p2p-cycle"]
    assert (said.culprits, said.ranks) == ((0, 1, 2), (0, 1, 2, 3))
    assert {wait.rank: wait.op for wait in facts(said, "waits")}[0] == "recv from r2"
    assert facts(said, "others") == (3,)


@pytest.mark.parametrize(("send", "kind"), [(True, "unpaired-send"), (False, "unpaired-recv")])
def test_one_side_of_a_message_is_missing(send: bool, kind: str) -> None:
    """2 sends to (receives from) 3, which is in the all_reduce behind it like all others."""
    trace = Trace(4)
    trace.ranks[2].p2p("world", 3, send, 1, None)
    for rank in (0, 1, 3):
        trace.ranks[rank].collective("world", "all_reduce", 2, None)
    said = found(trace, 2500)
    assert list(said) == [kind]
    assert said[kind].culprits == (2,)


def test_a_pair_that_is_matched_is_no_edge() -> None:
    """1 sent twice and 0 received once: the second receive is what 1 waits for."""
    trace = Trace(2)
    trace.ranks[1].p2p("world", 0, True, 1, 2)
    trace.ranks[1].p2p("world", 0, True, 3, None)
    trace.ranks[0].p2p("world", 1, False, 1, 2)
    assert blamed(at(trace, 2500)) == [((0,), (1,))]


def test_a_rank_whose_message_has_just_been_sent_is_not_the_next_to_blame() -> None:
    """Rank 0 receives from 1, which has waited 5 s for rank 2: that has just sent."""
    trace = Trace(3)
    trace.ranks[0].p2p("world", 1, False, 1, None)
    trace.ranks[1].p2p("world", 2, False, 2, None)
    trace.ranks[2].phase("forward", 0, 1)
    trace.flush()
    stall(trace, 2100, r0=WAITING, r1=WAITING)
    trace.ranks[2].p2p("world", 1, True, 5000, 5001)
    trace.flush()
    assert found(trace, 4900)["missing-rank"].culprits == (2,)
    assert found(trace, 5100) == {}


def test_a_posted_receive_of_a_rank_that_computes_is_no_wait() -> None:
    """A pipeline's rank 0 posted its receive from 1 and runs 0F0; 1 waits for what comes of it.
    No cycle: rank 0 is the one that is waited for."""
    trace = Trace(2)
    trace.ranks[0].p2p("world", 1, False, 1, None)
    trace.ranks[1].p2p("world", 0, False, 1, None)
    trace.ranks[0].flush()
    said = {"rank": 0, "alive": True, "action": "F", "stage": 0, "mb": 0, "what": "0F0",
            "since_ns": ns(2), "open": 1, "open_since_ns": ns(1), "step": 0}  # fmt: skip
    waits = {"rank": 1, "alive": True, "action": "", "stage": -1, "mb": -1, "since_ns": ns(1),
             "open": 1, "open_since_ns": ns(1), "step": 0}  # fmt: skip
    trace.state(2400, **{trace.ranks[0].proc: said, trace.ranks[1].proc: waits})
    assert blamed(at(trace, 2500)) == [((0,), (1,))]


def state_of(trace: Trace, proc: Proc, t: float, **more: Any) -> None:
    row = {"rank": proc.rank, "alive": True, "step": 0, "phase": "", "action": "", "stage": -1,
           "mb": -1, "since_ns": ns(1), "open": 0, "open_since_ns": 0, "heartbeat_ns": ns(t),
           "os": "S", "cpu": 0.0}  # fmt: skip
    trace.state(t, **{proc.proc: {**row, **more}})


@pytest.mark.parametrize(
    ("more", "frames", "kind", "severity", "absence"),
    [
        ({"os": "T"}, FORWARD, "rank-stopped", "error", Absence("stopped", AT, pid=101)),
        ({"heartbeat_ns": ns(400), "cpu": 1.0}, FORWARD, "gil-held", "warning",
         Absence("gil", AT, silent_ns=2000 * MS)),
        ({"heartbeat_ns": ns(400), "cpu": 1.0, "phase": "forward"}, [], "gil-held", "warning",
         Absence("gil", silent_ns=2000 * MS, during="forward")),
        ({}, PDB, "in-debugger", "warning", Absence("pdb", "train.py:77 in step")),
        ({"phase": "data"}, FORWARD, "missing-rank", "warning",
         Absence("loading", AT, asleep=True, caller="step (train.py:88)")),
        ({"phase": "forward", "cpu": 1.0}, FORWARD, "missing-rank", "warning",
         Absence("forward", AT, caller="step (train.py:88)")),
    ],
)  # fmt: skip
def test_why_a_rank_does_not_come(
    more: dict[str, Any], frames: list[list[Any]], kind: str, severity: str, absence: Absence
) -> None:
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 100, None)
    trace.ranks[1].step(0, 0, 1)
    trace.flush()
    stall(trace, 2200, r1=frames)
    state_of(trace, trace.ranks[1], 2400, **more)
    said = found(trace, 2400)
    assert list(said) == [kind]
    assert (said[kind].severity, said[kind].culprits) == (severity, (1,))
    (found_absence,) = facts(said[kind], "absences")
    assert replace(found_absence, rank=-1) == replace(absence, pid=found_absence.pid)


def test_a_rank_that_waits_for_a_disk_is_given_some_seconds() -> None:
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 100, None)
    trace.flush()
    for t in (2400, 6300):
        state_of(trace, trace.ranks[1], t, os="D")
    assert found(trace, 2500) == {}
    assert facts(found(trace, 6400)["missing-rank"], "absences") == (Absence("kernel"),)


def test_a_stack_is_forgotten_when_its_rank_moves_on() -> None:
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, None)
    trace.flush()
    stall(trace, 2100, r1=FORWARD)
    trace.ranks[1].phase("forward", 2200, 2300)
    assert "missing-rank" not in found(trace, 2500)  # it gets on: it may come in a moment
    assert found(trace, 3400)["missing-rank"].where is None


@pytest.mark.parametrize(("skew", "said_after"), [(10, 3100), (900, 4600)])
def test_a_rank_that_gets_on_is_mentioned_where_no_wait_was_nearly_as_long(
    skew: int, said_after: int
) -> None:
    """Eight ops with a skew of 10 ms: a wait of 3 s is worth a note, of 10 s a warning, while the
    rank runs one forward after the other. After waits of 900 ms it takes five times as long."""
    trace = Trace(2)
    for i in range(8):
        for proc in trace.ranks:
            begin = 1000 * i + (skew if proc.rank else 0)
            proc.collective("world", "all_reduce", begin, 1000 * i + skew + 1)
    trace.ranks[0].collective("world", "all_reduce", 10_000, None)
    for i in range(120):
        trace.ranks[1].phase("forward", 10_000 + 100 * i, 10_090 + 100 * i)
    trace.flush()
    assert not list(standstills(at(trace, 10_000 + said_after - 200)))
    (said,) = standstills(at(trace, 10_000 + said_after))
    assert (said.kind, said.severity, said.culprits) == ("missing-rank", "info", (1,))
    assert facts(said, "early")
    assert found(trace, 20_100)["missing-rank"].severity == "warning"


@pytest.mark.parametrize("send", [True, False])
def test_a_message_for_another_rank_than_the_one_that_waits(send: bool) -> None:
    """0 sends to 2, which has gone on, while 1 waits for a message of 0; and vice versa."""
    trace = Trace(3)
    trace.ranks[0].p2p("world", 2, send, 1, None)
    trace.ranks[1].p2p("world", 0, not send, 1, None)
    trace.ranks[2].phase("forward", 0, 1)
    trace.flush()
    (said,) = standstills(at(trace, 3000))
    kind = "unpaired-send" if send else "unpaired-recv"
    assert (said.kind, said.culprits, said.ranks) == (kind, (0,), (0, 1))
    op = Label("send to r2" if send else "recv from r2")
    assert facts(said, "wait", "send", "other") == (Waiting(0, op, ns(1)), send, 1)


def test_a_rank_that_is_ready_to_run_and_has_no_stack_may_lack_a_core() -> None:
    """On an overloaded host it stands aside for seconds: told after 10 s. Where its stack was taken
    it loops there: told after 2 s."""
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, None)
    trace.flush()
    for t in (2400, 10_400):
        state_of(trace, trace.ranks[1], t, os="R", cpu=0.2)
    assert found(trace, 2500) == {} and "missing-rank" in found(trace, 10_500)
    stall(trace, 2450, r1=FORWARD)
    assert "missing-rank" in found(trace, 2500)


def test_a_rank_that_gets_half_a_core_has_twice_the_time() -> None:
    """10 s of its own: it stood ready for half of the time before."""
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, None)
    trace.flush()
    for t in (1000, 9000, 10_800, 18_600, 20_400):
        state_of(trace, trace.ranks[1], t, os="R", cpu=0.2, scheduled=[ns(t) // 2, ns(t) // 2])
    assert found(trace, 11_000) == {} and "missing-rank" in found(trace, 20_500)


def test_a_rank_that_no_core_is_left_for_neither_sleeps_nor_holds_its_gil() -> None:
    """Silent since 400 ms and 0.03 cores used; for 95 % of the time it stood ready: a fifth of a
    core at most. After five times 2.5 s of silence that is no excuse any more."""
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, None)
    trace.ranks[1].step(0, 0, 1)
    trace.flush()
    for t in (500, 2300, 4200, 10_700, 11_400, 13_000):
        state_of(trace, trace.ranks[1], t, heartbeat_ns=ns(400), cpu=0.03,
                 scheduled=[ns(t) // 30, ns(t) * 95 // 100])  # fmt: skip
    stall(trace, 2300, r1=FORWARD)
    (absence,) = facts(found(trace, 11_500)["missing-rank"], "absences")
    assert not absence.asleep
    assert "gil-held" in found(trace, 13_100)


def test_a_stopped_rank_is_named_also_where_it_waits_itself() -> None:
    """1 is stopped inside the all_reduce that all have issued; 0 and 2 stand in it."""
    trace = Trace(3)
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 1, None)
    trace.flush()
    for proc in trace.ranks:
        state_of(trace, proc, 6100, os="T" if proc.rank == 1 else "S", open=1, open_since_ns=ns(1))
    said = found(trace, 6200)["stuck-op"]
    assert (said.severity, said.culprits, said.ranks) == ("error", (1,), (0, 2))


def test_an_op_that_all_issued_and_that_does_not_end() -> None:
    trace = Trace(2)
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 1, None)
    assert found(trace, 4900) == {}
    said = found(trace, 5100)["stuck-op"]
    assert (said.severity, said.culprits) == ("warning", ())


def test_a_wait_shorter_than_a_step_is_no_news() -> None:
    """Steps of 5 s: 4 s of waiting are usual, 5 s are not."""
    trace = Trace(2)
    for proc in trace.ranks:
        for i in range(4):
            proc.step(i, 5000 * i, 5000 * (i + 1))
    trace.ranks[0].collective("world", "all_reduce", 20_000, None, step=4)
    assert found(trace, 24_000) == {}
    assert "missing-rank" in found(trace, 25_100)


def test_who_is_held_by_the_debugger_is_not_missing() -> None:
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, None)
    trace.flush()
    trace.hub(wire.Key.CONTROL, 10, event="cut", mode="held", held={"1": "step 1"})
    assert found(trace, 9000) == {}
    trace.hub(wire.Key.CONTROL, 9100, event="running", mode="running", held={})
    trace.ranks[1].held(5, 9100)
    assert found(trace, 10_000) == {}  # it runs for 0.9 s
    assert "missing-rank" in found(trace, 11_200)


def test_a_late_rank_that_came_is_past() -> None:
    trace = Trace(2)
    for proc, t in zip(trace.ranks, (1, 4001), strict=True):
        proc.collective("world", "all_reduce", t, 4002)
    assert "missing-rank" in found(trace, 3000)
    (said,) = findings(at(trace, 5000))
    assert (said.kind, said.severity, said.culprits) == ("late-rank", "info", (1,))
    assert facts(said, "late_ns", "absence") == (4000 * MS, Absence("unknown", pid=101, rank=1))


def test_a_late_rank_has_what_it_was_in() -> None:
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, 4002)
    trace.flush()
    stall(trace, 2200, r1=FORWARD)
    state_of(trace, trace.ranks[1], 2400, phase="data")
    trace.ranks[1].collective("world", "all_reduce", 4001, 4002)
    (said,) = findings(at(trace, 5000))
    assert (facts(said, "absence").doing, facts(said, "absence").place) == ("loading", AT)
    assert said.where == "model.py:12 in forward"


def test_a_rank_that_left_well_while_others_wait_cannot_come_any_more() -> None:
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, None)
    trace.flush()
    trace.define_end(trace.ranks[1], 2, "exit")
    stall(trace, 2200, r0=WAITING)
    said = found(trace, 2500)["missing-rank"]
    assert (said.severity, said.culprits) == ("error", (1,))
    assert facts(said, "absences", "at") == ((Absence("ended"),), "train.py:90 in step")


def test_a_mismatch_explains_the_hang_that_follows() -> None:
    """1 skipped a barrier: its next op has the barrier's number. All then stand still."""
    trace = Trace(3)
    for proc in trace.ranks:
        if proc.rank != 1:
            proc.collective("world", "barrier", 1, None, 0, reduce="")
        else:
            proc.collective("world", "all_reduce", 1, None)
    said = found(trace, 9000)
    assert list(said) == ["op-mismatch"]
    assert said["op-mismatch"].culprits == (1,)


def test_a_broadcasts_receivers_wait_for_its_root() -> None:
    trace = Trace(4)
    for rank in (1, 2):
        trace.ranks[rank].collective("world", "broadcast", 1, None, reduce="", root=0)
    assert blamed(at(trace, 2500)) == [((0,), (1, 2))]


def test_lost_records_are_no_evidence_about_messages() -> None:
    """Rank 0's receive may be among what was lost."""
    trace = Trace(2)
    trace.ranks[1].p2p("world", 0, True, 1, None)
    trace.ranks[0].phase("data", 0, 1)
    trace.ranks[0].flush()
    trace.ranks[0].phase("data", 1, 2)
    trace.ranks[0].lose()
    trace.ranks[0].phase("data", 2, 3)
    assert blamed(at(trace, 2500)) == []


def test_a_rank_that_goes_on_does_not_stand_in_an_op_it_posted_long_ago() -> None:
    """A server posted a receive from 1 and serves others meanwhile, every half second."""
    trace = Trace(2)
    trace.ranks[0].p2p("world", 1, False, 1, None)
    trace.ranks[1].phase("forward", 0, 1)
    for i in range(10):
        trace.ranks[0].phase("serve", 500 * i, 500 * i + 400)
    assert blamed(at(trace, 5000)) == []


def test_of_an_op_whose_work_was_dropped_nothing_is_said() -> None:
    """Its completion was never recorded; the group went on, so it has long ended."""
    trace = Trace(2)
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 1, None)
        proc.collective("world", "all_reduce", 2, 3)
    assert found(trace, 9000) == {}


def test_a_rank_that_was_never_seen_is_said_not_guessed() -> None:
    trace = Trace(2, {"world": (0, 1, 2)})
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 1, None)
    said = found(trace, 6000)
    assert list(said) == ["unseen-rank"]
    assert said["unseen-rank"].culprits == ()
    assert facts(said["unseen-rank"], "unseen", "at_store") == ((2,), "unknown")


def test_a_rank_at_a_breakpoint_is_not_missing_even_while_others_run() -> None:
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, None)
    trace.flush()
    state_of(trace, trace.ranks[1], 3000, held=16, next="step 3")
    assert found(trace, 3000) == {}


def test_on_a_device_the_host_waits_elsewhere() -> None:
    """nccl: rank 0 has issued the op and stands where it needs the loss; that it stands counts."""
    trace = Trace(2)
    trace.ranks[0].define(wire.DefKind.GROUP, id=1, key="world", name="world", axis=None,
                          ranks=[0, 1], backend="nccl")  # fmt: skip
    trace.ranks[0]._groups["world"] = 1
    trace.ranks[0].collective("world", "all_reduce", 1, None)
    trace.flush()
    stall(trace, 2100, r0=FORWARD, r1=FORWARD)
    assert blamed(at(trace, 2500)) == [((1,), (0,))]


def test_another_dtype_does_not_explain_a_hang() -> None:
    trace = Trace(2)
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 1, 2, dtype="int32" if proc.rank else "float32")
    trace.ranks[0].collective("world", "all_reduce", 3, None)
    said = found(trace, 2500)
    assert set(said) == {"dtype-mismatch", "missing-rank"}
    assert said["missing-rank"].culprits == (1,)


def test_tags_that_do_not_fit_are_named_with_both_sides() -> None:
    """Rank 0 sends with tag 7, rank 1 receives with tag 9: each waits for the other."""
    trace = Trace(3, {"world": (0, 1, 2)})
    trace.ranks[0].p2p("world", 1, True, 1, None, tag=7)
    trace.ranks[1].p2p("world", 0, False, 2, None, tag=9)
    trace.ranks[2].collective("world", "all_reduce", 3, None)
    trace.flush()
    stall(trace, 2100, r0=WAITING, r1=WAITING, r2=WAITING)
    said = found(trace, 2500)
    assert list(said) == ["p2p-tag-mismatch"]
    one = said["p2p-tag-mismatch"]
    assert (one.culprits, one.ranks, one.severity) == ((0, 1), (0, 1, 2), "error")
    assert facts(one, "tags") == (7, 9)
