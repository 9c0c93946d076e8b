"""A rank's memory compared to its expectation: a sentence, and the ladder of ZeRO levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.findings.finding import Finding
from pardbg.analysis.findings.kinds.memory_kinds import MemoryCreep
from pardbg.analysis.memory.breakdown import MemoryRow, ZeroModel
from pardbg.render.draw.bars import shares
from pardbg.render.draw.cells import (
    Line,
    Row,
    Segment,
    clip,
    fit,
    left,
    line,
    right,
    selected,
    width,
)
from pardbg.render.pages.traffic_step import matched

LEVELS: Final = ("P + G + O", "P + G + O/N", "P + (G + O)/N", "(P + G + O)/N")
"""Names of what a rank keeps whole or sharded at each ZeRO level."""
LEAST: Final = 56
"""Minimum cells of the ladder."""
_BAR_LEAST: Final = 12
_MULTIPLE: Final = 6
"""Cells of a level's bytes as a multiple of Φ."""
_TALLEST: Final = 6
"""Maximum lines of a level."""
_AS_EXPECTED: Final = 0.01
"""Relative difference up to which memory counts as expected."""


def counted(row: MemoryRow) -> int | None:
    """Return the measured bytes of P, G and O; None before the first optimizer step."""
    parts = row.parameters_bytes, row.gradients_bytes, row.optimizer_bytes
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def verdict(
    rows: Sequence[MemoryRow], excess: Mapping[int, int], cells: int,
    findings: Sequence[Finding] = (),
) -> Line:  # fmt: skip
    """Return the verdict on the ranks' memory; ``excess``: rank -> bytes above its like."""
    sign, style, text, more = _said(rows, excess)
    more = more or _growth(excess, findings) if style == "warn" else more
    loud = "culprit" if style == "warn" else "strong"
    if style == "good" and width(text) + width(more) + 3 > cells:  # numbers are never cut
        more = ""
    return fit(line(Segment(f" {sign} ", style), Segment(clip(text, cells - 4), loud),
                    Segment(more, "dim")), cells)  # fmt: skip


def _growth(excess: Mapping[int, int], findings: Sequence[Finding]) -> str:
    """Return the growth of the rank with the largest excess, if a finding explains it."""
    worst = max(excess, key=lambda rank: excess[rank])
    for finding in findings:
        if isinstance(facts := finding.facts, MemoryCreep) and worst in finding.culprits:
            gib_ns = (1 << 30) / facts.per_step_bytes * facts.step_ns
            return (f"  It grows by {words.binary_size(facts.per_step_bytes)} a step since step "
                    f"{facts.since_step}: another GiB every {words.duration(gib_ns)}.")  # fmt: skip
    return ""


def _said(rows: Sequence[MemoryRow], excess: Mapping[int, int]) -> tuple[str, str, str, str]:
    failed = next((row for row in rows if row.failed), None)
    if failed is not None:
        return "✗", "bad", f"Rank {failed.rank} asked for more memory than there was.", ""
    over = {rank: size for rank, size in excess.items() if size}
    if over:
        worst = max(over, key=lambda rank: over[rank])
        text = f"Rank {worst} holds {words.binary_size(over[worst])} more than the others."
        return "▲", "warn", text, f"  So do {len(over) - 1} more." if len(over) > 1 else ""
    totals = [row.total_bytes for row in rows if row.total_bytes]
    kind = "allocated" if rows[0].total_kind == "allocated" else "resident set"
    span = f"{kind} {_range(totals)}" if totals else ""
    known = [(row, counted(row), row.expected_bytes) for row in rows if row.expected_bytes]
    measured = [(row, have, want) for row, have, want in known if have is not None and want]
    off = [(row, have, want) for row, have, want in measured
           if abs(have / want - 1) > _AS_EXPECTED]  # fmt: skip
    if off:
        row, have, want = max(off, key=lambda one: abs(one[1] / one[2] - 1))
        text = f"Rank {row.rank} holds {words.binary_size(have)} of P+G+O, not the expected "
        return "●", "dim", f"{text}{words.binary_size(want)}.", f"  {span}"
    if measured:
        zero = measured[0][0].zero
        level = f" at ZeRO level {zero.level}" if zero is not None and zero.shards > 1 else ""
        text = f"P+G+O take {_range([have for _, have, _ in measured])} a rank, as expected{level}."
        return "✓", "good", text, f"  {span}"
    why = "the kind of sharding is not known" if not known else "no optimizer step was measured yet"
    text = f"{span[:1].upper()}{span[1:]} a rank." if span else "The ranks' totals are not known."
    return "●", "dim", text, f"  No expectation: {why}."


