"""Pages without data, and panels: the help, the bookmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pardbg import words
from pardbg.analysis.answers.ranks import RankNow
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.base.run import OutputLine
from pardbg.analysis.findings.speed.windows import LEAST, WARM_UP
from pardbg.render.draw.bars import rule
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
    width,
    wrap,
)
from pardbg.render.draw.signs import has_utf8
from pardbg.render.frame.activity import activity_text
from pardbg.store.history import Bookmark


def empty(cells: int, rows: int, title: str, *why: str) -> Picture:
    """Return a calm page that states what is missing, and where to look or what to do."""
    lines: list[Line] = [()] * max(1, rows // 3)
    lines.append(_centred(title, cells, "strong"))
    lines.append(())
    for text in why:
        lines += [_centred(part, cells, "dim") for part in wrap(text, max(20, cells - 8))]
    return Picture(body=tuple(lines))


def no_match(cells: int, rows: int) -> Picture:
    """Return a page for a filter that matches no row."""
    return empty(cells, rows, "Nothing matches the filter.", "esc clears it.")


def coming(snapshot: Snapshot) -> str:
    """Return the progress of a starting job; empty once a rank has ended a training step."""
    here, size = len(snapshot.ranks), snapshot.run.world_size
    come = f"{'has' if here == 1 else 'have'} come"
    if here < size:
        return f"{here} of {words.plural(size, 'rank')} {come}"
    if not here:
        return "No rank has come yet"
    ended = any(rank.step_ns for rank in snapshot.ranks)
    return "" if ended else f"{words.plural(here, 'rank')} {come}, no whole step is in yet"


def is_speed_judged(snapshot: Snapshot) -> bool:
    """Return whether enough steps have ended for findings of speed, as far as these need steps."""
    return not 0 < len(snapshot.steps) < WARM_UP + LEAST


def is_starting(snapshot: Snapshot) -> bool:
    """Return whether the job goes on and no rank has ended a step yet."""
    goes_on = snapshot.live or snapshot.t_ns < snapshot.t_end_ns
    return goes_on and snapshot.run.exit_code is None and bool(coming(snapshot))


def seen(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Return (name, figures) of what the detectors had."""
    here, size = len(snapshot.ranks), snapshot.run.world_size
    hosts = words.plural(snapshot.run.num_hosts, "host")
    rows = [("ranks", f"{here}{f' of {size}' * (size > here)} on {hosts}")]
    times = sorted(row.duration_ns for row in snapshot.steps)
    if times and not snapshot.run.rehearsed:
        newest = "newest " * (snapshot.steps[0].step > 0)
        middle = words.duration(times[len(times) // 2])
        rows.append(("steps", f"{newest}{len(times)} whole, {middle} in the median"))
    if losses := snapshot.loss_history:
        first, last = (words.number(value) for _, value in (losses[0], losses[-1]))
        rows.append(("loss", f"{first} → {last} in {words.plural(len(losses), 'value')}"))
    memory = [rank.memory_bytes for rank in snapshot.ranks if rank.memory_bytes]
    if memory:
        least, most = (words.binary_size(of(memory)) for of in (min, max))
        rows.append(("memory", f"{least} a rank" if least == most else f"{least} – {most} a rank"))
    return rows


def unjudged(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Return (name, reason) of what no finding is about in this run."""
    rows = []
    if snapshot.run.rehearsed:
        rows.append(("speed", "times of a rehearsal count events"))
    elif snapshot.run.times == "host":
        rows.append(("speed", "times are the host's"))
    elif not is_speed_judged(snapshot):
        rows.append(("speed", "steps are too few"))
    if not snapshot.loss_history:
        rows.append(("loss", "none is known: pardbg_agent.log(loss=…) tells it"))
    rows.append(("results", "0 Numbers compares a run with its reference"))
    return rows


def starting(
    snapshot: Snapshot, cells: int, rows: int, lacks: str, printed: Sequence[OutputLine] = ()
) -> Picture:
    """Draw the known facts of a starting job: its ranks, each one's activity, the newest line of
    output; ``lacks`` describes the page's later contents."""
    here, size = len(snapshot.ranks), snapshot.run.world_size
    whose = f"{here} of {words.plural(size, 'rank')} are here" if here < size else (
        f"{words.plural(here, 'rank')} {'is' if here == 1 else 'are'} here, no whole step is in yet"
        if here else "no rank is here yet"
    )  # fmt: skip
    said = [
        line(Segment(" ○ ", "accent"), Segment(f"The job is starting: {whose}.", "strong")),
        *(line("   ", Segment(part, "dim")) for part in wrap(lacks, cells - 4, 2)),
    ]
    end = _meanwhile(snapshot, cells, printed)
    room = rows - len(said) - len(end) - 2
    ranks = [_starting_rank(snapshot, rank, cells) for rank in snapshot.ranks]
    missing = sorted(set(range(size)) - {rank.rank for rank in snapshot.ranks})
    more = [(" ○ ", missing, "not here yet")] if missing else []
    if len(ranks) + len(more) > room:
        kept = max(1, room - len(more) - 1)
        hidden = [rank.rank for rank in snapshot.ranks[kept:]]
        ranks, more = ranks[:kept], [(" ✓ ", hidden, "are here, too"), *more]
    rest = [line(Segment(sign, "dim"), Segment(clip(f"r{words.rank_set(whom)}   {text}", cells - 4),
                 "dim")) for sign, whom, text in more]  # fmt: skip
    listed = [(), line(" ", rule("ranks", cells - 2)), *ranks, *rest] if ranks or rest else []
    return Picture((*said,), (*listed, *end))


def _starting_rank(snapshot: Snapshot, rank: RankNow, cells: int) -> Line:
    now, since = activity_text(rank.now), rank.since_ns
    age = words.duration(snapshot.t_ns - since) if now and since and snapshot.t_ns > since else ""
    where = f"pid {rank.pid} on {clean(rank.host)}"
    inside = rank.now.kind == "in" and not rank.now.silent
    parts = line(Segment(" ✓ ", "good"), Segment(left(f"r{rank.rank}", 5)), Segment(where, "dim"),
                 Segment("  in " if inside else "  ", "dim"), Segment(now, "strong"),
                 Segment(f" for {age}" if age else "", "dim"))  # fmt: skip
    return fit(parts, cells)


def _meanwhile(snapshot: Snapshot, cells: int, printed: Sequence[OutputLine]) -> list[Line]:
    lines: list[Line] = [(), line(" ", rule("meanwhile", cells - 2))]
    if printed:
        last = clean(printed[-1].text)
        lines.append(fit(line("   ", Segment("last line of output: ", "dim"), last), cells))
    else:
        lines.append(line("   ", Segment("The job has printed nothing yet.", "dim")))
    keys = [("9", "output"), *([("b", "break"), (":", "watch nan")] if snapshot.live else []),
            ("?", "what the keys do")]  # fmt: skip
    parts = [part for key, text in keys for part in (Segment(key, "key"), f" {text}   ")]
    return [*lines, (), line("   ", *parts)]


def _centred(text: str, cells: int, style: str) -> Line:
    text = clip(text, cells)
    return line(" " * ((cells - width(text)) // 2), Segment(text, style))


TWO_COLUMNS: Final = 100
COMMANDS: Final = 70
"""Minimum cells of a column of the help that includes the commands."""
HelpRow = tuple[str, str, str, str]
"""(group title, keys as printed, command with its arguments, help)"""


def help_page(rows: Sequence[HelpRow], cells: int, height: int) -> Picture:
    """Return all actions by group, in two columns if there is room; without commands in a narrow
    column."""
    groups: dict[str, list[HelpRow]] = {}
    for row in rows:
        groups.setdefault(row[0], []).append(row)
    wide = cells >= TWO_COLUMNS
    size = (cells - 3) // 2 if wide else cells
    blocks = [_block(title, entries, size) for title, entries in groups.items()]
    if not wide:
        return Picture(body=tuple(row for block in blocks for row in block))
    half = (sum(map(len, blocks)) + 1) // 2
    columns: list[list[Line]] = [[], []]
    for block in blocks:
        columns[0 if len(columns[0]) < half - len(block) // 2 else 1] += block
    tall = max(map(len, columns))
    body = [
        line(fit(columns[0][at] if at < len(columns[0]) else (), size), "   ",
             columns[1][at] if at < len(columns[1]) else ())
        for at in range(tall)
    ]  # fmt: skip
    return Picture(body=tuple(body))


def word_rows(words_: Sequence[tuple[Sequence[str], str]], cells: int) -> list[Line]:
    """Return the glossary of the screens; ``words_``: (names, meaning)."""
    lines: list[Line] = [rule("Words", cells - 1)] if words_ else []
    for names, text in words_:
        parts = wrap(text, max(16, cells - 20))
        lines.append(line(" ", Segment(left(names[0], 17), "key"), Segment(parts[0])))
        lines += [line(" " * 18, Segment(part)) for part in parts[1:]]
    return lines


def _block(title: str, entries: Sequence[HelpRow], cells: int) -> list[Line]:
    lines: list[Line] = [rule(title, cells - 1)]
    roomy = cells >= COMMANDS
    for _, keys, command, text in entries:
        words = f":{command}" if command else ""
        first = (
            left(keys, 10 + 2 * (not has_utf8()))
            if roomy
            else left(keys or words.partition(" ")[0], 16)
        )
        start = [Segment(first, "key" if keys else "dim")]
        if roomy:
            start += [Segment(left(words, 24), "dim"), Segment(" ")]
        indent = 1 + sum(len(part.text) for part in start)
        parts = wrap(text, max(16, cells - indent - 2))
        lines.append(line(" ", *start, Segment(parts[0] if parts else "")))
        lines += [line(" " * indent, Segment(part)) for part in parts[1:]]
    return [*lines, ()]


def bookmark_list(
    marks: Sequence[Bookmark], snapshot: Snapshot | None, cells: int, rows: int
) -> Picture:
    """Draw number, time from the begin, wall clock and note; ``goto mark N`` goes to mark N."""
    if not marks or snapshot is None:
        return empty(cells, rows, "no bookmark yet: m marks the moment on the screen")
    run = snapshot.run
    body: list[Line] = [
        line(
            " ",
            Segment(right(str(number), 3), "key"),
            "  ",
            Segment(right(words.stamp(mark.t_ns - snapshot.t_begin_ns), 10), "strong"),
            "  ",
            Segment(words.clock(run.wall_ns + mark.t_ns - run.t0_ns), "dim"),
            "  ",
            Segment(
                clip(mark.text, max(8, cells - 30)), "accent" if mark.t_ns == snapshot.t_ns else ""
            ),
        )
        for number, mark in enumerate(marks, 1)
    ]
    how = ":goto mark N goes there, :unmark N takes it away"
    foot = line(" ", Segment(left(how, cells - 1), "dim"))
    return Picture(body=tuple(body), foot=(foot,))
