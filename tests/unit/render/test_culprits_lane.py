"""The picture of a stall: ranks that others wait for have their place on their own lanes, and the
others the time at which they came."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.answers.timeline import lanes
from pardbg.analysis.base.run import OutputLine
from pardbg.render.draw.cells import Picture, plain
from pardbg.render.pages.debug import DebugPageState, debug
from pardbg.render.pages.findings import Around, findings, ordered, whole_wait
from pardbg.render.pages.timeline import Window
from pardbg.session.reader import load
from pardbg_agent import wire
from tests.unit.analysis.test_waitgraph import WAITING, stall
from tests.unit.trace_builder import Trace, ns

SESSIONS = Path(__file__).parents[3] / "sessions"
S = 1_000_000_000


def standing(name: str, after_s: float, cells: int = 120) -> list[tuple[str, str]]:
    """(what is on the lane of a rank that is waited for, its rank) so long after the begin."""
    store = load(SESSIONS / f"{name}.mcap")
    made = snapshot(store, store.begin_ns + int(after_s * S))
    window = Window(made.t_ns - 3 * S, made.t_ns)
    drawn = lanes(store, window.t0_ns, window.t1_ns, cells)
    picture = findings(made, cells, 42, 0, Around(drawn, window))
    return [
        (one.text.strip(), plain(row).split()[0])
        for row in picture.body for one in row if one.style == "absent"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "after_s", "shown"),
    [
        ("fault-missing-rank", 14.3, [("missing_rank.py:45 in wait_for", "r2")]),
        ("fault-missing-rank", 23.3, []),  # its process has ended
        ("fault-p2p-cycle", 11.2, []),  # each of them waits in an op, and its lane says so
    ],
)
def test_a_rank_in_no_op_has_its_place_on_its_lane(
    name: str, after_s: float, shown: list[tuple[str, str]]
) -> None:
    assert standing(name, after_s) == shown


def test_a_narrow_picture_cuts_the_place() -> None:
    ((text, rank),) = standing("fault-missing-rank", 14.3, 40)
    assert rank == "r2" and text and "missing_rank.py:45 in wait_for".startswith(text.rstrip("…"))


def test_a_large_screen_has_the_whole_fault_and_little_empty_room() -> None:
    """At 200x60 (54 rows for the page) a third of the screen was empty under the last panel."""
    store = load(SESSIONS / "fault-missing-rank.mcap")
    made = snapshot(store, store.begin_ns + int(14.3 * S))
    window = Window(made.t_ns - 3 * S, made.t_ns)
    around = Around(lanes(store, window.t0_ns, window.t1_ns, 184), window)
    rows = [plain(row).rstrip() for row in findings(made, 200, 54, 0, around).body]
    assert 44 <= len(rows) <= 54
    where = rows.index(next(row for row in rows if "where every rank stands" in row))
    assert {"ranks 0–3", "rank 2", "ranks 0,1,3"} <= set(
        re.findall(r"ranks? [\d,–]+", "\n".join(rows[where:]))
    )


@pytest.mark.parametrize(("rows", "tall"), [(54, 2), (44, 1), (34, 0)])
def test_debug_draws_the_standstill_below_its_stacks(rows: int, tall: int) -> None:
    """Stacks, then when each rank came, then two lanes a rank; whole, or not at all."""
    store = load(SESSIONS / "fault-missing-rank.mcap")
    made = snapshot(store, store.begin_ns + int(14.3 * S))
    window = Window(made.t_ns - 3 * S, made.t_ns)
    around = Around(lanes(store, window.t0_ns, window.t1_ns, 184), window)
    look = DebugPageState(2, more=partial(whole_wait, made, ordered(made.findings)[0], around))
    head = debug(made, 200, rows, look).head
    shown = [plain(row) for row in head]
    assert len(head) <= rows and any("not yet" in row for row in shown)
    waits = [row for row in head if any(one.style == "wait" for one in row)]
    assert len([row for row in waits if "░" * 30 in plain(row)]) == 3 * tall


def test_the_waits_of_a_live_run_are_drawn_before_their_records_come() -> None:
    """Of the recording as it was live: nothing that ends after the cursor."""
    store = load(SESSIONS / "fault-missing-rank.mcap")
    made = snapshot(store, store.begin_ns + int(14.3 * S))
    window = Window(made.t_ns - 3 * S, made.t_ns)
    come = {
        rank: {
            name: tuple(one for one in spans if one.t1_ns < made.t_ns)
            for name, spans in of.items()
        }
        for rank, of in lanes(store, window.t0_ns, window.t1_ns, 120).items()
    }  # fmt: skip
    picture = findings(made, 120, 40, 0, Around(come, window))
    said = [one.text for row in picture.body for one in row if one.style == "wait"]
    assert sum("all_reduce default #21, 2." in text for text in said) == 3


def four(error_ns: int = 0) -> Trace:
    """Ranks 0 and 1 come to an all_reduce at 1 and 10 ms; 2 and 3 stand at places of their own.
    The clock of rank 1, on another host, is known so well."""
    trace = Trace(4)
    for proc, t in zip(trace.ranks, (1, 10, 0, 0), strict=True):
        told = error_ns if proc is trace.ranks[1] else 0
        trace.define(wire.DefKind.CLOCK, proc=proc.proc, offset_ns=0, error_ns=told, t_ns=ns(0))
        proc.phase("forward", 0, 1)
        if t:
            proc.collective("world", "all_reduce", t, None)
    places = [[["/job/train.py", at, "step"]] for at in (20, 30)]
    stall(trace, 2100, r0=WAITING, r1=WAITING, r2=places[0], r3=places[1])
    return trace.flush()


def drawn(trace: Trace, t: float, cells: int = 120) -> Picture:
    store = trace.store()
    made, window = snapshot(store, ns(t)), Window(ns(0), ns(t))
    return findings(made, cells, 40, 0, Around(lanes(store, ns(0), ns(t), cells), window))


def test_several_culprits_have_their_places_on_their_lanes() -> None:
    rows = drawn(four(), 2500).body
    shown = [
        (plain(row).split()[0], one.text.strip())
        for row in rows for one in row if one.style == "absent"
    ]  # fmt: skip
    assert shown == [("r2", "train.py:20 step"), ("r3", "train.py:30 step")]
    table = [text for row in rows if (text := plain(row)).strip()[:2] in ("r2", "r3")]
    assert [text for text in table if "not yet" in text and "train.py:30 step" in text]
    assert any("place train.py:20 in step, train.py:30 in step" in plain(row) for row in rows)


@pytest.mark.parametrize(
    ("error_ns", "second"), [(0, "+9 ms"), (8_000_000, "+9 ms"), (20_000_000, "±20 ms")]
)
def test_who_came_when_as_far_as_their_clocks_tell(error_ns: int, second: str) -> None:
    rows = [plain(row) for row in drawn(four(error_ns), 2500).body]
    came = {rank: row for row in rows for rank in range(4) if f"r{rank}   ▶" in row}
    assert " 1 ms " in came[0]
    assert second in came[1]
    assert "not yet" in came[2] and "not yet" in came[3]


def test_the_culprits_place_is_written_as_the_others() -> None:
    """Rank 2's place is the longest: two words, as the others', leave the ops their numbers."""
    store = load(SESSIONS / "fault-unpaired-recv.mcap")
    made = snapshot(store, store.begin_ns + int(10.06 * S))
    window = Window(made.t_ns - 3 * S, made.t_ns)
    found = lanes(store, window.t0_ns, window.t1_ns, 120)
    rows = [plain(row) for row in findings(made, 120, 36, 0, Around(found, window)).body]
    table = [" ".join(row.partition("◷")[2].split()[:5]) for row in rows if "◷" in row]
    waiting = "all_reduce default #21 planted.py:75 report_mean"
    assert table == [waiting, waiting, "recv from r3 unpaired_recv.py:37 train", waiting]


def test_a_rank_that_has_ended_never_came() -> None:
    store = load(SESSIONS / "fault-missing-rank.mcap")
    made = snapshot(store, None)
    text = "\n".join(plain(row) for row in findings(made, 120, 40, 0).body)
    assert "never" in text and "not yet" not in text


def test_a_small_screen_has_the_table_rather_than_what_the_sentence_says() -> None:
    store = load(SESSIONS / "fault-missing-rank.mcap")
    made = snapshot(store, store.begin_ns + int(14.3 * S))
    text = "\n".join(plain(row) for row in findings(made, 80, 19, 0).body)
    assert "+9.27 ms" in text and "culprit  " not in text


@pytest.mark.parametrize("num_ranks", [2, 4, 8, 16])
def test_whatever_the_height_the_sentence_stays_and_nothing_stands_over_it(num_ranks: int) -> None:
    trace = Trace(num_ranks)
    for proc in trace.ranks:
        proc.phase("forward", 0, 1)
        if proc is not trace.ranks[0]:
            proc.collective("world", "all_reduce", 1, None)
    stall(trace, 2100, r0=[["/job/train.py", 20, "step"]])
    store = trace.flush().store()
    made, window = snapshot(store, ns(2500)), Window(ns(0), ns(2500))
    around = Around(lanes(store, ns(0), ns(2500), 120), window)
    for rows in range(14, 90):
        picture = findings(made, 120, rows, 0, around)
        texts = [plain(row).strip() for row in picture.body]
        (said,) = made.findings
        assert any(text and said.text[1:].startswith(text[1:]) for text in texts), rows
        drawn = [text for text in texts if text.startswith("around it")]
        assert len(drawn) <= 1 and len(texts) <= rows, rows


@pytest.mark.parametrize("rows", [20, 34, 40, 60])
@pytest.mark.parametrize("cells", [80, 120, 200])
def test_rows_that_are_left_have_what_was_printed_last(cells: int, rows: int) -> None:
    store = load(SESSIONS / "fault-missing-rank.mcap")
    made = snapshot(store, store.begin_ns + int(14.3 * S))
    entries = tuple(OutputLine(made.t_ns, 1, "stdout", f"line {n}") for n in range(16))
    picture = findings(made, cells, rows, 0, Around({}, Window(0, 0), output=entries))
    drawn = [plain(row) for row in picture.body]
    heading = next((at for at, row in enumerate(drawn) if "printed last" in row), len(drawn) + 1)
    below = drawn[heading - 1 :]
    left = rows - len(picture.head) - len(picture.foot) - (heading - 1)
    told = [text.split()[-1] for text in below if " line " in text]
    assert told == [str(n) for n in range(16)][16 - len(told) :]  # the newest
    assert len(below) <= max(0, left) and (len(told) == min(16, left - 3) or left < 5)
