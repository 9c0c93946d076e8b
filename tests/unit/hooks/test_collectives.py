"""Collectives on torch's fake backend, in one process: what is recorded, and that it comes off."""

from __future__ import annotations

import gc
import inspect
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.testing._internal.distributed.fake_pg import FakeStore

from pardbg_agent import core, hooks
from pardbg_agent.hooks.comm import host_calls
from pardbg_agent.hooks.ops import issue
from pardbg_agent.hooks.watch import probes
from pardbg_agent.settings import FULL, OFF, SUMMARY
from pardbg_agent.wire import Flag, Gate, Kind
from tests.distributed.programs.watched import make_run
from tests.unit.hooks.recorded import SAYS_ASYNC, ops, options, rank

Work: Any = torch._C._distributed_c10d.Work
PG: Any = torch._C._distributed_c10d.ProcessGroup


def test_every_kind_of_op_has_its_name_number_root_and_bytes(watched: Path) -> None:
    """float32 tensors of 6 elements are 24 bytes; four ranks' parts are 96."""
    t = torch.zeros(6)
    parts = [torch.zeros(6) for _ in range(4)]
    flat = torch.zeros(24)
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    dist.broadcast(t, src=2)
    dist.reduce(t, dst=3)
    dist.all_gather(parts, t)
    PG._allgather_base(dist.group.WORLD, flat, t, options("AllgatherOptions")).wait()
    dist.reduce_scatter(t, parts)
    dist.all_to_all_single(torch.zeros(24), flat)
    dist.barrier()
    dist.gather(t, None, dst=0)
    dist.scatter(t, None, src=0)
    dist.send(t, dst=0)
    dist.recv(t, src=2, tag=7)
    assert ops(watched) == [
        ("all_reduce", 0, -1, 24, 24),
        ("broadcast", 1, 2, 24, 24),
        ("reduce", 2, 3, 24, 24),
        ("all_gather", 3, -1, 24, 96),
        ("all_gather", 4, -1, 24, 96),
        ("reduce_scatter", 5, -1, 96, 24),
        ("all_to_all", 6, -1, 96, 96),
        ("barrier", 7, -1, 0, 0),
        ("gather", 8, 0, 24, 0),
        ("scatter", 9, 0, 0, 24),
        ("send", 0, 0, 24, 24),  # p2p ops count apart
        ("recv", 1, 2, 24, 24),
    ]
    defined = {(d["op"], d["reduce"], d["root"], d["tag"]) for d in rank(watched).defined("op")}
    assert {("all_reduce", "max", -1, 0), ("reduce", "sum", 3, 0), ("recv", "", -1, 7)} <= defined


@pytest.mark.parametrize("elements", [2, 128, 1 << 14])
def test_values_that_are_not_finite_are_told_of_what_is_gathered(
    watched: Path, elements: int
) -> None:
    """By a name of their own, as they may be meant; of a large input not every value is looked at,
    so all of them are NaN here."""
    t, wide = torch.zeros(elements), torch.zeros(4 * elements)
    for value in (0.0, float("nan")):
        t[:] = value
        PG._allgather_base(dist.group.WORLD, wide, t, options("AllgatherOptions")).wait()
        dist.all_gather([torch.zeros(elements) for _ in range(4)], t)
    dist.broadcast(t, src=2)  # only its root's values count
    dist.all_reduce(torch.full((1 << 14,), float("nan")))
    told = [(r.name, r.seq, r.a) for r in rank(watched).of(Kind.PROBE)]
    of = "nan gathered"
    assert told == [(of, 2, elements), (of, 3, elements), ("nan", 5, 1 << 14)]


def test_a_program_that_gathers_infinities_has_the_first_told(watched: Path) -> None:
    t = torch.tensor([1.0, float("-inf")])
    for _ in range(probes.MAX_GATHERED + 3):
        dist.all_gather([torch.zeros(2) for _ in range(4)], t)
    assert len(rank(watched).of(Kind.PROBE)) == probes.MAX_GATHERED
    dist.all_reduce(torch.full((1 << 14,), float("nan")))
    assert rank(watched).of(Kind.PROBE)[-1].name == "nan"


def test_a_scatter_has_its_dtype_on_ranks_that_bring_nothing(watched: Path) -> None:
    """As scatter_object_list after a scatter of floats: only the root has tensors that go in."""
    for dtype in (torch.float32, torch.uint8, torch.int64, torch.uint8):
        dist.scatter(torch.zeros(6, dtype=dtype), None, src=0)
    # Each is defined when it is first seen.
    defined = [d["dtype"] for d in rank(watched).defined("op") if d["op"] == "scatter"]
    assert defined == ["float32", "uint8", "int64"]


