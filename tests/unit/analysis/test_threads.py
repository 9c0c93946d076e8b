"""Two threads that issue ops on one group, on traces typed in by hand."""

from __future__ import annotations

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.registry import standstills
from pardbg_agent import wire
from pardbg_agent.wire import Flag
from tests.unit.analysis.test_findings_speed import found, one, sync
from tests.unit.facts import facts
from tests.unit.trace_builder import Proc, Trace, ns


def metrics(proc: Proc, t: float, op: str = "all_reduce") -> None:
    flags = Flag.OTHER_THREAD | Flag.ASYNC
    proc.collective("world", op, t, t + 5, flags=flags)


def two_threads(order: dict[int, str], op: str) -> Trace:
    """Three ops a rank: ``m`` by the main thread, ``t`` by the one called metrics."""
    trace = Trace(len(order))
    for proc in trace.ranks:
        proc.define(wire.DefKind.NOTE, key=wire.NOTE_THREAD, value="metrics")
        for at, who in enumerate(order[proc.rank or 0]):
            if who == "m":
                proc.collective("world", "all_reduce", 10 * at, 10 * at + 5)
            else:
                metrics(proc, 10 * at, op)
    return trace


def test_ops_that_cross_are_named_as_that_and_not_as_a_mismatch() -> None:
    finding = one(two_threads({0: "mtm", 1: "mmt", 2: "mtm"}, "broadcast"), "thread-order")
    assert (finding.severity, finding.culprits, finding.seq) == ("error", (0, 1, 2), 1)
    assert facts(finding, "threads") == ("metrics",)
    issued = (("broadcast", True, (0, 2)), ("all_reduce", False, (1,)))
    assert facts(finding, "issued") == issued


def keeps(
    trace: Trace, rank: int, step: int = 0, t: float = 5, text: str = "OSError: no shard"
) -> None:
    trace.ranks[rank].define(
        wire.DefKind.EXCEPTION, t_ns=ns(t), type="OSError", text=text, step=step,
        thread="pool_0", frames=[["/job/data.py", 7, "load"]], kept=True,
    )  # fmt: skip


def test_what_a_future_keeps_is_why_a_thread_issues_no_op() -> None:
    """Rank 1's pool raised where it was to issue the others' op; rank 2's lost its connection."""
    trace = two_threads({0: "tmtm", 1: "tmm", 2: "tmtm"}, "broadcast")
    keeps(trace, 1)
    keeps(trace, 2, t=40, text="OSError: Connection reset by peer")
    of = {finding.kind: finding for finding in found(trace)}
    cause, effect = of["thread-exception"], of["thread-order"]
    assert (cause.severity, cause.culprits) == ("error", (1,))
    assert (cause.where, facts(cause, "waiting")) == ("data.py:7 in load", (0, 2))
    assert effect.severity == "info"


@pytest.mark.parametrize("kept", [((0, 0), (1, 0)), ((1, -4), (1, 0)), ((1, -4),)])
def test_what_futures_often_keep_is_no_cause(kept: tuple[tuple[int, int], ...]) -> None:
    """(rank, step): of another rank, too; of this one before; of one long ago."""
    trace = two_threads({0: "tmtm", 1: "tmm", 2: "tmtm"}, "broadcast")
    for step in range(3):
        trace.ranks[1].step(step, step, step + 1)
    for rank, step in kept:
        keeps(trace, rank, step, t=5 if step == 0 else 0)
    of = {finding.kind: finding for finding in found(trace)}
    assert "thread-exception" not in of and of["thread-order"].severity == "error"


def test_what_a_future_keeps_is_no_finding_where_nobody_waits() -> None:
    trace = two_threads({0: "tm", 1: "tm", 2: "tm"}, "broadcast")
    keeps(trace, 1)
    assert not found(trace)


DCP = "/x/site-packages/torch/distributed/checkpoint/"
SAVES = [[f"{DCP}_async_thread_executor.py", 26, "save_wrapper"], [f"{DCP}utils.py", 9, "reduce"]]
WRITES = [[f"{DCP}utils.py", 9, "reduce"], ["/job/store.py", 7, "write"]]
REFUSED = (
    "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([1])"
)


def unwritten(trace: Trace, frames: list[list[object]] = SAVES, thread: str = "saver_0") -> None:
    """Each rank's future keeps that rank 1 had no room; ranks learn of it a step apart."""
    text = REFUSED if thread == "MainThread" else "CheckpointException"
    for proc in trace.ranks:
        rank = proc.rank or 0
        proc.define(
            wire.DefKind.EXCEPTION, t_ns=ns(5 + rank), type="CheckpointException", text=text,
            step=rank, thread=thread, frames=frames, kept=thread != "MainThread",
            cause={"type": "OSError", "text": "OSError: no room", "frames": WRITES, "ranks": [1]},
        )  # fmt: skip
        for step in range(5):
            proc.step(step, 10 * step, 10 * step + 10)


