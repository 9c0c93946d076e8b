"""Two runs, one over the other: the same page of both, and a line of differences."""

from __future__ import annotations

from collections.abc import Callable

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.render.draw.cells import Line, Picture, Segment, clean, clip, fit, line, line_width

Draw = Callable[[Snapshot, int, int], Picture]
NOTABLE = 0.02
"""Relative difference below which a figure is drawn without emphasis."""


def beside(
    first: Snapshot, second: Snapshot, name: str, by: str, note: str, draw: Draw, cells: int,
    rows: int,
) -> Picture:  # fmt: skip
    """Return the page of ``first``, a line of differences, the page of ``second``. ``name`` is the
    second run's file, ``by`` the axis by which the two are aligned."""
    upper = (rows - 1) // 2
    lower = rows - 1 - upper
    body = [
        *_cut(draw(first, cells, upper), upper, cells),
        between(first, second, name, by, note, cells),
        *_cut(draw(second, cells, lower), lower, cells),
    ]
    return Picture(body=tuple(body))


def between(first: Snapshot, second: Snapshot, name: str, by: str, note: str, cells: int) -> Line:
    """Return ``── B slow.mcap at step 42 ── step 412 → 455 ms ▲ +10.4% bubble 27.3 → 31.2% …``."""
    start: list[Segment | str] = [
        Segment("── B ", "title"),
        Segment(clip(clean(name), 32), "strong"),
        Segment(f" at the same {by}" if by == "time" else f" at {by}", "dim"),
        Segment(f" ({note})" if note else "", "warn"),
        "  ",
    ]
    for part in differences(first, second):
        if line_width(line(*start)) + line_width(part) + 2 > cells:
            break
        start += [*part, "  "]
    text = line(*start)
    return line(*text, Segment("─" * max(0, cells - line_width(text)), "rule"))


def differences(first: Snapshot, second: Snapshot) -> list[Line]:
    """Return the main differences of two runs, with a sign besides the colour."""
    parts = [_ratio("step", first.step_ns, second.step_ns, words.duration)]
    ours, other = _bubble(first), _bubble(second)
    if ours is not None and other is not None:
        by = other - ours
        parts.append(_part("bubble", words.percent(ours), words.percent(other),
                           words.change(by, unit=""), by, abs(by) >= 0.005))  # fmt: skip
    parts.append(_ratio("memory", _memory(first), _memory(second), words.binary_size))
    if first.loss is not None and second.loss is not None:
        same = first.loss == second.loss
        text = "loss equal" if same else (
            f"loss {words.number(first.loss)} → {words.number(second.loss)}"
        )  # fmt: skip
        parts.append(line(Segment(text, "dim" if same else "accent")))
    if len(first.ranks) != len(second.ranks):
        parts.append(line(Segment(f"{len(first.ranks)} → {len(second.ranks)} ranks", "warn")))
    return [part for part in parts if part]


def _memory(snapshot: Snapshot) -> int:
    """Return the rank with the highest memory use."""
    return max((row.memory_bytes or 0 for row in snapshot.ranks), default=0)


def _bubble(snapshot: Snapshot) -> float | None:
    step = snapshot.pipeline.last_complete if snapshot.pipeline is not None else None
    return step.bubble_fraction if step is not None else None


def _ratio(
    what: str, ours: int | None, other: int | None, text: Callable[[float | None], str]
) -> Line:
    if not ours or not other:
        return ()
    by = other / ours - 1
    return _part(what, text(ours), text(other), words.change(by), by, abs(by) >= NOTABLE)


def _part(what: str, ours: str, other: str, by: str, sign: float, notable: bool) -> Line:
    if not notable:
        return line(Segment(f"{what} {ours} ≈ {other}", "dim"))
    style, arrow = ("bad", "▲") if sign > 0 else ("good", "▼")
    return line(Segment(f"{what} {ours} → {other} "), Segment(f"{arrow} {by}", style))


def _cut(picture: Picture, rows: int, cells: int) -> list[Line]:
    """Return a picture in so many lines, with a count of hidden rows."""
    room = rows - len(picture.head) - len(picture.foot)
    body = list(picture.body[: max(0, room)])
    hidden = len(picture.body) - len(body)
    if hidden > 0 and body:
        body[-1] = fit(line(Segment(f"  ▼ {hidden + 1} more rows", "accent")), cells)
    body += [()] * (room - len(body))
    return [*picture.head, *body, *picture.foot][:rows]