def test_an_ops_definition_has_the_line_of_its_first(watched: Path) -> None:
    """Of the all_reduces, which are alike, the first; and set-up calls have theirs."""
    first = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    for _ in range(2):
        dist.all_reduce(torch.zeros(6))
    dist.all_reduce(torch.zeros(6))
    dist.barrier()
    said = {d["op"]: d["at"] for d in rank(watched).defined("op") if "at" in d}
    name = "test_an_ops_definition_has_the_line_of_its_first"
    assert said.pop("init_process_group")[2] == "fake_world"
    assert said == {
        "all_reduce": [__file__, first + 1, name],
        "barrier": [__file__, first + 3, name],
    }


def test_parts_of_an_all_to_all_say_how_much_goes_to_whom(watched: Path) -> None:
    """float32: rows of 2 are 8 bytes. This is rank 1: what it keeps has no record. The second op of
    its kind is not a first-seen one: it takes the other way in C++. (peer, sent, expected)."""
    lists = [torch.zeros(n) for n in (1, 2, 3, 0)]
    for _ in range(2):
        dist.all_to_all_single(torch.zeros(4, 2), torch.zeros(4, 2))
        dist.all_to_all_single(torch.zeros(6, 2), torch.zeros(6, 2), [0, 1, 2, 3], [3, 2, 1, 0])
        dist.all_to_all([torch.zeros_like(part) for part in lists], lists)
    told = [(r.seq, r.peer, int(r.a), int(r.b)) for r in rank(watched).of(Kind.PART)]
    once = [
        [(0, 8, 8), (2, 8, 8), (3, 8, 8)],  # equal parts of 32 bytes
        [(0, 24, 0), (2, 8, 16), (3, 0, 24)],  # 3, 2, 1 and 0 rows; 0, 1, 2 and 3 come back
        [(0, 4, 4), (2, 12, 12)],
    ]
    assert told == [(seq, *part) for seq in range(6) for part in once[seq % 3]]


def test_nothing_stays_open_and_nothing_is_kept(watched: Path) -> None:
    """Waited for, left to itself, asynchronous or not: each op is closed and no tensor is held."""
    c = core.CURRENT
    assert c is not None
    for _ in range(3):
        t = torch.zeros(8)
        alive = weakref.ref(t)
        dist.all_reduce(t)
        dist.all_reduce(t, async_op=True)
        dist.isend(t, 0)
        work = dist.irecv(t, 0)
        assert work is not None
        work.wait()
        del t, work
        gc.collect()
        assert alive() is None
    assert c.ops.num_open == 0 and c.guard.errors == 0


def test_a_sync_op_is_done_when_its_wait_returns(way: str, watched: Path) -> None:
    dist.all_reduce(torch.zeros(2))
    (done,) = rank(watched).of(Kind.OP_DONE)
    (issue,) = rank(watched).of(Kind.OP_ISSUE)
    source = Flag.DONE_COMPLETED if way == "native" else Flag.DONE_WAITED
    unsaid = Flag(0) if SAYS_ASYNC else Flag.ASYNC
    assert done.flags == (source if SAYS_ASYNC else Flag.DONE_COMPLETED) | unsaid
    assert issue.flags & Flag.ASYNC == unsaid
    assert done.t0 == issue.t0 and done.t1 >= issue.t1


def test_groups_have_ranks_keys_and_numbers_of_their_own(watched: Path) -> None:
    pair = dist.new_group([1, 3])
    dist.all_reduce(torch.zeros(2))
    dist.all_reduce(torch.zeros(2), group=pair)
    dist.broadcast(torch.zeros(2), src=3, group=pair)
    issued = rank(watched).of(Kind.OP_ISSUE)
    first, second = rank(watched).defined("group")
    assert (first["name"], first["ranks"]) == ("default", [0, 1, 2, 3])
    assert second["ranks"] == [1, 3] and second["key"] != first["key"]
    # numbers count per group; the root is a global rank
    assert [(r.group, r.seq, r.peer) for r in issued] == [
        ("default", 0, -1), (second["name"], 0, -1), (second["name"], 1, 3)
    ]  # fmt: skip


def test_a_group_made_again_is_another_group(watched: Path) -> None:
    dist.all_reduce(torch.zeros(2))
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    dist.all_reduce(torch.zeros(2))
    keys = [d["key"] for d in rank(watched).defined("group")]
    assert len(set(keys)) == 2
    assert [r.seq for r in rank(watched).of(Kind.OP_ISSUE)] == [0, 0]


