"""Level summary: one record per step and kind of op says what many would."""

from __future__ import annotations

from typing import Any

from pardbg.analysis.answers.snapshot import snapshot
from pardbg_agent.op_table import Sums
from pardbg_agent.wire import NONE, Flag, Kind
from tests.unit.trace_builder import Trace, ns


def test_ops_are_added_up_by_kind_group_and_direction() -> None:
    """Three all_reduces of 100, 200 and 300 bytes, two sends, one receive."""
    made: list[tuple[Any, ...]] = []
    sums = Sums()
    for size, took in ((100, 5), (200, 6), (300, 7)):
        sums.add((1, 9, int(Flag.ASYNC | Flag.DONE_POLLED), size, took))
    sums.add((2, 9, int(Flag.P2P | Flag.SEND), 40, 1))
    sums.add((2, 9, int(Flag.P2P | Flag.SEND), 2, 1))
    sums.add((3, 9, int(Flag.P2P), 42, 8))
    sums.write(lambda *fields: made.append(fields), 1000, 2000, 7)
    shared = (1000, 2000, 7)
    assert [(f[0], *f[2:]) for f in made] == [
        (Kind.OP_SUM, 0, 1, *shared, 3, 9, NONE, NONE, NONE, 600, 18),
        (Kind.OP_SUM, Flag.P2P | Flag.SEND, 2, *shared, 2, 9, NONE, NONE, NONE, 42, 2),
        (Kind.OP_SUM, Flag.P2P, 3, *shared, 1, 9, NONE, NONE, NONE, 42, 8),
    ]
    made.clear()
    sums.write(lambda *fields: made.append(fields), 2000, 3000, 8)
    assert made == [], "each op counts in one step"


def test_the_traffic_of_sums_is_that_of_the_ops() -> None:
    """Two ranks, two steps: 3 all_reduces of 600 bytes together in each, a send of 40 from 0.
    Ring: 2(n-1)/n · S = S on each link."""
    trace = Trace(2)
    for step in range(2):
        for proc in trace.ranks:
            group, begin = proc.group("world"), step * 100
            shared = {"group_id": group, "step": step}
            proc.record(Kind.OP_SUM, begin, begin + 90, proc.op("all_reduce"), seq=3, a=600,
                        b=5000, **shared)  # fmt: skip
            send = proc.rank == 0
            flags = Flag.P2P | Flag.SEND if send else Flag.P2P
            op = proc.op("send" if send else "recv")
            proc.record(Kind.OP_SUM, begin, begin + 90, op, seq=1, a=40, flags=flags, **shared)
            proc.step(step, begin, begin + 90)
    store = trace.store()
    ops = {(group, op): (number, size) for group, op, number, size, _ in
           snapshot(store, None).traffic.ops}  # fmt: skip
    assert ops == {("world", "all_reduce"): (6, 1200), ("world", "send"): (2, 80)}
    early = snapshot(store, ns(95)).traffic
    assert {(op, number) for _, op, number, _, _ in early.ops} == {("all_reduce", 3), ("send", 1)}
    assert {(edge.src, edge.dst, edge.bytes, edge.source) for edge in early.edges} == {
        (0, 1, 600, "modelled"), (1, 0, 600, "modelled")
    }  # fmt: skip
