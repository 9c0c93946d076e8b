"""The HTML report: one page that needs nothing else, in proportion, safe from what it shows."""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from statistics import median

import pytest

from pardbg.analysis.answers.moments import Moment, moments
from pardbg.analysis.answers.report import report
from pardbg.analysis.answers.timeline import LaneSpan
from pardbg.analysis.base.steps import StepRow
from pardbg.render.draw.svg import ticks
from pardbg.render.reports import charts
from pardbg.render.reports.html import page
from pardbg.render.reports.text import text
from tests.unit.analysis.test_findings_speed import data_parallel
from tests.unit.analysis.test_schedule import two_ranks
from tests.unit.trace_builder import MS, Trace


class Outline(HTMLParser):
    """Checks that what is opened is closed; keeps tags and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def boxes(picture: str, style: str) -> list[tuple[float, float]]:
    """(x, width) of the boxes whose class begins so."""
    root = ElementTree.fromstring(picture)
    return [
        (float(box.get("x", 0)), float(box.get("width", 0)))
        for box in root.iter("rect")
        if (box.get("class") or "").startswith(style)
    ]


def test_the_page_needs_nothing_else_and_is_well_formed() -> None:
    store = two_ranks().store()
    made = page(report(store), "s.mcap")
    outline = Outline(made)
    assert not outline.open
    assert "script" not in outline.tags and "link" not in outline.tags and "img" not in outline.tags
    assert not re.search(r"https?://|@import|src=", made)
    assert outline.text.index("Findings") < outline.text.index("Pipeline")
    assert "Bubble: measured 40.0%" in outline.text
    for picture in re.findall(r"<svg viewBox.*?</svg>", made):
        ElementTree.fromstring(picture)


def test_a_finding_leads_to_what_ranks_did_around_it() -> None:
    """Rank 1 is late in each step of 100 ms; forwards and backwards of two steps are drawn."""
    store = data_parallel(Trace(3), {1: {"forward": 30}}).store()
    made = report(store)
    (at,) = [at for at, one in enumerate(made.findings) if one.kind == "straggler"]
    drawn = moments(store, made)
    (one,) = [one for one in drawn if one.finding == at]
    text = page(made, "s.mcap", drawn)
    assert f'href="#at-{at}"' in text and f'id="at-{at}"' in text
    assert html.escape(made.findings[at].advice) in text
    assert one.t1_ns == made.findings[at].t_ns
    step_ns = round(median(step.duration_ns for step in made.steps))
    assert one.t1_ns - one.t0_ns == 2 * step_ns and set(one.lanes) == {0, 1, 2}
    picture = charts.moment(one, (1,), made.begin_ns)
    spans = [s for lanes in one.lanes.values() for s in lanes["phase"] if s.label == "forward"]
    drawn_wide = [w for _, w in boxes(picture, "lane F")]
    scale = (charts.WIDTH - charts.LEFT - charts.RIGHT) / (one.t1_ns - one.t0_ns)
    within = [min(s.t1_ns, one.t1_ns) - max(s.t0_ns, one.t0_ns) for s in spans]
    assert sorted(drawn_wide) == pytest.approx(sorted(n * scale for n in within), abs=0.1)


def test_without_trouble_the_newest_step_is_drawn() -> None:
    store = two_ranks().store()
    made = report(store)
    (one,) = moments(store, made)
    assert one.finding is None and one.step == made.steps[-1].step
    assert one.t1_ns - one.t0_ns == made.steps[-1].duration_ns


def test_the_place_where_a_culprit_stands_fills_the_wait() -> None:
    span = LaneSpan(0, 20 * MS, "backward", "phase.backward")
    drawn = Moment(0, 100 * MS, {0: {"phase": (span,)}}, 0, stands="a.py:3 in f")
    wide = charts.WIDTH - charts.LEFT - charts.RIGHT
    assert boxes(charts.moment(drawn, (0,), 0), "lane bar over") == [
        pytest.approx((charts.LEFT + 0.2 * wide, 0.8 * wide), abs=0.1)
    ]


def test_the_schedule_is_in_proportion() -> None:
    pipeline = report(two_ranks().store()).pipeline
    assert pipeline is not None
    step = pipeline.typical
    assert step is not None
    picture = charts.schedule(step, 2)
    scale = (charts.WIDTH - charts.LEFT - charts.RIGHT) / (step.t1_ns - step.t0_ns)
    actions = [a for row in step.ranks for a in row.actions]
    drawn = boxes(picture, "act")
    assert len(drawn) == len(actions)
    for (x, width), action in zip(drawn, actions, strict=True):
        assert action.t1_ns is not None
        assert x == pytest.approx(charts.LEFT + (action.t0_ns - step.t0_ns) * scale, abs=0.02)
        assert width == pytest.approx((action.t1_ns - action.t0_ns) * scale, abs=0.02)


def test_the_ledgers_bars_fill_the_window() -> None:
    pipeline = report(two_ranks().store()).pipeline
    assert pipeline is not None
    picture = charts.ledger(pipeline.use)
    room = charts.WIDTH - charts.LEFT - charts.RIGHT
    widths = [width for style in ("busy", "idle") for _, width in boxes(picture, style)]
    assert sum(widths) == pytest.approx(2 * room, abs=0.1)  # two ranks
    busy = [width for _, width in boxes(picture, "busy")]
    assert sum(busy) == pytest.approx(2 * room * 0.6, abs=0.1)  # the bubble is 0.4


def test_a_slow_first_step_does_not_flatten_the_rest() -> None:
    rows = [StepRow(i, d, None, {}) for i, d in enumerate([900, 10, 10, 12])]
    root = ElementTree.fromstring(charts.steps(rows))
    bars = [float(b.get("height", 0)) for b in root.iter("rect")]
    over = [b for b in root.iter("rect") if b.get("class") == "bar over"]
    assert len(over) == 1 and bars[1] > 40  # 10 of 2.5 * 11 * 1.08 of 150 px: 50 px
    title = over[0].find("title")
    assert title is not None and title.text == "step 0: 900 ns"


def test_what_a_program_says_is_text_never_markup() -> None:
    trace = Trace(1)
    evil = "<script>alert(1)</script>\"'&"
    trace.ranks[0].collective("world", "all_reduce", 1, 2)
    store = trace.store()
    store.run.update(name=evil, argv=[evil])
    made = page(report(store), evil)
    outline = Outline(made)
    assert "script" not in outline.tags and evil in outline.text


def test_an_empty_session_makes_a_page() -> None:
    made = page(report(Trace(0).store()), "s.mcap")
    assert not Outline(made).open


def test_ticks_are_round() -> None:
    assert ticks(10) == [0, 2.5, 5, 7.5, 10]
    assert ticks(0.9, 3) == pytest.approx([0, 0.5])
    assert ticks(0) == [0] and ticks(float("nan")) == [0]


def test_the_command_can_be_pasted() -> None:
    """Into a shell: an argument with a blank stays one, as in the text."""
    store = Trace(1).store()
    store.run.update(name="r", argv=["python", "-c", "print(1, 2)"])
    made = report(store)
    command = "$ python -c 'print(1, 2)'"
    assert command in Outline(page(made, "s.mcap")).text and command in text(made)
