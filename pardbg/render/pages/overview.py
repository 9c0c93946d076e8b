"""The overview page: a row per rank, and with room to spare the run's course below; and a rank in
full, for the detail panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pardbg import words
from pardbg.analysis.answers.ranks import RankNow
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.base.run import OutputLine
from pardbg.analysis.findings.finding import Finding
from pardbg.render.draw.bars import (
    Column,
    choose,
    facts,
    headings,
    keys,
    rule,
    side_by_side,
    spark,
    stacked,
    table_row,
)
from pardbg.render.draw.cells import (
    Drawn,
    Line,
    Picture,
    Segment,
    clean,
    clip,
    line,
    line_width,
    plain,
    spread,
    width,
)
from pardbg.render.draw.plots import by_step
from pardbg.render.draw.signs import SIGNS
from pardbg.render.draw.strip import cells_each, strip
from pardbg.render.frame.activity import activity_text
from pardbg.render.frame.panels import empty
from pardbg.render.frame.step_charts import Ahead, step_charts
from pardbg.render.pages.findings import ordered, told
from pardbg.render.pages.mesh.run_verdict import verdict, worst_of
from pardbg.render.pages.output import output_lines
from pardbg.render.pages.pipeline.schedule import CAUSE_WORD

_DRAWN = ("trend", "▇comp ▄wait ▂comm", "history", "steps")
"""Columns without words: a filter does not read them."""
_PARTS = (("compute", "compute"), ("waiting", "waiting"), ("comm", "under way"))
"""What a strip shows; the last has no room everywhere."""
_SIGNS = {"compute": "#", "comm": "=", "waiting": "."}
"""Part of a strip -> its sign in ASCII."""
_FRONT_CELLS, _FRONT = 100, 22
"""Cells, and rows beside the ranks, from which on the charts stand over them."""
_TALLEST = 4
"""Lines of a rank's strip where there is room for more."""


@dataclass(frozen=True, slots=True)
class OverviewPageState:
    selected: int | None = None
    contains: str = ""
    """Only ranks whose row says this."""
    ahead: Ahead | None = None
    """What a recording has behind the cursor."""
    looking: bool = False
    """Findings of this moment are still looked for."""
    known: Sequence[Finding] = ()
    """All findings of a recording, those that are still to come among them."""
    measure: int = 0
    """Of the mesh: the first of the measures that are shown."""
    turned: int = 0
    """Of the mesh: how many of its axes stand behind the others."""
    ascii: bool = False
    """The terminal has no blocks: a rank of the mesh is a digit, a step of a strip a sign."""


