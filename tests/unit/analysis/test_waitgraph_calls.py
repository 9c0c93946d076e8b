"""Calls outside of collectives in the wait graph: start-up, groups, the store. Times in ms."""

from __future__ import annotations

import pytest

from pardbg.analysis.findings.kinds.stall_kinds import StuckOp
from pardbg.analysis.findings.wording import word
from pardbg.analysis.hangs.stacks import activity, caller, kept, place
from pardbg_agent import wire
from tests.unit.analysis.test_waitgraph import FORWARD, WAITING, found, stall, state_of
from tests.unit.facts import facts
from tests.unit.trace_builder import Proc, Trace, ns

WORKS = [["/job/train.py", 36, "train"]]


def call(
    proc: Proc, name: str, t: float, ranks: tuple[int, ...], detail: str = "", meets: str = ""
) -> None:
    """A set-up call that begins and does not end."""
    key = f"calls.{len(ranks)}" if ranks[1:] else f"calls.of.{ranks[0]}"
    if key not in proc._groups:
        proc._groups[key] = len(proc._groups) + 1
        proc.define(wire.DefKind.GROUP, id=proc._groups[key], key=key, name="set-up", axis=None,
                    ranks=list(ranks), backend=wire.CALLS)  # fmt: skip
    op = proc.op(name, "", detail, meets=meets)
    seq = proc.next_seq(key, False)
    proc.record(wire.Kind.CALL_BEGIN, t, t, op, seq=seq, group_id=proc._groups[key])


def test_a_rank_that_loads_libraries_holds_its_gil_and_is_no_news_at_the_start() -> None:
    """It has not beaten since 400 ms; others wait in init_process_group: told after 10 s."""
    trace = Trace(2)
    call(trace.ranks[0], "init_process_group", 1, (0, 1))
    trace.flush()
    for t in (2400, 10_500):
        state_of(trace, trace.ranks[1], t, heartbeat_ns=ns(400))
        stall(trace, t, r1=FORWARD)
    assert found(trace, 2500) == {} and "gil-held" in found(trace, 10_600)


@pytest.mark.parametrize(("steps", "said"), [(0, []), (1, ["gil-held"])])
def test_what_a_first_step_uses_first_is_loaded_with_the_gil_held(
    steps: int, said: list[str]
) -> None:
    """The group's first op; from the second step on it is news after 2 s."""
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_gather", 1, None)
    trace.ranks[1].phase("forward", 0, 1)
    for step in range(steps):
        trace.ranks[1].step(step, step, step + 1)
    trace.flush()
    for t in (2400, 10_500):
        state_of(trace, trace.ranks[1], t, heartbeat_ns=ns(400))
        stall(trace, t, r1=FORWARD)
    assert list(found(trace, 2500)) == said and "gil-held" in found(trace, 10_600)


def test_a_rank_that_holds_its_gil_where_no_stack_can_be_had_has_its_last_op() -> None:
    """Without py-spy: rank 1 issued its second all_reduce at 20 ms, the first at train.py:9."""
    trace = Trace(2)
    for proc in trace.ranks:
        proc.op("all_reduce", "float32", "sum", at=["/job/train.py", 9, "step"])
        for t in (10, 20):
            proc.collective("world", "all_reduce", t, t + 1)
    trace.ranks[0].collective("world", "all_reduce", 100, None)
    trace.ranks[1].step(0, 0, 1)
    trace.flush()
    state_of(trace, trace.ranks[1], 2400, heartbeat_ns=ns(400), cpu=1.0)
    finding = found(trace, 2400)["gil-held"]
    (absence,) = facts(finding, "absences")
    assert (absence.last, absence.last_at) == ("all_reduce world #1", "train.py:9 in step")
    assert finding.where is None


@pytest.mark.parametrize(("load", "said_after"), [(100, 1900), (400, 10_400), (4500, 20_400)])
def test_an_agent_that_gets_no_core_proves_no_lock(load: int, said_after: int) -> None:
    """Silent since 400 ms beside so many threads a core, in hundredths: 1.5 s are enough, or 2.5 s
    for every thread, 20 s at most."""
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, None)
    for proc in trace.ranks:
        proc.step(0, 0, 1)
    trace.flush()
    for t in (said_after - 200, said_after + 200):
        state_of(trace, trace.ranks[1], t, heartbeat_ns=ns(400), cpu=1.0, load=load)
        stall(trace, t, r1=FORWARD)
    assert "gil-held" not in found(trace, said_after - 100)
    assert "gil-held" in found(trace, said_after + 300)


