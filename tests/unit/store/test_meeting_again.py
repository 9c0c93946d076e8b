"""Ranks that meet again in the same processes, under other numbers: each number is a life."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.findings import findings
from pardbg.events.decode import frame_head
from pardbg.store import Limits, Store
from pardbg.store.process import Process
from pardbg_agent import wire
from tests.unit.store.test_lives import started
from tests.unit.trace_builder import Proc, Trace, batch, ns

NEW = {0: 0, 2: 1, 3: 2}
"""Rank 1 is left out."""


def again(proc: Proc, rank: int, world: int, epoch: int, at: float) -> None:
    proc.define(
        wire.DefKind.PROCESS, rank=rank, job="none:h:29500", world_size=world, epoch=epoch,
        start_ns=ns(0), since=proc.index, since_ns=ns(at), argv=["/job/train.py"],
    )  # fmt: skip


def train(procs: list[Proc], group: str, begin: float) -> None:
    """Four steps of 10 ms, each with an all_reduce."""
    for proc in procs:
        for step in range(4):
            at = begin + 10 * step
            proc.collective(group, "all_reduce", at + 2, at + 4, 1000, step=step)
            proc.step(step, at, at + 9)


def restarted(order: str) -> Trace:
    """Ranks 0 to 3 train from ms 0 on, three of them again from ms 110 on, under the numbers of
    NEW. ``order``: the records of the first world come before, or after, what says the new number,
    or with those of the second."""
    trace = Trace(0, {"first": (0, 1, 2, 3), "second": (0, 1, 2)})
    trace.ranks = procs = [started(trace, rank, "none:h:29500", 4) for rank in range(4)]
    train(procs, "first", 0)
    for proc in procs:
        if order == "before":
            proc.flush()
        if proc.rank in NEW:
            again(proc, NEW[proc.rank], 3, 1, 100)
        if order == "after":
            proc.flush()
    for rank in NEW:
        procs[rank].life = {"epoch": 1}
    train([procs[rank] for rank in NEW], "second", 110)
    for proc in procs:
        proc.flush()
    return trace


def numbers(ranks: dict[int, Process]) -> dict[int, int]:
    """rank -> pid"""
    return {rank: process.pid for rank, process in ranks.items()}


@pytest.mark.parametrize("order", ["before", "after", "together"])
@pytest.mark.parametrize("live", [False, True])
def test_other_numbers_are_another_life(order: str, live: bool) -> None:
    store = restarted(order).store(live=live)
    assert [(part.name, part.ranks, part.num_steps) for part in store.parts()] == [
        ("life 1", (0, 1, 2, 3), 4), ("life 2", (0, 1, 2), 4)
    ]  # fmt: skip
    view = View(store, None)
    assert numbers(view.ranks) == {0: 100, 1: 102, 2: 103}
    newest = [(row.op, sorted(row.issued), row.verdict) for row in collectives(view)]
    assert newest == [("all_reduce", [0, 1, 2], "matched")] * 4
    assert [one.kind for one in findings(view)] == ["restarted"]
    assert store.lost(None) == 0
    assert store.look_at(1)
    first = View(store, None)
    assert numbers(first.ranks) == {0: 100, 1: 101, 2: 102, 3: 103}
    rows = [(sorted(row.issued), row.verdict) for row in collectives(first)]
    assert rows == [([0, 1, 2, 3], "matched")] * 4
    then = View(store, ns(30))
    assert numbers(then.ranks) == {0: 100, 1: 101, 2: 102, 3: 103}


@pytest.mark.parametrize("missed", [0, 3, 20])
def test_a_viewer_that_joins_later_has_the_newest_numbers(missed: int) -> None:
    """Of each process it gets the newest definition, and records from number ``missed`` on: the
    first world's are the numbers 0 to 11."""
    trace = restarted("before")
    newest = {}
    for message in trace.flush().messages:
        if message.key[:1] == b"D" and b"\xa7process" in message.payload:
            newest[message.key] = message
    rest = [m for m in trace.messages if not (m.key in newest and b"\xa7process" in m.payload)]
    store = Store(live=True)
    store.apply_all(newest.values())
    for message in rest:
        if message.key[:1] == b"R":
            head = frame_head(message.payload)
            cut = max(0, min(missed - head.first, head.count))
            body = message.payload[wire.FRAME.size + cut * wire.RECORD_BYTES :]
            part = [body[at : at + wire.RECORD_BYTES] for at in range(0, len(body), 64)]
            if not part:
                continue
            message = replace(message, payload=batch(head.first + cut, part))
        store.apply(message)
    view = View(store, None)
    assert numbers(view.ranks) == {0: 100, 1: 102, 2: 103}
    assert [len(process.table("step")) for process in view.ranks.values()] == [
        4 if missed < 12 else sum(index >= missed for index in (14, 17, 20, 23))
    ] * 3  # an issue, its completion and a step each
    assert store.lost(None) == 0
    assert "several-jobs" not in {one.kind for one in findings(view)}


def test_a_hub_that_is_started_again_hears_all_definitions_again() -> None:
    trace = restarted("before")
    for proc in trace.ranks:  # of both worlds, as hooks send them
        for group in ("first", "second") if proc.rank in NEW else ("first",):
            proc.define(wire.DefKind.PLAN, group=group, ranks=[0, 1, 2], schedule="1F1B",
                        num_stages=3, num_microbatches=1, num_virtual=1, order={},
                        **(proc.life if group == "second" else {}))  # fmt: skip
    trace.messages += [m for m in trace.flush().messages if m.key[:1] == b"D"]
    store = trace.store()
    assert len(store.procs) == 7 and len(store.parts()) == 2
    assert numbers(View(store, None).ranks) == {0: 100, 1: 102, 2: 103}
    groups = {(epoch, group.key): group.ranks for (epoch, _), group in store.groups.items()}
    assert store.plans.keys() == groups.keys()
    assert groups == {(0, "first"): (0, 1, 2, 3), (1, "second"): (0, 1, 2)}


def test_a_process_that_attaches_again_has_another_ring() -> None:
    """Its records begin at 0 again, and nothing is said of an earlier number."""
    trace = restarted("before")
    store, known = trace.store(live=True), len(trace.messages)
    proc = trace.ranks[3]
    proc.define(wire.DefKind.PROCESS, rank=2, world_size=3, epoch=0, start_ns=ns(500),
                job="none:h:29500")  # fmt: skip
    proc.index = 0
    proc.step(9, 510, 519)
    proc.flush()
    store.apply_all(trace.messages[known:])
    assert View(store, None).ranks[2].table("step").col("step").tolist() == [0, 1, 2, 3, 9]


def test_lives_of_a_process_are_bounded() -> None:
    trace = Trace(0, {"first": (0,)})
    proc = started(trace, 0, "none:h:29500", 1)
    proc.collective("first", "all_reduce", 1, 2, 8)
    store = trace.store(limits=replace(Limits.live(), processes=16), live=True)
    for epoch in range(1, 100):
        again(proc, epoch % 2, 2, epoch, epoch)
        proc.define(wire.DefKind.GROUP, id=epoch + 1, key=f"g{epoch}", name="g", axis=None,
                    ranks=[0, 1], backend="gloo")  # fmt: skip
    store.apply_all(trace.messages)
    assert len(store.procs) <= 17