def test_a_checkpoint_that_was_not_written_is_told_where_nobody_asks_its_future() -> None:
    trace = two_threads({0: "tm", 1: "tm", 2: "tm"}, "broadcast")
    unwritten(trace)
    (one,) = found(trace)
    assert (one.kind, one.severity, one.ranks) == ("thread-exception", "warning", (0, 1, 2))
    assert (one.culprits, one.where, one.t_ns) == ((1,), "store.py:7 in write", ns(5))
    assert facts(one, "unwritten") == 0 and facts(one, "cause").type == "OSError"


def test_what_else_all_ranks_futures_keep_is_still_no_finding() -> None:
    """A planner's, say, that reads: nothing was to be written."""
    trace = two_threads({0: "tm", 1: "tm", 2: "tm"}, "broadcast")
    unwritten(trace, [[f"{DCP}state_dict_loader.py", 9, "load"], *SAVES[1:]])
    assert not found(trace)


def test_a_checkpoints_failure_that_ended_the_ranks_is_told_once() -> None:
    trace = two_threads({0: "tm", 1: "tm", 2: "tm"}, "broadcast")
    unwritten(trace)
    unwritten(trace, thread="MainThread")
    assert [one.kind for one in found(trace)] == ["exception"]


def test_a_rank_whose_op_is_on_its_way_is_waited_for() -> None:
    """Of a running job, half a second at most: else two ranks are said, then three."""
    trace = two_threads({0: "mtm", 1: "mmt", 2: ""}, "broadcast")
    store = trace.store()
    first = 10  # ms: when the ops that cross were issued
    for later, said in ((20, []), (499, []), (501, [(0, 1)])):
        seen = list(standstills(View(store, ns(first + later))))
        assert [f.ranks for f in seen] == said


def test_an_op_of_another_thread_may_be_the_begin_of_ops_that_cross() -> None:
    """Rank 1's main thread, too, comes to the group half a second later at most; or it never does,
    and its op is another one."""
    store = two_threads({0: "m", 1: "t", 2: "m"}, "broadcast").store()
    for later, said in ((20, []), (499, []), (501, ["op-mismatch"])):
        assert [f.kind for f in standstills(View(store, ns(later)))] == said


def test_ops_that_look_alike_cross_too() -> None:
    """Nothing hangs and nothing is refused: the wrong numbers are added up."""
    assert one(two_threads({0: "mtm", 1: "tmm"}, "all_reduce"), "thread-order").seq == 0


def test_one_order_on_all_ranks_is_right_and_so_is_one_thread_each() -> None:
    assert found(two_threads({0: "mtm", 1: "mtm"}, "broadcast")) == []
    assert found(two_threads({0: "mmm", 1: "ttt"}, "all_reduce")) == []


def test_a_backend_that_gives_up_over_crossed_ops_follows_from_them() -> None:
    """gloo aborts rank 1, whose connection rank 0's other thread then loses."""
    trace = two_threads({0: "mtm", 1: "mmt"}, "broadcast")
    trace.define(wire.DefKind.END, proc=trace.ranks[1].proc, t_ns=ns(40), reason="killed", code=-6)
    trace.ranks[0].define(
        wire.DefKind.EXCEPTION, t_ns=ns(42), type="RuntimeError", thread="metrics", step=1,
        text="RuntimeError: Connection closed by peer", frames=[],
    )  # fmt: skip
    trace.ranks[0].phase("x", 40, 2000)
    loud = [f.kind for f in found(trace) if f.severity != "info"]
    assert loud == ["thread-order"]


@pytest.mark.parametrize(("main_late", "cause"), [(0, "thread"), (40, "host")])
def test_a_thread_that_comes_last_is_not_explained_by_the_main_threads_phases(
    main_late: int, cause: str
) -> None:
    """Of each step of 100 ms a thread sums in a group of its own: on rank 1 40 ms later, while the
    main thread waits for it, or comes late to its own sum."""
    trace = Trace(3, {"world": range(3), "side": range(3)})
    trace.ranks[1].define(wire.DefKind.NOTE, key=wire.NOTE_THREAD, value="metrics")
    for step in range(24):
        begin = 100.0 * step
        for proc in trace.ranks:
            late, main = (40, main_late) if proc.rank == 1 else (0, 0)
            proc.phase("forward", begin, begin + 10, step)
            proc.collective("side", "all_reduce", begin + 12 + late, begin + 53, step=step,
                            flags=Flag.OTHER_THREAD)  # fmt: skip
            sync(proc, begin + 53 + main, begin + 55 + main_late, step)
            proc.step(step, begin, begin + 100)
    finding = one(trace, "straggler")
    assert (finding.culprits, facts(finding, "cause")) == ((1,), cause)
