"""Numbers as people read and write them: one table over ``pardbg.words`` and the agent's subset."""

from __future__ import annotations

from types import ModuleType

import pytest

import pardbg_agent.words
from pardbg import words

BOTH = pytest.mark.parametrize("module", [words, pardbg_agent.words], ids=["pardbg", "agent"])
SUPERSCRIPT = "\N{SUPERSCRIPT TWO}"
ARABIC = "\N{ARABIC-INDIC DIGIT TWO}"


@BOTH
@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"), (999, "999 ns"), (1_000, "1 µs"), (81_000, "81 µs"), (350_000, "350 µs"),
        (999_400, "999 µs"), (999_600, "1.00 ms"), (1_240_000, "1.24 ms"), (23_100_000, "23.1 ms"),
        (412_000_000, "412 ms"), (1_200_000_000, "1.20 s"), (59_000_000_000, "59 s"),
        (59_994_000_000, "60.0 s"), (2_000_000_001, "2.00 s"), (99_940_000_000, "99.9 s"),
        (99_960_000_000, "1 m 40 s"), (134_000_000_000, "2 m 14 s"),
        (3_599_400_000_000, "59 m 59 s"), (3_599_600_000_000, "1 h 0 m"),
        (62_040_000_000_000, "17 h 14 m"),
    ],
)  # fmt: skip
def test_durations(module: ModuleType, ns: int, text: str) -> None:
    assert module.duration(ns) == text


@BOTH
@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1 << 10, "1 KiB"), (3 << 19, "1.50 MiB"), (1 << 20, "1 MiB"),
        (432_013_312, "412 MiB"), ((1 << 30) - 1, "1.00 GiB"), (5 << 40, "5 TiB"),
    ],
)  # fmt: skip
def test_memory_is_in_binary_units(module: ModuleType, number: int, text: str) -> None:
    assert module.binary_size(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1_747_456, "1.747 MB"), (52_400_000, "52.40 MB"),
     (531_200, "531.2 kB"), (999_990, "1.000 MB")],
)  # fmt: skip
def test_sizes_beside_a_formula_have_four_digits(number: int, text: str) -> None:
    assert words.fine_size(number) == text


@BOTH
@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], "no rank"), ([3], "rank 3"), ([0, 1], "ranks 0,1"), ([2, 0, 1, 1], "ranks 0–2"),
        ([3, 0, 1, 2, 7], "ranks 0–3,7"), (range(1024), "ranks 0–1023"),
        (range(0, 1024, 2), "ranks 0,2,4,6,8,10,12,14,… (512 in all)"),
    ],
)  # fmt: skip
def test_ranks_in_a_sentence(module: ModuleType, ranks: list[int], text: str) -> None:
    assert module.ranks_text(ranks) == text


@BOTH
@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0), ("0042", 42), ("9223372036854775807", (1 << 63) - 1),
        ("9223372036854775808", None), ("9" * 5000, None), ("", None), ("-1", None), ("+1", None),
        (" 1", None), ("1_000", None), ("1.0", None), (SUPERSCRIPT, None), (ARABIC, None),
        ("1" + SUPERSCRIPT, None), ("①", None),
    ],
)  # fmt: skip
def test_whole_numbers_are_ascii_digits(module: ModuleType, text: str, number: int | None) -> None:
    """``"²".isdigit()`` is true and ``int("²")`` raises; ``"2".isdecimal()`` holds in Arabic."""
    assert module.whole(text) == number


def test_a_whole_number_may_be_bounded_and_comes_from_text_only() -> None:
    assert words.whole("12", 12) == 12 and words.whole("13", 12) is None
    assert words.whole(12) is None and words.whole(None) is None and words.whole(b"1") is None


def test_what_is_not_known_negative_or_not_finite() -> None:
    unknown = (words.duration, words.binary_size, words.size, words.rate, words.busbw,
               words.percent, words.number)  # fmt: skip
    assert {function(None) for function in unknown} == {"–"}
    assert words.duration(-5_000_000) == "−5 ms" and words.binary_size(-(3 << 19)) == "−1.50 MiB"
    assert words.number(float("nan")) == "NaN" and words.number(float("-inf")) == "−inf"
    assert words.duration(float("nan")) == words.percent(float("nan")) == "NaN"