def test_a_destroyed_group_is_named_with_its_place(watched: Path) -> None:
    """A pair: by its id, whatever other groups have these ranks. Of the world: all groups, 0."""
    other, pair = dist.new_group([1, 3]), dist.new_group([1, 3])
    dist.all_reduce(torch.zeros(2), group=other)
    dist.all_reduce(torch.zeros(2), group=pair)
    dist.destroy_process_group(pair)
    dist.destroy_process_group(dist.group.WORLD)
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    _, used = [d["id"] for d in rank(watched).defined("group") if d["ranks"] == [1, 3]]
    calls = [d for d in rank(watched).defined("op") if d["op"] == "destroy_process_group"]
    assert [(d["tag"], d["reduce"]) for d in calls] == [(used, "ranks 1,3"), (0, "")]
    lines = [d["at"][1] for d in calls]
    assert lines[1] == lines[0] + 1 and {d["at"][0] for d in calls} == {__file__}


def test_a_group_is_destroyed_once_callbacks_of_its_ops_have_run(watched: Path) -> None:
    """One waits for the GIL, as gloo's thread does; one is of an op that is never complete."""
    c = core.CURRENT
    assert c is not None and c.context is not None
    dist.all_reduce(torch.zeros(2))
    followed, calling = c.context.works.followed, threading.Timer(0.03, lambda: followed.discard(1))
    followed.add(1)
    calling.start()
    dist.destroy_process_group()
    assert 1 not in followed
    calling.join()
    followed.add(2)
    begun = time.monotonic()
    host_calls.let_callbacks_run()
    assert time.monotonic() - begun < 5
    followed.clear()
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)


def test_the_backends_exception_reaches_the_program_and_closes_the_op(
    watched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError):
        dist.broadcast(torch.zeros(2).to_sparse(), src=0)  # refused below the hook or above it
    assert core.CURRENT is not None and core.CURRENT.ops.num_open == 0


