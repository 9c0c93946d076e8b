"""Records that have come wait for the first reader of one of their tables."""

from __future__ import annotations

import pytest

from pardbg.store.intake import TABLE_NAMES, to_columns
from pardbg.store.store import Store
from tests.unit.trace_builder import Trace, ns


def job(steps: int = 8) -> Trace:
    trace = Trace(3)
    for step in range(steps):
        for proc in trace.ranks:
            proc.phase("forward", 10 * step, 10 * step + 4, step)
            proc.collective("world", "all_reduce", 10 * step + 5, 10 * step + 6, step=step)
            proc.step(step, 10 * step, 10 * step + 9)
    trace.flush()
    return trace


def test_who_reads_a_table_moves_the_records_of_that_process_alone() -> None:
    store = Store(live=True)
    store.apply_all(job().messages)
    store.settle()
    first, second, _ = store.procs.values()
    assert (first.newest_ns, first.num_records) == (ns(79), 8 * 4)  # known without its columns
    assert not len(first.table("action")) and first.put_by.has("step")  # none of that kind waits
    assert len(first.table("step")) == 8
    assert not first.put_by.has("issue") and second.put_by.has("issue")
    to_columns(store.procs.values())
    assert not any(p.put_by.has(name) for p in store.procs.values() for name in TABLE_NAMES)


@pytest.mark.parametrize("each", [1, 3, 8])
def test_columns_are_the_same_however_often_they_are_read(each: int) -> None:
    """After each so many messages, or at the end alone."""
    read, once = Store(live=True), Store(live=True)
    trace = Trace(2)
    for step in range(24):
        for proc in trace.ranks:
            proc.phase("forward", 10 * step, 10 * step + 4, step)
            proc.action("0F0", 10 * step, 10 * step + 3, step=step)
            proc.step(step, 10 * step, 10 * step + 9)
        trace.flush()
    for number, message in enumerate(trace.messages):
        read.apply(message)
        once.apply(message)
        if number % each == 0:
            read.settle()
            for process in list(read.procs.values())[: number % 3]:
                process.table(("step", "phase", "action")[number % 3])
    read.settle()
    once.settle()
    for one, other in zip(read.procs.values(), once.procs.values(), strict=True):
        assert one.horizon_ns(None) == other.horizon_ns(None) == ns(10 * 23 + 3)  # its last action
        for name in TABLE_NAMES:
            for column in ("t0_ns", "t1_ns", "step", "name_id", "flags", "peer"):
                found, wanted = (of.table(name).col(column).tolist() for of in (one, other))
                assert found == wanted, (name, column)
