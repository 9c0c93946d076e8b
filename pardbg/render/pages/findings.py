"""The findings page: a line each, the selected finding in full, and its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Final

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.answers.timeline import Lanes
from pardbg.analysis.base.run import OutputLine
from pardbg.analysis.findings.finding import Finding
from pardbg.analysis.findings.kinds.stall_kinds import MissingRank
from pardbg.render.draw.advice import numbered
from pardbg.render.draw.bars import facts, rule
from pardbg.render.draw.cells import (
    Line,
    Picture,
    Segment,
    clean,
    clip,
    fit,
    left,
    line,
    line_width,
    plain,
    selected,
    spread,
    width,
    wrap,
)
from pardbg.render.draw.signs import SIGN, SIGNS
from pardbg.render.frame.activity import activity_text
from pardbg.render.frame.panels import (
    coming,
    empty,
    is_speed_judged,
    is_starting,
    seen,
    unjudged,
)
from pardbg.render.frame.stacks import Spot, Stack, spots, spots_in_reach
from pardbg.render.pages.debug import source
from pardbg.render.pages.finding_lanes import arrivals, lanes_around, ran_last, stacks_beside
from pardbg.render.pages.output import printed_last
from pardbg.render.pages.timeline import MANY, Window
from pardbg.session.source_files import Place, SourceLines

WIDE: Final = 110
"""Cells from which on the selected finding is beside the list; else below its line."""


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings, the worst first, then the newest."""
    return sorted(findings, key=lambda finding: finding.order)


def brief(findings: Sequence[Finding], cells: int) -> list[Line]:
    """Return a line for each finding."""
    return [_line(finding, cells) for finding in ordered(findings)]