def test_traffic_is_in_decimal_units() -> None:
    assert [words.size(n) for n in (1023, 262_144, 10**9)] == ["1.02 kB", "262 kB", "1 GB"]
    assert words.sizes((1000, 2000)) == {1000: "1 kB", 2000: "2 kB"}
    assert words.sizes((1 << 20, (1 << 20) + 4, 8)) == {
        1 << 20: "1,048,576 B", (1 << 20) + 4: "1,048,580 B", 8: "8 B",
    }  # fmt: skip
    assert words.rate(12_400_000) == "12.4 MB/s"
    assert words.busbw(1.94) == "1.94 GB/s" and words.busbw(0.041) == "41 MB/s"


@BOTH
@pytest.mark.parametrize(
    ("fraction", "digits", "text"), [(0.312, 1, "31.2%"), (0.0042, 2, "0.42%"), (1.0, 0, "100%")]
)
def test_shares(module: ModuleType, fraction: float, digits: int, text: str) -> None:
    assert module.percent(fraction, digits) == text


def test_changes_and_counts() -> None:
    assert words.percent(-0.03) == "−3.0%"
    assert words.change(0.104) == "+10.4%" and words.change(-0.03, 0) == "−3%"
    assert words.count(12_345) == "12,345" and words.short_count(12_345) == "12.3k"
    assert words.plural(1, "rank") == "1 rank" and words.plural(1024, "rank") == "1,024 ranks"
    assert words.number(2.302585) == "2.303"


def test_parts_of_a_share_add_up_as_they_are_shown() -> None:
    """31.63% and 27.66% are 31.6 and 27.7: what is left is said to be 3.9, not 4.0."""
    assert words.percent_rest(0.3163, 0.2766) == "3.9%"
    assert words.percent(0.3163 - 0.2766) == "4.0%"
    assert words.percent_rest(0.25, 0.27) == "−2.0%" and words.percent_rest(None, 0.1) == "–"


def test_a_viewer_is_named_by_user_and_terminal() -> None:
    assert words.viewer("view-ada@pts:3-0123456789ab") == "ada on pts/3"
    assert words.viewer("view-ada@-0123456789ab") == "ada's script"
    assert words.viewer("view-0123456789ab") == "view-0123"


def test_countdowns_are_whole_seconds_rounded_up() -> None:
    assert [words.countdown(ns) for ns in (-1, 0, 1, 8_100_000_000, 299_000_000_001)] == [
        "0 s", "0 s", "1 s", "9 s", "5 m 0 s"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (81_540_000_000, "81.54 s"), (99_994_000_000, "99.99 s"), (99_995_000_000, "1 m 40 s"),
        (3_599_000_000_000, "59 m 59 s"), (62_040_000_000_000, "17 h 14 m"), (5_000_000, "5 ms"),
    ],
)  # fmt: skip
def test_times_in_a_column_have_nine_cells(ns: int, text: str) -> None:
    assert words.stamp(ns) == text and len(text) <= 9


def test_a_ruler_says_times_as_fine_as_its_ticks() -> None:
    assert words.offset(218_000_000, 2e7) == "218 ms"
    assert words.offset(12_500_000_000, 1e8) == "12.5 s"
    assert words.offset(123_400_000_000, 1e8) == "2 m 3.4 s"
    assert words.offset(40_000, 1e4) == "40 µs" and words.offset(250_000, 5e4) == "250 µs"
    assert words.offset(559_123_456, 2e5) == "559.1 ms"
    assert words.offset(7_559_123_456, 1e7) == "7.56 s", "ms below 1 s only"
    assert words.offset(7_559_123_456, 5e3) == "7.559123 s"
    assert words.offset(67_559_123_456, 20) == "67.55912346 s"
    assert words.offset(62_043_210_000_000, 1e7) == "17 h 14 m 3.21 s"
    assert (
        words.offset(999_700_000, 1e7) == "1.00 s" and words.offset(999_700_000, 1e5) == "999.7 ms"
    )
    assert words.offset(500_000_000, 5e8, 2e9) == "0.5 s", "one unit on an axis"
    assert (
        words.offset(99_960_000_000, 1e8) == "1 m 40.0 s"
        and words.offset(99_940_000_000, 1e8) == "99.9 s"
    )


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("12.5", 12_500_000_000), ("2m10s", 130_000_000_000), ("2m03", 123_000_000_000),
        ("1h2m", 3_720_000_000_000), ("24h", 86_400_000_000_000), ("30m", 1_800_000_000_000),
        ("1.5min", 90_000_000_000), ("300ms", 300_000_000), ("40us", 40_000), ("40 µs", 40_000),
        ("40\N{GREEK SMALL LETTER MU}s", 40_000), ("7ns", 7), (".5s", 500_000_000), ("0", 0),
        ("1h2m3.5s", 3_723_500_000_000),
    ],
)  # fmt: skip
def test_durations_are_read(text: str, ns: int) -> None:
    assert words.parse_duration(text) == ns


