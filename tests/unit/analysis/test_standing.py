"""Does a rank that has an op open stand in it? The agent's word, the stack, and whether it runs."""

from __future__ import annotations

from typing import Any

import pytest

from pardbg.analysis.answers.report import finding_json
from pardbg.analysis.hangs.stacks import waits_in_op
from pardbg_agent import wire
from pardbg_agent.wire import Flag, Lane
from tests.unit.analysis.test_waitgraph import WAITING, at, blamed, found, stall, state_of
from tests.unit.facts import facts
from tests.unit.trace_builder import MS, Trace, ns

LIB = "/x/site-packages"
TRAIN = ("/job/train.py", 88, "step")
BUFFERS = (f"{LIB}/torch/nn/parallel/distributed.py", 2300, "_default_broadcast_coalesced")
LOADER = (f"{LIB}/torch/utils/data/dataloader.py", 700, "_next_data")
SAVES = (f"{LIB}/torch/serialization.py", 900, "save")
ENGINE = (f"{LIB}/deepspeed/runtime/engine.py", 900, "allreduce_bucket")
QUEUE = ("/usr/lib/python3.11/queue.py", 171, "get")
BACKWARD = (f"{LIB}/torch/autograd/graph.py", 800, "_engine_run_backward")


@pytest.mark.parametrize(
    ("innermost", "inside", "idle", "stands"),
    [
        (TRAIN, "wait", False, True),  # Work.wait in C++: nothing of it is on the stack
        (TRAIN, "", True, False),  # it may sleep there for reasons of its own
        (BUFFERS, "", True, True),
        (BUFFERS, "", False, False),  # it computes: the op was posted ahead
        (ENGINE, "", True, True),
        (BACKWARD, "", False, True),
        (LOADER, "", True, False),
        (SAVES, "", True, False),
        (QUEUE, "", True, False),
    ],
)
def test_a_rank_stands_in_its_op_wherever_its_stack_ends(
    innermost: tuple[str, int, str], inside: str, idle: bool, stands: bool
) -> None:
    assert waits_in_op((TRAIN, innermost), inside, idle) is stands


def test_ranks_in_a_broadcast_of_buffers_wait_for_the_one_that_sleeps() -> None:
    """DDP's forward of a BatchNorm, in C++: ranks 0, 1 and 2 stand in it, rank 3 does not come."""
    trace = Trace(4)
    for proc in trace.ranks[:3]:
        proc.collective("world", "broadcast", 1, None)
    trace.flush()
    for t in (900, 2400):  # idle: in 1.5 s their main threads ran for 3 ms
        for proc in trace.ranks:
            waits = {"open": 1, "open_since_ns": ns(1)} if proc.rank < 3 else {}
            state_of(trace, proc, t, scheduled=[ns(t) // 500, 0], **waits)
    frames: Any = [list(TRAIN), list(BUFFERS)]
    stall(trace, 2100, r0=frames, r1=frames, r2=frames, r3=[list(TRAIN)])
    assert blamed(at(trace, 2500)) == [((3,), (0, 1, 2))]


def test_the_place_of_an_asynchronous_op_is_where_it_was_issued() -> None:
    """Rank 2's op is another one; all three wait in one line."""
    trace = Trace(3)
    for proc in trace.ranks:
        op = "broadcast" if proc.rank == 2 else "all_reduce"
        proc.collective("world", op, 1, None)
    trace.flush()
    key = next(iter(at(trace, 2000).ranks[2].groups.values())).key
    parts: Any = [{"ranks": [0, 1, 2], "frames": [list(TRAIN)], "inside": {}}]
    trace.hub(
        wire.Key.CONTROL, 2100, event="stall", since_ns=ns(2100), stacks=parts,
        source={str(rank): "agent" for rank in range(3)},
        issued={"2": [[ns(1), key, 0, "/job/train.py", 40, "start"]]},
    )  # fmt: skip
    said = found(trace, 2200)["op-mismatch"]
    assert (said.culprits, said.where) == ((2,), "train.py:40 in start")


@pytest.mark.parametrize(
    ("handles", "told"),
    [
        ({"2": "KeyError: 'b'"}, (("KeyError: 'b'", (2,)),)),
        ({"0": "ValueError: 3", "2": "KeyError: 'b'"}, (("KeyError: 'b'", (2,)),)),
        ({"1": "KeyError: 'a'", "2": "KeyError: 'b'"}, ()),  # the program's way
        ({}, ()),
    ],
)
@pytest.mark.parametrize("kind", ["op-mismatch", "missing-rank"])
def test_what_the_culprit_alone_handles_is_told(
    kind: str, handles: dict[str, str], told: tuple[object, ...]
) -> None:
    trace = Trace(3)
    for proc in trace.ranks[: 2 if kind == "missing-rank" else 3]:
        op = "broadcast" if proc.rank == 2 else "all_reduce"
        proc.collective("world", op, 1, None)
    trace.flush()
    parts = [
        {"ranks": ranks, "frames": frames, "handles": handles}
        for ranks, frames in (([0, 1], WAITING), ([2], [list(TRAIN)]))
    ]
    source = {str(rank): "agent" for rank in range(3)}
    trace.hub(wire.Key.CONTROL, 2100, event="stall", since_ns=ns(2100), stacks=parts, source=source)
    said = found(trace, 2200)[kind]
    assert (said.culprits, said.handled) == ((2,), told)
    assert finding_json(said)["handled"] == [
        {"exception": w, "ranks": [*r]} for w, r in said.handled
    ]


def test_a_full_host_excuses_no_device_that_stands() -> None:
    """Rank 1's device has come to nothing since ms 40, and its host has eight threads per core."""
    trace = Trace(2)
    for proc in trace.ranks:
        proc.define(wire.DefKind.PROCESS, proc=proc.proc, rank=proc.rank, device="cuda")
        proc.define(wire.DefKind.GROUP, id=1, key="world", name="world", axis=None, ranks=[0, 1],
                    backend="nccl")  # fmt: skip
        proc._groups["world"] = 1
        phase = {"lane": Lane.PHASE, "name_id": proc.name("forward")}
        proc.record(wire.Kind.PHASE, 1, 2, flags=Flag.DEVICE, **phase)
        proc.record(wire.Kind.DEVICE, 20, 40, a=19 * MS, **phase)
    trace.ranks[0].collective("world", "all_reduce", 50, None)
    trace.ranks[1].record(wire.Kind.PHASE, 3, 4, flags=Flag.DEVICE, **phase)
    trace.flush()
    for proc in trace.ranks:
        waits = {"open": 1, "open_since_ns": ns(50)} if proc.rank == 0 else {}
        state_of(trace, proc, 4000, load=800, os="R", **waits)
    said = found(trace, 4000)["missing-rank"]
    assert said.culprits == (1,) and facts(said, "absences")[0].doing == "device"