def overview(
    snapshot: Snapshot,
    cells: int,
    rows: int,
    look: OverviewPageState | None = None,
    printed: Sequence[OutputLine] = (),
) -> Picture:
    """Draw the page at ``cells`` x ``rows``; ``printed``: the job's last output lines, shown if
    there is room."""
    look = look or OverviewPageState()
    if not snapshot.ranks:
        return empty(cells, rows, "No rank has reported yet.",
                     "The agent starts with the first process group or collective.",
                     "9 Output shows what the job prints.")  # fmt: skip
    columns = choose(_columns(snapshot, cells), cells - 3)
    shown = snapshot.ranks
    if look.contains:
        named = [column for column in columns if column.title not in _DRAWN]
        shown = tuple(
            rank
            for rank in shown
            if look.contains.lower() in plain(table_row(named, rank, cells)).lower()
        )
    places = tuple(rank.rank for rank in shown)
    said = [()] if look.looking else verdict(snapshot, look.known, cells)
    over = (_rule_of(columns, cells),) if cells >= _FRONT_CELLS else ()
    head = (*said, *over, headings(columns))
    below: list[Line] = []
    front = cells >= _FRONT_CELLS and not look.contains
    tall = _tall(columns, rows - len(head), len(shown), front)
    spare = rows - len(head) - tall * len(shown)
    if spare >= 6 and not look.contains:
        front &= spare >= _FRONT
        most = max(5, spare // 3 - 2) if front else max(2, spare // 3)
        below = _side_by_side(snapshot, printed, cells, most)
        room = spare - len(below) - (5 if front else 3)
        charts = step_charts(snapshot, cells, room, look.ahead, look.selected)
        below = [(), *([] if front else charts), *below]
        head = (*said, (), *charts, *head[len(said) :]) if front else head
    places = tuple(rank for rank in places for _ in range(tall))
    focus = places.index(look.selected) if look.selected in places else None
    lines_ = [_line_of(snapshot, columns, at, tall, look.ascii) for at in range(tall)]

    def draw(at: int) -> Line:
        rank = shown[at // tall]
        return table_row(lines_[at % tall], rank, cells, rank.rank == look.selected)

    return Picture(head, Drawn(len(places), draw, below), focus=focus, rows=places)


def _tall(columns: Sequence[Column[RankNow]], rows: int, number: int, front: bool) -> int:
    """Return the lines of each of ``number`` ranks: more where the charts have room with them."""
    strips = any(column.title == _DRAWN[3] for column in columns)
    most = 1 if not strips else _TALLEST if front else 2
    return next((tall for tall in range(most, 1, -1) if rows - tall * number >= _FRONT), 1)


def _rule_of(columns: Sequence[Column[RankNow]], cells: int) -> Line:
    """Draw the heading over the ranks, with what their strips show."""
    order = (_PARTS[at] for at in (0, 2, 1))
    marks = keys([("█", f"strip.{style}", word) for style, word in order], 99)
    says = line(Segment(" a column is a step, from below: ", "dim"), *marks[:-1],
                Segment(marks[-1].text.rstrip(), marks[-1].style))  # fmt: skip
    says = says if any(column.title == _DRAWN[3] for column in columns) else ()
    return line(" ", rule("ranks", cells - 2 - line_width(says)), says)


def _line_of(
    snapshot: Snapshot, columns: Sequence[Column[RankNow]], at: int, tall: int, ascii_: bool
) -> list[Column[RankNow]]:
    """Return the columns of line ``at`` of a rank: the first has all, the others its strip."""

    def draws(rank: RankNow, cells: int) -> Line:
        return _strip(snapshot, rank, cells, tall, _SIGNS if ascii_ else None)[at]

    return [
        replace(column, draws=draws) if column.title == _DRAWN[3]
        else column if at == 0 else replace(column, of=None, draws=None)
        for column in columns
    ]  # fmt: skip


def _strip(
    snapshot: Snapshot, rank: RankNow, cells: int, tall: int, signs: Mapping[str, str] | None
) -> list[Line]:
    """Draw a rank's last steps, the same ones for all ranks."""
    steps, each = _steps_shown(snapshot, cells)
    known = {c.step: c for c in snapshot.courses.get(rank.rank, ())}
    columns = [
        None if (c := known.get(step)) is None
        else ((c.compute, "compute"), (c.comm, "comm"), (c.wait, "waiting"))
        for step in steps
    ]  # fmt: skip
    return strip(columns, cells, tall, each, signs)


def _steps_shown(snapshot: Snapshot, cells: int) -> tuple[list[int], int]:
    """Return the steps that strips of ``cells`` show, and the cells of each."""
    steps = sorted({course.step for own in snapshot.courses.values() for course in own})
    each = cells_each(len(steps), cells)
    return steps[-(cells // each) :], each


def _strip_head(snapshot: Snapshot, cells: int, explained: bool) -> Line:
    """Draw what a strip shows, unless ``explained`` above, and of which step the shares are."""
    number = len(_steps_shown(snapshot, cells)[0])
    titles = (
        ("last step  ",) * 2 if number == 1 else (f"last {number} steps  ", f"{number} steps  ")
    )
    newest = {own[-1].step for own in snapshot.courses.values() if own}
    of = Segment(f"step {newest.pop()}:" if len(newest) == 1 else "last step:", "dim")
    marks = [(("█"), f"strip.{style}", word) for style, word in _PARTS]
    for few in ([],) if explained else (marks, marks[:2]):  # compute and waiting at least are
        for title in titles:
            found = line(Segment(title, "dim"), keys(few, 99))
            if width(plain(found).rstrip()) + 1 + line_width((of,)) <= cells:
                return spread(found, (of,), cells)
    return line(Segment(titles[0], "dim"), keys(marks, cells - width(titles[0])))


def _columns(snapshot: Snapshot, cells: int) -> list[Column[RankNow]]:
    wide = cells >= 150
    metrics = {rank.metrics[:4] for rank in snapshot.ranks}  # often the same on all of many
    logged = max((width(_logged(values)) for values in metrics), default=0)
    culprits = snapshot.hang.culprits if snapshot.hang is not None else ()
    costs = costs_of(snapshot.findings)
    hung = snapshot.hang is not None
    drawn = any(snapshot.courses.values()) and not (hung and cells < 110)  # where, in full
    now = 36 if cells >= 110 else 26
    if drawn and not hung:
        now = 40 if wide else 20 if cells >= 110 else 18
    apart = len({rank.step for rank in snapshot.ranks}) > 1
    columns: list[Column[RankNow]] = [
        Column("rank", 4, lambda r: (str(r.rank), "culprit" if r.rank in costs else "strong"),
               align="right"),
        Column("node", 4, lambda r: ("" if r.node is None else f"n{r.node}", "dim")),
        Column("host", min(12, max([4, *(width(r.host) for r in snapshot.ranks)])),
               lambda r: (clean(r.host), "dim"), rank=6),
        Column("stage", 5, lambda r: (",".join(map(str, r.stages)), "dim"), rank=2 if drawn else 5),
        Column("now", now, wish=now if drawn else 48 if wide else 40,  # in every frame
               draws=lambda r, size: _now(r, snapshot.t_ns, size, r.rank in culprits)),
        Column("step", 6, lambda r: ("" if r.step is None else str(r.step), ""),
               rank=5 if drawn and not apart else 1, align="right"),
        Column("logged", max(6, min(logged, 28)), lambda r: (_logged(r.metrics[:4]), "dim"),
               rank=2),
        Column("step ms", 8, lambda r: (words.duration(r.step_ns[-1]) if r.step_ns else "–", ""),
               rank=4 if drawn else 2, align="right"),
        Column(_DRAWN[0], 24 if wide else 12, rank=7,
               draws=lambda r, size: (Segment(_trend(r.step_ns, size), "spark"),)),
        Column(_DRAWN[1], 24 if wide else 17, rank=3, draws=_split),
        *_course_columns(snapshot, cells),
        Column("costs", 15, lambda r: (costs.get(r.rank, ""), "culprit"),
               rank=1 if drawn else 4, align="right"),
        Column("lead", 7, lambda r: (words.duration(r.ahead and r.ahead.lead_ns), "dim"), rank=3,
               align="right"),
        Column("host-bound", 10, _host_bound, rank=3, align="right"),
        Column("cpu", 4, lambda r: _share(r.cores, "dim"), rank=3, align="right"),
        Column("memory", 9, lambda r: (words.binary_size(r.memory_bytes), ""),
               rank=3 if drawn else 2, align="right"),
        Column(_DRAWN[2], 24 if wide else 10, rank=8,
               draws=lambda r, size: (Segment(_trend(r.memory_history, size), "spark"),)),
        Column("lag", 7, _lag, rank=6 if drawn else 4, align="right"),
        Column("lost", 6, _lost, rank=1 if snapshot.dropped_records else 5, align="right"),
        Column("agent", 6, lambda r: (words.percent(r.agent_overhead), "dim"), rank=9,
               align="right"),
        Column("clock", 7, lambda r: (_clock(r.clock_error_ns), "dim"), rank=10, align="right"),
    ]  # fmt: skip
    texts = {
        "node": len({rank.node for rank in snapshot.ranks}) > 1, "logged": logged > 0,
        "stage": any(rank.stages for rank in snapshot.ranks), "costs": any(costs.values()),
        _DRAWN[0]: not drawn, _DRAWN[1]: not drawn, _DRAWN[3]: drawn,
        "comp": drawn, "wait": drawn,
        "cpu": drawn and any(rank.cores is not None for rank in snapshot.ranks),
        "lead": (timed := any(rank.ahead for rank in snapshot.ranks)), "host-bound": timed,
    }  # fmt: skip
    return [column for column in columns if texts.get(column.title, True)]


def _course_columns(snapshot: Snapshot, cells: int) -> list[Column[RankNow]]:
    """Return a rank's last steps as a strip, and the shares of the newest."""
    return [
        Column(_DRAWN[3], 40 if cells >= 110 else 20, rank=2, wish=128,
               heads=lambda size: _strip_head(snapshot, size, cells >= _FRONT_CELLS)),
        Column("comp", 4, lambda r: _share(r.compute_fraction, "strong"), rank=2, align="right",
               heads=lambda _: (Segment("comp", "compute"),)),
        Column("wait", 4, lambda r: _share(r.wait_fraction, ""), rank=2, align="right",
               heads=lambda _: (Segment("wait", "waiting"),)),
    ]  # fmt: skip


def costs_of(findings: Sequence[Finding]) -> dict[int, str]:
    """Return each culprit's ``+61.6 ms a step``, by the worst finding that blames it."""
    found: dict[int, str] = {}
    for finding in ordered(findings):
        if finding.severity != "info":
            cost = finding.cost_ns_per_step
            said = f"+{words.duration(cost)} a step" if cost else ""
            found |= {rank: said for rank in finding.culprits if not found.get(rank)}
    return found


def _share(share: float | None, style: str) -> tuple[str, str]:
    return words.percent(share, 0), style if share is not None else "faint"


def _lag(rank: RankNow) -> tuple[str, str]:
    late = (rank.lag_ns or 0) > 2e9 and rank.state != "ended"
    return words.duration(rank.lag_ns), "warn" if late else "dim"


def _host_bound(rank: RankNow) -> tuple[str, str]:
    if rank.ahead is None:
        return words.UNKNOWN, "faint"
    share = rank.ahead.host_bound
    return f"≤{words.percent(share, 0)}", "warn" if share >= 0.5 else "dim"


def _lost(rank: RankNow) -> tuple[str, str]:
    lost = rank.dropped_records
    return (words.short_count(lost), "bad") if lost else ("·", "dim")


def _logged(metrics: Sequence[tuple[str, float]]) -> str:
    """Return ``staleness 3``: the newest of the metrics that the program logs, without the loss."""
    return clean(" · ".join(f"{name} {words.number(value)}" for name, value in metrics))


def _trend(values: Sequence[int], cells: int) -> str:
    """Return values around their mean, so that steady ones lie in the middle, and both a rise and a
    fall show."""
    if not values:
        return " " * cells
    middle = (min(values) + max(values)) / 2
    half = max(max(values) - min(values), max(values) * 0.2) / 2
    return spark(values, cells, low=middle - half, high=middle + half)


def _now(rank: RankNow, now_ns: int, cells: int, culprit: bool) -> Line:
    sign, style = SIGNS[rank.state]
    text, since = activity_text(rank.now) or rank.state, ""
    age_ns = now_ns - (rank.since_ns or now_ns)
    if age_ns > 0 and (culprit or rank.state in ("waiting", "held", "stale")):
        since = " " + words.duration(age_ns)
    if rank.state == "held" and width(text) > cells - 2 - width(since):
        text, since = clean(rank.now.what) or text, ""  # the sign says held; where is what counts
    text = clip(text, cells - 2 - width(since))
    words_style = "culprit" if culprit else style if rank.state != "running" else ""
    return line(Segment(f"{sign} ", style), Segment(text, words_style),
                Segment(since, "dim"))  # fmt: skip


def _split(rank: RankNow, cells: int) -> Line:
    if rank.compute_fraction is None:
        return (Segment("–".ljust(cells), "faint"),)
    return stacked(
        [
            (rank.compute_fraction, "▇", "compute"),
            (rank.wait_fraction or 0.0, "▄", "waiting"),
            (rank.comm_fraction or 0.0, "▂", "moving"),
        ],
        cells,
    )


def _clock(error_ns: int | None) -> str:
    if error_ns is None:
        return "?"
    return "same" if error_ns == 0 else f"±{words.duration(error_ns)}"


def _side_by_side(
    snapshot: Snapshot, printed: Sequence[OutputLine], cells: int, rows: int
) -> list[Line]:
    """Draw findings and, where it is wide, the end of the output, in ``rows`` lines at most."""
    printed = printed if cells >= _FRONT_CELLS else ()
    size = cells // max(1, bool(snapshot.findings) + bool(printed)) - 2
    said = worst_of(snapshot) if snapshot.hang is None else None
    found = [line(" ", row) for row in told(snapshot.findings, size - 2, said, rows - 1)]
    last = [row for entry in printed[-(rows - 1) :]
            for row in output_lines(entry, snapshot.t_begin_ns, size, 1)]  # fmt: skip
    named = (("findings", "8 has all", found), ("output", "9 has all", last))
    panels = [panel for panel in named if panel[2]]
    return side_by_side(panels, size, min(rows - 1, max(len(found), len(last)))) if panels else []


def rank(snapshot: Snapshot, number: int, cells: int, rows: int) -> Picture:
    """Draw all facts of rank ``number`` at the cursor."""
    now = next((row for row in snapshot.ranks if row.rank == number), None)
    if now is None:
        return Picture(body=(line(Segment(f"  rank {number} is not in this run", "dim")),))
    shown: list[tuple[str, str]] = [
        ("now", f"{activity_text(now.now)} ({now.state})"),
        ("process", f"pid {now.pid} on {clean(now.host)}"
                    f"{'' if now.node is None else f' · node {now.node}'}"),
        ("stages", ",".join(map(str, now.stages)) or "no pipeline"),
        ("step", "–" if now.step is None else str(now.step)),
        ("last step", words.duration(now.step_ns[-1] if now.step_ns else None)),
        ("memory", words.binary_size(now.memory_bytes)),
        ("newest record", f"{words.duration(now.lag_ns)} old"),
        ("records lost", str(now.dropped_records)),
        ("agent's share", words.percent(now.agent_overhead, 2)),
        ("clock", _clock_words(now.clock_error_ns)),
        *((clean(name)[:17], words.number(value)) for name, value in now.metrics[:8]),
        *_pipeline(snapshot, number), *_memory(snapshot, number),
    ]  # fmt: skip
    body = facts(shown, 18)
    height = min(8, rows - len(body) - 3)
    if height >= 3 and len(now.step_ns) > 1:
        last = now.step if now.step is not None else 0
        times = [(last - at, ns) for at, ns in enumerate(reversed(now.step_ns))][::-1]
        body += [(), line(Segment("  step time", "dim"))]
        body += by_step(times, max(8, cells - 4), height, "spark", words.duration)
    return Picture(body=tuple(body))


def _clock_words(error_ns: int | None) -> str:
    if error_ns is None:
        return "not aligned yet: order against other ranks is not known"
    if error_ns == 0:
        return "the hub's own"
    return f"aligned to ±{words.duration(error_ns)}"


def _pipeline(snapshot: Snapshot, number: int) -> list[tuple[str, str]]:
    view = snapshot.pipeline
    step = (view.last_complete or view.step) if view else None
    row = next((r for r in step.ranks if r.rank == number), None) if step else None
    if row is None or step is None or not row.idle_ns:
        return []
    window = max(1, row.busy_ns + sum(row.idle_ns.values()))
    idle = ", ".join(
        f"{CAUSE_WORD[cause]} {words.percent(ns / window)}"
        for cause, ns in row.idle_ns.items()
        if ns
    )
    return [
        ("busy", f"{words.percent(row.busy_ns / window)} of step {step.step}"),
        ("idle", idle or "none"),
        ("in flight", f"{row.in_flight} now, {row.max_in_flight} at most"),
    ]


def _memory(snapshot: Snapshot, number: int) -> list[tuple[str, str]]:
    row = next((r for r in snapshot.memory if r.rank == number), None)
    if row is None:
        return []
    parts = (
        ("parameters", row.parameters_bytes), ("gradients", row.gradients_bytes),
        ("optimizer", row.optimizer_bytes), ("activations", row.activations_bytes),
    )  # fmt: skip
    return [(name, words.binary_size(value)) for name, value in parts if value is not None]


def lines(picture: Picture) -> tuple[Line, ...]:
    """Return all lines of a picture, top to bottom."""
    return (*picture.head, *picture.body, *picture.foot)
