"""A rank's memory taken apart and over time: from a trace to the page."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.findings.kinds.memory_kinds import MemoryCreep
from pardbg.analysis.memory.breakdown import MemoryRow
from pardbg.cli.common import load_session
from pardbg.render.draw.cells import Line, Segment, plain
from pardbg.render.pages.memory import memory
from pardbg.render.pages.memory_course import categories, grown, whole
from pardbg.store.definitions import FailedRequest
from pardbg.words import binary_size
from tests.unit.trace_builder import Trace, ns

MIB = 1 << 20
SESSIONS = Path(__file__).parents[3] / "sessions"


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
    _, title, words = map(plain, whole(row, 104))
    assert title.endswith("resident set 120 MiB of 200 MiB")
    # 10 P, 10 G and 7 A of 120 MiB are known.
    assert "P+G+O+A 27 MiB   other 93 MiB (78%): Python, torch" in words
    shown = plain(memory(snapshot(two_samples().store(), None), 220, 50).body[0])
    assert " 93 MiB " in shown, "the same number in the rank's row"


def test_activations_that_only_a_step_holds_are_not_taken_from_the_total() -> None:
    (row,) = snapshot(two_samples().store(), None).memory
    held = replace(row, activations_bytes=30 * MIB, unattributed_bytes=100 * MIB)
    assert "P+G+O 20 MiB   other 100 MiB (83%)" in plain(whole(held, 104)[2])


def test_what_one_rank_holds_beyond_its_like_is_seen() -> None:
    """Four ranks with 20 MiB known; 80, 80, 140 and 80 MiB in other."""
    shown = snapshot(two_samples().store(), None)
    row = replace(
        shown.memory[0], activations_bytes=None, expected_bytes=20 * MIB,
        total_bytes=100 * MIB, unattributed_bytes=80 * MIB,
    )  # fmt: skip
    more = replace(row, rank=2, total_bytes=160 * MIB, unattributed_bytes=140 * MIB)
    rows = (row, replace(row, rank=1), more, replace(row, rank=3))

    def runs(memory_: tuple[MemoryRow, ...]) -> list[Counter[str]]:
        body = memory(replace(shown, memory=memory_), 120, 30).body
        return [cells_by(one) for one in body if any(run.style == "mem.P" for run in one)]

    r0, _, r2, _ = runs(rows)
    assert r0["mem.U"] == r2["mem.U"] and not r0["alarm.warn"]
    assert r2["alarm.warn"] / r0["mem.U"] == pytest.approx(60 / 80, abs=0.1)
    # Alike, they are drawn without it: what training keeps would not be seen beside it.
    assert all(not bar["mem.U"] for bar in runs((row, rows[1], replace(row, rank=2))))
    # Stages of a pipeline are not alike.
    stages = tuple(replace(one, expected_bytes=n) for n, one in enumerate(rows, 1))
    assert all(not bar["alarm.warn"] for bar in runs(stages))


def cells_by(drawn: Line) -> Counter[str]:
    """Return the cells of each style."""
    found: Counter[str] = Counter()
    for run in drawn:
        found[run.style] += len(run.text)
    return found


def test_what_is_not_measured_yet_is_no_deviation() -> None:
    shown = snapshot(two_samples().store(), None)
    row = replace(shown.memory[0], parameters_bytes=None, expected_bytes=40 * MIB)
    text = "\n".join(map(plain, memory(replace(shown, memory=(row,)), 220, 50).body))
    assert (
        "expected P+G+O 40 MiB, measured after the first step" in text
        and "%)" not in (text.partition("all of rank")[0])
    )
    assert "by category" in text and "total" in text and "limit 200 MiB" in text


def test_what_a_rank_holds_beyond_the_others_is_an_area_of_its_own() -> None:
    """Three ranks stay at 80 MiB, 20 of them known; one goes from 80 to 160 half way."""
    shown = snapshot(two_samples().store(), None)
    flat = tuple((ns(t), 80 * MIB) for t in range(10, 20))
    known = (("parameters", tuple((t, 20 * MIB) for t, _ in flat)),)
    base = replace(shown.memory[0], expected_bytes=20 * MIB, history=flat, course=known)
    grows = tuple((t, (80 if t < ns(15) else 160) * MIB) for t, _ in flat)
    own = replace(base, rank=3, history=grows, total_bytes=160 * MIB)
    rows = (*(replace(base, rank=rank) for rank in range(3)), own)
    made = grown(replace(shown, memory=rows), own, 11 + 10, 6)
    assert made is not None
    _, note, (_, *areas, times) = made
    assert note == "160 MiB" and plain(times).strip() == "10 ms19 ms"
    assert [plain(row)[:11].strip() for row in areas] == ["160 MiB ┤", "│", "│", "0 ┤"]
    # 160 MiB over four lines: P half of the lowest, other up to 80 MiB, then the excess.
    assert areas[3][1:] == (Segment("▄" * 10, "strip.P/strip.U"),)
    assert areas[2][1:] == (Segment("█" * 10, "strip.U"),)
    assert areas[1][1:] == areas[0][1:] == (Segment(" " * 5), Segment("█" * 5, "strip.over"))
    assert grown(replace(shown, memory=rows[2:]), own, 21, 6) is None, "one other is no measure"


def test_categories_have_a_scale_of_their_own_and_their_newest_values_beside() -> None:
    """P 10, G 10 and A from the half on 20 MiB: of 8 lines of 5 MiB two are P's and two G's."""
    shown = snapshot(two_samples().store(), None)
    times = [ns(t) for t in range(10, 20)]
    known = [("parameters", tuple((t, 10 * MIB) for t in times)),
             ("gradients", tuple((t, 10 * MIB) for t in times)),
             ("activations", tuple((t, 20 * MIB) for t in times[5:]))]  # fmt: skip
    history = tuple((t, 300 * MIB) for t in times)
    own = replace(shown.memory[0], history=history, course=tuple(known))
    *areas, axis = categories(replace(shown, memory=(own,)), own, 11 + 10 + 12, 9)
    assert plain(axis).strip() == "10 ms19 ms" and len(areas) == 8
    styles = [next(run.style for run in row[1:] if run.text.strip(" ?")) for row in reversed(areas)]
    assert styles == ["strip.P"] * 2 + ["strip.G"] * 2 + ["strip.A"] * 4
    assert plain(areas[0])[11:21] == " " * 5 + "█" * 5, "no activations before the half"
    text = "\n".join(map(plain, areas))
    assert text.count("10 MiB") == 2 and text.count("A 20 MiB") == 1
    assert categories(replace(shown, memory=(own,)), own, 20, 9) == []


def test_what_is_not_known_is_no_nothing() -> None:
    """Activations come with the second sample: in the columns before that they are not known."""
    shown = snapshot(two_samples().store(), None)
    rows = [plain(row) for row in categories(shown, shown.memory[0], 80, 12)]
    begin = rows[0].index("┤") + 1
    columns = ["".join(row[at] for row in rows[:-1]) for at in range(begin, begin + 57)]
    marked = [at for at, column in enumerate(columns) if "?" in column]
    assert 50 <= len(marked) < 57 and marked == list(range(len(marked))), marked
    assert "? not known" in rows[-1]


def test_activations_that_differ_by_step_are_drawn_where_they_were_counted() -> None:
    """The run recomputes every other step, and activations were counted in steps 1 and 2 of 0-9."""
    shown = snapshot(load_session(str(SESSIONS / "recompute.mcap")), None)
    course = dict(shown.memory[0].course)
    assert [size for _, size in course["activations"]] == [8_589_824, 659_968]
    rows = [plain(row) for row in categories(shown, shown.memory[0], 11 + 27 + 12, 12)]
    marked = next(row for row in rows if "?" in row)[11:38]  # 3 columns a step
    assert [at for at, sign in enumerate(marked) if sign == "?"] == [*range(3), *range(9, 27)]


def test_a_request_that_failed_leaves_the_charts_where_they_are() -> None:
    """Its line is one more in what is said of the rank: the charts are a line lower for it."""
    shown = snapshot(load_session(SESSIONS / "ddp.mcap"), None)
    failed = FailedRequest(0, "cuda:0", 2 << 30, 0, 0, 9 << 30, 0, 0, 0, 0, 7, 0, 0, -1, -1, ())
    rows = tuple(replace(row, failed=failed if row.rank == 2 else None) for row in shown.memory)
    for made in (shown, replace(shown, memory=rows)):
        picture = memory(made, 120, 35, 2)
        text = [plain(row) for row in (*picture.head, *picture.body, *picture.foot)]
        assert len(text) <= 35 and any("ZeRO levels" in row for row in text)
    assert any("2 GiB" in row for row in text)


def test_how_a_rank_comes_by_more_is_said_where_it_is_known() -> None:
    shown = snapshot(load_session(SESSIONS / "fault-memory-creep.mcap"), None)
    head = plain(memory(shown, 120, 40).head[0])
    facts = next(f.facts for f in shown.findings if isinstance(f.facts, MemoryCreep))
    assert binary_size(facts.per_step_bytes) in head and str(facts.since_step) in head
    assert binary_size(facts.per_step_bytes) not in plain(
        memory(replace(shown, findings=()), 120, 40).head[0]
    )


@pytest.mark.parametrize("name", ["1f1b", "fault-memory-creep"])
def test_a_hold_of_a_minute_is_no_part_of_the_picture(name: str) -> None:
    """The same steps, with a minute between the fourth and the fifth: the same charts."""
    made = snapshot(load_session(SESSIONS / f"{name}.mcap"), None)
    assert all(list(row.steps) == sorted(set(row.steps)) and row.steps for row in made.memory)

    def later(points: tuple[tuple[int, int], ...], since: int) -> tuple[tuple[int, int], ...]:
        return tuple((t + (60 * 10**9 if t >= since else 0), value) for t, value in points)

    def held(row: MemoryRow) -> MemoryRow:
        since = row.history[4][0]
        parts = tuple((part, later(points, since)) for part, points in row.course)
        return replace(row, history=later(row.history, since), course=parts)

    paused = replace(made, memory=tuple(map(held, made.memory)))
    before, after = (
        [plain(line) for line in (*p.head, *p.body, *p.foot)]
        for p in (memory(made, 120, 36, 2), memory(paused, 120, 36, 2))
    )
    assert before == after
    assert any("step 0" in line for line in before)


def test_on_a_device_activations_are_freed_when_the_total_is_taken() -> None:
    """Of 30 MiB allocated between steps 20 are P and G: 10 are something else, whatever 25 MiB of
    activations a step keeps."""
    trace = Trace(1)
    for name, size in (("parameters", 10), ("gradients", 10), ("activations", 25),
                       ("allocated", 30)):  # fmt: skip
        trace.ranks[0].memory(name, 10, size * MIB)
    (row,) = snapshot(trace.store(), None).memory
    assert (row.total_kind, row.unattributed_bytes) == ("allocated", 10 * MIB)
    assert "P+G+O 20 MiB   other 10 MiB (33%)" in plain(whole(row, 104)[2])


def test_activations_of_another_step_are_not_those_of_the_newest() -> None:
    """The newest step was not sampled, and those that were differ: its part of the bar is not
    drawn, its figure is unknown, and what is measured is P+G+O alone."""
    shown = snapshot(load_session(str(SESSIONS / "recompute.mcap")), None)
    row = shown.memory[0]
    known = (row.parameters_bytes, row.gradients_bytes, row.optimizer_bytes)
    assert row.activations_bytes is None and row.activations_least_bytes == 659_968
    assert row.total_bytes is not None and row.unattributed_bytes is not None
    assert row.total_bytes - row.unattributed_bytes == sum(map(int, filter(None, known)))
    drawn = memory(shown, 120, 35, 0)
    bar = plain(drawn.body[0])
    assert " A " not in bar and " – " in bar, bar
    same = snapshot(load_session(str(SESSIONS / "ddp.mcap")), None).memory[0]
    assert same.activations_bytes == same.activations_peak_bytes, "all its steps keep as much"
