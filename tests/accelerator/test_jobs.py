"""Ranks on simulated accelerators: times across ranks follow from the stated costs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.accelerator.conftest import Run

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module")
def ranks(run: Run) -> list[dict[str, Any]]:
    """All four end with code 0, with an op under way that never ends."""
    return run("jobs", nproc=4)


def test_1f1b_has_the_bubble_of_the_textbook(ranks: list[dict[str, Any]]) -> None:
    spans = [rank["pipeline"][0] for rank in ranks]
    assert all(len(own) == 16 for own in spans)  # 8 forwards, 8 backwards
    first = min(s[3] for own in spans for s in own)
    last = max(s[4] for own in spans for s in own)
    # (p - 1 + m) x (F + B) = 11 x 80 ms
    assert (first, last) == (0, 880)
    busy = sum(s[4] - s[3] for own in spans for s in own)
    assert busy == 4 * 16 * 40
    # (p - 1) / (p - 1 + m) = 3 / 11
    assert 1 - busy / (4 * (last - first)) == pytest.approx(3 / 11)
    assert [own[0][3] for own in spans] == [0, 40, 80, 120]  # a stage begins one forward later
    assert [rank["pipeline"][1] for rank in ranks] == [0] * 4  # no host waited for data


def test_a_slow_device_arrives_last_and_the_op_ends_after_it(ranks: list[dict[str, Any]]) -> None:
    for number, rank in enumerate(ranks):
        (sync, asynchronous), has_work = rank["straggler"]
        # The op runs 1 ms from the last arrival, rank 2's: 30 -> 31; then 30 ms more: 61 -> 62.
        assert sync[2:] == [30 if number == 2 else 20, 30, 31]
        assert asynchronous[2:] == [61 if number == 2 else 51, 61, 62]
        assert sync[1] == 0 and asynchronous[1] > 0  # on the current stream, on one of its own
        assert has_work == [False, True]


def test_a_stopped_device_is_the_one_that_has_not_arrived(ranks: list[dict[str, Any]]) -> None:
    assert [rank["hang"] for rank in ranks] == [[4, 6, 6], [4, 6, 6], [3, 6, 6], [4, 6, 6]]


def test_what_was_sent_and_received_is_given_back(ranks: list[dict[str, Any]]) -> None:
    assert all(rank["transfers"] < 20 for rank in ranks)  # of 100


def test_one_rank_runs_out_of_memory(ranks: list[dict[str, Any]]) -> None:
    assert [rank["out_of_memory"] for rank in ranks] == [True, False, True, True]