def test_who_waits_for_ranks_inside_an_op_waits_for_that_op() -> None:
    """All of 1 and 2 are in their all_reduce, which takes 3 s; 0 waits for 1 in the next one."""
    trace = Trace(3, {"a": (1, 2), "b": (0, 1)})
    trace.ranks[0].collective("b", "all_reduce", 1, None)
    for rank in (1, 2):
        trace.ranks[rank].collective("a", "all_reduce", 1, None)
    trace.flush()
    for t in (2900, 5300):
        for proc in trace.ranks:
            state_of(trace, proc, t, os="S", cpu=0.0, open=1, open_since_ns=ns(1))
    assert found(trace, 3000) == {}
    assert list(found(trace, 5400)) == ["stuck-op"]


def test_a_rank_that_never_comes_to_init_process_group_is_to_blame() -> None:
    """It sleeps, which is said after 2 s; were it working, imports might take 10 s."""
    trace = Trace(3)
    for rank in (0, 1):
        call(trace.ranks[rank], "init_process_group", 1, (0, 1, 2))
    trace.ranks[2].phase("start-up", 0, 1)
    trace.flush()
    assert found(trace, 5000) == {}
    assert found(trace, 10_500)["missing-rank"].culprits == (2,)


@pytest.mark.parametrize(
    ("cpu", "load", "said_after"),
    [(0.0, 100, 5000), (0.5, 100, 12_000), (0.0, 250, 12_500), (0.0, 900, 40_000)],
)
def test_a_set_up_call_that_all_made_takes_its_time_where_ranks_work(
    cpu: float, load: int, said_after: int
) -> None:
    """... or where 250 threads want 100 cores: 2.5 times, eight times at most."""
    trace = Trace(2)
    for proc in trace.ranks:
        call(proc, "init_process_group", 1, (0, 1))
    trace.flush()
    for t in (said_after - 200, said_after + 200):
        for proc in trace.ranks:
            state_of(trace, proc, t, cpu=cpu, load=load, open=1, open_since_ns=ns(1))
    assert found(trace, said_after - 100) == {}
    assert list(found(trace, said_after + 300)) == ["stuck-op"]


def test_a_rank_that_leaves_a_set_up_call_out_is_to_blame() -> None:
    """0 and 2 make the group, 1 is in an all_reduce that they have not come to."""
    trace = Trace(3)
    for rank in (0, 2):
        call(trace.ranks[rank], "new_group", 1, (0, 1, 2), "ranks 0,1")
    trace.ranks[1].collective("world", "all_reduce", 1, None)
    trace.flush()
    one = found(trace, 2500)["deadlock"]
    assert one.culprits == (1,) and facts(one, "calls")
    assert facts(one, "waits")[0].op == "new_group(ranks 0,1)"


def test_ranks_inside_a_call_of_all_hold_nobody_up_in_the_next_one() -> None:
    """1 and 3 are through the first new_group, 0 and 2 build it: that it does not end is said
    after 5 s, and not before that 0 and 2 do not come to the second one."""
    trace = Trace(4)
    for proc in trace.ranks:
        call(proc, "new_group", 1, (0, 1, 2, 3), "ranks 0,2")
        if proc.rank in (1, 3):
            op, group = proc.op("new_group", "", "ranks 0,2"), proc._groups["calls.4"]
            proc.record(wire.Kind.CALL, 1, 10, op, seq=0, group_id=group)
            call(proc, "new_group", 11, (0, 1, 2, 3), "ranks 1,3")
    trace.flush()
    for t in (3500, 5500):
        for proc in trace.ranks:
            state_of(trace, proc, t, os="S", cpu=0.0, open=1, open_since_ns=ns(1))
    assert found(trace, 3600) == {}
    assert list(found(trace, 5600)) == ["stuck-op"]


def test_set_up_calls_in_another_order_are_a_mismatch() -> None:
    trace = Trace(3)
    for proc in trace.ranks:
        call(proc, "new_group", 1, (0, 1, 2), "ranks 0,2" if proc.rank == 1 else "ranks 0,1")
    one = found(trace, 100)["call-mismatch"]
    assert one.culprits == (1,) and facts(one, "call")


