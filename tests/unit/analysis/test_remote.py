"""Calls that do not return: functions of torch.distributed.rpc; waits for a build's lock file that
it left behind; a rank that the others left behind. Times in ms."""

from __future__ import annotations

from typing import Any

import pytest

from pardbg.analysis.findings.finding import Finding
from pardbg.analysis.findings.registry import findings
from pardbg.analysis.hangs.blocking_calls import Blocking
from pardbg_agent import wire
from tests.unit.analysis.test_waitgraph import FORWARD, at, found, stall, state_of
from tests.unit.facts import facts
from tests.unit.trace_builder import MS, Proc, Trace, ns

SERVES = ["/site-packages/torch/distributed/rpc/internal.py", 200, "_run_function"]
HANDLER = [["/job/server.py", 7, "pull"], ["/usr/lib/python3/queue.py", 171, "get"]]
WAITS = [["/site-packages/torch/distributed/rpc/api.py", 842, "rpc_sync"]]
JOINS = [["/usr/lib/python3/threading.py", 327, "wait"]]


def asks(proc: Proc, of: int, t: float) -> None:
    """An rpc_sync of another worker that begins and does not end."""
    key = f"calls.of.{proc.rank}"
    proc._groups[key] = len(proc._groups) + 1
    proc.define(wire.DefKind.GROUP, id=proc._groups[key], key=key, name="set-up", axis=None,
                ranks=[proc.rank], backend=wire.CALLS)  # fmt: skip
    op = proc.op("rpc_sync", "", f"pull → worker{of}", root=of)
    proc.record(wire.Kind.CALL_BEGIN, t, t, op, seq=0, group_id=proc._groups[key])


def said(
    until: float = 12_000, cpu: tuple[float, ...] = (0.3, 0.3, 0.3), serves: int = 1,
    stack: list[list[Any]] = HANDLER, further: bool = False, worked: float = 1,
) -> Finding | None:  # fmt: skip
    """What is said at ``until`` of three workers, of which 0 asks 1 at 2: the others recorded
    something at ``worked``, and ``serves`` has a thread with a handler."""
    trace = Trace(3)
    asks(trace.ranks[0], 1, 2)
    if further:
        asks(trace.ranks[1], 2, 2)
    trace.ranks[2].phase("forward", 0, worked)
    trace.flush()
    for t in (3000, until - 100):
        for proc, used in zip(trace.ranks, cpu, strict=True):
            asked = proc.rank == 0 or (further and proc.rank == 1)
            state_of(trace, proc, t, cpu=used, open=int(asked), open_since_ns=ns(2) * asked)
    threads = {str(serves): [{"thread": "MainThread", "frames": JOINS},
                             {"thread": "7", "frames": [SERVES, *stack]}]}  # fmt: skip
    parts = [{"ranks": [rank], "frames": WAITS if rank == 0 else JOINS, "inside": {},
              "threads": threads if rank == serves else {}} for rank in range(3)]  # fmt: skip
    trace.hub(wire.Key.CONTROL, 3000, event="stall", since_ns=ns(3000), stacks=parts,
              source={str(rank): "agent" for rank in range(3)})  # fmt: skip
    return found(trace, until).get("stuck-call")


def test_a_handler_that_does_not_return_is_named_with_its_line() -> None:
    one = said()
    assert one is not None
    assert (one.severity, one.ranks, one.culprits) == ("warning", (0,), (1,))
    assert one.where == "server.py:7 in pull"
    assert facts(one, "op", "caller") == ("rpc_sync(pull → worker1)", 0)


def test_of_a_chain_the_last_is_named() -> None:
    one = said(further=True, serves=2)
    assert one is not None and (one.ranks, one.culprits) == ((1,), (2,))


@pytest.mark.parametrize(
    "more",
    [
        {"until": 9000},  # it may yet return
        {"cpu": (0.3, 1.2, 0.3)},  # it computes
        {"cpu": (0.3, 0.3, 0.9)},  # another rank does: it may wait for that
        {"cpu": (0.9, 0.9, 0.9)},
        {"worked": 11_000},
        {"serves": 2},  # no stack of it shows the function
        {"stack": []},
    ],
)
def test_a_call_that_may_yet_end_is_nothing(more: dict[str, Any]) -> None:
    assert said(**more) is None


