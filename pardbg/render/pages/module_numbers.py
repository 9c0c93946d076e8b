"""The numbers page: modules in the order of execution, the distance of each from the reference, and
a diagnosis of the first difference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.findings.kinds.difference_words import trial_text
from pardbg.analysis.same.comparison import Row, Sameness
from pardbg.analysis.same.module_rows import WHATS, ModuleRow, Numbers
from pardbg.analysis.same.noise import RED, YELLOW
from pardbg.analysis.same.wholes import USED
from pardbg.render.draw.bars import rule
from pardbg.render.draw.cells import (
    Drawn,
    Line,
    Picture,
    Segment,
    clean,
    clip,
    fit,
    left,
    line,
    line_width,
    right,
    selected,
    wrap,
)
from pardbg.render.draw.plots import by_step
from pardbg.render.frame.panels import empty, no_match
from pardbg.render.frame.same_words import (
    checks,
    counted,
    element_lines,
    label,
    loss_line,
    not_judged,
    verdict,
    where,
)
from pardbg.render.pages.debug import source as draw_source
from pardbg.session.source_files import SourceLines
from pardbg.words import number, plural, rank_set

TWO_COLUMNS: Final = 110
_BARS: Final = 6, 9
"""Cells of a bar in a narrow table, and in a table of at least …"""
_WIDE: Final = 88
"""… this many cells."""
_DECADES: Final = 6
"""Powers of ten of a noise floor that fill a bar."""
_SIGNS: Final = {0: ("✓", "good"), 1: ("✗", "bad"), 2: ("?", "warn")}
_MOST_SAID: Final = 4
_MOST_TRIED: Final = 6
_MOST_BLOCKS: Final = 16
"""Maximum cells of a rank's blocks."""
_MOST_LOGGED: Final = 4
"""Maximum number of ranks whose logged numbers are shown."""
_TO_COMPARE: Final = (
    ("pardbg run --tensors 0-1 -o REF.mcap -- python train.py", "one rank, as the reference"),
    ("pardbg run --tensors 0-1 -o PAR.mcap -- torchrun … train.py", "this job, in parallel"),
    ("pardbg replay PAR.mcap REF.mcap", "each module's distance, on this page"),
    ("pardbg same REF.mcap PAR.mcap", "the same as text: the first tensor that differs"),
)
_ALONE: Final = ("invariants-hold", "replicas-differ", "no-replicas")
_SQUARES: Final = {"faint": "·", "good": "▁", "warn": "▄", "bad": "█"}
"""Level -> square, from unknown to the worst level."""


def numbers(
    known: Numbers | None, cells: int, rows: int, at: int = 0, contains: str = "",
    source: SourceLines | None = None, snapshot: Snapshot | None = None,
) -> Picture:  # fmt: skip
    """Draw the page at ``cells`` x ``rows``. ``at``: index of the selected module among ``listed``;
    ``source``: lines of its forward; ``snapshot``: has the numbers known without tensors."""
    if known is None:
        return empty(cells, rows, "comparing …")
    found = known.found
    if found.reason == "nothing-captured":
        return Picture(body=tuple(_uncaptured(snapshot, cells, rows)))
    modules = listed(known, contains)
    if known.modules and not modules:
        return no_match(cells, rows)
    head = [line(), *_verdict(found, cells), line()]
    foot = [*_ranks(found, cells), *_checks(found, cells)]
    wide = cells >= TWO_COLUMNS and bool(modules)
    size = cells * 4 // 7 if wide else cells
    room = rows - len(head) - len(foot)
    bar = _BARS[size >= _WIDE]
    names = max(10, size - 3 - len(WHATS) * (bar + 7))
    head.append(_heading(names, bar) if modules else ())
    side = _side(found, cells - size - 1, room - 1, source) if wide else []

    first = max(0, at + 3 - room)  # about where the pane scrolls to

    def draw(row: int) -> Line:
        own = _row(modules[row], names, bar, row == at)
        shown = side[row - first] if first <= row < first + len(side) else ()
        return fit(line(fit(own, size), " ", shown), cells)

    below = [line(" " * (size + 1), row) for row in side[len(modules) - first :]]
    if found.rows and not known.modules:  # they are of no module's forward or backward
        below += _tensors(found.rows, cells)
    elif found.reason in _ALONE and not known.modules:
        below += [line(" ", rule("to compare tensors", cells - 2)), *_ways(cells)]
    below += [] if wide else [(), *_left(found, cells)]
    indices = (*range(len(modules)), *[-1] * len(below))
    body = Drawn(len(modules), draw, below)
    return Picture(tuple(head), body, tuple(foot), at if modules else None, rows=indices)


def listed(known: Numbers | None, contains: str = "") -> list[ModuleRow]:
    """Return the modules that the page lists: those with the text in their name."""
    rows = () if known is None else known.modules
    return [row for row in rows if contains.lower() in label(row.name).lower()]


