"""Where ranks stood when somebody had the job end, and exits by a code. Times in ms."""

from __future__ import annotations

import pytest

from pardbg.analysis.answers.hang import rank_stacks
from pardbg.analysis.answers.report import report
from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.base.asof import View
from pardbg.render.reports.text import text
from pardbg_agent import wire
from tests.unit.analysis.test_ends import (
    CLOSED,
    FRAMES,
    IN_OP,
    ended_by,
    ends,
    leaves,
    raises,
    said,
    three,
)  # fmt: skip
from tests.unit.analysis.test_waitgraph import WAITING, stall, state_of
from tests.unit.analysis.test_waitgraph_calls import call
from tests.unit.facts import facts
from tests.unit.trace_builder import Trace, ns


def test_a_wait_that_began_after_the_first_failure_lasted_until_the_job_was_told_to_end() -> None:
    """Rank 0 raised in init_process_group at 1 s; rank 1 came to it at 1.1 s. torchrun said at
    70.3 s that it was told to end, which the hub reads up to 250 ms late."""
    trace = Trace(2)
    call(trace.ranks[0], "init_process_group", 900, (0, 1))
    raises(trace.ranks[0], 1000)
    ends(trace, trace.ranks[0], 1001, "exit", 1)
    call(trace.ranks[1], "init_process_group", 1100, (0, 1))
    trace.flush()
    trace.output(70_300, "SignalException: Process 5 got signal: 15", stream="stderr")
    ends(trace, trace.ranks[1], 70_400, "killed", -15)
    trace.end(70_500, code=1)
    assert facts(said(trace)["stuck-op"], "waited_ns") == ns(70_050) - ns(1100)


def test_ranks_that_outlive_their_launcher_hung_until_it_was_told_to_end() -> None:
    """Rank 0 has waited for rank 1 since 1 ms. At 8 s Ctrl-C ends the launcher, and no rank."""
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, None)
    trace.ranks[1].phase("forward", 0, 1)
    trace.flush()
    stall(trace, 4000, r0=WAITING, r1=FRAMES)
    trace.define(wire.DefKind.END, proc=None, t_ns=ns(8800), code=130, told=[[ns(8000), 2]])
    assert said(trace)["missing-rank"].culprits == (1,)


def test_a_rank_that_leaves_when_told_to_end_is_where_it_was_before() -> None:
    """Rank 0 has waited for rank 1 since 1 ms. At 8 s the job gets SIGTERM: rank 1 leaves without
    an exit code, and only then is rank 0 killed."""
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, None)
    trace.ranks[1].phase("forward", 0, 1)
    trace.flush()
    stall(trace, 4000, r0=WAITING, r1=FRAMES)
    ends(trace, trace.ranks[1], 8100)
    ends(trace, trace.ranks[0], 8700, "killed", -15)
    trace.define(wire.DefKind.END, proc=None, t_ns=ns(8800), code=143, told=[[ns(8000), 15]])
    one = said(trace)["missing-rank"]
    assert (one.culprits, one.where) == ((1,), "data.py:7 in batch")


@pytest.mark.parametrize(
    ("told", "code", "by"),
    [
        ([18, 15], 143, "SIGTERM"),  # as Slurm ends a step: SIGCONT first
        ([10], 1, ""),  # a checkpoint is asked for; what ranks then fail of is their own
        ([10], 138, "SIGUSR1"),  # no handler: the job ended by it
    ],
)
def test_only_a_signal_that_ends_is_a_request_to_end(told: list[int], code: int, by: str) -> None:
    trace = three(waiting=())
    for proc in trace.ranks:
        ends(trace, proc, 50, "exit", 1)
    pairs = [[ns(20 + at), number] for at, number in enumerate(told)]
    trace.define(wire.DefKind.END, proc=None, t_ns=ns(60), code=code, told=pairs)
    who, worse = ended_by(trace)
    assert (who, bool(worse)) == (by, not by)


