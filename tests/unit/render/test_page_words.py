"""What pages say in words: nothing is cut that has room, and each word is of what is shown."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rich.color import Color

from pardbg import words
from pardbg.analysis.answers.ranks import Activity
from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.answers.timeline import LaneSpan
from pardbg.analysis.base.run import OutputLine
from pardbg.analysis.base.times import Times
from pardbg.analysis.findings.finding import Finding
from pardbg.render.draw.axis import Axis
from pardbg.render.draw.cells import plain
from pardbg.render.draw.regions import framed, regions
from pardbg.render.frame.stacks import Spot
from pardbg.render.frame.step_charts import phases
from pardbg.render.pages.collectives import CollectivesPageState as CollectivesLook
from pardbg.render.pages.collectives import collectives
from pardbg.render.pages.debug import DebugPageState as DebugLook
from pardbg.render.pages.debug import debug
from pardbg.render.pages.findings import Around, ahead, findings, place_of, told
from pardbg.render.pages.output import output_lines
from pardbg.render.pages.overview.page import OverviewPageState, overview
from pardbg.render.pages.overview.rank_facts import rank as rank_facts
from pardbg.render.pages.timeline import Window, lane
from pardbg.session.reader import load
from pardbg.session.source_files import Place, SourceLines
from pardbg.ui.palette import nearest
from pardbg.words import percent
from tests.ui.recorded import SESSIONS
from tests.ui.sample import S, output, snapshot_1f1b, snapshot_ddp
from tests.unit.render.test_pages import text_of


def test_printed_lines_stand_under_each_other_however_late() -> None:
    times = (81 * S, 3599 * S, 62_040 * S)
    rows = [plain(output_lines(OutputLine(t, 0, "stdout", "loss 3.2"), 0, 60)[0]) for t in times]
    assert {row.index("loss") for row in rows} == {18}


@pytest.mark.parametrize("room", range(1, 12))
@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_findings_in_few_lines_end_in_an_ellipsis_or_are_counted(number: int, room: int) -> None:
    """A sentence was cut in its middle, or a finding left out, as if there were no more."""
    text = "rank 2 comes last to the collectives of default, by far later than all others"
    found = [Finding(f"kind-{at}", "info", at, text) for at in range(number)]
    rows = [plain(row) for row in told(found, 50, None, room)]
    shown = sum("kind-" in row for row in rows)
    assert 1 <= len(rows) <= room and shown >= 1
    if shown < number:
        assert room == 1 or str(number - shown) in re.findall(r"\d+", rows[-1])
        rows.pop() if room > 1 else None
    told_of = "\n".join(rows).split("i kind-")[1:]
    assert all(part.rstrip().endswith(("others", "…")) for part in told_of)


def test_a_held_rank_s_row_says_what_comes_next_however_narrow() -> None:
    made = snapshot_1f1b()
    long = replace(
        made,
        ranks=tuple(replace(r, state="held", now=Activity("held before", "send F7 to r9"),
                            since_ns=made.t_ns - S) for r in made.ranks),
    )  # fmt: skip
    for size in ((80, 24), (120, 40), (200, 60)):
        text = text_of(overview(long, *size, OverviewPageState()))
        assert text.count("send F7 to r9") == len(long.ranks), size


def test_overview_says_of_which_step_its_shares_are_and_what_to_try() -> None:
    store = load(SESSIONS / "fault-straggler.mcap")
    made = snapshot(store, None)
    step = made.steps[-1].step
    text = text_of(overview(made, 120, 36, OverviewPageState()))
    heading = next(row for row in text.splitlines() if "comp  wait" in row)
    assert f"step {step}:" in heading
    assert any(f"step {step}" in row for row in text.splitlines() if "where a step goes" in row)
    worst = next(f for f in made.findings if f.severity != "info")
    below = text[text.index("findings") :]
    assert worst.advice.split()[0] in below and worst.text[:40] not in below


def test_no_finding_is_cut_where_there_is_room_for_it() -> None:
    made = snapshot_1f1b()
    long = " ".join(f"word{n}" for n in range(24))
    one = made.findings[0]
    found = (replace(one, text=f"{long} end"), replace(one, kind="other", text=f"{long} last"))
    shown = replace(made, findings=found)
    left = [plain(row).partition("│")[0] for row in findings(shown, 120, 36).body]
    text = " ".join(" ".join(left).split())
    assert f"{long} end" in text and f"{long} last" in text


@pytest.mark.parametrize("name", ["1f1b", "fault-unpaired-send"])
def test_messages_have_a_verdict_of_their_own(name: str) -> None:
    """The link that is said to have waited most is that with most in the table below."""
    made = snapshot(load(SESSIONS / f"{name}.mcap"), None)
    shown = collectives(made, 120, 36, CollectivesLook(p2p=bool(made.collectives)))
    head = [plain(row) for row in shown.head]
    worst = next((f for f in made.findings if f.severity != "info"), None)
    if worst is not None:
        assert worst.text[1:40] in head[0]
        return
    waited: dict[str, int] = {}
    for row in made.p2p:
        edge = f"{row.src} → {row.dst}"
        waited[edge] = waited.get(edge, 0) + (row.waited_ns or 0)
    most = max(waited, key=lambda edge: waited[edge])
    assert most in head[0] and words.duration(waited[most]) in head[0]
    assert words.duration(sum(waited.values())) in head[0]


def test_a_rank_that_has_ended_has_no_next_op() -> None:
    made = snapshot_1f1b()
    over = replace(made.ranks[1], state="ended", now=Activity("terminated", "torchrun"))
    shown = replace(made, ranks=(made.ranks[0], over, *made.ranks[2:]))
    rows = [plain(row) for row in debug(shown, 120, 36, DebugLook()).head]
    ended = next(row for row in rows if "ended by torchrun" in row).partition("│")[0]
    assert not re.search(r"\b1[FB]\d", ended)
    going = (row for row in rows if re.match(r" +[02] ", row))
    assert all(re.search(r"\b[02][FB]\d", row) for row in going), "the others have one"


def test_no_op_of_a_rank_is_cut_where_the_source_beside_it_has_room() -> None:
    store = load(SESSIONS / "fault-missing-rank.mcap")
    made = snapshot(store, snapshot(store, None).stacks[0].t_ns)
    stack = {2: (Spot("missing_rank.py:45 wait_for", True, "missing_rank.py", 45),)}
    look = DebugLook(2, stacks=stack, stacks_ns=made.t_ns)
    rows = [plain(row) for row in debug(made, 120, 36, look).head]
    waiting = [row for row in rows if re.match(r" +[013]  ", row)]
    assert len(waiting) == 3 and all("all_reduce default #21 " in row for row in waiting)
    assert any("missing_rank.py:45" in row[40:64] for row in rows if re.match(r" +2  ", row))


def test_a_column_of_next_ops_stands_only_where_there_is_one() -> None:
    made = snapshot(load(SESSIONS / "fault-straggler.mcap"), None)
    assert not made.control.held and made.hang is None
    free = replace(made, pipeline=None, findings=())
    rows = [plain(row) for row in debug(free, 120, 36, DebugLook()).head]
    heads = [row for row in rows if "since" in row]
    assert len(heads) == 1 and "next" not in heads[0]
    assert any("since  next" in plain(row) for row in debug(snapshot_1f1b(), 120, 36).head)


@pytest.mark.parametrize(("times", "name"), [("", "now"), ("device", "host now")])
def test_what_a_rank_does_is_said_to_be_the_hosts_on_a_device(times: Times, name: str) -> None:
    made = snapshot_1f1b()
    shown = rank_facts(replace(made, run=replace(made.run, times=times)), 0, 60, 30)
    assert plain(shown.body[0]).strip().startswith(f"{name}  ")


def test_what_lasts_is_not_also_to_come() -> None:
    """A finding that is listed is seen again at later ops: the same culprits, since the same."""
    made = snapshot_1f1b()
    here = replace(made.findings[0], t_ns=made.t_ns - S, first_ns=made.t_ns - 2 * S)
    again = replace(here, t_ns=made.t_ns + S)
    shown = replace(made, findings=(here,))
    assert not ahead(shown, [again], 100)
    assert len(ahead(shown, [again, replace(again, kind="other")], 100)) == 3


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("cells", [120, 200])
def test_headings_of_a_page_of_findings_stand_over_each_other(number: int, cells: int) -> None:
    """Those over the whole width, and those of each column; none ends past the last column."""
    made = snapshot(load(SESSIONS / "fault-missing-rank.mcap"), None)
    (one,) = made.findings
    at = place_of(made, one)
    assert at is not None
    found = SourceLines(Place(at[1].file, at[1].line), 40, ("x = 1",) * 12)
    yet = [replace(one, kind="other", t_ns=made.t_ns + S)]
    around = Around({}, Window(0, 0), yet, source=found)
    shown = replace(made, findings=tuple(replace(one, kind=f"k{n}") for n in range(number)))
    picture = findings(shown, cells, 48, 0, around)
    rows = [plain(row).rstrip() for row in picture.body]
    ruled = [row for row in rows if "───" in row]
    begins = {at.end() for row in ruled for at in re.finditer(r"^  |─  |│ ", row)}
    assert len(ruled) == 4 and len(begins) == 2 and {len(row) for row in ruled} == {cells - 2}
    low = rows.index(ruled[-2])  # below both columns: what is to come, then where ranks stand
    assert (rows[low - 1].strip() == "│") is (number > 1), "beside a list the edge goes past panels"
    framed_ = [plain(row) for row in framed(picture.body, regions(picture.body), None, cells)]
    edges = [row for row in framed_[:low] if "╰" in row[cells // 3 :]]
    assert all("│" in row[: row.index("╰")] for row in edges) or number == 1


@pytest.mark.parametrize("rows", [36, 16])
def test_debug_has_what_was_printed_last_where_lines_are_left(rows: int) -> None:
    """Ranks and console leave less than eleven lines of the smaller one."""
    printed = [OutputLine(at, 0, "stdout", f"said {at}") for at in range(9)]
    shown = text_of(debug(snapshot_1f1b(), 120, rows, DebugLook(output=printed)))
    assert "said 8" in shown and ("said 0" in shown) is (rows == 36)


def test_without_a_stack_the_right_half_of_debug_is_not_left_empty() -> None:
    """There is no source then; the job's output has the whole width."""
    rows = text_of(debug(snapshot_1f1b(), 200, 36, DebugLook(output=output()))).split("\n")
    (heading,) = [row for row in rows if "printed last" in row]
    assert "───" in heading[100:]


