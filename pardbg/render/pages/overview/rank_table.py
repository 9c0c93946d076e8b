"""The table of ranks: its columns, and a strip of each rank's last steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pardbg import words
from pardbg.analysis.answers.ranks import RankNow
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.findings.finding import Finding
from pardbg.render.draw.axis import nice_step
from pardbg.render.draw.bars import (
    Column,
    keys,
    rule,
    spark,
    stacked,
)
from pardbg.render.draw.cells import (
    Line,
    Row,
    Segment,
    clean,
    clip,
    line,
    line_width,
    plain,
    spread,
    width,
)
from pardbg.render.draw.signs import SIGNS
from pardbg.render.draw.strip import cells_each, strip
from pardbg.render.frame.activity import activity_text, now_title
from pardbg.render.pages.findings import ordered

DRAWN = ("trend", "▇comp ▄wait ▂comm", "history", "steps")
"""Columns without words: a filter does not read them."""
SHARES = "shares"
COLUMNS = ("rank", "node", "host", "stage", "now", "step", "logged", "step time", "trend", SHARES,
           "steps", "comp", "wait", "costs", "lead", "host-bound", "cpu", "memory", "history",
           "lag", "lost", "agent", "clock")  # fmt: skip
"""Names of the columns, for the user to choose from."""
_PARTS = (("compute", "compute"), ("waiting", "waiting"), ("comm", "under way"))
"""Parts of a strip, with their names; the last name is left out if there is no room."""
_SIGNS = {"compute": "#", "comm": "=", "waiting": "."}
"""Part of a strip -> its ASCII sign."""
FRONT_CELLS = 100
"""Cells from which on the charts are above the ranks, and both have borders."""
WIDE = 160
"""Cells from which on the pipeline is beside the charts, and all else below the ranks."""


def _mark(style: str, ascii_: bool) -> str:
    """Return the character for a part of a strip."""
    return _SIGNS[style] if ascii_ else "█"


def rule_of(columns: Sequence[Column[RankNow]], cells: int, ascii_: bool = False) -> Line:
    """Draw the heading above the ranks, with the legend of their strips."""
    says = legend_of(columns, ascii_)
    return line(" ", rule("ranks", cells - 2 - line_width(says)), says)


def legend_of(columns: Sequence[Column[RankNow]], ascii_: bool) -> Line:
    """Draw the legend of the strips; empty if there are no strips."""
    if all(column.title != DRAWN[3] for column in columns):
        return ()
    order = (_PARTS[at] for at in (0, 2, 1))
    marks = keys([(_mark(style, ascii_), f"strip.{style}", word) for style, word in order], 99)
    return line(Segment(" a column is a step, from below: ", "dim"), *marks[:-1],
                Segment(marks[-1].text.rstrip(), marks[-1].style))  # fmt: skip


def line_of(
    snapshot: Snapshot, columns: Sequence[Column[RankNow]], at: int, tall: int, ascii_: bool
) -> list[Column[RankNow]]:
    """Return the columns of line ``at`` of a rank: the first line has all, the others the strip."""

    def draws(rank: RankNow, cells: int) -> Line:
        return _strip(snapshot, rank, cells, tall, _SIGNS if ascii_ else None)[at]

    return [
        replace(column, draws=draws) if column.title == DRAWN[3]
        else column if at == 0 else replace(column, of=None, draws=None)
        for column in columns
    ]  # fmt: skip


def _strip(
    snapshot: Snapshot, rank: RankNow, cells: int, tall: int, signs: Mapping[str, str] | None
) -> list[Line]:
    """Draw a rank's last steps; all ranks show the same steps."""
    steps, each = _steps_shown(snapshot, cells)
    known = {c.step: c for c in snapshot.courses.get(rank.rank, ())}
    columns = [
        None if (c := known.get(step)) is None
        else ((c.compute, "compute"), (c.comm, "comm"), (c.wait, "waiting"))
        for step in steps
    ]  # fmt: skip
    drawn = strip(columns, cells, tall, each, signs)
    return [tuple(Segment(run.text, run.style or "strip.none") for run in row) for row in drawn]


