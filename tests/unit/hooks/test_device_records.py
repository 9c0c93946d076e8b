"""Which ops on a device Python's way may end by a stream of its own, and what ends the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from pardbg_agent.hooks.context import Op
from pardbg_agent.hooks.device import device_records
from pardbg_agent.hooks.device.device_records import MAX_KEPT, DeviceRecords
from pardbg_agent.hooks.device.device_spans import DeviceSpan

HALF = MAX_KEPT // 2


class FakeTimes:
    """Says which spans were ended, and how; none ends by itself."""

    new_event = None

    def __init__(self, device: torch.device) -> None:
        self.by_stream: list[DeviceSpan] = []
        self.by_current: list[DeviceSpan] = []
        self.dropped: list[DeviceSpan] = []

    def begin(self, issued_ns: int, stream: Any = None) -> DeviceSpan:
        return DeviceSpan(issued_ns, None)

    def end(self, span: DeviceSpan, stream: Any = None) -> bool:
        self.by_current.append(span)
        return True

    def end_with(self, span: DeviceSpan, work: Any, group_id: int, peer: int) -> bool:
        self.by_stream.append(span)
        return work != "no future"

    def drop(self, span: DeviceSpan) -> None:
        self.dropped.append(span)

    def ends(self, span: DeviceSpan) -> None:
        span.begin_ns, span.end_ns = 1, 2
        span.ended(span)


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> DeviceRecords:
    monkeypatch.setattr(device_records, "DeviceTimes", FakeTimes)
    core: Any = SimpleNamespace(pollers=[], level=2, record=lambda *fields: None)
    return DeviceRecords(core, torch.device("cpu"), lambda op, end_ns, is_bound: None)


def issue(records: DeviceRecords, token: int, num_bytes: int, work: Any = "work") -> bool:
    """Issue an asynchronous op; whether its end will come without a wait."""
    op = Op(token, 0, 0, 0, token, 0, 0, -1, -1, -1, num_bytes, num_bytes, False)
    assert records.op_begins(op, in_batch=False)
    records.op_issued(token, work)
    return records.follows(token)


def test_what_the_allocator_keeps_for_us_is_bounded(records: DeviceRecords) -> None:
    times = cast(FakeTimes, records.times)
    assert [issue(records, token, HALF) for token in range(3)] == [True, True, False]
    assert issue(records, 3, 0)  # it has no memory
    assert len(times.by_stream) == 3
    times.ends(times.by_stream[0])
    assert issue(records, 4, HALF)
    assert not issue(records, 5, 1)


def test_an_op_with_too_much_memory_ends_where_it_is_waited_for(records: DeviceRecords) -> None:
    times = cast(FakeTimes, records.times)
    assert not issue(records, 0, MAX_KEPT + 1)
    assert not times.by_current
    assert records.op_waited(0) and records.follows(0)
    (span,) = times.by_current
    assert span.by_wait and not records.op_waited(0)
    times.ends(span)
    assert not records.follows(0)
    assert issue(records, 1, MAX_KEPT)  # its memory was never kept


def test_an_op_that_was_seen_complete_is_ended_by_no_wait(records: DeviceRecords) -> None:
    times = cast(FakeTimes, records.times)
    assert not issue(records, 0, HALF, "no future")
    records.op_over(0)
    assert len(times.dropped) == 1
    assert not records.op_waited(0)
    assert issue(records, 1, MAX_KEPT)
