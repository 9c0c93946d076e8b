"""The lines around every page: header, banner, tabs, control line, key hints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pardbg import words
from pardbg.analysis.answers.ranks import RankNow
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.base.control import ControlView
from pardbg.analysis.base.times import Times
from pardbg.render.draw.cells import (
    Line,
    Segment,
    clean,
    clip,
    fit,
    left,
    line,
    line_width,
    spread,
    width,
)
from pardbg.render.draw.signs import SIGN
from pardbg.render.frame.control_words import why_text

Tab = tuple[int, str]
SHORT = {
    "overview": "Over", "pipeline": "Pipe", "timeline": "Time", "collectives": "Coll",
    "traffic": "Traf", "memory": "Mem", "debug": "Debug", "findings": "Find", "output": "Out",
    "numbers": "Num",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mode:
    """The viewer's mode: live or replay, following, playing, complete."""

    replay: bool
    following: bool = True
    playing: bool = False
    ended: bool = False
    looking: bool = False
    """Whether findings of this moment are still being searched."""


def _clock(times: Times) -> Segment:
    """Name the clock of a run on a device: times of launches differ from times of execution."""
    return Segment(f"{times} times" if times else "", "warn" if times == "host" else "dim")


def header(title: str, snapshot: Snapshot | None, mode: Mode, cells: int) -> Line:
    """Draw name, state, size, speed, bubble, cost, findings, losses, and the clock."""
    brand = line(Segment(" pardbg ", "brand"))
    if snapshot is None:
        body = line(
            *brand, Segment(" ", "bar.header"), Segment(clip(clean(title), 40), "bar.header")
        )
        return fit(body, cells, "bar.header")
    state, state_style = _state(snapshot, mode)
    name = clip(clean(snapshot.run.name or title), 24)
    timed = snapshot.step_ns and not snapshot.run.rehearsed
    ranked: list[tuple[int, Line]] = [
        (0, (Segment(f" {state}", state_style),)),
        (1, (Segment(name, "strong"),)),
        (1, (Segment("times count events" if snapshot.run.rehearsed else "", "warn"),)),
        (1, (Segment("attached" if snapshot.run.attached else "", "dim"),)),
        (1, (_clock(snapshot.run.times),)),
        (1, _part(snapshot)),
        (1 if snapshot.part else 6, _life(snapshot)),
        (5, (Segment(_size(snapshot)),)),
        (2, (Segment(f"step {snapshot.step}" if snapshot.step is not None else "no step yet"),)),
        (3, (Segment(f"{words.duration(snapshot.step_ns)}/step" if timed else ""),)),
        (4, () if snapshot.run.rehearsed else _bubble(snapshot)),
        (2 if snapshot.not_finite else 7, _loss(snapshot)),
        (8, _agent(snapshot.ranks)),
        (2, _trouble(snapshot, mode.looking)),
    ]
    wall = snapshot.run.wall_ns + snapshot.t_ns - snapshot.run.t0_ns
    clock = line(Segment(f"{words.clock(wall)} ", "dim"))
    room = cells - line_width(brand) - line_width(clock)
    body = _fill([(rank, part) for rank, part in ranked if line_width(part)], room)
    whole = spread((*brand, *body), clock, cells)
    return tuple(
        Segment(r.text, r.style if r.style == "brand" else f"{r.style}+head") for r in whole
    )


def _fill(parts: Sequence[tuple[int, Line]], room: int) -> Line:
    """Return the parts in order, two spaces apart; without room the highest-numbered parts are
    dropped first."""
    kept = list(parts)
    while kept and sum(line_width(p) + 2 for _, p in kept) > room:
        kept.remove(max(kept, key=lambda item: item[0]))
    return line(*(run for _, part in kept for run in (*part, Segment("  "))))


def _state(snapshot: Snapshot, mode: Mode) -> tuple[str, str]:
    if mode.replay:
        return ("▶ replay", "accent") if mode.playing else ("‖ replay", "accent")
    if not mode.following:
        return "◂ look back", "held"
    code = snapshot.run.exit_code
    if code is not None:
        return (f"■ ended {code}", "good" if code == 0 else "bad")
    if mode.ended:
        return "■ ended", "warn"
    return {
        "running": ("● live", "good"), "pausing": ("◌ pausing", "held"),
        "held": ("‖ held", "held"), "stepping": ("▹ stepping", "held"),
    }[snapshot.control.mode.value]  # fmt: skip


