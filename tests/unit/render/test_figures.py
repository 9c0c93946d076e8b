"""Figures in words."""

from __future__ import annotations

import pytest

from pardbg.render.draw import figures


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "–"), (0, "0 ns"), (999, "999 ns"), (1_000, "1 µs"), (81_000, "81 µs"),
        (999_400, "999 µs"), (999_600, "1 ms"), (1_240_000, "1.24 ms"), (412_000_000, "412 ms"),
        (1_200_000_000, "1.2 s"), (59_000_000_000, "59 s"), (60_000_000_000, "1m00s"),
        (192_000_000_000, "3m12s"), (7_500_000_000_000, "2h05m"), (-5_000_000, "−5 ms"),
    ],
)  # fmt: skip
def test_durations_are_short(ns: int | None, text: str) -> None:
    assert figures.duration(ns) == text


@pytest.mark.parametrize(
    ("number", "memory", "size"),
    [
        (0, "0 B", "0 B"), (1023, "1023 B", "1.02 kB"), (1 << 20, "1 MiB", "1.05 MB"),
        (432_013_312, "412 MiB", "432 MB"), (None, "–", "–"),
    ],
)  # fmt: skip
def test_memory_is_binary_and_traffic_decimal(number: int | None, memory: str, size: str) -> None:
    assert (figures.memory(number), figures.size(number)) == (memory, size)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([0], "0"), ([0, 1], "0,1"), ([3, 0, 1, 2, 7], "0-3,7"), ([], ""), ([5, 5], "5")],
)
def test_rank_sets_are_ranges(ranks: list[int], text: str) -> None:
    assert figures.rank_set(ranks) == text


def test_a_ruler_says_times_as_fine_as_its_steps() -> None:
    assert figures.offset(218_000_000, 2e7) == "218 ms"
    assert figures.offset(12_500_000_000, 1e8) == "12.5 s"
    assert figures.offset(123_400_000_000, 1e8) == "2m03.4s"
    assert figures.offset(40_000, 1e4) == "40 µs"


def test_rates_choose_their_unit() -> None:
    assert figures.rate(12_400_000) == "12.4 MB/s"
    assert figures.busbw(0.31) == "0.31 GB/s"
    assert figures.busbw(0.041) == "41 MB/s"


def test_a_ruler_finer_than_a_millisecond_tells_its_ticks_apart() -> None:
    assert figures.offset(7_559_123_456, 2e5) == "7559.1 ms"
    assert figures.offset(7_559_123_456, 5e3) == "7559.123 ms"
    assert figures.offset(7_559_123_456, 20) == "7559.12346 ms"
    assert figures.offset(250_000, 5e4) == "250 µs"
