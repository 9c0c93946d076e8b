"""Pages of a thousand ranks: what is not on the screen is neither drawn nor asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from pardbg.analysis.answers.hang import Hang
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.findings.finding import Finding
from pardbg.render.draw.cells import Picture, plain
from pardbg.render.pages.collectives import collectives
from pardbg.render.pages.debug import DebugPageState, debug
from pardbg.render.pages.findings import about, findings
from pardbg.render.pages.memory import memory
from pardbg.render.pages.overview.page import OverviewPageState, overview
from pardbg.render.pages.timeline import Window, around, timeline
from tests.ui.sample import S, lanes, snapshot_ddp

RANKS, CELLS, ROWS = 1024, 80, 20
Draw = Callable[[Snapshot], Picture]
PAGES: dict[str, tuple[str, Draw]] = {
    "overview": ("table_row", lambda s: overview(s, CELLS, ROWS, OverviewPageState(3))),
    "memory": ("_rank", lambda s: memory(s, CELLS, ROWS, 3)),
    "debug": ("_rank", lambda s: debug(s, CELLS, ROWS, DebugPageState(3))),
    "timeline": ("lane", lambda s: timeline(
        s, lanes(s.t_ns - S, s.t_ns, RANKS, 4), Window(s.t_ns - S, s.t_ns), CELLS, ROWS, 3)),
}  # fmt: skip
"""What draws a row, and the page."""


@pytest.mark.parametrize("name", PAGES)
def test_rows_out_of_sight_are_not_drawn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row, page = PAGES[name]
    folder = "overview.page" if name == "overview" else name
    module = sys.modules[f"pardbg.render.pages.{folder}"]
    real, drawn = getattr(module, row), []
    monkeypatch.setattr(module, row, lambda *args: drawn.append(args) or real(*args))
    picture = page(snapshot_ddp(RANKS))
    shown = [*picture.head, *picture.body[:ROWS]]
    assert 2 < len(drawn) <= ROWS
    assert any("3" in plain(line)[:7] for line in shown)  # the chosen one is among them
    if name != "debug":  # there the console's lines are the body
        assert len(picture.body) >= RANKS


def test_a_filter_reads_what_is_said_and_not_what_is_drawn() -> None:
    made = snapshot_ddp(RANKS)
    found = overview(made, 200, ROWS, OverviewPageState(contains="1023"))
    assert 1023 in found.rows and len(found.rows) < RANKS
    assert not overview(made, 200, ROWS, OverviewPageState(contains="▇")).rows


def test_of_many_ranks_those_around_the_chosen_one_are_listed() -> None:
    assert around(range(128), 5, 30, None) is None
    many = range(0, 2048, 2)  # 1,024 ranks, every second number
    # 600 is the 300th: its block of 30 is the 10th, places 300..329; one more either side
    assert around(many, 600, 30, None) == tuple(range(2 * 270, 2 * 360, 2))
    assert around(many, 658, 30, None) == around(many, 600, 30, None)
    assert around(many, 0, 30, 2000) == (*range(0, 2 * 60, 2), 2000)  # the culprit is far away
    made = snapshot_ddp(RANKS)
    some = lanes(made.t_ns - S, made.t_ns, 60, 4)
    head = timeline(made, some, Window(made.t_ns - S, made.t_ns), 100, ROWS, 3).head
    assert "ranks 0–59 of 1024" in plain(head[0])


def test_of_many_ranks_a_finding_shows_those_it_is_about() -> None:
    made = snapshot_ddp(RANKS)
    found = Finding(
        kind="straggler", severity="warning", ranks=tuple(range(64)), culprits=(700,),
        group="dp", seq=3, where=None, text="rank 700 is last", t_ns=made.t_ns,
    )  # fmt: skip
    assert about(made, found) == (700, 0, 1, 2, 3, 4, 5, 6)
    assert about(snapshot_ddp(64), found) is None
    picture = findings(replace(made, findings=(found,)), 120, 40)
    text = "\n".join(map(plain, picture.body))
    assert "8 of 1024 ranks" in text and "r700" in text


def test_where_ranks_fill_the_overview_the_worst_finding_stays_over_them() -> None:
    made = replace(snapshot_ddp(RANKS), hang=None)  # a hang has the banner
    head = overview(made, CELLS, ROWS, OverviewPageState(3)).head
    assert "Rank 2 has not issued" in plain(head[0])


@pytest.mark.parametrize(("verdict", "at"), [("op mismatch", 5), ("missing rank", 9), ("", 59)])
def test_the_collectives_page_begins_at_what_ranks_are_stuck_in(verdict: str, at: int) -> None:
    """At what they disagree on before what follows from it; never at what is over."""
    made = snapshot_ddp(RANKS)
    whole = made.collectives[0]
    begun = tuple(a._replace(completed_ns=None) for a in whole.arrivals)
    rows = [replace(whole, seq=seq) for seq in range(60)]
    rows[3] = replace(rows[3], verdict="dtype mismatch")
    if verdict:
        rows[9] = replace(rows[9], verdict="missing rank", arrivals=begun)
    if verdict == "op mismatch":
        rows[5] = replace(rows[5], verdict="op mismatch", arrivals=begun)
    if verdict == "missing rank":  # of two, at the one that the culprit is missing in
        rows[7] = replace(rows[9], seq=7, missing=(5,))
        rows[9] = replace(rows[9], missing=(4, 6))
        held = Hang("missing-rank", "error", (6,), (0,), "", None, 0, None, "")
        made = replace(made, hang=held)
    elif verdict:
        made = replace(made, hang=Hang("op-mismatch", "error", (6,), (0,), "", None, 0, None, ""))
    else:  # somebody is late: no hang, so the newest is followed
        rows[9] = replace(rows[9], verdict="missing rank", arrivals=begun)
    picture = collectives(replace(made, collectives=tuple(rows)), 120, 35)
    assert picture.focus == (None if at == 59 else at) and picture.follow is (at == 59)
    assert any(f"#{at} " in plain(row) for row in picture.foot)
    assert 35 - len(picture.head) - len(picture.foot) >= 5  # rows of the list, whatever is below


@pytest.mark.parametrize(("seq", "at"), [(5, 5), (6, 59)], ids=["told", "uneven so far"])
def test_it_begins_at_a_mismatch_that_is_no_hang_yet(seq: int, at: int) -> None:
    """As where a recording opens. Sizes of which not all are known are told of by no finding."""
    made = snapshot_ddp(RANKS)
    whole = made.collectives[0]
    begun = tuple(a._replace(completed_ns=None) for a in whole.arrivals)
    rows = [replace(whole, seq=seq) for seq in range(60)]
    rows[5] = replace(rows[5], verdict="size mismatch", arrivals=begun)
    found = Finding(
        kind="size-mismatch", severity="error", ranks=(0,), culprits=(0,), group=whole.group,
        seq=seq, where=None, text="", t_ns=made.t_ns,
    )  # fmt: skip
    made = replace(made, hang=None, collectives=tuple(rows), findings=(found,))
    picture = collectives(made, 120, 35)
    assert picture.focus == (None if at == 59 else at) and picture.follow is (at == 59)


def test_the_few_arrivals_in_sight_have_the_culprits() -> None:
    """At 80x24 five lines: those who came last, and whoever is to blame wherever it stands."""
    made = snapshot_ddp(64)
    whole = made.collectives[0]
    times = (a._replace(issued_ns=S + a.rank) for a in whole.arrivals)
    row = replace(whole, arrivals=tuple(times), verdict="op mismatch", culprits=(7,))
    hang = Hang("op-mismatch", "error", (3,), (0,), "", None, 0, None, "")
    for blamed, ranks in ((None, (7, 60, 61, 62, 63)), (hang, (3, 7, 61, 62, 63))):
        now = replace(made, collectives=(row,), hang=blamed)
        *_, more = foot = collectives(now, 80, 17).foot
        shown = [plain(one).split()[0] for one in foot if one]
        assert [one for one in shown if one[1:].isdecimal()] == [f"r{rank}" for rank in ranks]
        assert plain(more).strip() == "… 59 more ranks"
