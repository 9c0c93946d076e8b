"""The first sentence of Overview: the run's state, with numbers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.findings.finding import Finding
from pardbg.render.draw.bars import shares
from pardbg.render.draw.cells import Line, Segment, clean, fit, line, wrap
from pardbg.render.draw.signs import SIGN
from pardbg.render.frame.panels import coming, is_speed_judged, is_starting
from pardbg.render.pages.findings import ordered
from pardbg.render.pages.overview.rank_table import FRONT_CELLS

_NOTED = 2
"""Kinds of notes that the verdict names."""
_ENDINGS = ("interrupted", "rank-exited", "rank-lost")
"""Kinds of notes on the end of a job, the most specific first."""
_PARTS = ("compute", "waiting for ranks", "communication", "input", "host code")
_NEWS = {"error": "bad", "warning": "culprit", "info": "strong"}
"""Severity -> style of the finding's sentence."""


def verdict(snapshot: Snapshot, known: Sequence[Finding], cells: int) -> list[Line]:
    """Draw the run's state and below it, on a wide screen or without a finding, the parts of the
    bubble, or what a step is bound by. Empty in a hang, as the banner shows it."""
    if snapshot.hang is not None:
        return []
    has_room = cells >= FRONT_CELLS or worst_of(snapshot) is None
    parts = (_bubble(snapshot) or bound_by(snapshot)) if has_room else ""
    said = [fit(line("   ", Segment(parts, "dim")), cells)] if parts else []
    return _state(snapshot, known, cells) + said


def _state(snapshot: Snapshot, known: Sequence[Finding], cells: int) -> list[Line]:
    """Draw the worst finding, the progress of a start, the next finding of a recording, or that
    there are none, with the numbers."""
    worst = worst_of(snapshot)
    if worst is not None:
        sign, style = SIGN[worst.severity]
        text = clean(worst.text)
        said = wrap(text[:1].upper() + text[1:], cells - 4, 2)
        first = line(Segment(f" {sign} ", style), Segment(said[0], _NEWS[worst.severity]))
        return [first, *(line("   ", Segment(more)) for more in said[1:])]
    if (yet := coming(snapshot)) and (is_starting(snapshot) or not snapshot.run.exit_code):
        if not is_starting(snapshot) and len(snapshot.ranks) >= snapshot.run.world_size:
            yet = "The run has ended, and no training step was seen in it"
        return [fit(line(Segment(" ◷ ", "dim"), Segment(yet, "strong")), cells)]
    later = [f for f in known if f.severity != "info" and f.t_ns > snapshot.t_ns]
    if later:
        return [fit(_to_come(snapshot, later), cells)]
    if snapshot.run.exit_code:
        return _ended(snapshot, cells)
    said_of = "so far" if snapshot.live else "up to here"
    if not snapshot.live and snapshot.t_ns >= snapshot.t_end_ns:
        said_of = "in all of it" if snapshot.run.exit_code is None else "from start to end"
    if not is_speed_judged(snapshot):
        said_of += " (speed: too few steps)"
    first = (Segment(" ✓ ", "good"), Segment(f"Nothing wrong {said_of}: ", "strong"))
    if noted := _noted(snapshot):
        sign, style = SIGN["info"]
        text = f"No error or warning {said_of}; noted: {noted}. "
        first = (Segment(f" {sign} ", style), Segment(text, "strong"))
    return [fit(line(*first, *_numbers(snapshot)), cells)]


def _noted(snapshot: Snapshot) -> str:
    """Return the kinds and ranks of notes that name a culprit: ``straggler r1``."""
    notes = [f for f in ordered(snapshot.findings) if f.severity == "info" and f.culprits]
    named = dict.fromkeys(f"{clean(f.kind)} r{words.rank_set(f.culprits)}" for f in notes)
    few = list(named)[:_NOTED]
    return ", ".join(few) + (f" and {len(named) - len(few)} more" if len(named) > len(few) else "")


def worst_of(snapshot: Snapshot) -> Finding | None:
    """Return the worst warning or error, which the verdict shows."""
    found = ordered(snapshot.findings)
    return next((finding for finding in found if finding.severity != "info"), None)