@pytest.mark.parametrize("text", ["", "s", "fast", "-1s", "1e3", SUPERSCRIPT, "1 2x", "9" * 30])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write 90s|longer than any run"):
        words.parse_duration(text)


def test_every_duration_that_is_shown_is_read_back() -> None:
    for ns in (
        7,
        81_000,
        1_240_000,
        412_000_000,
        1_200_000_000,
        130_000_000_000,
        7_500_000_000_000,
    ):
        assert words.parse_duration(words.duration(ns)) == ns


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4096", 4096), ("64k", 64_000), ("64KiB", 65_536), ("500MB", 500_000_000),
        ("2 GiB", 2 << 30), ("1.5g", 1_500_000_000), ("1tib", 1 << 40), ("512 B", 512),
    ],
)  # fmt: skip
def test_sizes_are_read(text: str, number: int) -> None:
    assert words.parse_size(text) == number


@pytest.mark.parametrize("text", ["", "B", "big", "-1MB", "3ib", "5 parsecs", SUPERSCRIPT + "MB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write 500MB or 2GiB"):
        words.parse_size(text)


@pytest.mark.parametrize(
    ("one", "several"),
    [
        ("waits", "wait"), ("is in forward at a.py:3", "are in forward at a.py:3"),
        ("has not come", "have not come"), ("was killed by SIGKILL", "were killed by SIGKILL"),
        ("had left", "had left"), ("imports modules", "import modules"), ("is", "are"),
        ("imported modules", "imported modules"), ("does not end", "do not end"),
        ("gets on: ", "get on: "), ("its loader takes 3 ms", "their loader takes 3 ms"),
        ("it spends 30 ms more", "they spend 30 ms more"), ("it", "them"),
        ("it is ready to run", "they are ready to run"), ("no one phase", "no one phase"),
    ],
)  # fmt: skip
def test_what_is_said_of_ranks_agrees_with_their_number(one: str, several: str) -> None:
    assert words.agreed(one, [4]) == one and words.agreed(one, (4, 4)) == one
    assert words.agreed(one, [0, 4]) == several and words.agreed(one, range(3)) == several
    assert (words.waits_text([1]), words.waits_text({1, 2})) == ("waits", "wait")


@pytest.mark.parametrize(
    ("hosts", "nodes", "text"),
    [
        (1, [0, 0], "1 host"), (1, [None, None], "1 host"), (2, [0, 1, None], "2 hosts"),
        (1, [0, 1], "2 nodes on 1 host"), (1, [0, None], "1 host"), (4, [0, 1], "4 hosts"),
        (2, [0, 1, 2, 3], "4 nodes on 2 hosts"),
    ],
)  # fmt: skip
def test_several_launchers_on_a_host_are_nodes_on_it(
    hosts: int, nodes: list[int | None], text: str
) -> None:
    assert words.hosts_text(hosts, nodes) == text


def test_a_message_names_what_it_carries_its_direction_and_its_peer() -> None:
    assert words.message("send", True, 2, "F5") == "send F5 to r2"
    assert words.message("recv", False, 0) == "recv from r0"
    assert words.message("recv", False, -1) == "recv from any rank"