@pytest.mark.parametrize(
    ("reason", "code", "kind"), [("exit", 7, "rank-exited"), ("killed", -9, "rank-lost")]
)
def test_a_rank_that_leaves_no_stack_was_last_seen_in_an_op(
    reason: str, code: int, kind: str
) -> None:
    """It issued its second all_reduce at 20 ms, the first of them at train.py:9, and is gone."""
    trace = three(())
    for proc in trace.ranks:
        proc.op("all_reduce", "float32", "sum", at=["/job/train.py", 9, "step"])
        for t in (10, 20):
            proc.collective("world", "all_reduce", t, t + 1)
    trace.flush()
    ends(trace, trace.ranks[2], 30, reason, code)
    trace.end(200, code=1)
    one = said(trace)[kind]
    assert facts(one, "last", "last_at") == ("all_reduce world #1", "train.py:9 in step")
    assert one.where is None


@pytest.mark.parametrize(("workers", "culprits"), [((0,), (0,)), ((1, 2), (2,)), ((7,), (1,))])
def test_what_rpc_raises_in_the_caller_is_of_the_worker_that_raised_it(
    workers: tuple[int, ...], culprits: tuple[int, ...]
) -> None:
    """Rank 1 called; of a call through another worker, the last is where it began."""
    trace = three(())
    on = "".join(f"On WorkerInfo(id={worker}, name=ps): " for worker in workers)
    raises(trace.ranks[1], 5, f"TypeError: {on}TypeError('no model')")
    trace.end(9, code=1)
    one = said(trace)["exception"]
    assert (one.ranks, one.culprits) == ((1,), culprits)
    own = culprits == (1,)
    at = "data.py:7 in batch"
    assert (one.where, facts(one, "called_at")) == ((at, "") if own else (None, at))


def test_a_call_by_rpc_that_ends_in_its_timeout_is_not_what_came_first() -> None:
    """The worker that does not answer is not known: waits within RPC are not seen."""
    trace = three(())
    error = "RuntimeError: RPCErr:1:RPC ran for more than set timeout (60000 ms)"
    for rank in (1, 2):
        raises(trace.ranks[rank], 60_000, error)
    trace.end(62_000, code=1)
    assert [(kind, one.culprits) for kind, one in said(trace).items()] == [("cut-off", ())]


@pytest.mark.parametrize("by_itself", [False, True])
def test_an_exit_code_without_an_exception(by_itself: bool) -> None:
    trace = three()
    if by_itself:
        leaves(trace.ranks[2], 4)
    ends(trace, trace.ranks[2], 5, "exit", 7)
    trace.end(200, code=1)
    found = said(trace)
    assert list(found) == ["rank-exited"]
    assert facts(found["rank-exited"], "code", "abrupt") == (7, not by_itself)


FAILED = "failed (exitcode: 7) local_rank: 2 (pid: {pid}) of binary: python"


@pytest.mark.parametrize(
    ("line", "kind"),
    [(FAILED.format(pid=102), "rank-exited"), (FAILED.format(pid=999), "missing-rank"),
     ("", "missing-rank")],
)  # fmt: skip
def test_an_exit_code_that_torchrun_alone_has_seen(line: str, kind: str) -> None:
    """sys.exit(7) in rank 2 (pid 102); torchrun reaped it before the hub looked."""
    trace = three()
    for rank in (0, 1):
        raises(trace.ranks[rank], 6, CLOSED, IN_OP)
    leaves(trace.ranks[2], 4)
    ends(trace, trace.ranks[2], 5)
    trace.output(8, line)
    trace.end(3000, code=1)
    found = said(trace)
    assert list(found) == [kind] and found[kind].culprits == (2,)
    if kind == "rank-exited":
        assert facts(found[kind], "code") == 7


@pytest.mark.parametrize("code", [0, None])
def test_a_rank_that_left_did_so_normally_only_if_its_exit_code_says_so(code: int | None) -> None:
    trace = three()
    for rank in (0, 1):
        raises(trace.ranks[rank], 6, CLOSED, IN_OP)
    leaves(trace.ranks[2], 4)
    ends(trace, trace.ranks[2], 5, "exit", code)
    trace.end(3000, code=1)
    assert facts(said(trace)["missing-rank"], "normal") is (code == 0)