def banner(snapshot: Snapshot | None, cells: int) -> Line:
    """Draw the hang: rank, duration, op, place, waiting ranks. Empty while every rank makes
    progress. The line's end is cut if there is no room."""
    hang = snapshot.hang if snapshot is not None else None
    if snapshot is None or hang is None:
        return ()
    age = (hang.until_ns or snapshot.t_ns) - hang.since_ns
    culprits = f"r{words.rank_set(hang.culprits)}" if hang.culprits else ""
    waits = f"r{words.rank_set(hang.waiting)} wait{'s' * (len(hang.waiting) == 1)}"
    parts = [
        f"{SIGN[hang.severity][0]} {hang.kind}",
        f"{culprits} {words.duration(age)}".lstrip() if age >= 1e9 else culprits,
        clean(hang.op),
        clean(hang.where or ""),
        "then the job failed" if hang.until_ns is not None else waits if hang.waiting else "",
    ]
    text = " " + "  ".join(part for part in parts if part)
    style = "alarm" if hang.severity == "error" else "alarm.warn"
    return (Segment(left(text, cells), style),)


def _size(snapshot: Snapshot) -> str:
    run = snapshot.run
    where = words.hosts_text(run.num_hosts, (rank.node for rank in snapshot.ranks))
    if not snapshot.ranks:
        return words.plural(run.world_size, "rank") if run.world_size else ""
    parts = [words.plural(len(snapshot.ranks), "rank"), where]
    return "·".join([*parts, run.backend] if run.backend else parts)


def _part(snapshot: Snapshot) -> Line:
    """Draw which file of a recording in several is shown."""
    number, following = snapshot.run.part
    return line(Segment(f"part {number}", "warn")) if number > 1 or following else ()


def _life(snapshot: Snapshot) -> Line:
    """Draw which life or role of a run with several is shown."""
    part, number = snapshot.part, len(snapshot.parts)
    if part is None:
        return line(Segment(f"[ ] {number} parts", "dim")) if number else ()
    return line(Segment(f"[{part.number}/{number}] {clip(clean(part.name), 28)}", "warn"))


def _bubble(snapshot: Snapshot) -> Line:
    view = snapshot.pipeline
    step = view.last_complete if view else None
    if step is None or step.bubble_fraction is None:
        return ()
    return line(Segment("bubble ", "dim"), Segment(words.percent(step.bubble_fraction), "warn"))


def _loss(snapshot: Snapshot) -> Line:
    broken = snapshot.not_finite
    if broken is not None:
        whose = f" r{words.rank_set(broken.ranks)}" if broken.ranks else ""
        text = f"loss {broken.value} since step {broken.since_step}{whose}"
        return line(Segment(text, "bad"))
    if snapshot.loss is None:
        return ()
    return line(Segment("loss ", "dim"), Segment(words.number(snapshot.loss)))


def _agent(ranks: Sequence[RankNow]) -> Line:
    costs = [rank.agent_overhead for rank in ranks if rank.agent_overhead is not None]
    return line(Segment("agent ", "dim"), Segment(words.percent(max(costs)))) if costs else ()


def _trouble(snapshot: Snapshot, looking: bool) -> Line:
    parts = [Segment("▲ looking", "dim")] if looking else []
    for severity in ("error", "warning"):
        sign, style = SIGN[severity]
        number = sum(finding.severity == severity for finding in snapshot.findings)
        if number:
            parts.append(Segment(f"{sign}{number}", style))
    if snapshot.dropped_records:
        parts.append(Segment(f"lost {words.short_count(snapshot.dropped_records)}", "bad"))
    if snapshot.unknown_records:
        parts.append(Segment(f"unknown {words.short_count(snapshot.unknown_records)}", "warn"))
    stale = [rank.rank for rank in snapshot.ranks if rank.state == "stale"]
    gone = [rank.rank for rank in snapshot.ranks if rank.state == "lost"]
    if stale:
        parts.append(Segment(f"stale r{words.rank_set(stale)}", "warn"))
    if gone:
        parts.append(Segment(f"gone r{words.rank_set(gone)}", "bad"))
    if snapshot.run.truncated:
        parts.append(Segment("file cut off", "warn"))
    return tuple(run for part in parts for run in (part, Segment(" ")))[:-1]


