"""The answer of ``pardbg same`` as one HTML page, with the contents of the screen ``0 Numbers``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from pardbg.analysis.same.comparison import Row, Sameness
from pardbg.analysis.same.module_rows import WHATS, ModuleRow, Numbers
from pardbg.analysis.same.noise import RED, YELLOW
from pardbg.render.draw.svg import CHAR_PX, Svg
from pardbg.render.draw.svg import escape as _e
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
from pardbg.render.reports.html_parts import document, figure, key, more, section, table
from pardbg.session.source_files import SourceLines
from pardbg.words import number

MAX_ROWS: Final = 64
_STYLE: Final = {0: "good", 1: "error", 2: "warning"}
_WIDTH, _ROW, _NUMBER = 1000.0, 17.0, 44.0
_DECADES: Final = 6
"""Powers of ten of a noise floor that fill a bar."""
_AROUND: Final = 6
"""Lines of source before and after the module's."""


def same_page(known: Numbers, title: str, source: SourceLines | None) -> str:
    """Return the page. ``title``: the sessions' names; ``source``: the lines of the first differing
    module's forward."""
    found = known.found
    return document(
        f"same {title}",
        (
            f"<h1>pardbg same<small>{_e(title)}</small></h1>", _verdict(found),
            _modules(known.modules), _collectives(found), _source(found, source), _rows(found),
            _elements(found), _left(found),
        ),
    )  # fmt: skip


def _verdict(found: Sameness) -> str:
    loss = [] if found.loss is None else [loss_line(found.loss, found.reason == "same")]
    lines = "".join(f"<p>{_e(text)}</p>" for text in (*where(found), *loss))
    known = " · ".join(f"{'✓' if good else '✗'} {text}" for good, text in checks(found))
    told = f'<p class="dim">{_e(counted(found))} · {_e(known)}</p>' if found.rows else ""
    box = f'<div class="finding {_STYLE[found.exit_code]}"><b>{_e(verdict(found))}</b></div>'
    return box + lines + told


def _modules(rows: Sequence[ModuleRow]) -> str:
    if not rows:
        return ""
    names = min(320.0, 30 + CHAR_PX * max(len(label(row.name)) for row in rows))
    each = (_WIDTH - names) / len(WHATS)
    svg = Svg(_WIDTH, 22 + _ROW * len(rows), "modules by error in noise floors")
    for at, head in enumerate(("out ↓", "d_out ↑", "grad ↑")):
        svg.text(names + at * each, 12, head, "t dim")
    for index, row in enumerate(rows):
        top = 20 + _ROW * index
        mark, style = ("▶ ", "t strong") if row.first else ("", "t")
        svg.text(names - 8, top + 12, f"{mark}{label(row.name)}", style, "end")
        for at, what in enumerate(WHATS):
            _cell(svg, row, what, names + at * each, top, each - _NUMBER)
    levels = ("green", f"up to {YELLOW} floors"), ("yellow", f"up to {RED}"), ("red", "more")
    caption = "Error in noise floors, log10, in the order of execution; Σ: one term of a sum. "
    keys = [key(f"level {level}", words) for level, words in levels]
    return section("Modules", figure(svg.markup(), caption, keys))


def _cell(svg: Svg, row: ModuleRow, what: str, x: float, top: float, room: float) -> None:
    floors = row.floors.get(what)
    if what in row.parts:
        svg.text(x, top + 12, "Σ", "t strong")
    elif floors is None:
        svg.text(x, top + 12, "·", "t dim")
    else:
        decades = math.log10(min(max(floors, 1.0), 1e99))
        level = "green" if floors <= YELLOW else "yellow" if floors <= RED else "red"
        width = max(4.0, room * min(1.0, decades / _DECADES))
        title = f"{what} of {label(row.name)}: {number(floors)} noise floors"
        svg.rect(x, top + 2, width, _ROW - 4, f"level {level}", title)
        if level != "green":
            text = "inf" if math.isinf(floors) else f"{decades:.1f}"
            svg.text(x + width + 5, top + 12, text, "t dim")


def _collectives(found: Sameness) -> str:
    if not found.beside:
        return ""
    rows = [(one.op, one.group, str(one.times), str(one.usual)) for one in found.beside]
    body = table(("op", "group", "here", "siblings"), rows, left=2)
    first = found.beside[0]
    phase = "backward" if first.backward else "forward"
    return section(f"Collectives of {first.block}", body, phase)


def _source(found: Sameness, source: SourceLines | None) -> str:
    if found.place is None or not found.place.source:
        return ""
    if source is None or not source.lines:
        body = f'<p class="dim">{_e("" if source is None else source.note)}</p>'
        return section(found.place.source, body, found.place.kind)
    at = source.place.line - source.first
    begin = max(0, at - _AROUND)
    lines = [
        f"{source.first + index:>5} {'▶' if index == at else ' '} {text}"
        for index, text in enumerate(source.lines[begin : at + 2 * _AROUND], begin)
    ]
    body = "\n".join(map(_e, lines))
    return section(found.place.source, f"<pre>{body}</pre>", found.place.kind)


def _rows(found: Sameness) -> str:
    off: list[Row] = [row for row in found.rows if row.level != "green"]
    if not off:
        return ""
    cells = [
        (row.level, row.what, label(row.name), str(row.step), number(row.error), number(row.floors))
        for row in off[:MAX_ROWS]
    ]
    body = table(("", "what", "tensor", "step", "error", "floors"), cells, left=3)
    return section("Tensors that differ", body + more(off, MAX_ROWS), "in the order of execution")


def _elements(found: Sameness) -> str:
    lines = "\n".join(_e(text) for one in found.elements for text in element_lines(one))
    return section("Elements that differ", f"<pre>{lines}</pre>") if lines else ""


def _left(found: Sameness) -> str:
    lines = "".join(f'<p class="dim">{_e(not_judged(one))}</p>' for one in found.left)
    return section("Not compared", lines) if lines else ""