@pytest.mark.parametrize(
    ("size", "met", "said"),
    [(2, True, []), (2, False, []), (3, True, ["call-mismatch"]), (3, False, ["call-mismatch"])],
)
def test_ranks_that_met_may_have_written_the_address_in_several_ways(
    size: int, met: bool, said: list[str]
) -> None:
    """Where they disagree on more than the address, it is told at once; on the address alone, once
    both have been there for 10 s, in which they would have met."""
    trace = Trace(2)
    ways = (("localhost:1", "world size 2"), ("10.0.0.1:1", f"world size {size}"))
    for proc, (at, world) in zip(trace.ranks, ways, strict=True):
        call(proc, "init_process_group", 1, (0, 1), world, at)
        if met:
            op = proc.op("init_process_group", "", world, meets=at)
            proc.record(wire.Kind.CALL, 1, 5, op, seq=0, group_id=proc._groups["calls.2"])
    assert list(found(trace, 100)) == said
    later = ["call-mismatch"] if not met else said
    trace.flush()
    assert list(found(trace, 10_500)) == later


@pytest.mark.parametrize("came", [2, 3])
def test_an_address_is_wrong_only_once_all_ranks_have_come(came: int) -> None:
    """Rank 0 calls its own host localhost, as an operator sets it; rank 2 comes or never does."""
    trace = Trace(3)
    for proc in trace.ranks[:came]:
        at = "localhost:1" if proc.rank == 0 else "10.0.0.1:1"
        call(proc, "init_process_group", 1, (0, 1, 2), "world size 3", at)
    trace.ranks[2].phase("forward", 1, 2)
    trace.flush()
    one = found(trace, 12_500)
    said = {2: ("missing-rank", (2,)), 3: ("call-mismatch", (0,))}[came]
    assert [(kind, one[kind].culprits) for kind in one] == [said]


@pytest.mark.parametrize("port", ["0", "1"])
def test_ranks_that_do_not_meet_say_where_they_look_for_each_other(port: str) -> None:
    trace = Trace(2)
    for proc in trace.ranks:
        call(proc, "init_process_group", 1, (0, 1), "world size 2, gloo", f"host:{port}")
    trace.flush()
    one = found(trace, 5500)["stuck-op"]
    assert facts(one, "meets") == f"host:{port}"
    assert (one.advice == word(StuckOp, "try port zero")) == (port == "0")


@pytest.mark.parametrize(("met", "others", "kinds"), [
    (0, 3, {"call-mismatch": (2,)}), (1, 3, {"call-mismatch": (2,)}), (2, 2, {}),
    (2, 3, {"call-mismatch": (2,)}),
])  # fmt: skip
def test_ranks_that_expect_worlds_of_unlike_size_wait_for_each_other(
    met: int, others: int, kinds: dict[str, tuple[int, ...]]
) -> None:
    """Rank 2 expects four ranks, the ``others`` fewer: the groups that their calls count on differ.
    It may have met some of them; those that have met all of theirs need no other rank, unless it is
    one of these. Then they wait for it in their first op."""
    trace = Trace(3)
    for proc in trace.ranks:
        size = 4 if proc.rank == 2 else others
        world = f"world size {size}"
        call(proc, "init_process_group", 1, tuple(range(size)), world, "10.0.0.1:1")
        if proc.rank is not None and proc.rank < met:
            op = proc.op("init_process_group", "", world, meets="10.0.0.1:1")
            proc.record(wire.Kind.CALL, 1, 9, op, seq=0, group_id=proc._groups[f"calls.{size}"])
        if met == 2 < others and proc.rank != 2:
            proc.collective("world", "all_reduce", 20, None)
    trace.flush()
    stall(trace, 2100, r0=WAITING, r1=WAITING, r2=WAITING)
    assert {kind: one.culprits for kind, one in found(trace, 2500).items()} == kinds


