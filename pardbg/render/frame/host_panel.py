"""The machine panel: a host's resources, and the run's use of them."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from pardbg import words
from pardbg.analysis.answers.hosts import HostNow
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.render.draw.bars import rule, thin
from pardbg.render.draw.cells import Line, Segment, clean, clip, left, line, right

_LABEL, _FIGURE = 8, 16
_FULL = 1.0
"""Number of threads per core from which on threads take turns."""


def machine(snapshot: Snapshot, rank: int | None, cells: int) -> list[Line]:
    """Draw the host of a rank; empty if no fact about the host is known."""
    host = next((h for h in snapshot.hosts if rank in h.ranks), None)
    host = host or next(iter(snapshot.hosts), None)
    rows = [] if host is None else [*_of_host(host, cells - 2), *_of_run(snapshot, cells - 2)]
    more = len(snapshot.hosts) - 1
    if host is None or not rows:
        return []
    name = clip(clean(host.host), 16) + (f", 1 of {more + 1}" if more else "")
    return [rule("machine", cells, name), *(line(" ", row) for row in rows)]


def _of_host(host: HostNow, cells: int) -> Iterator[Line]:
    if host.cores is not None:
        said = f"{host.cores:.2f}" + (f" of {host.cpus}" if host.cpus else "")
        share = host.cores / host.cpus if host.cpus else None
        yield _row("cpu", share, f"{said} cores", "spark", cells)
    if host.load is not None:
        style = "warn" if host.load > _FULL else "spark"
        yield _row("load", min(1.0, host.load), f"{host.load:.1f} a core", style, cells)
    if host.memory_bytes is not None:
        held = words.plural(len(host.ranks), "rank")
        yield _text("memory", f"{words.binary_size(host.memory_bytes)} in {held}", cells)
    if host.devices:
        busy, hot = mean(d.percent for d in host.devices), max(d.celsius for d in host.devices)
        name = clean(host.devices[0].name)
        yield _row(
            "gpu", busy / 100, f"{words.percent(busy / 100, 0)} busy, {hot} °C", "compute", cells
        )
        yield _text("", f"{len(host.devices)} × {name}", cells)
        if reasons := sorted({reason for d in host.devices for reason in d.reasons}):
            yield _text("clocks", f"lowered: {clean(', '.join(reasons))}", cells, "warn")
    elif not host.device:
        yield _text("gpu", "none: trains on the CPU", cells, "faint")


def _of_run(snapshot: Snapshot, cells: int) -> Iterator[Line]:
    errors = [row.clock_error_ns for row in snapshot.ranks]
    if not any(errors) and None not in errors:
        yield _text("order", "exact: one clock", cells)
    elif known := [error for error in errors if error is not None]:
        yield _text("order", f"to ±{words.duration(max(known))}", cells)
    taken = [row.agent_overhead for row in snapshot.ranks if row.agent_overhead is not None]
    lost = snapshot.dropped_records
    said = f"{words.percent(max(taken))} of a step, " if taken else ""
    yield _text("pardbg", f"{said}{lost or 'none'} lost", cells, "warn" if lost else "")


def _row(label: str, share: float | None, figure: str, style: str, cells: int) -> Line:
    room = max(4, cells - _LABEL - _FIGURE - 2)
    bar = Segment(thin(share, room) if share is not None else " " * room, style)
    return line(Segment(left(label, _LABEL), "dim"), bar, "  ", Segment(right(figure, _FIGURE)))


def _text(label: str, text: str, cells: int, style: str = "") -> Line:
    return line(Segment(left(label, _LABEL), "dim"), Segment(clip(text, cells - _LABEL), style))