def test_a_rank_that_is_long_on_its_way_out_is_told_once() -> None:
    """Rank 2 runs sys.exit(7) at 4 ms and is gone at 8 s; by then ranks had waited for it."""
    trace = three()
    leaves(trace.ranks[2], 4)
    ends(trace, trace.ranks[2], 8000, "exit", 7)
    for rank in (0, 1):
        ends(trace, trace.ranks[rank], 8500, "killed", -15)
    trace.end(9000, code=1)
    assert list(said(trace)) == ["rank-exited"]


@pytest.mark.parametrize(("code", "ops", "told"), [(7, 1, (1, 2)), (8, 1, (2,)), (7, 2, (2,))])
def test_one_exit_code_after_one_op_is_told_once(
    code: int, ops: int, told: tuple[int, ...]
) -> None:
    """Rank 2 leaves with code 7 after its first op, and 2 s later rank 1 with ``code`` after
    ``ops``; rank 0 waits in its second one."""
    trace = Trace(3)
    for proc, of in zip(trace.ranks, (2, ops, 1), strict=True):
        for at in range(of):
            proc.collective("world", "all_reduce", 1 + at, None if at else 2)
    leaves(trace.ranks[2], 4)
    ends(trace, trace.ranks[2], 5, "exit", 7)
    leaves(trace.ranks[1], 2000)
    trace.ranks[0].phase("x", 2000, 2400)
    assert [(kind, one.culprits) for kind, one in said(trace).items()] == [("rank-exited", (2,))]
    ends(trace, trace.ranks[1], 2500, "exit", code)
    ends(trace, trace.ranks[0], 3000, "killed", -15)
    trace.end(3100, code=1)
    assert [(kind, one.culprits) for kind, one in said(trace).items()] == [("rank-exited", told)]


def test_the_stack_of_an_exception_is_the_newest_of_its_rank() -> None:
    """A standstill's stack of 3 s is older than the exception at 4 s, that of 5 s is newer."""
    trace = Trace(3)
    stall(trace, 3000, r0=WAITING, r1=WAITING)
    raises(trace.ranks[1], 4000)
    raises(trace.ranks[2], 4000)
    stall(trace, 5000, r2=WAITING)
    found = {one.rank: one for one in rank_stacks(View(trace.store(), ns(6000)))}
    assert {rank: one.t_ns for rank, one in found.items()} == {
        0: ns(3000), 1: ns(4000), 2: ns(5000),
    }  # fmt: skip
    assert found[1].frames == tuple(map(tuple, FRAMES))
    assert {one.rank for one in rank_stacks(View(trace.store(), ns(3500)))} == {0, 1}


def test_a_stack_is_past_once_its_rank_has_ended_a_step() -> None:
    """Both stood at 3 s; at 5 s rank 0 has ended the step, at 6 s it stands again."""
    trace = Trace(2)
    stall(trace, 3000, r0=WAITING, r1=WAITING)
    trace.ranks[0].step(0, 1000, 4500)
    stall(trace, 5500, r0=WAITING)
    trace.flush()
    for t, past in ((4000, [False, False]), (5000, [True, False]), (6000, [False, False])):
        assert [one.is_past for one in rank_stacks(View(trace.store(), ns(t)))] == past, t


def kinds(trace: Trace) -> list[tuple[str, str]]:
    return sorted((f.kind, f.severity) for f in snapshot(trace.store(), None).findings)


def test_a_job_whose_ranks_all_failed_did_not_end_well_whatever_its_exit_code() -> None:
    """A shell's `wait` of all of them ends with 0."""
    trace = three(waiting=())
    raises(trace.ranks[1], 40)
    for rank in (0, 2):
        raises(trace.ranks[rank], 60, CLOSED)
    for proc in trace.ranks:
        ends(trace, proc, 70, "exit")
    trace.end(80, code=0)
    assert kinds(trace) == [("exception", "error"), ("exit-code", "info"), ("rank-lost", "info")]


def test_where_one_rank_ended_well_a_failure_did_not_end_the_job() -> None:
    trace = three(waiting=())
    for rank in (1, 2):
        raises(trace.ranks[rank], 40)
    for proc in trace.ranks:
        ends(trace, proc, 70, "exit")
    trace.end(80, code=0)
    assert kinds(trace) == [("exception", "info"), ("exception", "info")]