def test_an_op_that_its_backend_refuses_is_closed_and_said_to_have_failed(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gloo wants one dtype in a call. Then the group goes on."""
    monkeypatch.setenv("PARDBG", make_run(tmp_path)["PARDBG"])
    hooks.install()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        c, group = core.CURRENT, dist.group.WORLD
        assert c is not None and group is not None
        for _ in range(2):
            # a ValueError; the dispatcher's Python kernel makes it a RuntimeError on its way
            with pytest.raises((ValueError, RuntimeError), match="type"):
                PG.allreduce(group, [torch.zeros(2), torch.zeros(2, dtype=torch.int64)])
            assert c.ops.num_open == 0
        with pytest.raises((ValueError, RuntimeError), match="type"):  # C++ issues it
            torch.ops._c10d_functional.all_reduce_coalesced_(
                [torch.zeros(2), torch.zeros(2, dtype=torch.int64)], "sum", group.group_name
            )
        dist.all_reduce(torch.zeros(2))
        path = Path(str(c.ring.path))
        issued = [(r.seq, bool(r.flags & Flag.FAILED)) for r in rank(path).of(Kind.OP_ISSUE)]
        assert issued == [(0, True), (1, True), (2, True), (3, False)]
        assert c.ops.num_open == 0 and c.guard.errors == 0
    finally:
        dist.destroy_process_group()
        hooks.uninstall()
        core.shutdown()


def test_a_hook_that_fails_is_switched_off_and_the_op_still_runs(
    way: str, watched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = core.CURRENT
    assert c is not None
    monkeypatch.setattr(c.ops, "issued", lambda *args: 1 / 0)
    t = torch.ones(3)
    for _ in range(3):
        dist.all_reduce(t)
    name = "c10d.allreduce_"
    assert c.guard.disabled == {name} and c.guard.errors == 1
    (error,) = rank(watched).defined("error")
    assert error["where"] == name and "ZeroDivisionError" in error["text"]


def test_a_closed_gate_is_asked_before_the_op_and_knows_what_comes(
    watched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = core.CURRENT
    assert c is not None
    asked: list[tuple[int, str, int]] = []

    def wait(gate: int, describe: Any, facts: Any = None, look: Any = None) -> int:
        asked.append((gate, describe(), c.ops.num_open))
        return 0

    monkeypatch.setattr(c.gate, "closed", True)
    c.changed()
    monkeypatch.setattr(c.gate, "wait", wait)
    dist.all_reduce(torch.zeros(2))
    dist.all_reduce(torch.zeros(2))
    dist.send(torch.zeros(2), dst=3)
    dist.recv(torch.zeros(2), src=0)
    assert asked == [
        (Gate.COLLECTIVE, "all_reduce default #0", 0),
        (Gate.COLLECTIVE, "all_reduce default #1", 0),
        (Gate.SEND, "send to r3", 0),
        (Gate.RECV, "recv from r0", 0),
    ]


def test_ctrl_c_at_a_gate_is_the_programs(watched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    c = core.CURRENT
    assert c is not None

    def interrupted(*_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(c.gate, "closed", True)
    c.changed()
    monkeypatch.setattr(c.gate, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dist.all_reduce(torch.zeros(2))
    assert c.ops.num_open == 0 and c.guard.errors == 0


def test_a_thread_that_was_interrupted_puts_nothing_back(way: str, watched: Path) -> None:
    """The gate closes while another thread is telling C++ of a new step."""
    if way != "native":
        pytest.skip("Python's hooks read it themselves")
    c = core.CURRENT
    assert c is not None
    said: list[tuple[Any, ...]] = []

    class Table:
        def set(self, *facts: Any) -> None:
            c.gate.closed = True
            said.append(facts)

    native, c.native = c.native, type("Native", (), {"table": Table(), "cost": c.native.cost})()
    c.changed()
    c.native, c.gate.closed = native, False
    assert [facts[2] for facts in said] == [False, True]


def test_level_off_records_nothing_and_counts_on(watched: Path) -> None:
    """Two collectives and a send while it is off: what comes next has the numbers of the other
    ranks, who recorded them all. And it is said when nothing was recorded."""
    c, before = core.CURRENT, core.clock.now_ns()
    assert c is not None
    dist.all_reduce(torch.zeros(2))
    c.set_level(OFF)
    dist.all_reduce(torch.zeros(2))
    dist.broadcast(torch.zeros(2), src=0)
    dist.send(torch.zeros(2), dst=0)
    (key,) = c.ops.snapshot().issued
    assert c.ops.snapshot().issued == {key: 3} and c.ops.num_on_edge(key, 0, 0, True) == 1
    c.set_level(FULL)
    dist.all_reduce(torch.zeros(2))
    dist.send(torch.zeros(2), dst=0)
    assert [(name, seq) for name, seq, *_ in ops(watched)] == [
        ("all_reduce", 0), ("all_reduce", 3), ("send", 1)
    ]  # fmt: skip
    ((begin, end),) = rank(watched).defined("process")[-1]["unrecorded"]
    assert before < begin < end < core.clock.now_ns()
    assert c.guard.errors == 0


def test_an_op_whose_hook_failed_is_counted_on_and_said_to_be_unrecorded(
    watched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hook of all_reduce fails once, before or after the op had its number: a broadcast that
    follows two all_reduces is the group's third collective all the same."""
    c = core.CURRENT
    assert c is not None
    with monkeypatch.context() as patch:
        patch.setattr(c.ops, "issued", lambda *args: 1 / 0)
        dist.all_reduce(torch.zeros(2))
    dist.all_reduce(torch.zeros(2))
    dist.broadcast(torch.zeros(2), src=0)
    with monkeypatch.context() as patch:
        patch.setattr(issue, "_sign", lambda *args: 1 / 0)
        dist.barrier()  # fails before it has a number
    dist.broadcast(torch.zeros(2), src=0)
    assert [(name, seq) for name, seq, *_ in ops(watched)] == [("broadcast", 2), ("broadcast", 4)]
    ((_, end),) = rank(watched).defined("process")[-1]["unrecorded"]
    assert end == 0, "it lasts"
    c.set_level(SUMMARY)
    c.set_level(FULL)
    assert [to for _, to in rank(watched).defined("process")[-1]["unrecorded"]] == [0]


@pytest.mark.parametrize("what", ["record", "status"])
def test_an_op_is_not_open_for_ever_where_its_hook_fails(
    way: str, watched: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """After it was issued: at its record, or as the status block is written."""
    if way == "native":
        pytest.skip("neither is Python's")
    c = core.CURRENT
    assert c is not None
    with monkeypatch.context() as patch:
        if what == "record":
            patch.setattr(c, "record", lambda *args: 1 / 0)
        else:
            patch.setattr(c.ops, "_status", lambda *args: 1 / 0)
        dist.all_reduce(torch.zeros(2), async_op=True)
    assert c.guard.errors >= 1
    assert c.ops.num_open == 0 and c.ops.snapshot().open == ()