def tabs(names: Sequence[Tab], active: str, cells: int) -> tuple[Line, tuple[tuple[int, int], ...]]:
    """Return the tab line, and each tab's cells [start, end) for the mouse."""
    for form in (str.capitalize, lambda name: SHORT[name], lambda name: name[:1].upper()):
        labels = [f" {number} {form(name)} " for number, name in names]
        if sum(map(width, labels)) <= cells:
            break
    runs: list[Segment] = []
    spans: list[tuple[int, int]] = []
    at = 0
    for label, (_, name) in zip(labels, names, strict=True):
        runs.append(Segment(label, "tab.on" if name == active else "tab"))
        spans.append((at, at + width(label)))
        at += width(label)
    return fit(runs, cells), tuple(spans)


def control_line(
    control: ControlView, under_way: str, message: tuple[str, str], cells: int
) -> Line:
    """Draw a message, else the command under way, else held or running."""
    text, style = message
    if text:
        return fit(line(" ", Segment(clip(clean(text), cells - 2), style)), cells)
    if under_way:
        return fit(line(" ", Segment(under_way, "held")), cells)
    if control.mode == "running" and not control.held:
        return fit(line(" ", Segment(clip(clean(why_text(control.why)), cells - 2), "dim")), cells)
    parts = [Segment(" "), Segment(_held_words(control), "held")]
    if control.lease_ns is not None:
        low = control.lease_ns < 4e9
        parts += [Segment(" · ", "faint"), Segment(f"lease {words.countdown(control.lease_ns)}",
                                          "warn" if low else "dim")]  # fmt: skip
    pending = words.plural(control.pending, "op") if control.pending else "nothing"
    parts += [Segment(" · ", "faint"), Segment(f"{pending} pending", "dim")]
    if control.mode == "held" and control.why:  # a breakpoint, a watch: why comes first
        why = clip(clean(why_text(control.why)), max(20, cells - 3 - line_width(parts)))
        parts += [Segment(" · ", "faint"), Segment(why, "strong")]
    for number, (rank, coming) in enumerate(sorted(control.held.items())):
        part = (Segment("  " if number else "  next ", "faint"), Segment(f"r{rank} ", "dim"),
                Segment(clip(clean(coming), 28), "strong"))  # fmt: skip
        if line_width(parts) + line_width(part) > cells - 2:
            parts.append(Segment(" …", "faint"))
            break
        parts += part
    return fit(parts, cells)


def _held_words(control: ControlView) -> str:
    number = len(control.held)
    if control.mode == "pausing":
        return f"pausing · {words.plural(number, 'rank')} held so far"
    if control.mode == "stepping":
        return "stepping"
    if control.waiting:  # no cut: they are inside ops that a held one has not issued
        waits = f"{len(control.waiting)} wait{'s' * (len(control.waiting) == 1)} for it"
        return f"held · {words.plural(number, 'rank')}, {waits}"
    return f"held at a cut · {words.plural(number, 'rank')}"


def hints(items: Sequence[tuple[str, str]], cells: int) -> Line:
    """Return ``space pause s step …`` as far as the items fit; the last two always do."""
    kept: list[Segment] = []
    room = cells - 1
    tail = items[-2:]
    reserve = sum(width(key) + width(label) + 3 for key, label in tail)
    for at, (key, label) in enumerate(items):
        need = width(key) + width(label) + 3
        if at < len(items) - 2 and need + reserve > room:
            continue
        if need > room + 2:
            break
        kept += [Segment(key, "key"), Segment(f" {label}  ", "dim")]
        room -= need
    return fit((Segment(" "), *kept), cells)


def jump_hints(cells: int) -> Line:
    """Draw the help for the letters of a jump."""
    said = ((" jump ", "jump"), (" a letter goes to panel or row", "strong"),
            (", a capital zooms, ", ""), ("1–0", "key"), (" pages, ", ""), ("esc", "key"),
            (" back", ""))  # fmt: skip
    return fit(line(" ", *(Segment(text, style) for text, style in said)), cells)
