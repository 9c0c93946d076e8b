"""Calls of torch.distributed.rpc whose function does not return. Times in ms."""

from __future__ import annotations

from typing import Any

import pytest

from pardbg.analysis.findings.finding import Finding
from pardbg_agent import wire
from tests.unit.analysis.test_waitgraph import FORWARD, found, state_of
from tests.unit.facts import facts
from tests.unit.trace_builder import Proc, Trace, ns

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
