"""Launches and the device's times of them, put together by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from pardbg.events.decode import RECORD_DTYPE
from pardbg.store.device_times import LAUNCH, REACHED, DeviceTimes
from pardbg.store.process import Process
from pardbg_agent.wire import Flag, Kind, Lane

Row = tuple[int, int, int, int, int, int, int]


def records(*rows: tuple[Kind, Lane, int, int, int, int, int]) -> Any:
    """(kind, lane, flags, t0, t1, a, seq)"""
    made = np.zeros(len(rows), RECORD_DTYPE)
    names = ("kind", "lane", "flags", "t0_ns", "t1_ns", "a", "seq")
    for at, row in enumerate(rows):
        for name, value in zip(names, row, strict=True):
            made[name][at] = int(value)
        made["mark"][at] = at + 1
    return made


def seen(found: Any) -> list[tuple[int, int, int, int, int]]:
    """(kind, t0, t1, a, seq) of what tables take."""
    kept = found[~np.isin(found["kind"], [LAUNCH, REACHED, Kind.DEVICE, Kind.DEVICE_BEGIN])]
    return [tuple(int(row[name]) for name in ("kind", "t0_ns", "t1_ns", "a", "seq"))
            for row in kept]  # type: ignore[misc]  # fmt: skip


TIMED = Flag.DEVICE
ISSUE = (Kind.OP_ISSUE, Lane.COMM, TIMED, 10, 12, 4096, 7)
ACTION = (Kind.ACTION, Lane.COMPUTE, TIMED, 10, 11, 512, 0)


def test_a_record_without_a_name_has_none() -> None:
    process = Process("0.n.1", None)
    assert (process.name(0), process.name(7)) == ("", "#7")  # a step's launch; one not defined yet


def test_a_launch_waits_for_the_device() -> None:
    times = DeviceTimes()
    assert seen(times.settle(records(ISSUE, ACTION))) == []
    came = records((Kind.DEVICE, Lane.COMPUTE, 0, 40, 60, 30, 0))
    assert seen(times.settle(came)) == [(Kind.ACTION, 40, 60, 512, 0)]
    came = records((Kind.DEVICE, Lane.COMM, 0, 60, 90, 50, 7))
    assert seen(times.settle(came)) == [(Kind.OP_ISSUE, 60, 60, 4096, 7)]  # its end: OP_DONE
    assert times.seen


def test_both_in_one_batch_and_launches_are_kept() -> None:
    found = DeviceTimes().settle(records(ACTION, (Kind.DEVICE, Lane.COMPUTE, 0, 40, 60, 30, 0)))
    assert seen(found) == [(Kind.ACTION, 40, 60, 512, 0)]
    launch = found[found["kind"] == LAUNCH]
    assert (int(launch["t0_ns"][0]), int(launch["t1_ns"][0])) == (10, 11)


def test_an_arrival_is_told_once() -> None:
    times = DeviceTimes()
    begun = records(ISSUE, (Kind.DEVICE_BEGIN, Lane.COMM, 0, 60, 60, 50, 7))
    assert seen(times.settle(begun)) == [(Kind.OP_ISSUE, 60, 60, 4096, 7)]
    assert seen(times.settle(records((Kind.DEVICE, Lane.COMM, 0, 60, 90, 50, 7)))) == []


def test_an_op_that_the_device_did_not_end_is_the_hosts() -> None:
    times = DeviceTimes()
    times.settle(records(ISSUE))
    polled = TIMED | Flag.DONE_POLLED
    found = times.settle(records((Kind.OP_DONE, Lane.COMM, polled, 10, 99, 0, 7)))
    assert seen(found) == [(Kind.OP_DONE, 10, 99, 0, 7), (Kind.OP_ISSUE, 10, 12, 4096, 7)]


def test_what_is_not_of_a_device_stays() -> None:
    plain = records((Kind.OP_ISSUE, Lane.COMM, 0, 10, 12, 8, 1), ACTION)
    assert seen(DeviceTimes().settle(plain)) == [(Kind.OP_ISSUE, 10, 12, 8, 1)]


def test_leads_are_kept_beside_the_times() -> None:
    found = DeviceTimes().settle(records(ACTION, (Kind.DEVICE, Lane.COMPUTE, 0, 40, 60, 30, 0)))
    (about,) = found[found["kind"] == REACHED]
    # Issued at 10, begun at 40; the call returned at 11, and the device was through at 60.
    assert (int(about["t0_ns"]), int(about["a"]), int(about["b"])) == (40, 30, 49)
    assert int(about["peer"]) == Lane.COMPUTE


def test_a_forward_that_no_hook_saw_lies_between_phases_of_the_device() -> None:
    def phase(t0: int, t1: int, flags: Flag = TIMED) -> tuple[Kind, Lane, int, int, int, int, int]:
        return (Kind.PHASE, Lane.PHASE, flags, t0, t1, 0, 0)

    def ran(t0: int, t1: int, issued: int) -> tuple[Kind, Lane, int, int, int, int, int]:
        return (Kind.DEVICE, Lane.PHASE, 0, t0, t1, t0 - issued, 0)

    times = DeviceTimes()
    times.settle(records(phase(10, 20), ran(100, 200, 10)))
    # Its backward is launched at 30; the device is at it from 260 to 300.
    assert seen(times.settle(records(phase(20, 30, Flag.INFERRED), phase(30, 40)))) == []
    found = times.settle(records(ran(260, 300, 30)))
    assert seen(found) == [(Kind.PHASE, 260, 300, 0, 0), (Kind.PHASE, 200, 260, 0, 0)]


def test_ops_that_an_ended_process_launched_are_shown_as_issued() -> None:
    times = DeviceTimes()
    times.settle(records(ISSUE, ACTION))
    left = times.give_up()
    assert left is not None
    assert seen(left) == [(Kind.OP_ISSUE, 10, 12, 4096, 7)]
    assert seen(times.settle(left)) == seen(left)  # not held back again
    assert times.give_up() is None
