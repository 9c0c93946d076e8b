"""The start screen: live, killed and recorded runs with their worst finding, and a preview of the
one under the cursor."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

from pardbg import words
from pardbg.render.draw.bars import Column, choose, dots, facts, headings, rule, table_row
from pardbg.render.draw.cells import (
    Line,
    Picture,
    Segment,
    clean,
    clip,
    fit,
    left,
    line,
    right,
    spread,
    width,
    wrap,
)
from pardbg.render.draw.plots import by_step
from pardbg.render.draw.regions import Region, framed
from pardbg.render.draw.signs import SIGN, SIGNS
from pardbg.session.digest import Digest

Kind = Literal["live", "dead", "recording"]
PREVIEW: Final = 110
"""Cells from which on the chosen run has a preview beside the list; else two lines below it."""
_PREVIEW_CELLS: Final = 34
_ROOMY: Final = 110
"""Cells of a list from which on it has room for a long course of step times."""
_TITLES: Final[dict[Kind, str]] = {"live": "Live", "dead": "Killed", "recording": "Recordings"}
_MOST_KILLED: Final = 3
"""Killed runs that are listed if not everything fits and none of them is chosen."""
STARTS: Final = (
    ("pardbg watch torchrun … train.py", "your job, unchanged"),
    ("pardbg demo 1f1b", "a real pipeline on 4 ranks, here"),
    ("pardbg demo fault:missing-rank", "a hang, found in 3 s"),
    ("pardbg rehearse --world-size 1024", "a large job without GPUs"),
    ("pardbg explain LOG", "what a job's log says"),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A run in the list."""

    kind: Kind
    name: str
    target: str
    """Path of the recording, or id of the run."""
    since_ns: int
    """Wall clock (epoch ns) of a live run's begin; of a killed run's end; of a file's last
    write."""
    note: str = ""
    """Text known without reading the recording."""
    path: str = ""
    """Path of the recording; empty: no readable recording."""
    digest: Digest | str | None = None
    """Summary of the recording; a string: the reason why it cannot be read; None: not read yet."""

    @property
    def recorded_ns(self) -> int:
        """Return the wall clock of the run's begin; before the file was read, of its last write."""
        return (self.digest.began_ns if isinstance(self.digest, Digest) else 0) or self.since_ns

    def says(self, text: str) -> bool:
        """Return whether the entry matches a search for ``text``."""
        worst = _worst(self)[0]
        return text.lower() in f"{self.name} {self.target} {self.note} {worst}".lower()


def start_page(
    entries: Sequence[Entry], at: int, cells: int, rows: int, now_ns: int, search: str = "",
    lessons: Sequence[tuple[str, int, int]] = (),
) -> Picture:  # fmt: skip
    """Draw the list with entry number ``at`` chosen, in the cells that the preview leaves;
    ``lessons``: (title, answered, ideas)."""
    beside = cells >= PREVIEW and bool(entries)
    size = cells - preview_cells(cells) - 2 if beside else cells
    columns: Sequence[Column[Entry]] = ()
    body: list[Line] = []
    places: list[int] = []
    folded = _folded(entries, at, rows) if entries else range(0)
    own = own_names(entries)
    for index, entry in enumerate(entries):
        if index in folded:
            if index == folded[0]:
                body.append(line("    ", Segment(f"… {len(folded)} more killed", "dim")))
                places.append(index)
            continue
        if not index or entry.kind != entries[index - 1].kind:
            columns = choose(_columns(size, now_ns, entry.kind, own), size - 3)
            body += [(), _heading(entry.kind, columns, size)] if body else [
                _heading(entry.kind, columns, size)
            ]  # fmt: skip
            places += [-1] * (len(body) - len(places))
        body.append(table_row(columns, entry, size, index == at))
        places.append(index)
        if index == at and not beside:
            more = [line("    ", Segment(clip(text, cells - 5), "dim")) for text in _brief(entry)]
            body += more
            places += [-1] * len(more)
    if not entries:
        text = f"Nothing has “{clean(search)}”." if search else "No run yet: nothing is recorded."
        body.append(line("  ", Segment(text, "strong")))
    tall = len(body) + len(lessons) + len(STARTS) + 4 <= rows
    for section in (_lessons(lessons, size, 1 if tall else 2), _starts(size)):
        body += section if len(body) + len(section) <= rows else []
    places += [-1] * (len(body) - len(places))
    focus = places.index(at) if at in places else None
    return Picture(body=tuple(body), focus=focus, rows=tuple(places), cells=size)


