"""What pages begin with: the longest wait, who printed, what was seen without a finding."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pardbg.analysis.answers.timeline import Lanes, LaneSpan
from pardbg.analysis.base.run import OutputLine
from pardbg.render.draw.cells import Picture, plain
from pardbg.render.pages.collectives import detail
from pardbg.render.pages.findings import findings
from pardbg.render.pages.mesh.run_verdict import bound_by
from pardbg.render.pages.output import MOST, output
from pardbg.render.pages.pipeline.page import pipeline
from pardbg.render.pages.timeline import Window, timeline
from tests.ui.sample import MS, snapshot_1f1b, snapshot_ddp

pytestmark = pytest.mark.timeout(60)


def text_of(picture: Picture) -> str:
    return "\n".join(plain(row) for row in (*picture.head, *picture.body, *picture.foot))


def test_the_timeline_begins_with_its_longest_wait_or_an_op_that_is_open() -> None:
    """Boxes of several waits have no length of their own; an op that is open comes first."""
    shown = snapshot_1f1b()
    window = Window(shown.t_ns - 400 * MS, shown.t_ns)

    def head(lanes_: Lanes) -> str:
        return plain(timeline(shown, lanes_, window, 80, 21).head[0])

    def at(ms: int, took: int, label: str, style: str) -> LaneSpan:
        return LaneSpan(window.t0_ns + ms * MS, window.t0_ns + (ms + took) * MS, label, style)

    waits = (at(10, 20, "", "wait"), replace(at(50, 300, "×9", "wait"), number=9))
    said = head({0: {"wait": waits}, 2: {"wait": (at(0, 70, "", "wait"),)}})
    assert "400 ms" in said and "r2" in said and "70" in said and "300" not in said
    still = replace(at(-2_000, 2_400, "all_reduce dp #4", "comm.all_reduce"), is_open=True)
    said = head({0: {"wait": waits}, 1: {"comm": (still,)}})
    assert "r1" in said and "2.40 s" in said and "20" not in said
    assert "r0" not in head({0: {"wait": waits[1:]}})


def test_the_pipeline_says_first_that_no_action_has_run() -> None:
    made = snapshot_1f1b()
    assert made.pipeline is not None
    known = replace(made.pipeline, step=None, last_complete=None)
    rows = pipeline(replace(made, pipeline=known), 80, 20).body
    assert plain(rows[0]).startswith(" ○ ") and "8 microbatches" in plain(rows[1])


def test_the_output_begins_with_who_printed_and_for_how_long_nobody_has() -> None:
    shown = replace(snapshot_1f1b(), live=True)
    lines_ = [OutputLine(shown.t_ns - age, rank, "stdout", "x")
              for age, rank in ((90 * 10**9, 1), (75 * 10**9, 3))]  # fmt: skip
    said = plain(output(shown, lines_, "", 80, 20).head[0])
    assert "2 lines" in said and "1,3" in said and "75 s" in said, said
    ended = replace(shown, live=False)
    assert "75 s" not in plain(output(ended, lines_, "", 80, 20).head[0])
    many = [lines_[0]] * MOST
    assert "newest 2,000" in plain(output(shown, many, "", 80, 20).head[0])


def test_no_finding_is_told_with_what_was_seen_and_what_is_not_judged() -> None:
    made = replace(snapshot_ddp(), findings=(), t_end_ns=snapshot_ddp().t_ns, live=False)
    fine = replace(made, run=replace(made.run, exit_code=0))
    text = text_of(findings(fine, 80, 20))
    assert "✓" in text and f"{len(made.ranks)} on" in text and "results" in text
    failed = replace(made, run=replace(made.run, exit_code=3))
    text = text_of(findings(failed, 80, 20))
    assert "✗" in text and "exit code 3" in text and "✓" not in text
    host = replace(fine, run=replace(fine.run, times="host"), loss_history=())
    rows = [row.split()[0] for row in text_of(findings(host, 80, 24)).splitlines() if row.strip()]
    assert {"speed", "loss", "results"} <= set(rows)


def test_an_op_that_a_rank_never_came_to_is_completed_on_none() -> None:
    """Ranks that left it did so by an error as well as by its end."""
    row = snapshot_ddp().collectives[-1]
    here = next(a for a in row.arrivals if a.came_ns is not None)
    gone = here._replace(completed_ns=(here.came_ns or 0) + MS, source="completed")
    text = text_of(detail(replace(row, arrivals=(gone,)), snapshot_ddp(), 100, 20))
    assert row.missing and "left" in text and "completed" not in text
    whole = snapshot_ddp().collectives[1]
    assert "completed" in text_of(detail(whole, snapshot_ddp(), 100, 20))


@pytest.mark.parametrize(
    ("compute", "wait", "comm", "data", "first", "parts"),
    [
        (0.6, 0.2, 0.1, 0.0, "compute", (60, 20, 10, 10)),
        (0.1, 0.7, 0.1, 0.05, "waiting for ranks", (70, 10, 10, 5, 5)),
        (0.2, 0.1, 0.0, 0.6, "input", (60, 20, 10, 10)),
        (0.2, 0.1, 0.0, 0.0, "host code", (70, 20, 10)),
        (0.4, 0.3, 0.3, 0.0, "", (40, 30, 30)),
    ],
)
def test_the_verdict_says_what_a_step_is_bound_by(
    compute: float, wait: float, comm: float, data: float, first: str, parts: tuple[int, ...]
) -> None:
    """What takes half of it or more, if that was measured on each rank; parts sum to 100."""
    made = snapshot_ddp()
    of = {"compute_fraction": compute, "wait_fraction": wait, "comm_fraction": comm}
    ranks = tuple(replace(row, compute_is_bound=False, **of) for row in made.ranks)
    last = replace(made.steps[-1], duration_ns=100 * MS, phases={"data": int(data * 100 * MS)})
    made = replace(made, ranks=ranks, steps=(last,))
    text = bound_by(made)
    assert tuple(map(int, re.findall(r"(\d+)%", text))) == parts and sum(parts) == 100
    assert (f" {first}, {parts[0]}% " in text) == bool(first)
    unknown = (replace(ranks[0], compute_fraction=None), *ranks[1:])
    assert not bound_by(replace(made, ranks=unknown))
    assert not bound_by(replace(made, run=replace(made.run, times="host")))