def test_who_waits_in_a_group_that_others_never_made_is_explained_by_the_call() -> None:
    """Rank 1 makes a mesh of another shape and waits in its axis; the others went on."""
    groups = {"world": (0, 1, 2), "odd": (0, 1, 2)}
    trace = Trace(3, groups)
    for proc in trace.ranks:
        call(proc, "init_device_mesh", 1, (0, 1, 2), "(3, 1)" if proc.rank == 1 else "(1, 3)")
        proc.phase("forward", 2, 3)
    trace.ranks[1].collective("odd", "all_reduce", 5, None)
    trace.flush()
    stall(trace, 2100, r1=WAITING)
    assert list(found(trace, 2500)) == ["call-mismatch"]


def test_who_made_other_groups_issues_other_ops_on_them() -> None:
    """Rank 3 names the axes of its mesh the other way round, and disagrees with 1 on their group;
    what they disagree on in the default group does not follow from that."""
    trace = Trace(4, {"default": range(4), "shard": (1, 3)})
    for proc in trace.ranks:
        call(proc, "init_device_mesh", 1, (0, 1, 2, 3), "(b, a)" if proc.rank == 3 else "(a, b)")
        proc.phase("forward", 2, 3)
    for proc in (trace.ranks[1], trace.ranks[3]):
        proc.collective("shard", "all_reduce", 5, None, reduce="avg" if proc.rank == 1 else "sum")
    assert list(found(trace, 2500)) == ["call-mismatch"]
    for proc in trace.ranks:
        proc.collective("default", "all_reduce" if proc.rank else "all_gather", 2600, None)
    said = {kind: one.culprits for kind, one in found(trace, 5000).items()}
    assert said == {"call-mismatch": (3,), "op-mismatch": (0,)}


def test_a_call_in_which_a_rank_issues_another_op_does_not_end() -> None:
    """Rank 0 alone saves a checkpoint, which gathers; the others average."""
    trace = Trace(3)
    call(trace.ranks[0], "checkpoint.save", 1, (0,), "/ck")
    for proc in trace.ranks:
        proc.collective("world", "all_reduce" if proc.rank else "all_gather", 5, None)
    trace.flush()
    for t in (2000, 6000):
        for proc in trace.ranks:
            state_of(trace, proc, t, open=1, open_since_ns=ns(1))
    stall(trace, 6000, r0=WAITING, r1=WAITING, r2=WAITING)
    assert [(kind, one.culprits) for kind, one in found(trace, 6100).items()] == [
        ("op-mismatch", (0,))
    ]


@pytest.mark.parametrize(
    ("came", "culprits", "at_store"),
    [(None, (), "unknown"), ((0, 1), (2,), "absent"), ((0, 1, 2), (), "came")],
)  # fmt: skip
def test_of_a_rank_that_nothing_is_known_of_the_jobs_store_says_more(
    came: tuple[int, ...] | None, culprits: tuple[int, ...], at_store: str
) -> None:
    trace = Trace(2)
    for proc in trace.ranks:
        call(proc, "init_process_group", 1, (0, 1, 2))
    trace.flush()
    if came is not None:
        trace.hub(wire.Key.CONTROL, 2100, event="rendezvous", came=list(came))
    one = found(trace, 5500)["unseen-rank"]
    assert one.culprits == culprits and facts(one, "at_store") == at_store


def test_a_rank_that_waits_for_others_inside_a_checkpoint_is_not_stuck_in_it() -> None:
    trace = Trace(2)
    for proc in trace.ranks:
        call(proc, "checkpoint.save", 1, (proc.rank or 0,), "/ck")
    trace.ranks[0].collective("world", "all_gather", 2, None)
    trace.flush()
    for t in (2100, 6000):
        for proc in trace.ranks:
            state_of(trace, proc, t, open=1, open_since_ns=ns(1))
    stall(trace, 6000, r0=WAITING, r1=FORWARD)
    assert [(kind, one.culprits) for kind, one in found(trace, 6100).items()] == [
        ("missing-rank", (1,))
    ]


def test_who_waits_at_the_store_waits_for_those_that_do_not() -> None:
    trace = Trace(3)
    for rank in (1, 2):
        call(trace.ranks[rank], "Store.get", 1, (rank,), "ready")
    trace.ranks[0].phase("data", 0, 1)
    trace.flush()
    one = found(trace, 2500)["missing-rank"]
    assert one.culprits == (0,)
    assert {wait.rank: wait.op for wait in facts(one, "waits")} == dict.fromkeys(
        (1, 2), "Store.get(ready)"
    )