def test_a_worker_that_trains_in_a_call_is_no_news() -> None:
    """As where one worker asks all others to train, and waits for them."""
    assert said(stack=FORWARD, cpu=(0.3, 1.0, 0.3), until=120_000) is None


@pytest.mark.parametrize(
    ("second", "cpu", "until", "is_said"),
    [
        ("lock file\n/ext/lock\t\t", 0.0, 15_000, True),
        ("lock file\n/ext/lock\t\t", 0.0, 11_000, False),  # rank 1 since 2000: for 9 s
        ("lock file\n/ext/lock\t\theld", 0.0, 15_000, False),
        ("child\n", 0.0, 15_000, False),  # rank 1 builds
        ("lock file\n/ext/lock\t\t", 1.0, 15_000, False),  # it has gone on
    ],
)
def test_a_lock_file_that_all_ranks_wait_for_and_none_has_open(
    second: str, cpu: float, until: float, is_said: bool
) -> None:
    trace = Trace(2)
    for proc, t, call in zip(
        trace.ranks, (1500, 2000), ("lock file\n/ext/lock\t\t", second), strict=True
    ):
        name = proc.name(f"{wire.BLOCKED}{call}\nds.py:4 in start")
        proc.record(wire.Kind.PROBE, t, t, name, a=0)
    trace.flush()
    for proc in trace.ranks:
        state_of(trace, proc, until - 100, cpu=cpu * proc.rank)
    one = found(trace, until).get("stuck-call")
    assert (one is not None) == is_said
    if one is not None:
        assert (one.severity, one.ranks, one.culprits) == ("warning", (0, 1), ())
        assert (one.where, one.t_ns) == ("ds.py:4 in start", ns(2000))
        assert facts(one, "file") == "/ext/lock"


@pytest.mark.parametrize(
    ("gone", "cpu", "until", "is_said"),
    [
        ((0, 1), 0.0, 15_000, True),
        ((0, 1), 0.0, 12_900, False),  # rank 1 ended at 3000, so for 9.9 s
        ((0,), 0.0, 15_000, False),  # rank 1 may yet do what rank 2 waits for
        ((0, 1), 1.0, 15_000, False),  # it works
    ],
)
def test_the_last_rank_that_runs_is_named_where_it_sleeps(
    gone: tuple[int, ...], cpu: float, until: float, is_said: bool
) -> None:
    """It may be its own work, as an upload is: a note."""
    trace = Trace(3)
    last = trace.ranks[2]
    name = last.name(f"{wire.BLOCKED}sleep\n\ntrain.py:40 in main")
    last.record(wire.Kind.PROBE, 2500, 2500, name, a=0)
    trace.flush()
    for rank in gone:
        trace.define_end(trace.ranks[rank], 2000 + 1000 * rank, "exit")
    state_of(trace, last, until - 100, cpu=cpu)
    told = [one for one in findings(at(trace, until)) if one.kind == "stuck-call"]
    assert [(one.severity, one.culprits, one.where) for one in told] == (
        [("info", (2,), "train.py:40 in main")] if is_said else []
    )
    for one in told:
        assert (facts(one, "others"), facts(one, "lasted_ns")) == ((0, 1), 12_000 * MS)


@pytest.mark.parametrize(
    ("cpu", "until", "is_said"),
    [(1.0, 65_000, True), (1.0, 62_900, False), (0.0, 65_000, False)],  # rank 1 ended at 3000
)
def test_the_last_rank_that_runs_is_named_where_it_computes(
    cpu: float, until: float, is_said: bool
) -> None:
    trace = Trace(3)
    last = trace.ranks[2]
    for rank in (0, 1):
        trace.define_end(trace.ranks[rank], 2000 + 1000 * rank, "exit")
    stall(trace, 33_000, r2=[["/job/train.py", 40, "main"]])
    state_of(trace, last, until - 100, cpu=cpu)
    told = [one for one in findings(at(trace, until)) if one.kind == "stuck-call"]
    assert [(one.severity, one.culprits, one.where) for one in told] == (
        [("info", (2,), "train.py:40 in main")] if is_said else []
    )
    assert [facts(one, "blocking") for one in told] == [Blocking("busy")] * is_said