def test_where_a_step_goes_says_what_of_it_was_waiting() -> None:
    """A DDP step has no phase of its own for it."""
    ddp = snapshot_ddp()
    shares = [rank.wait_fraction for rank in ddp.ranks if rank.wait_fraction is not None]
    (row,) = [plain(row) for row in phases(ddp, 42) if "of it waiting" in plain(row)]
    assert row.split()[-1] == percent(sum(shares) / len(shares), 0)


def test_steps_too_narrow_for_their_name_have_their_number() -> None:
    step = [LaneSpan(at * S, (at + 1) * S, f"step {at}", "step") for at in (7, 8)]
    assert "7" in plain(lane(step, Axis(7 * S, 2 * S, 6)))
    assert "step" not in plain(lane(step, Axis(7 * S, 2 * S, 6)))
    assert plain(lane(step, Axis(7 * S, 2 * S, 16))).split() == ["step", "7", "step", "8"]


def test_no_cell_is_painted_where_no_op_was() -> None:
    """Thirty broadcasts under way at once, from 2 s to 5 s, are at cells 20 to 50; after them, from
    8 s, is nothing but an all_reduce; of the one around a shorter one the end is seen again."""
    many = [LaneSpan(2 * S + at, 5 * S - at, f"broadcast #{at}", "comm.b") for at in range(30)]
    around = [LaneSpan(6 * S, 9 * S, "all_reduce #1", "comm.a"),
              LaneSpan(7 * S, 8 * S, "broadcast #31", "comm.b")]  # fmt: skip
    drawn = lane([*many, *around], Axis(0, 10 * S, 100), many[7])
    cells = [run.style.removesuffix(".odd") for run in drawn for _ in run.text]
    assert len(cells) == 100 and set(cells[20:50]) <= {"comm.b", "chosen"}
    assert not any(cells[:20] + cells[50:60] + cells[90:])
    assert cells[60:70] == cells[80:90] == ["comm.a"] * 10 and cells[70:80] == ["comm.b"] * 10
    assert "chosen" in cells


def test_brown_stays_brown_among_256_colours() -> None:
    """94 is the cube's #875f00; grey ones begin at 232."""
    assert nearest(Color.parse("#4a3922")).number == 94
    assert nearest(Color.parse("#1a232d")).number >= 232  # the header's ground has no hue