def test_a_key_that_nobody_is_left_to_set() -> None:
    """Rank 2 waits for it; the others, one of which should have set it, wait for rank 2."""
    trace = Trace(3)
    call(trace.ranks[2], "Store.wait", 1, (2,), "phase3/1")
    for proc in trace.ranks[:2]:
        proc.collective("world", "barrier", 1, None)
    trace.flush()
    one = found(trace, 2500)["deadlock"]
    assert facts(one, "keys") == ("phase3/1",)


def test_who_waits_for_no_key_that_most_wait_for_is_named() -> None:
    """Rank 0 set another key and is in an all_reduce; 1 and 2, two of three, wait for this one.
    Rank 1 has asked the store for one more before."""
    trace = Trace(3)
    trace.ranks[1].next_seq("calls.of.1", False)
    for rank in (1, 2):
        call(trace.ranks[rank], "Store.wait", 1, (rank,), "ckpt/60")
    trace.ranks[0].collective("world", "all_reduce", 1, None)
    assert found(trace, 2500)["deadlock"].culprits == (0,)


def test_deep_stacks_keep_the_programs_frames_and_who_called() -> None:
    """60 frames of a library above the program's two: 48 are kept, the program's among them."""
    deep = [("/job/train.py", 9, "validate"), ("/job/model.py", 88, "forward")]
    deep += [("/x/site-packages/lib.py", n, "inner") for n in range(60)]
    short = kept(deep, 48)
    assert len(short) == 26 and short[:2] == tuple(deep[:2]) and short[-1] == deep[-1]
    assert place(short) == "model.py:88 in forward"
    assert caller(short) == "validate (train.py:9)"


def test_in_a_pipeline_a_late_rank_is_late_and_no_message_is_misaddressed() -> None:
    """1F1B: 1 sends an activation to 2, which is late, and 0 waits for 1's gradient."""
    trace = Trace(3)
    first, middle, last = trace.ranks
    middle.p2p("world", 2, True, 1, 2)
    last.p2p("world", 1, False, 1, 2)
    first.p2p("world", 1, False, 3, None)
    middle.p2p("world", 2, True, 4, None)
    last.phase("forward", 2, 3)
    trace.flush()
    said = found(trace, 2500)
    assert list(said) == ["missing-rank"] and said["missing-rank"].culprits == (2,)