def module_detail(found: Sameness, row: ModuleRow, cells: int) -> Picture:
    """Draw the judged tensors of a module."""
    own = [one for one in found.rows if row.name in (one.name, one.name.rpartition(".")[0])]
    body = list(_tensors(own, cells, row.parts))
    for kept in found.elements:
        if row.name in (kept.name, kept.name.rpartition(".")[0]):
            body += [(), *(line("  ", clip(text, cells - 2)) for text in element_lines(kept))]
    return Picture(body=tuple(body))


def _uncaptured(snapshot: Snapshot | None, cells: int, rows: int) -> Iterator[Line]:
    """Yield the numbers known without tensors (the loss, metrics of the program), and commands that
    compare tensors."""
    yield line(
        Segment(" ○ ", "accent"),
        Segment("No tensors were captured: nothing is compared here.", "strong"),
    )
    losses = snapshot.loss_history if snapshot is not None else ()
    logged = [rank for rank in snapshot.ranks if rank.metrics] if snapshot is not None else []
    ways = _ways(cells)
    room = rows - 6 - len(ways) - (2 + min(len(logged), _MOST_LOGGED) if logged else 0)
    if losses and snapshot is not None:
        step, newest = losses[-1]
        known = f"{number(newest)} in step {step}; {plural(len(losses), 'value')}"
        yield line("   ", Segment(f"Known without them is the loss: {known}.", "dim"))
        chart = by_step(losses, cells - 2, min(room, rows // 2), "loss",
                        lambda loss: right(number(loss), 8))  # fmt: skip
        if chart:
            yield from ((), line(" ", rule("loss", cells - 2, snapshot.loss_source or "backward")))
            yield from (line(" ", row) for row in chart)
    if logged:
        yield from ((), line(" ", rule("logged by the program", cells - 2, "newest")))
        for rank in logged[:_MOST_LOGGED]:
            said = "   ".join(f"{clean(name)} {number(value)}" for name, value in rank.metrics)
            yield fit(line("  ", Segment(left(f"r{rank.rank}", 6), "strong"), said), cells)
    yield from ((), line(" ", rule("to compare tensors", cells - 2)))
    yield from ways


def _ways(cells: int) -> list[Line]:
    """Return the commands that compare tensors, each beside or over its meaning."""
    beside, size = cells >= TWO_COLUMNS, max(len(command) for command, _ in _TO_COMPARE) + 3
    lines: list[Line] = []
    for command, why in _TO_COMPARE:
        said = Segment(why, "dim")
        both = line("   ", Segment(left(command, size)), said)
        lines += [both] if beside else [line("   ", Segment(command)), line("     ", said)]
    return lines


def _tensors(
    rows: Sequence[Row], cells: int, parts: frozenset[str] = frozenset()
) -> Iterator[Line]:  # fmt: skip
    """Yield the tensors' lines. ``parts``: kinds of which a rank holds one term of a sum."""
    yield line(Segment(f"  {'step':>4} {'what':<6} {'error':>10} {'floors':>10}  tensor", "dim"))
    for one in rows:
        part = one.what in parts and one.step == rows[0].step
        style = "bad" if part else {"green": "good", "yellow": "warn", "red": "bad"}[one.level]
        figures = f"{number(one.error):>10} {number(one.floors):>10}"
        text = f"{'Σ' if part else ' '} {one.step:>4} {one.what:<6} {figures}  {label(one.name)}"
        yield line(Segment(clip(text, cells), style))
    if parts:
        yield from (
            line(),
            line(Segment("Σ: ranks have terms of it; their sum is compared", "dim")),
        )


def _verdict(found: Sameness, cells: int) -> Iterator[Line]:
    sign, style = _SIGNS[found.exit_code]
    for at, text in enumerate(wrap(verdict(found), cells - 5)):
        yield line(Segment(f" {sign if not at else ' '}  ", style), Segment(text, style))
    loss = [] if found.loss is None else [loss_line(found.loss, found.reason == "same")]
    for text in (*where(found), *loss):
        for part in wrap(text, cells - 5):
            yield line("    ", Segment(part))


def _heading(names: int, size: int) -> Line:
    heads = ("out ↓", "d_out ↑", "grad ↑")
    return line(
        Segment(left("   error / floor, log10", names + 3), "dim"),
        *(Segment(left(f"  {text}", size + 7), "dim") for text in heads),
    )


def _row(row: ModuleRow, names: int, size: int, chosen: bool) -> Line:
    name = label(row.name)
    name = f"…{name[1 - names :]}" if len(name) > names else name
    made = line(
        Segment(" ▶ " if row.first else "   ", "bad"),
        Segment(left(name, names), "strong" if row.first else ""),
        *(
            line("  ", Segment(left("Σ", size + 5), "bad")) if what in row.parts
            else _bar(row.floors.get(what), size) for what in WHATS
        ),
    )  # fmt: skip
    return selected(made) if chosen else made


def _bar(floors: float | None, size: int) -> Line:
    """Draw a bar of the power of ten of the noise floors; from one on with the number."""
    if floors is None:
        return line("  ", Segment(left("·", size + 5), "faint"))
    style = _level(floors)
    decades = math.log10(min(max(floors, 1.0), 1e99))
    long = min(size, 1 + round((size - 1) * decades / _DECADES))
    figure = "" if floors <= YELLOW else "inf" if math.isinf(floors) else f"{decades:.1f}"
    rest = Segment("▁" * (size - long), "bar.rest")
    return line("  ", Segment("█" * long, style), rest, Segment(f"{figure:>4} ", "dim"))


def _side(found: Sameness, cells: int, rows: int, source: SourceLines | None) -> list[Line]:
    """Return the panel beside the table: the collectives, the source, and tensors not judged."""
    lines = _tried(found, cells)
    if found.beside:
        note = "backward" if found.beside[0].backward else "forward"
        lines.append(
            line(" ", rule(f"collectives of {clean(found.beside[0].block)}", cells - 1, note))
        )
        lines.append(line(Segment(left("   op", 26), "dim"), Segment("here  siblings", "dim")))
        for one in found.beside:
            text = left(f"   {one.op} over {clean(one.group)}", 26)
            here = Segment(f"{one.times:>4}", "bad" if one.times != one.usual else "")
            lines.append(line(text, here, f"  {one.usual:>8}"))
        lines.append(())
    place = found.place
    if place is not None and place.source:
        title = f"{clean(place.source)} · {clean(place.kind)}"
        code = draw_source(source, title, cells, max(5, rows // 2))
        lines += [*(code or [line(" ", rule(title, cells - 2))]), ()]
    return [*lines, *_left(found, cells)]


def _tried(found: Sameness, cells: int) -> list[Line]:
    """Return the hypotheses tried for the first differing tensor, with the error of each."""
    if not found.tried:
        return []
    lines = [line(" ", rule("what it is", cells - 1, "error / floor"))]
    known, size = found.hypothesis, max(10, cells - 18)
    for one in found.tried[:_MOST_TRIED]:
        fits = known is not None and known.cause == one.cause and known.factor == one.factor
        mark = Segment(" ✓ " if fits else " ✗ ", "good" if fits else "dim")
        text = Segment(left(clip(trial_text(one), size), size), "" if fits else "dim")
        lines.append(line(mark, text, Segment(f"{number(one.floors):>10}", "" if fits else "dim")))
    return [*lines, ()]


def _left(found: Sameness, cells: int) -> list[Line]:
    if not found.left:
        return []
    lines = [line(" ", rule("not compared", cells - 1))]
    for one in found.left[:_MOST_SAID]:
        lines += [
            line("   ", Segment(text, "dim")) for text in wrap(not_judged(one), cells - 5, limit=3)
        ]
    return lines


def _ranks(found: Sameness, cells: int) -> list[Line]:
    """Draw which ranks have differing tensors, by block: equal ranks as one row, as many as fit."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for one in found.ranks:
        alike.setdefault(tuple(map(_level, one.floors)), []).append(one.rank)
    if not any("bad" in levels for levels in alike):
        return []
    blocks = [label(found.blocks[0]), *[label(found.blocks[-1])] * (len(found.blocks) > 1)]
    made, rest = line(Segment(" rank × block  ", "dim")), len(found.ranks)
    note = f"  {' … '.join(blocks)}"
    for levels, ranks in alike.items():
        shown = line(
            f"r{rank_set(ranks)} ",
            *(Segment(_SQUARES[level], level) for level in _narrowed(levels)), "  ",
        )  # fmt: skip
        if line_width((*made, *shown)) + len(note) + 6 > cells:
            break
        made, rest = line(*made, *shown), rest - len(ranks)
    more = f"+{rest}" if rest else ""
    return [fit(line(*made, Segment(more, "dim"), Segment(note, "dim")), cells)]


def _level(floors: float | None) -> str:
    if floors is None:
        return "faint"
    return "good" if floors <= YELLOW else "warn" if floors <= RED else "bad"


def _narrowed(levels: Sequence[str]) -> list[str]:
    """Return the worst level of adjacent blocks, if there are many blocks."""
    step = -(-len(levels) // _MOST_BLOCKS)
    groups = (levels[at : at + step] for at in range(0, len(levels), step))
    return [max(group, key=list(_SQUARES).index) for group in groups]


def _checks(found: Sameness, cells: int) -> list[Line]:
    """Return the checks of inputs, initial parameters and random numbers, if tensors were
    compared."""
    if found.reason in _ALONE and not found.rows:
        return [line(Segment("  replicas alone: give a second recording as the reference", "dim"))]
    if not found.rows:
        return []
    if all(row.what == USED for row in found.rows):
        return [line(Segment(f"  {counted(found)}: no reference is needed to say so", "dim"))]
    parts = [
        line(Segment(" ✓ " if good else " ✗ ", "good" if good else "warn"), Segment(text, "dim"),
             " ") for good, text in checks(found)
    ]  # fmt: skip
    return [fit(line(Segment(f"  {counted(found)}  "), *parts), cells)]
