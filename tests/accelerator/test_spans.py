"""The agent's device spans, on a simulated accelerator whose clock is 100 ppm fast."""

from __future__ import annotations

from typing import Any

import pytest

from tests.accelerator.conftest import Run
from tests.hook_ways import WAYS

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module", params=WAYS)
def cases(request: pytest.FixtureRequest, run: Run) -> dict[str, Any]:
    return run("spans", request.param, "3000")[0]


def test_every_event_is_the_truth_within_the_error_that_is_told(cases: dict[str, Any]) -> None:
    many = cases["many"]
    assert many["spans"] == 3000 and many["events"] == 6000
    assert many["wrong"] == many["backwards"] == 0
    # A bracket holds the 2 us of recording and the 5 us of querying: half of 7 us at least.
    assert cases["anchor_ns"] >= 3500


def test_nothing_synchronizes_and_no_event_is_left(cases: dict[str, Any]) -> None:
    many = cases["many"]
    assert (many["syncs"], many["in_flight"], many["refused"]) == (0, 0, 0)


def test_spans_are_the_devices_however_far_ahead_the_host_is(cases: dict[str, Any]) -> None:
    # Kernels of 5, 10 and 2.5 ms, then a sync and an async op of 3 ms.
    expected = [(0, 5), (5, 15), (15, 17.5), (17.5, 20.5), (20.5, 23.5)]
    assert len(cases["ahead"]) == 5
    for (begin, end, lead, error_ns), (true_begin, true_end) in zip(
        cases["ahead"], expected, strict=True
    ):
        assert begin == pytest.approx(true_begin, abs=error_ns / 1e6)
        assert end == pytest.approx(true_end, abs=error_ns / 1e6)
        assert lead


def test_no_end_is_late_and_no_side_stream_is_delayed(cases: dict[str, Any]) -> None:
    """64 ops beside side streams of the pool of 32."""
    assert cases["beside"] == [0, 0]


def test_a_device_that_stands_costs_a_bounded_number_of_events(cases: dict[str, Any]) -> None:
    # The program allows 6000 events, two for each of 5000 spans.
    assert cases["stopped"] == {"in_flight": 6000, "refused": 2000, "left": 0, "marked": True}


def test_a_captured_graph_is_a_counted_gap(cases: dict[str, Any]) -> None:
    left_out, num, leaked = cases["captured"]
    assert (left_out, num, leaked) == (True, 1, 0)