def test_imports_take_longer_where_cores_are_few() -> None:
    """10 s where it has a core; it stands ready half of the time, so 20 s. So does what loads
    libraries in C, with the GIL held."""
    trace = Trace(2)
    call(trace.ranks[0], "init_process_group", 1, (0, 1))
    trace.ranks[1].phase("start-up", 0, 1)
    trace.flush()
    imports = [["/job/train.py", 1, "<module>"], ["<frozen importlib._bootstrap>", 1176, "_load"]]
    for t in (10_000, 15_800, 18_000, 20_400):
        state_of(trace, trace.ranks[1], t, os="R", cpu=0.4, scheduled=[ns(t) // 2, ns(t) // 2])
        stall(trace, t, r1=imports)
    assert found(trace, 16_000) == {} and "missing-rank" in found(trace, 20_500)
    for t in (10_100, 15_900, 18_100, 20_500):
        state_of(trace, trace.ranks[1], t, os="R", cpu=0.4, scheduled=[ns(t) // 2, ns(t) // 2],
                 heartbeat_ns=ns(400))  # fmt: skip
    assert found(trace, 16_000) == {} and "gil-held" in found(trace, 20_600)


def test_who_sleeps_in_an_import_reads_its_file() -> None:
    trace = Trace(2)
    call(trace.ranks[0], "init_process_group", 1, (0, 1))
    trace.ranks[1].phase("start-up", 0, 1)
    trace.flush()
    imports = [["/job/train.py", 1, "<module>"], ["<frozen importlib._bootstrap>", 1176, "_load"]]
    for t in (5000, 10_200):
        state_of(trace, trace.ranks[1], t, os="S", cpu=0.0)
        stall(trace, t, r1=imports)
    assert found(trace, 6000) == {} and "missing-rank" in found(trace, 10_400)


@pytest.mark.parametrize(("load", "said_after"), [(100, 2000), (200, 6000)])
def test_what_nobody_knows_of_a_rank_is_said_later_where_threads_take_turns(
    load: int, said_after: int
) -> None:
    """No stack of it has come; two threads a core: twice 3 s."""
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, None)
    trace.ranks[1].step(0, 0, 1)
    trace.flush()
    for t in (said_after - 200, said_after + 200):
        state_of(trace, trace.ranks[1], t, os="S", load=load)
    assert found(trace, said_after - 100) == {}
    assert list(found(trace, said_after + 300)) == ["missing-rank"]


@pytest.mark.parametrize(
    ("cpu", "load", "said_after"), [(0.0, 100, 2000), (0.5, 100, 10_000), (0.0, 250, 5000)]
)
def test_the_first_message_between_two_ranks_may_wait_for_one_that_works(
    cpu: float, load: int, said_after: int
) -> None:
    """0 sends to 2 for the first time, 1 waits for a message of 0, as in a pipeline whose stage 2
    is still busy: that one of them means another rank is said after 10 s of work, and later where
    2.5 threads want each core."""
    trace = Trace(3)
    trace.ranks[0].p2p("world", 2, True, 1, None)
    trace.ranks[1].p2p("world", 0, False, 1, None)
    trace.ranks[2].phase("forward", 0, 1)
    trace.flush()
    for t in (said_after - 200, said_after + 200):
        state_of(trace, trace.ranks[2], t, os="S", cpu=cpu, load=load)
    assert "unpaired-send" not in found(trace, said_after - 100)
    assert list(found(trace, said_after + 300)) == ["unpaired-send"]


@pytest.mark.parametrize(("load", "said_after"), [(100, 5000), (300, 15_000)])
def test_an_op_that_all_issued_takes_longer_where_threads_take_turns(
    load: int, said_after: int
) -> None:
    """5 s, and three times that where three threads want each core."""
    trace = Trace(2)
    for proc in trace.ranks:
        proc.collective("world", "barrier", 1, None)
    trace.flush()
    for t in (said_after - 200, said_after + 200):
        for proc in trace.ranks:
            state_of(trace, proc, t, os="S", cpu=0.0, load=load, open=1, open_since_ns=ns(1))
    assert found(trace, said_after - 100) == {}
    assert list(found(trace, said_after + 300)) == ["stuck-op"]


@pytest.mark.parametrize(
    ("state", "stack", "load", "said_after"),
    [("R", WORKS, 100, 2000), ("R", WORKS, 250, 5000), ("R", WORKS, 400, 8000),
     ("S", WORKS, 400, 2000), ("S", WAITING, 100, 2000), ("S", WAITING, 400, 8000)],
)  # fmt: skip
def test_a_rank_that_works_has_longer_on_a_crowded_host(
    state: str, stack: list[list[object]], load: int, said_after: int
) -> None:
    """Its stack is known. So many threads want each core: as many times 2 s, unless it sleeps
    elsewhere than in an op, whose message may be on its way."""
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, None)
    trace.ranks[1].step(0, 0, 1)
    trace.flush()
    for t in (said_after - 200, said_after + 200):
        state_of(trace, trace.ranks[1], t, os=state, cpu=0.0 if state == "S" else 0.3, load=load)
        stall(trace, t, r1=stack)
    assert found(trace, said_after - 100) == {}
    assert list(found(trace, said_after + 300)) == ["missing-rank"]


@pytest.mark.parametrize(("files", "said"), [
    (["/torch/nn/parallel/distributed.py", "<frozen importlib._bootstrap>", "/torch/_dynamo/x.py"],
     "importing"),  # DDP's constructor
    (["/torch/_dynamo/convert_frame.py", "/torch/_inductor/graph.py"], "compiling"),
    (["/torch/_dynamo/convert_frame.py", "<frozen importlib._bootstrap>"], "importing"),
    (["/torch/utils/data/dataloader.py", "/torch/_dynamo/x.py"], "compiling"),
    (["/torch/_dynamo/x.py", "/job/model.py"], None),  # the model's own code, traced
])  # fmt: skip
def test_who_imports_the_compiler_compiles_nothing(files: list[str], said: str | None) -> None:
    frames = [("/job/train.py", 1, "train"), *((file, 1, "f") for file in files)]
    assert activity(frames) == said