def told(findings: Sequence[Finding], cells: int, said: Finding | None, room: int) -> list[Line]:
    """Return at most ``room`` lines, ending with the number of further findings: two lines each,
    more if all fit; for the finding ``said``, whose text is shown already, the advice."""
    lines: list[Line] = []
    for after, finding in zip(reversed(range(len(findings))), ordered(findings), strict=True):
        left_over = room - len(lines)
        if lines and left_over <= bool(after):
            return [*lines, line(Segment(f"  and {after + 1} more", "dim"))][:room]
        sign, style = SIGN[finding.severity]
        kind = f"{clip(clean(finding.kind), 18)}  "
        text = f"to try: {finding.advice}" if finding is said and finding.advice else finding.text
        rows = wrap(clean(text), max(16, cells - width(kind) - 2),
                    max(1, min(left_over - after, max(2, room // len(findings)))))  # fmt: skip
        lines.append(line(Segment(f"{sign} ", style), Segment(kind, "strong"), Segment(rows[0])))
        lines += [line(" " * (width(kind) + 2), Segment(row)) for row in rows[1:]]
    return lines


def judged(snapshot: Snapshot, cells: int) -> list[Line]:
    """Return lines on what was checked, for a run without findings."""
    if is_starting(snapshot):
        return [line(Segment(f"{coming(snapshot)}: little can be judged", "dim"))]
    return [
        line(Segment("  " if at else "✓ " if text.startswith("No ") else "· ", "good"),
             Segment(part, "dim"))
        for text in _looked_for(snapshot).rstrip(".").split(". ")
        for at, part in enumerate(wrap(text, cells - 2))
    ]  # fmt: skip


def _looked_for(snapshot: Snapshot) -> str:
    if snapshot.run.times == "host":
        return "No rank is missing, no operation disagrees. Speed is not judged by host times."
    if not is_speed_judged(snapshot):
        return "No rank is missing, no operation disagrees. Steps are too few to judge speed."
    return "No rank is missing, no operation disagrees, no stage stands out."


def _line(finding: Finding, cells: int) -> Line:
    sign, style = SIGN[finding.severity]
    kind = f"{clip(clean(finding.kind), 18)}  "
    text = clip(clean(finding.text), max(0, cells - width(kind) - 2))
    return line(Segment(f"{sign} ", style), Segment(kind, "strong"), Segment(text))


@dataclass(frozen=True, slots=True)
class Around:
    """Context of the selected finding."""

    lanes: Lanes
    window: Window
    """Window of the lanes, which ends at the finding's moment."""
    known: Sequence[Finding] = ()
    """All findings of a recording, including those after the cursor."""
    looking: bool = False
    """Whether findings of this moment are still being searched."""
    source: SourceLines | None = None
    """Source lines around the selected finding's place."""
    output: Sequence[OutputLine] = ()
    """Last output of the job, oldest first."""


def findings(
    snapshot: Snapshot, cells: int, rows: int, at: int = 0, around: Around | None = None
) -> Picture:
    """Return the list, worst first, with the finding number ``at`` in full."""
    around = around or Around({}, Window(0, 0))
    found = ordered(snapshot.findings)
    if not found and around.looking:
        return empty(cells, rows, "Looking for what is wrong up to this moment …")
    if not found:
        later = [] if snapshot.live else ahead(snapshot, around.known, cells - 4)
        return Picture(body=tuple(_nothing(snapshot, cells, rows, later, around)))
    at = min(max(at, 0), len(found) - 1)
    alone = len(found) == 1 and cells >= WIDE
    counts = line(Segment(f"  {_counts(found)}{' so far' * around.looking}", "dim"))
    head = () if alone else (counts, ())
    draw = _card if alone else _beside if cells >= WIDE else _under
    room = rows - len(head) - 2
    body, places, focus = draw(snapshot, found, at, cells, room, around)
    later = [] if snapshot.live else ahead(snapshot, around.known, cells - 4)
    below = later if len(body) + len(later) <= room else []
    left_over = room - len(body) - len(below)
    below = [*below, *stacks_beside(snapshot, found[at], around.output, cells - 4, left_over)]
    # Under a divider stands a blank line already.
    body += [line("  ", row) for row in below[draw is _beside :]]
    hint = _hint(found[at], cells)
    return Picture(head, tuple(body), (hint,) if hint else (), focus=focus, rows=tuple(places))


def _nothing(
    snapshot: Snapshot, cells: int, rows: int, later: Sequence[Line], around: Around
) -> list[Line]:
    """Draw that nothing was found, in what, the findings to come, what no detector judges, and
    what ran and was printed last."""
    code, why = snapshot.run.exit_code, [_looked_for(snapshot)]
    title, sign = "Nothing found.", ("✓", "good")
    if snapshot.live and (yet := coming(snapshot)):
        title, sign = "Nothing found so far.", ("○", "accent")
        why = [f"{yet}: little can be judged."]
    elif snapshot.t_ns < snapshot.t_end_ns and not snapshot.live:
        title = "Nothing found up to this moment."
        why = ["Findings appear when they could be known; the end key goes to all of them."]
    elif code:
        title, sign = f"The job ended with exit code {code}; no cause was seen.", ("✗", "bad")
    lines = [line(Segment(f" {sign[0]} ", sign[1]), Segment(title, "strong")),
             *(line("   ", Segment(part, "dim")) for text in why for part in wrap(text, cells - 4)),
             *(line("  ", row) for row in later)]  # fmt: skip
    for heading, known in (("seen", seen(snapshot)), ("not judged", unjudged(snapshot))):
        lines += [(), line(" ", rule(heading, cells - 2)), *facts(known, 10)]
    room, begin = rows - len(lines) - 1, snapshot.t_begin_ns
    last = ran_last(snapshot, around.lanes, around.window, cells - 2, room)
    last += printed_last(around.output, begin, cells - 2, room - len(last))
    return [fit(row, cells) for row in (*lines, *(line(" ", row) for row in last))]


def _counts(found: Sequence[Finding]) -> str:
    """Return ``1 error, 2 warnings, 1 note``, without zero counts."""
    names = (("error", "error"), ("warning", "warning"), ("info", "note"))
    numbers = ((sum(f.severity == s for f in found), name) for s, name in names)
    return ", ".join(words.plural(number, name) for number, name in numbers if number)


def _hint(finding: Finding, cells: int) -> Line:
    to = finding.evidence
    if to is None:
        return ()
    whom = "" if to.rank is None else f", rank {to.rank}"
    goes = Segment(f" goes to the moment on {to.screen.capitalize()}{whom}", "dim")
    hint = line(Segment("  enter", "key"), goes)
    copies = (Segment("   y", "key"), Segment(" copies all this", "dim"))
    return (*hint, *copies) if line_width((*hint, *copies)) <= cells else hint


Made = tuple[list[Line], list[int], int]
"""(lines, each line's finding, the line that must be visible)"""


def _under(
    snapshot: Snapshot, found: Sequence[Finding], at: int, cells: int, rows: int, around: Around
) -> Made:
    """Draw a line per finding, with the selected one's details below its line."""
    body: list[Line] = []
    places: list[int] = []
    for index, finding in enumerate(found):
        lines = [line("  ", _line(finding, cells - 3))]
        if index == at:
            head = _head_of(snapshot, finding, cells)
            lines = [fit(selected(head), cells, "+sel")]
            full = _full(snapshot, finding, cells - 6)[1:]
            shown = evidence(
                snapshot, finding, around, cells - 6, rows - len(found) - len(full) - 1
            )
            if not shown and arrivals(snapshot, finding):  # its sentence has the facts
                full = _full(snapshot, finding, cells - 6, brief=True)[1:]
                spare = rows - len(found) - len(full) - 1
                shown = evidence(snapshot, finding, around, cells - 6, spare)
            full += shown
            lines += [line("    ", row) for row in full]
            lines.append(())
        body += lines
        places += [index] * len(lines)
    return body, places, places.index(at)


def _beside(
    snapshot: Snapshot, found: Sequence[Finding], at: int, cells: int, room: int, around: Around
) -> Made:
    """Draw the list at the left, with as many lines per finding as fit, and the selected finding in
    full at the right."""
    left = min(64, cells * 2 // 5)
    rows: list[Line] = []
    places: list[int] = []
    for most in (12, 4, 2):  # lines of a text: as many as there is room for
        listed = [_wrapped(finding, left - 2, most) for finding in found]
        if sum(map(len, listed)) <= room:
            break
    for index, parts in enumerate(listed):
        for part in parts:
            made = fit(line(" ", part), left)
            rows.append(fit(selected(made), left, "+sel") if index == at else made)
            places.append(index)
    full = _full(snapshot, found[at], cells - left - 5)
    full += evidence(snapshot, found[at], around, cells - left - 5, room - len(full))
    body: list[Line] = []
    tall = max(len(rows), len(full))
    for index in range(tall + 1 if tall <= room else tall):  # beside the last panel's lower edge
        shown = rows[index] if index < len(rows) else fit((), left)
        right = full[index] if index < len(full) else ()
        body.append(line(*shown, Segment(" │ ", "faint"), *right))
    focus = places.index(at)
    places += [len(found) - 1] * (len(body) - len(places))
    return body, places, focus


def _card(
    snapshot: Snapshot, found: Sequence[Finding], at: int, cells: int, room: int, around: Around
) -> Made:
    """Draw the only finding over the whole width: its sentence, its facts and advice, and its
    evidence."""
    finding, size = found[at], cells - 4
    sign, style = SIGN[finding.severity]
    name = line(
        Segment(f"{sign} {clean(finding.kind)}", style), Segment("   the only finding", "dim")
    )
    body = [spread(name, line(Segment(_time(snapshot, finding), "dim")), size), ()]
    body += [line(Segment(text, "strong")) for text in wrap(_sentence(finding), size, 12)]
    known = " · ".join(f"{n} {value}" for n, value in _facts(snapshot, finding) if n != "time")
    body += [line(Segment(text, "dim")) for text in wrap(known, size, 2)]
    drawn = partial(lanes_around, snapshot, finding, around.lanes, around.window, size)
    airy, tall = drawn(apart=1), drawn(apart=1, tall=2)
    small, spare = [*airy[:1], *filter(None, airy[1:])], room - len(body) - _SOURCE
    most = ((tall, (room - len(body)) // 2), (airy, spare - _SOURCE), (small, spare))
    body += next((lanes for lanes, below in most if len(lanes) < below), [])
    body += _halves(snapshot, finding, around.source, size, room - len(body) - 1)
    return [line("  ", row) for row in body], [at] * len(body), 0


def _halves(
    snapshot: Snapshot, finding: Finding, lines: SourceLines | None, cells: int, rows: int
) -> list[Line]:
    """Draw the source of the culprit's place, or every rank's place, beside the advice."""
    half, at = cells // 2 - 1, place_of(snapshot, finding)
    every = _places(snapshot, finding, half)[1:]
    tries = numbered(finding.steps, half - 3)
    advice = [rule("what to try", half), *(line(" ", *row) for row in tries)]
    own: list[Line] = []
    if at is not None and lines is not None and lines.place == Place(at[1].file, at[1].line):
        tall = min(max(_SOURCE, rows - 1), _MOST_SOURCE)
        own = source(lines, f"rank {at[0]} · {at[1].text}", half, tall, at[2])
    parts = [own or every, advice if tries else [], every if own else []]
    other = [*parts[1], *([()] if parts[1] and parts[2] else []), *parts[2]]
    pairs = zip_longest(parts[0], other, fillvalue=())
    return [(), *(line(fit(a, half), "  ", fit(b, half)) for a, b in pairs)][: max(0, rows)]


def whole_wait(
    snapshot: Snapshot, finding: Finding, around: Around, cells: int, rows: int
) -> list[Line]:
    """Draw every rank's arrival beside the advice, then the lanes, as far as these fit."""
    made = _halves(snapshot, finding, None, cells, _ALL)
    drawn = partial(lanes_around, snapshot, finding, around.lanes, around.window, cells)
    tries = ([*made, *drawn(apart=1, tall=2)], [*made, *drawn(apart=1)], made)
    return next((lines for lines in tries if len(lines) <= rows), [])


def _wrapped(finding: Finding, cells: int, most: int) -> list[Line]:
    """Draw sign and kind of a finding, then its text, indented."""
    sign, style = SIGN[finding.severity]
    head = line(Segment(f"{sign} ", style), Segment(clip(clean(finding.kind), cells - 2), "strong"))
    parts = wrap(clean(finding.text), cells - 2, most)
    return [head, *(line("  ", Segment(part)) for part in parts)]


def _full(snapshot: Snapshot, finding: Finding, cells: int, brief: bool = False) -> list[Line]:
    """Draw a finding's text, its facts (not if ``brief``), and its advice."""
    sign, style = SIGN[finding.severity]
    lines: list[Line] = [line(Segment(f"{sign} {clean(finding.kind)}", f"{style}"))]
    lines += [line(Segment(text, "strong")) for text in wrap(_sentence(finding), cells, 12)]
    lines += [] if brief else [()]
    for name, value in [] if brief else _facts(snapshot, finding):
        lines.append(line(Segment(f"{name:9}", "dim"), Segment(clip(value, max(0, cells - 9)))))
    if finding.steps:
        lines += [(), *numbered(finding.steps, cells)]
    return lines


def _head_of(snapshot: Snapshot, finding: Finding, cells: int) -> Line:
    """Draw the kind and the time of a finding whose sentence stands below."""
    sign, style = SIGN[finding.severity]
    name = line("  ", Segment(f"{sign} ", style), Segment(clean(finding.kind), "strong"))
    return spread(name, line(Segment(f"{_time(snapshot, finding)} ", "dim")), cells)


def _sentence(finding: Finding) -> str:
    """Return the text with a capital, unless it begins with a name, such as all_reduce."""
    text = clean(finding.text)
    return text[:1].upper() + text[1:] if text.partition(" ")[0].isalpha() else text


def _facts(snapshot: Snapshot, finding: Finding) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    if finding.culprits:
        name = "culprits" if len(finding.culprits) > 1 else "culprit"
        facts.append((name, words.ranks_text(finding.culprits)))
    if finding.ranks and finding.ranks != finding.culprits:
        facts.append(("ranks", words.rank_set(finding.ranks)))
    if finding.group is not None:
        number = "" if finding.seq is None else f" #{finding.seq}"
        op = clean(finding.evidence.op) if finding.evidence is not None else ""
        facts.append(("op", op or f"{clean(finding.group)}{number}"))
    several = finding.facts.absences if isinstance(finding.facts, MissingRank) else ()
    places = [absence.place for absence in several if absence.place] or [finding.where or ""]
    if any(places):
        facts.append(("place", ", ".join(map(clean, dict.fromkeys(places)))))
    facts.append(("time", _time(snapshot, finding)))
    if finding.cost_ns_per_step is not None:
        facts.append(("costs", f"{words.duration(finding.cost_ns_per_step)} per step"))
    return facts


def _time(snapshot: Snapshot, finding: Finding) -> str:
    def at(t_ns: int) -> str:
        return words.offset(max(0, t_ns - snapshot.t_begin_ns), 1e7)

    first = finding.first_ns
    if first is None or first >= finding.t_ns:
        return f"at {at(finding.t_ns)}"
    return f"since {at(first)}, last {at(finding.t_ns)}"


_GUTTER: Final = 7
_SOURCE: Final = 8
"""Lines of source, the heading included."""
_MOST_SOURCE: Final = 20
_ALL: Final = 1 << 16
_FEW: Final = 8


def about(snapshot: Snapshot, finding: Finding) -> tuple[int, ...] | None:
    """Return some of many ranks that the finding is about, culprits first; None: show all ranks."""
    if len(snapshot.ranks) <= MANY:
        return None
    return tuple(dict.fromkeys((*finding.culprits, *finding.ranks)))[:_FEW]


def evidence(
    snapshot: Snapshot, finding: Finding, around: Around, cells: int, rows: int
) -> list[Line]:
    """Return the sections that fit into ``rows``: places first, then the source of the culprit's
    place, then the small timeline."""
    airy = lanes_around(snapshot, finding, around.lanes, around.window, cells, apart=1)
    small = [*airy[:1], *filter(None, airy[1:])]
    room = rows - len(small) if len(small) < rows - _SOURCE else rows
    made = _where(snapshot, finding, around.source, cells, room)
    made = made if len(made) <= rows else []
    spare = rows - len(made)
    return made + next((drawn for drawn in (airy, small) if len(drawn) <= spare), [])


def place_of(snapshot: Snapshot, finding: Finding) -> tuple[int, Spot, Stack] | None:
    """Return (culprit, the frame at the finding's place, the culprit's stack); None: none."""
    place = clean(finding.where or "").partition(" ")[0]
    for stack in snapshot.stacks:
        if place and stack.rank in finding.culprits:
            all_ = spots(stack.frames)
            for spot in reversed(all_):
                if spot.text.partition(" ")[0] == place:
                    return stack.rank, spot, all_
    return None


def _where(
    snapshot: Snapshot, finding: Finding, lines: SourceLines | None, cells: int, rows: int
) -> list[Line]:
    """Draw every rank's place, and the source of the culprit's place below, if there is room."""
    every, at = _places(snapshot, finding, cells), place_of(snapshot, finding)
    if at is None or lines is None or lines.place != Place(at[1].file, at[1].line):
        return every
    every = every if len(every) <= rows else []
    room, function = min(_SOURCE, rows - len(every) - 1), at[1].text.rpartition(" ")[2]
    below = source(lines, at[1].text, cells, room, at[2], f"rank {at[0]}", function)
    return [*every, (), *below] if len(below) > 2 else every


def in_plain_text(snapshot: Snapshot, finding: Finding) -> str:
    """Return the selected finding as plain text, to be copied into a message."""
    lines = [f"{finding.severity}: {clean(finding.kind)}", clean(finding.text)]
    lines += [f"{name}: {value}" for name, value in _facts(snapshot, finding)]
    lines += [f"try: {clean(step)}" for step in finding.steps]
    lines += [plain(row).rstrip() for row in _places(snapshot, finding, 96)]
    return "\n".join(lines) + "\n"


def _places(snapshot: Snapshot, finding: Finding, cells: int) -> list[Line]:
    """Draw a line per rank: its activity at the cursor, or its arrival at the op that others wait
    in, and its place; culprits are highlighted."""
    few = about(snapshot, finding)
    listed = [row for row in snapshot.ranks if few is None or row.rank in few]
    stacks = {
        stack.rank: spots(stack.frames)
        for stack in snapshot.stacks
        if few is None or stack.rank in few
    }
    came = arrivals(snapshot, finding)
    doing = {row.rank: came.get(row.rank) or activity_text(row.now) or row.state for row in listed}
    at = {row.rank: _place_now(finding, row.rank, stacks.get(row.rank, ())) for row in listed}
    longest, far = (max(map(width, of.values()), default=0) for of in (doing, at))
    half = max(cells // 2, cells - far) - _GUTTER
    size = max(12 if came else 16, min(longest + 2, half))
    title = "every rank" if few is None else f"{len(listed)} of {len(snapshot.ranks)} ranks"
    title += ", and when it came" if came else ""
    device = bool(snapshot.run.times)
    lines: list[Line] = [
        (),
        rule(title, cells, "the host, at the cursor" if device else "at the cursor"),
    ]
    for row in listed:
        sign, style = SIGNS[row.state]
        culprit = row.rank in finding.culprits
        now = left(clip(doing[row.rank], size - 1), size)
        lines.append(line(
            Segment(left(f"r{row.rank}", 5), "culprit" if culprit else ""),
            Segment(f"{sign} ", style), Segment(now),
            Segment(clip(at[row.rank], max(0, cells - size - _GUTTER)),
                    "culprit" if culprit else "dim"),
        ))  # fmt: skip
    return lines


def _place_now(finding: Finding, rank: int, stack: Stack) -> str:
    """Return the place in the stack, or, of a culprit, the finding's if that is another line."""
    own, where = spots_in_reach(stack), clean(finding.where or "")
    place = own[0].text if own else ""
    other = where and where.partition(" ")[0] != place.partition(" ")[0]
    if other and rank in finding.culprits and (len(finding.culprits) == 1 or not place):
        return where
    return place


def ahead(snapshot: Snapshot, known: Sequence[Finding], cells: int) -> list[Line]:
    """Return findings of a recording that come after the cursor, dim, by time."""
    here = {finding.identity for finding in snapshot.findings}
    yet = (f for f in known if f.t_ns > snapshot.t_ns and f.identity not in here)
    later = sorted(yet, key=lambda f: f.t_ns)
    lines: list[Line] = []
    for finding in later:
        at = words.offset(max(0, finding.t_ns - snapshot.t_begin_ns), 1e7)
        text = clip(f"{at}  {clean(finding.kind)}  {clean(finding.text)}", cells)
        lines.append(line(Segment(text, "faint")))
    head = rule(f"to come: {len(later)}", cells, ":goto finding N goes there")
    return [(), head, *lines] if lines else []
