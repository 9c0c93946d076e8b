"""A rank's memory taken apart and over time: from a trace to the page."""

from __future__ import annotations

from dataclasses import replace

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.render.draw.cells import plain
from pardbg.render.pages.memory import memory
from pardbg.render.pages.memory_course import whole
from tests.unit.trace_builder import Trace, ns

MIB = 1 << 20


def two_samples() -> Trace:
    trace = Trace(1)
    (r0,) = trace.ranks
    for name, size in (("parameters", 10), ("gradients", 10), ("rss", 100)):
        r0.memory(name, 10, size * MIB)
    for name, size, stage in (("activations", 3, 0), ("activations", 4, 1), ("rss", 120, -1)):
        r0.memory(name, 20, size * MIB, stage=stage)
    r0.memory("limit", 21, 200 * MIB)
    return trace


def test_categories_are_told_at_the_times_of_the_total() -> None:
    (row,) = snapshot(two_samples().store(), None).memory
    both = (ns(10), 10 * MIB), (ns(20), 10 * MIB)
    assert dict(row.course) == {
        "parameters": both, "gradients": both, "activations": ((ns(20), 7 * MIB),),
    }  # fmt: skip
    assert row.limit_bytes == 200 * MIB


def test_other_is_what_the_total_has_beyond_the_categories() -> None:
    (row,) = snapshot(two_samples().store(), None).memory
    _, title, bar, words = map(plain, whole(row, 104))
    assert title.endswith("resident set 120 MiB of 200 MiB")
    # 27 of 120 MiB are known; in 100 cells for 200 MiB: 5 P, 5 G, 4 A (7 MiB), 46 or 47 other.
    assert "P+G+O+A 27 MiB   other 93 MiB (78%): Python, torch" in words
    assert bar.index("U") in range(34, 42) and bar.count("·") == 40


def test_what_is_not_measured_yet_is_no_deviation() -> None:
    shown = snapshot(two_samples().store(), None)
    row = replace(shown.memory[0], parameters_bytes=None, expected_bytes=40 * MIB)
    text = "\n".join(map(plain, memory(replace(shown, memory=(row,)), 220, 50).body))
    assert (
        "expected P+G+O 40 MiB, measured after the first step" in text
        and "%)" not in (text.partition("all of rank")[0])
    )
    assert "memory by category" in text and "total" in text and "limit 200 MiB" in text