def test_ranks_that_leave_by_os_exit_did_not_fail() -> None:
    """Nobody saw their exit code: a program that skips its cleanup looks like a killed one."""
    trace = three(waiting=())
    for proc in trace.ranks:
        ends(trace, proc, 70, "lost")
    trace.end(80, code=0)
    assert kinds(trace) == [("rank-lost", "info")] * 3


@pytest.mark.parametrize(
    ("error", "t", "kind", "culprits"),
    [
        ("RuntimeError: Timed out waiting 5000ms for recv operation", 5001, "missing-rank", (2,)),
        ("RuntimeError: [Rank 0]: Rank 2 failed to pass monitoredBarrier in 5000 ms", 5001,
         "missing-rank", (2,)),
        (CLOSED, 5001, "cut-off", ()),
        ("RuntimeError: Timed out waiting 9000ms for recv operation", 9001, "exception", (1,)),
    ],
)  # fmt: skip
def test_no_load_prolongs_the_timeout_of_an_op(
    error: str, t: float, kind: str, culprits: tuple[int, ...]
) -> None:
    """800 threads want 100 cores, so a rank that works gets 16 s. 0 and 3 wait for it, rank 2, and
    0 gives up after 5 s. In the last case rank 1 failed at 5 s, before the timeout of 9 s."""
    trace = Trace(4, {"a": (0, 2, 3)})
    for proc in (trace.ranks[0], trace.ranks[3]):
        proc.collective("a", "all_reduce", 1, None)
    trace.ranks[2].phase("forward", 0, 1)
    trace.flush()
    state_of(trace, trace.ranks[2], 4700, load=800, cpu=1.0, os="R", phase="forward")
    if kind == "exception":
        raises(trace.ranks[1], 5001)
    raises(trace.ranks[3], t, CLOSED)
    raises(trace.ranks[0], t + 20, error)
    trace.ranks[2].phase("forward", 1, t + 2000)
    assert [(f.kind, f.culprits) for f in said(trace).values()] == [(kind, culprits)]


def test_the_report_has_the_stack_of_who_is_at_fault() -> None:
    """Rank 2 crashed in C code; the others were told to end."""
    trace = three(waiting=())
    frames = [["/job/train.py", 40, "main"], ["/job/k.py", 7, "fused"]]
    trace.ranks[2].define(wire.DefKind.CRASH, frames=frames, main=False)
    ends(trace, trace.ranks[2], 40, "killed", -11)
    for rank in (0, 1):
        ends(trace, trace.ranks[rank], 50, "killed", -15)
    trace.end(60, code=1)
    found = report(trace.store())
    (lost,) = (one for one in found.findings if one.severity == "error")
    assert (lost.kind, lost.culprits, lost.where) == ("rank-lost", (2,), "k.py:7 in fused")
    assert [one.rank for one in found.stacks] == [2]
    assert '  File "/job/k.py", line 7, in fused' in text(found).splitlines()


def test_a_stack_from_before_the_ranks_last_deeds_is_not_in_the_report() -> None:
    """Rank 1 stood at 4 s, went on, and left with exit code 3 at 21 s."""
    trace = Trace(2)
    for proc in trace.ranks:
        proc.phase("forward", 0, 1)
    trace.flush()
    stall(trace, 4000, r0=WAITING, r1=FRAMES)
    for proc in trace.ranks:
        proc.phase("forward", 20_000, 20_900)
    trace.flush()
    ends(trace, trace.ranks[1], 21_000, "exit", 3)
    trace.end(21_500, code=1)
    made = report(trace.store())
    assert [one.culprits for one in made.findings if one.kind == "rank-exited"] == [(1,)]
    assert made.stacks == ()


@pytest.mark.parametrize("left", [True, False])
def test_a_rank_that_was_ended_in_its_exit_is_not_named_beside_who_failed(left: bool) -> None:
    """Rank 1 raised; 40 ms later rank 2 is gone, its code unknown: killed, or by the launcher."""
    trace = three(waiting=())
    if left:
        leaves(trace.ranks[2], 10)
    raises(trace.ranks[1], 1000)
    ends(trace, trace.ranks[2], 1040, "killed")
    trace.end(1200, code=1)
    named = {f.culprits for f in report(trace.store()).findings if f.severity == "error"}
    assert named - {()} == ({(1,)} if left else {(1,), (2,)})