def _ended(snapshot: Snapshot, cells: int) -> list[Line]:
    """Draw the reason, as far as known, why a job without findings failed."""
    code = snapshot.run.exit_code
    note = next((f for kind in _ENDINGS for f in snapshot.findings if f.kind == kind), None)
    if note is None:
        text = f"The job ended with exit code {code}; no cause was seen."
        return [line(Segment(" ✗ ", "bad"), Segment(text, "bad"))]
    text = clean(note.text)
    said = wrap(text[:1].upper() + text[1:], cells - 4, 2)
    first = line(Segment(" ■ ", "warn"), Segment(said[0], "strong"))
    return [first, *(line("   ", Segment(more)) for more in said[1:])]


def _to_come(snapshot: Snapshot, later: Sequence[Finding]) -> Line:
    """Draw the first finding of a recording after the cursor."""
    first = min(later, key=lambda finding: finding.t_ns)
    sign, style = SIGN[first.severity]
    known_ns = first.first_ns if (first.first_ns or 0) > snapshot.t_ns else first.t_ns
    at = words.offset((known_ns or first.t_ns) - snapshot.t_begin_ns, 1e7)
    whose = f" r{words.rank_set(first.culprits)}" if first.culprits else ""
    more = f", and {len(later) - 1} more" if len(later) > 1 else ""
    return line(
        Segment(f" {sign} ", style), Segment(f"At {at}: ", "strong"),
        Segment(f"{clean(first.kind)}{whose}", _NEWS[first.severity]), Segment(more),
        Segment("   the end key goes to all of it", "dim"),
    )  # fmt: skip


def _numbers(snapshot: Snapshot) -> Line:
    """Draw ranks, schedule and step time."""
    parts, view = list[Segment](), snapshot.pipeline
    if view is not None and view.schedule:
        parts.append(Segment(f"{clean(view.schedule)}, {view.num_stages} stages on "))
    parts.append(Segment(words.plural(len(snapshot.ranks), "rank")))
    last = snapshot.steps[-1].step if snapshot.steps else None
    took_ns = snapshot.step_ns  # without the time that ranks were held, as in the header
    if took_ns and not snapshot.run.rehearsed:
        whose = "the last step" if last is None else f"step {last}"
        parts.append(Segment(f"; {whose}: {words.duration(took_ns)}"))
    return line(*parts)


def _bubble(snapshot: Snapshot) -> str:
    """Return the bubble of the newest complete step as a sum; empty if it is not known."""
    step = snapshot.pipeline.last_complete if snapshot.pipeline is not None else None
    if step is None or step.excess_fraction is None:
        return ""
    rest = words.percent_rest(step.bubble_fraction, step.implied_fraction)
    whole, implied = map(words.percent, (step.bubble_fraction, step.implied_fraction))
    return (
        f"Bubble of step {step.step}: {whole} = {implied} implied by the schedule + {rest} excess."
    )


def bound_by(snapshot: Snapshot) -> str:
    """Return the largest part of a step, which bounds it if it is half of it, and the others, as
    means over the ranks; empty if they are not measured on each rank."""
    ranks, run = snapshot.ranks, snapshot.run
    parts = [(r.compute_fraction, r.wait_fraction, r.comm_fraction) for r in ranks]
    known = [(a, b, c) for a, b, c in parts if a is not None and b is not None and c is not None]
    if not snapshot.steps or len(known) < len(ranks) or run.rehearsed or run.times == "host" or (
        any(rank.compute_is_bound for rank in ranks)
    ):  # fmt: skip
        return ""
    last = snapshot.steps[-1]
    means = [fmean(of) for of in zip(*known, strict=True)]
    data = last.phases.get("data", 0) / max(1, last.duration_ns)
    means.append(min(data, max(0.0, 1 - sum(means))))
    means.append(max(0.0, 1 - sum(means)))
    hundredths = shares([share / sum(means) for share in means], 100)  # they sum to 100
    known_parts = sorted(zip(hundredths, _PARTS, strict=True), reverse=True)
    (half, most), *others = [(words.percent(n / 100, 0), name) for n, name in known_parts if n]
    first = f"Bound by {most}, {half} of a step; "
    if known_parts[0][0] < 50:
        first = f"No part is half of a step: {most} {half}, "
    return (first + ", ".join(f"{name} {share}" for share, name in others)).rstrip(" ;")