def _range(sizes: Sequence[int]) -> str:
    low, high = words.binary_size(min(sizes)), words.binary_size(max(sizes))
    return low if low == high else f"{low} – {high}"


def zero_of(snapshot: Snapshot, row: MemoryRow) -> ZeroModel | None:
    """Return the model of a rank's expected memory. If nothing is sharded, N is the number of ranks
    that reduce the gradients, over which they could be."""
    match = matched(snapshot) if row.zero is not None and row.zero.level == 0 else None
    if row.zero is None or match is None or row.rank not in match.op.groups[0]:
        return row.zero
    return replace(row.zero, shards=match.num_ranks)


def note(zero: ZeroModel) -> str:
    """Return the note in the ladder's heading."""
    within = f", level {zero.in_step} in a step" if zero.in_step != zero.level else ""
    return f"N = {zero.shards}{within}"


def ladder(row: MemoryRow, cells: int, rows: int = 0) -> list[Line]:
    """Draw the bytes that a rank keeps at each level, and its actual bytes; empty if they are not
    known or there is one shard. In enough ``rows`` each bar is below its formula."""
    zero = row.zero
    if zero is None or zero.shards < 2 or cells < LEAST:
        return []
    each = min(_TALLEST, max(1, (rows - (rows % len(LEVELS) == 0)) // len(LEVELS)))
    lines = [part for level in range(len(LEVELS)) for part in _level(zero, level, cells, each)]
    have = counted(row)
    text = "measured after the first optimizer step"
    if have is not None:
        text = f"measured {words.binary_size(have)} on rank {row.rank}"
    text += f"   Φ = {zero.parameters:,}" if zero.parameters else ""
    return [*lines, line("   ", Segment(text, "dim"))]


def multiple(zero: ZeroModel, level: int) -> str:
    """Return a level's bytes as ``16Φ``, Φ the number of parameters, or ``4P`` if only the bytes P
    of the parameters are known."""
    of, unit = (zero.parameters, "Φ") if zero.parameters else (zero.parameters_bytes, "P")
    return f"{zero.bytes_at(level) / max(1, of):.3g}{unit}"


def _level(zero: ZeroModel, level: int, cells: int, each: int) -> list[Line]:
    """Draw a level in ``each`` lines: formula and bar in one, or in two and a blank line."""
    bytes_, whole = zero.bytes_at(level), zero.bytes_at(0)
    here = level == zero.level
    against = "here" if here else words.change(bytes_ / zero.bytes_at(zero.level) - 1, 0)
    many = multiple(zero, level) if each > 1 or cells >= LEAST + _MULTIPLE else ""
    one = min(max(_BAR_LEAST, cells - 41 - _MULTIPLE * bool(many)), 40)
    name = line(
        Segment("▸" if here else " ", "accent"), Segment(f"{level} ", "strong"), " ",
        Segment(left(LEVELS[level], 15), "" if here else "dim"),
        Segment(left(many, _MULTIPLE * bool(many)), "" if here else "dim"),
    )  # fmt: skip
    bar = _bar(zero.parts(level), whole, one if each == 1 else cells - 6)
    said = line(
        bar if each == 1 else Segment(" " * max(0, cells - 37 - _MULTIPLE * bool(many))),
        Segment(right(words.binary_size(bytes_), 10), "strong"),
        Segment(right(against, 7), "accent" if here else "dim"),
    )
    bars = [line("    ", bar if at == (each - 2) // 2 else _blank(bar)) for at in range(each - 2)]
    made = [line(name, said), *(bars or [line("    ", bar)] * (each > 1))]
    made = [fit(selected(row), cells, "+sel") for row in made] if here else made
    return [*made, *[()] * (each - len(made))]


def _blank(bar: Line) -> Line:
    """Return a bar without its letters."""
    return line(*(Segment(" " * len(run.text), run.style) for run in bar))


def _bar(parts: Sequence[float], whole: int, cells: int) -> Line:
    """Draw P, G and O as shares of all bytes at level 0."""
    drawn, at = Row(cells, " ", ""), 0
    sizes = shares([part / max(1, whole) for part in parts], cells)
    for letter, size, part in zip("PGO", sizes, parts, strict=True):
        size = max(size, 1 if part else 0)  # what is there must be seen
        drawn.fill(at, at + size, " ", f"mem.{letter}")
        drawn.put(at + (size - 1) // 2, letter, f"mem.{letter}")
        at += size
    return drawn.line()