def _steps_shown(snapshot: Snapshot, cells: int) -> tuple[list[int], int]:
    """Return the steps that strips of ``cells`` show, and the cells of each."""
    steps = sorted({course.step for own in snapshot.courses.values() for course in own})
    each = cells_each(len(steps), cells)
    return steps[-(cells // each) :], each


def _strip_head(snapshot: Snapshot, cells: int, explained: bool, ascii_: bool) -> Line:
    """Draw the legend of the strips, unless ``explained`` above, and the step of the shares."""
    number = len(_steps_shown(snapshot, cells)[0])
    titles = (
        ("last step  ",) * 2 if number == 1 else (f"last {number} steps  ", f"{number} steps  ")
    )
    newest = {own[-1].step for own in snapshot.courses.values() if own}
    of = Segment(f"step {newest.pop()}:" if len(newest) == 1 else "last step:", "dim")
    marks = [(_mark(style, ascii_), f"strip.{style}", word) for style, word in _PARTS]
    for few in ([],) if explained else (marks, marks[:2]):  # compute and waiting at least are
        for title in titles:
            found = line(Segment(title, "dim"), keys(few, 99))
            if width(plain(found).rstrip()) + 1 + line_width((of,)) <= cells:
                return spread(found, (of,), cells)
    return line(Segment(titles[0], "dim"), keys(marks, cells - width(titles[0])))


def strip_ticks(snapshot: Snapshot, columns: Sequence[Column[RankNow]]) -> list[Line]:
    """Draw the numbers of the steps below the strips; empty if there are no strips."""
    titles = [column.title for column in columns]
    if DRAWN[3] not in titles:
        return []
    at = titles.index(DRAWN[3])
    begin, cells = 2 + sum(column.size + 2 for column in columns[:at]), columns[at].size
    steps, each = _steps_shown(snapshot, cells)
    row, free = Row(cells), 0
    apart = round(nice_step(max(1, 10 / each)))
    for place, step in enumerate(steps):
        text = str(step)
        if step % apart == 0 and place * each >= free and place * each + len(text) <= cells:
            row.put(place * each, text, "dim")
            free = place * each + len(text) + 2
    return [line(Segment("step ".rjust(begin), "faint"), *row.line())] if steps else []


def columns_of(
    snapshot: Snapshot, cells: int, ascii_: bool = False, chosen: Sequence[str] = ()
) -> list[Column[RankNow]]:
    """Return the columns that apply to the run; of ``chosen`` ones those, in their order, after the
    rank."""
    wide = cells >= 150
    metrics = {rank.metrics[:4] for rank in snapshot.ranks}  # often the same on all of many
    logged = max((width(_logged(values)) for values in metrics), default=0)
    culprits = snapshot.hang.culprits if snapshot.hang is not None else ()
    costs = costs_of(snapshot.findings)
    hung = snapshot.hang is not None
    drawn = any(snapshot.courses.values()) and not (hung and cells < 110)  # where, in full
    now = 36 if cells >= 110 else 26
    if drawn and not hung:
        now = 40 if wide else 28 if cells >= 110 else 18
    apart = len({rank.step for rank in snapshot.ranks}) > 1
    columns: list[Column[RankNow]] = [
        Column("rank", 4, lambda r: (str(r.rank), "culprit" if r.rank in costs else "strong"),
               align="right"),
        Column("node", 4, lambda r: ("" if r.node is None else f"n{r.node}", "dim")),
        Column("host", min(12, max([4, *(width(r.host) for r in snapshot.ranks)])),
               lambda r: (clean(r.host), "dim"), rank=6),
        Column("stage", 5, lambda r: (",".join(map(str, r.stages)), "dim"), rank=2 if drawn else 5),
        Column("now", now, wish=now if drawn else 48 if wide else 40,  # in every frame
               heads=lambda _: line(Segment(now_title(snapshot.run.times), "dim")),
               draws=lambda r, size: _now(r, snapshot.t_ns, size, r.rank in culprits)),
        Column("step", 6, lambda r: ("" if r.step is None else str(r.step), ""),
               rank=5 if drawn and not apart else 1, align="right"),
        Column("logged", max(6, min(logged, 28)), lambda r: (_logged(r.metrics[:4]), "dim"),
               rank=2),
        Column("step time", 9, lambda r: (words.duration(r.step_ns[-1]) if r.step_ns else "–", ""),
               rank=4 if drawn else 2, align="right"),
        Column(DRAWN[0], 24 if wide else 12, rank=7,
               draws=lambda r, size: (Segment(_trend(r.step_ns, size), "spark"),)),
        Column(DRAWN[1], 24 if wide else 17, rank=3, draws=_split),
        *_course_columns(snapshot, cells, ascii_),
        Column("costs", 15, lambda r: (costs.get(r.rank, ""), "culprit"),
               rank=1 if drawn else 4, align="right"),
        Column("lead", 7, lambda r: (words.duration(r.ahead and r.ahead.lead_ns), "dim"), rank=3,
               align="right"),
        Column("host-bound", 10, _host_bound, rank=3, align="right"),
        Column("cpu", 4, lambda r: _share(r.cores, "dim"), rank=3, align="right"),
        Column("memory", 9, lambda r: (words.binary_size(r.memory_bytes), ""),
               rank=3 if drawn else 2, align="right"),
        Column(DRAWN[2], 24 if wide else 10, rank=8,
               draws=lambda r, size: (Segment(_trend(r.memory_history, size), "spark"),)),
        Column("lag", 7, _lag, rank=6 if drawn else 4, align="right"),
        Column("lost", 6, _lost, rank=1 if snapshot.dropped_records else 5, align="right"),
        Column("agent", 6, lambda r: (words.percent(r.agent_overhead), "dim"), rank=9,
               align="right"),
        Column("clock", 7, lambda r: (_clock(r.clock_error_ns), "dim"), rank=10, align="right"),
    ]  # fmt: skip
    applies = _applies(snapshot.ranks, drawn, bool(chosen))
    applies |= {"logged": logged > 0, "costs": any(costs.values())}
    there = {column.title: column for column in columns if applies.get(column.title, True)}
    return _in_order(there, chosen)


def _applies(ranks: Sequence[RankNow], drawn: bool, all_kinds: bool) -> dict[str, bool]:
    """Return whether columns that not every run has apply. ``drawn``: steps are drawn in full, in
    place of the trend and shares (with ``all_kinds``: beside them)."""
    timed = any(rank.ahead for rank in ranks)
    return {
        "node": len({rank.node for rank in ranks}) > 1, "stage": any(rank.stages for rank in ranks),
        DRAWN[0]: not drawn or all_kinds, DRAWN[1]: not drawn or all_kinds, DRAWN[3]: drawn,
        "comp": drawn, "wait": drawn,
        "cpu": drawn and any(rank.cores is not None for rank in ranks),
        "lead": timed, "host-bound": timed,
    }  # fmt: skip


def _in_order(there: Mapping[str, Column[RankNow]], chosen: Sequence[str]) -> list[Column[RankNow]]:
    """Return the chosen columns that there are, after the rank; all where none was chosen."""
    if not chosen:
        return [*there.values()]
    titles = [DRAWN[1] if name == SHARES else name for name in ("rank", *chosen)]
    return [there[name] for name in dict.fromkeys(titles) if name in there]


def _course_columns(snapshot: Snapshot, cells: int, ascii_: bool) -> list[Column[RankNow]]:
    """Return a rank's last steps as a strip, and the shares of the newest."""
    timed = snapshot.run.times == "device"
    return [
        Column(DRAWN[3], 70 if cells >= WIDE else 40 if cells >= 110 else 20, rank=2, wish=128,
               heads=lambda size: _strip_head(snapshot, size, cells >= FRONT_CELLS, ascii_)),
        Column("comp", 5 if timed else 4,
               lambda r: _share(r.compute_fraction, "strong", r.compute_is_bound), rank=2,
               align="right", heads=lambda _: (Segment("comp", "compute"),)),
        Column("wait", 4, lambda r: _share(r.wait_fraction, ""), rank=2, align="right",
               heads=lambda _: (Segment("wait", "waiting"),)),
    ]  # fmt: skip


def costs_of(findings: Sequence[Finding]) -> dict[int, str]:
    """Return culprit -> ``+61.6 ms a step``, by the worst finding that blames this rank."""
    found: dict[int, str] = {}
    for finding in ordered(findings):
        if finding.severity != "info":
            cost = finding.cost_ns_per_step
            said = f"+{words.duration(cost)} a step" if cost else ""
            found |= {rank: said for rank in finding.culprits if not found.get(rank)}
    return found


def _share(share: float | None, style: str, is_bound: bool = False) -> tuple[str, str]:
    most = "≤" if is_bound and share is not None else ""
    return most + words.percent(share, 0), style if share is not None else "faint"


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
    """Return a sparkline of the values around their mean, so that steady values are in the middle,
    and a rise and a fall are visible."""
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
    if width(text) > cells - 2 - width(since):
        held = rank.state == "held"  # the sign says it; where is what counts
        text, since = (clean(rank.now.what) if held else "") or text, ""
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