def _folded(entries: Sequence[Entry], at: int, rows: int) -> range:
    """Return the killed runs to fold into one line, where they would push recordings off the
    screen: all but the first few, as long as none is chosen."""
    dead = [index for index, entry in enumerate(entries) if entry.kind == "dead"]
    fits = len(entries) + 8 <= rows or entries[-1].kind == "dead"
    if fits or at in dead or len(dead) <= _MOST_KILLED + 1:
        return range(0)
    return range(dead[_MOST_KILLED], dead[-1] + 1)


def preview_cells(cells: int) -> int:
    """Return the cells of the preview on a screen of so many cells; 0: there is no preview."""
    return max(_PREVIEW_CELLS, cells * 3 // 10) if cells >= PREVIEW else 0


def with_preview(lines: Sequence[Line], shown: Sequence[Line], cells: int) -> list[Line]:
    """Return the lines of the list on the screen with the preview beside them, framed."""
    size = preview_cells(cells)
    rows = [line(fit(row, cells - size - 2), " ", *fit(shown[at] if at < len(shown) else (), size))
            for at, row in enumerate(lines)]  # fmt: skip
    panel = Region("", cells - size - 1, 0, size, len(rows))
    return framed(rows, [panel], None, cells)


def _heading(kind: Kind, columns: Sequence[Column[Entry]], cells: int) -> Line:
    title = Segment(left(_TITLES[kind], 20), "title")
    return fit(line(" ", title, *_after(headings(columns), 21)), cells)


def _after(row: Line, at: int) -> Line:
    """Return the text of a line from cell ``at`` on."""
    text = "".join(run.text for run in row)
    return line(Segment(text[at:], "dim"))


def own_names(entries: Sequence[Entry]) -> dict[str, str]:
    """Return target -> what tells it from others of its name: the parts of the file's name or of
    the run's id in which they differ."""
    alike = defaultdict[str, list[Entry]](list)
    for entry in entries:
        alike[_called(entry)].append(entry)
    own: dict[str, str] = {}
    for same in (group for group in alike.values() if len(group) > 1):
        parts = [_id(entry).split("-") for entry in same]
        most = min(map(len, parts)) - 1
        shared = next((n for n in range(most) if len({row[n] for row in parts}) > 1), most)
        own |= {one.target: "-".join(row[shared:]) for one, row in zip(same, parts, strict=True)}
    return own


def _id(entry: Entry) -> str:
    return Path(entry.target).stem if entry.kind == "recording" else entry.target


def _columns(
    cells: int, now_ns: int, kind: Kind, own: Mapping[str, str]
) -> list[Column[Entry]]:  # fmt: skip
    when = "ended" if kind == "dead" else "began"
    return [
        Column("", 18, draws=partial(_name, own=own), wish=32),
        Column(when, 6, lambda e: (_when(e, now_ns), "dim"), rank=4, align="right"),
        Column("ranks", 5, lambda e: (_of(e, _num_ranks), ""),
               rank=1, align="right"),
        Column("length", 9, lambda e: (_of(e, lambda d: words.duration(d.length_ns)), "dim"),
               rank=3, align="right"),
        Column("worst finding", 18, _worst, wish=26),
        Column("step time", 13 if cells < _ROOMY else 32, draws=_steps, rank=2, align="right"),
    ]  # fmt: skip


def _name(entry: Entry, cells: int, own: Mapping[str, str]) -> Line:
    sign, style = {"live": ("●", "good"), "dead": ("✗", "bad"), "recording": (" ", "")}[entry.kind]
    more = clip(clean(own.get(entry.target, "")), max(0, cells - 8))
    room = cells - 2 - (width(more) + 1 if more else 0)
    name = Segment(clip(clean(_called(entry)), room), "strong")
    return line(Segment(f"{sign} ", style), name, Segment(f" {more}" if more else "", "dim"))


def _called(entry: Entry) -> str:
    return entry.digest.name if isinstance(entry.digest, Digest) else entry.name


def _of(entry: Entry, of: Callable[[Digest], str]) -> str:
    return of(entry.digest) if isinstance(entry.digest, Digest) else ""


def _steps(entry: Entry, cells: int) -> Line:
    """Draw the course of the step times, with their median."""
    return line(Segment(_dots(entry.digest, cells - 9), "spark"),
                Segment(right(_of(entry, _median), 9), "strong"))  # fmt: skip


def _num_ranks(found: Digest) -> str:
    return words.count(found.num_ranks) if found.num_ranks else ""


def _median(found: Digest) -> str:
    times = sorted(ns for _, ns in found.times)
    return words.duration(times[len(times) // 2]) if times else ""


def _when(entry: Entry, now_ns: int) -> str:
    """Return ``10:41`` of today, ``Mon`` of this week, else ``22 Nov``; empty: not known."""
    at_ns = entry.since_ns
    if entry.kind == "recording":  # its last write is no begin
        at_ns = entry.digest.began_ns if isinstance(entry.digest, Digest) else 0
    if not at_ns:
        return ""
    age_s, then = (now_ns - at_ns) / 1e9, time.localtime(at_ns / 1e9)
    if then[:3] == time.localtime(now_ns / 1e9)[:3]:
        return time.strftime("%H:%M", then)
    return time.strftime("%a" if age_s < 6 * 86_400 else "%d %b", then)


def _worst(entry: Entry) -> tuple[str, str]:
    """Return the worst finding with its culprits, and its style."""
    if isinstance(entry.digest, str):
        return ("◷ starting", "dim") if entry.kind == "live" else ("cannot be read", "bad")
    if entry.digest is None:
        return entry.note or "…", "dim"
    found = [finding for finding in entry.digest.findings if finding.severity != "info"]
    if not found:
        if any(finding.kind == "interrupted" for finding in entry.digest.findings):
            return f"{SIGNS['ended'][0]} ended", "dim"  # on purpose, whatever its exit code
        if entry.digest.exit_code:
            return f"✗ exit code {entry.digest.exit_code}", "bad"
        if not entry.digest.times:
            return ("◷ starting" if entry.kind == "live" else "no step ended"), "dim"
        return ("✓ nothing so far" if entry.kind == "live" else "✓ nothing"), "dim"
    sign, style = SIGN[found[0].severity]
    whose = f" r{words.rank_set(found[0].culprits)}" if found[0].culprits else ""
    return f"{sign} {clean(found[0].kind)}{whose}", style


def _dots(found: Digest | str | None, cells: int) -> str:
    """Return the course of the step times."""
    values = [ns for _, ns in found.times][-2 * cells :] if isinstance(found, Digest) else []
    if len(values) < 2:
        return " " * cells
    return dots(values, cells, min(values), max(max(values), min(values) * 1.1))


def _brief(entry: Entry) -> list[str]:
    """Return two lines about the chosen entry, if it has no preview."""
    found = entry.digest
    if not isinstance(found, Digest):
        return [found or entry.note or entry.target]
    grave = found.findings[0].text if found.findings else _sentence(found)
    return [clean(grave), clean(" ".join(found.argv) or entry.target)]


def _sentence(found: Digest) -> str:
    parts = [found.schedule] if found.schedule else []
    parts.append(words.plural(found.num_ranks, "rank"))
    if found.step is not None:
        parts.append(f"step {found.step}")
    return f"nothing found: {', '.join(parts)}"


def preview(entry: Entry, cells: int, rows: int, pipeline: Sequence[Line] = ()) -> list[Line]:
    """Draw a run's verdict, the picture of its ``pipeline``, step time, loss and facts."""
    found = entry.digest
    step = f"step {found.step}" if isinstance(found, Digest) and found.step is not None else ""
    lines: list[Line] = [rule(clip(clean(_called(entry)), cells - 16), cells, step)]
    if not isinstance(found, Digest):
        dead = entry.kind == "dead"
        text = found or entry.note or "reading …"
        text += f"; `pardbg postmortem {entry.target} -o S.mcap` recovers its recording" * dead
        return [*lines, *(line(Segment(part)) for part in wrap(clean(text), cells, 6))]
    text, style = _worst(entry)
    lines.append(line(Segment(text, "strong" if style == "dim" else style)))
    said = found.findings[0].text if found.findings else ""
    lines += [line(Segment(part, "dim")) for part in wrap(clean(said), cells, 4)]
    lines += [(), *pipeline] if pipeline else []
    hosts = words.plural(found.num_hosts, "host")
    where = f"{found.num_ranks} on {hosts}" if found.num_ranks else ""
    bubble = found.pipeline.bubble_fraction if found.pipeline is not None else None
    known = [
        ("ranks", ", ".join(filter(None, (where, found.backend)))),
        ("schedule", found.schedule),
        ("bubble", words.percent(bubble) if bubble is not None else ""),
        ("exit code", "" if found.exit_code is None else str(found.exit_code)),
        ("command", " ".join(found.argv)),
        ("file", f"{Path(entry.target).name}, {words.size(found.num_bytes)}"),
    ]
    shown = facts([(name, clip(clean(text), cells - 13)) for name, text in known if text], 11)
    height = max(0, min(14, (rows - len(lines) - len(shown) - 5) // 2))
    for title, values, ink, of, note in (
        ("step time", found.times, "spark", words.duration, f"median {_median(found)}   last "),
        ("loss", found.losses, "loss", words.number, ""),
    ):
        if height > 4 and len(values) > 1:
            newest = line(Segment(note, "dim"), Segment(of(values[-1][1]), ink))
            lines += [(), spread(line(Segment(title, "dim")), newest, cells)]
            lines += by_step(values, cells, height, ink, of)
    return [*lines, (), *shown]


def _lessons(lessons: Sequence[tuple[str, int, int]], cells: int, columns: int) -> list[Line]:
    """Draw the lessons in one or two columns, with a mark at the next lesson to do."""
    if not lessons:
        return []
    done = [answered >= ideas for _, answered, ideas in lessons]
    coming, half = done.index(False) if False in done else 0, -(-len(lessons) // columns)
    room = (cells - 5) // columns
    drawn = []
    for at, (title, _, _) in enumerate(lessons):
        sign, style = ("✓", "good") if done[at] else ("▸", "accent") if at == coming else ("·", "")
        text = Segment(
            f" {at + 1:>2}  {clip(title, room - 7)}", "strong" if at == coming else "dim"
        )
        drawn.append(fit(line(Segment(sign, style), text), room))
    name = Segment(left("Learn", 20), "title")
    said = Segment(f"{len(lessons)} lessons on real runs, {sum(done)} done: l goes on", "dim")
    rows = [line("    ", *drawn[at], *(drawn[at + half] if at + half < len(drawn) else ()))
            for at in range(half)]  # fmt: skip
    return [(), fit(line(" ", name, said), cells), *rows]


def _starts(cells: int) -> list[Line]:
    lines: list[Line] = [(), line(" ", Segment("Start something", "title"))]
    for command, text in STARTS:
        lines.append(line("    ", Segment(left(command, 38)),
                          Segment(clip(text, max(0, cells - 43)), "dim")))  # fmt: skip
    return lines


def head_line(entries: Sequence[Entry], folder: str, now_ns: int, cells: int) -> Line:
    """Return the header: the number of runs of each kind, and the folder of recordings."""
    counts = {kind: sum(entry.kind == kind for entry in entries) for kind in _TITLES}
    parts = [Segment(" pardbg ", "brand"), Segment(f"  {counts['live']}", "strong+head"),
             Segment(" live   ", "bar.header")]  # fmt: skip
    if counts["dead"]:
        parts += [Segment(str(counts["dead"]), "bad+head"), Segment(" killed   ", "bar.header")]
    files = "recording" if counts["recording"] == 1 else "recordings"
    parts += [
        Segment(str(counts["recording"]), "strong+head"),
        Segment(f" {files}   {folder}" if cells >= 100 else f" {files}", "bar.header"),
    ]
    clock = line(Segment(f"{words.clock(now_ns)} " if cells >= 60 else "", "dim+head"))
    return fit(spread(parts, clock, cells), cells, "bar.header")
