"""Time, memory, streams and events of the simulated accelerator, against stated costs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.accelerator.conftest import Run

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module")
def cases(run: Run) -> dict[str, Any]:
    return run("alone")[0]


def test_the_host_runs_ahead_and_kernels_queue(cases: dict[str, Any]) -> None:
    spans, syncs = cases["ahead"]
    # 3 x 5 ms, then 2.5 ms, one after the other
    assert [span[2:] for span in spans] == [[0, 5], [5, 10], [10, 15], [15, 17.5]]
    assert [span[0] for span in spans] == ["aten::mm"] * 3 + ["other"]
    assert syncs == 0


def test_a_slow_device_takes_longer_for_the_same_kernel(cases: dict[str, Any]) -> None:
    assert cases["slow"][2:] == [0, 7.5]


def test_streams_run_beside_each_other_and_wait_for_each_other(cases: dict[str, Any]) -> None:
    spans, own, pool = cases["streams"]
    times = {name: (begin, end) for name, _, begin, end in spans}
    assert times == {"default": (0, 10), "side": (0, 4), "third": (4, 5)}
    assert pool == [1, 32, 32]  # 40 of torch's own come from 32
    assert min(own) > 32


def test_elapsed_times_follow_the_devices_own_clock(cases: dict[str, Any]) -> None:
    exact, fast, alive, left = cases["events"]
    assert exact == pytest.approx(200, abs=2e-5)  # 24 bits of 200 ms: 15 ns
    assert fast == pytest.approx(200.02, abs=2e-5)
    assert (alive, left) == (2, 0)


def test_a_query_sees_an_event_after_the_stated_latency(cases: dict[str, Any]) -> None:
    assert cases["latency"] == [False, True]


def test_a_full_queue_blocks_the_host(cases: dict[str, Any]) -> None:
    after_room, runs_ahead = cases["full_queue"]
    assert all(after_room) and runs_ahead


def test_only_reading_a_value_waits_for_the_device(cases: dict[str, Any]) -> None:
    returned, syncs = cases["waits"]
    assert returned == [True] * 3
    assert syncs == 3


def test_memory_ends_at_its_limit(cases: dict[str, Any]) -> None:
    refused, told, again = cases["memory"]
    assert "Tried to allocate 600000 bytes" in refused
    assert "400000 reserved and not allocated" in refused
    assert told == [[600_000, 1_000_000, 0]]  # asked, limit, free
    assert again == 900_000


def test_free_blocks_that_do_not_touch_serve_no_larger_request(cases: dict[str, Any]) -> None:
    assert cases["fragments"] == [[250_000, 0], 1, True]


def test_no_event_is_recorded_while_a_graph_is_captured(cases: dict[str, Any]) -> None:
    assert cases["capture"] == [True, True]


def test_kernels_give_the_cpus_bits(cases: dict[str, Any]) -> None:
    assert cases["values"] == []
