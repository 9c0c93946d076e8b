"""Records that have come wait for the first reader of one of their tables."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pardbg.store import store as stores
from pardbg.store.intake import TABLE_NAMES, to_columns
from pardbg.store.store import Store
from pardbg.store.table import Limits
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


@pytest.mark.parametrize("seed", range(4))
def test_tables_side_by_side_are_those_of_each_alone(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ranks that do the same and others; records that come late; rows that go."""
    draw, trace = random.Random(seed), Trace(11)
    for step in range(120):
        busy = draw.choices(trace.ranks, k=4) if step % 3 else trace.ranks
        for proc in busy:
            late = draw.randrange(15) if step % 4 == 1 else 0
            for phase in range(draw.randrange(3) if step % 5 == 2 else 2):
                at = 10 * step + 4 * phase - late
                proc.phase("forward", at + 20, at + 23, step)
            proc.collective("world", "all_reduce", 10 * step + 5, 10 * step + 6, step=step)
        trace.flush()
    found: list[Store] = []
    for width in (1, 3):
        monkeypatch.setattr(stores, "SHELF", width)
        store = Store(replace(Limits.live(), rows_per_kind=12), live=True)
        for message in trace.messages:
            store.apply(message)
            if draw.random() < 0.3:
                store.settle()
                to_columns(store.procs.values())
        store.settle()
        found.append(store)
    for one, other in zip(*(of.procs.values() for of in found), strict=True):
        for name in TABLE_NAMES:
            alone, beside = one.table(name), other.table(name)
            first = max(alone.base, beside.base)  # when rows go depends on who reads when
            for column in ("t0_ns", "t1_ns", "step", "name_id", "flags", "seq"):
                rows = (of.col(column)[first - of.base :].tolist() for of in (alone, beside))
                assert next(rows) == next(rows), (name, column)
            assert alone.longest_ns == beside.longest_ns
            assert alone.step_sorted == beside.step_sorted
    assert all(process.table("phase").base for process in found[1].procs.values())
