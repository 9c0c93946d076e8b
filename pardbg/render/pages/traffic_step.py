"""Traffic of a training step: the sentence, the formula with the run's numbers, the vector's chunks
as they fill up, and the groups of each axis of the mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.comm.p2p import RingStep
from pardbg.analysis.comm.traffic import StepOp, StepTraffic, TrafficView
from pardbg.render.draw.bars import shares as rounded
from pardbg.render.draw.bars import thin
from pardbg.render.draw.cells import Line, Segment, clean, clip, fit, left, line, right, wrap

_NEAR: Final = 0.005
"""Relative difference below which bytes count as equal: messages also carry a loss or a shape."""
_LITTLE: Final = 0.005
"""Share of a rank's sent bytes below which an op is not mentioned."""
_MORE_RANKS: Final = (4, 8, 64, 1024)
_MUCH: Final = 1.5
"""Factor above every other rank's sent bytes from which on a rank is named."""
_FILMED: Final = 16
_LETTERS: Final = 16
"""Cells of an axis's letter and bytes beside the senders."""
AXIS_STYLES: Final = ("observed", "bubble", "spark", "held", "good")


@dataclass(frozen=True, slots=True)
class Match:
    """The op that reduces the gradients, with bytes as the formula predicts."""

    op: StepOp
    num_ranks: int
    gradients: int
    """Z: bytes of the reduced gradients."""
    seen: bool
    """Whether the reduction is made of messages, which were observed."""


def matched(snapshot: Snapshot) -> Match | None:
    """Return the op that reduces the gradients, if its bytes match: an all_reduce, or a ring of
    messages in which each rank sends 2(N-1)/N of the gradients."""
    view, step = snapshot.traffic, snapshot.traffic.step
    if step is None or not step.ops:
        return None
    op = step.ops[0]
    ranks = op.groups[0]
    rows = [row.gradients_bytes for row in snapshot.memory if row.rank in ranks]
    gradients = rows[0] if rows else None
    if not gradients or any(row != gradients for row in rows) or len(op.groups) > 1:
        return None
    ring = op.source == "observed" and view.ring is not None
    expected = 2 * (len(ranks) - 1) / len(ranks) * gradients
    if (ring and _near(op.sent, expected)) or (
        op.op == "all_reduce" and _near(op.payload, gradients)
    ):
        return Match(op, len(ranks), gradients, ring)
    return None


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= _NEAR * max(one, other)


def axes_of(step: StepTraffic) -> dict[str, float]:
    """Return the bytes that a rank sends per step on each axis, the largest first."""
    found: dict[str, float] = {}
    for op in step.ops:
        if op.sent > 0:
            found[op.axis] = found.get(op.axis, 0.0) + op.sent
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def _hundredths(sent: Mapping[str, float], whole: int) -> dict[str, int]:
    """Return whole percents that add up to ``whole``. The map must not be empty."""
    total = sum(sent.values())
    return dict(zip(sent, rounded([one / total for one in sent.values()], whole), strict=True))


def axis_style(step: StepTraffic, axis: str) -> str:
    """Return the style of an axis, the same on the whole page."""
    at = list(axes_of(step)).index(axis)
    return AXIS_STYLES[at % len(AXIS_STYLES)]


# ------------------------------------------------------------------------------------- verdict


def verdict(snapshot: Snapshot, cells: int, rows: int) -> list[Line]:
    """Draw the traffic's verdict in at most ``rows`` lines, with the assumptions behind it."""
    step = snapshot.traffic.step
    slow = next((f for f in snapshot.findings if f.kind == "slow-link"), None)
    if slow is not None:
        said = wrap(clean(slow.text[:1].upper() + slow.text[1:]), cells - 4, rows)
        return [line(Segment(" ▲ ", "warn"), Segment(said[0], "culprit")),
                *(line("   ", Segment(more)) for more in said[1:])]  # fmt: skip
    if step is None or not step.ops:
        text = "What a step moves is not known: none has ended on every rank."
        if snapshot.steps:
            text = "What a step moves is not known: operations are recorded as sums."
        return [fit(line(Segment(" ◷ ", "dim"), Segment(text, "strong")), cells)]
    match = matched(snapshot)
    sign = Segment(" ✓ ", "good") if match is not None else Segment(" ● ", "dim")
    first, *more = wrap(_sentence(step, match), cells - 4, rows)
    rests_on = Segment(clip(_rests_on(step), cells - 3), "dim")
    return [line(sign, Segment(first, "strong")),
            line("   ", Segment(more[0], "strong") if more else rests_on)][:rows]  # fmt: skip


def _sentence(step: StepTraffic, match: Match | None) -> str:
    if match is not None:
        whole, sent = words.size(match.gradients), words.size(match.op.sent)
        if match.seen:
            return (f"As expected: each rank sends {sent} a step to its neighbour, as a ring "
                    f"all-reduce of {whole} on {match.num_ranks} ranks must.")  # fmt: skip
        return (f"As expected: {match.op.op} moves {words.size(match.op.payload)} a step, the "
                f"gradients; in a ring each rank sends {sent}.")  # fmt: skip
    shares, total = axes_of(step), sum(axes_of(step).values())
    if not total:
        return "A step moves nothing between ranks."
    if len(shares) > 1:
        told = _hundredths(shares, 100).items()
        said = ", ".join(f"{words.percent(n / 100, 0)} {clean(axis)}" for axis, n in told if n)
        return f"Of the {words.size(total)} that a rank sends a step, {said}."
    sent_by: dict[int, float] = {}
    for src, _, _, size in step.edges:
        sent_by[src] = sent_by.get(src, 0.0) + size
    busiest = max(sent_by, key=lambda rank: sent_by[rank], default=-1)
    others = [size for rank, size in sent_by.items() if rank != busiest]
    if others and sent_by[busiest] > _MUCH * max(others):
        return (f"Rank {busiest} sends {words.size(sent_by[busiest])} a step, "
                f"{sent_by[busiest] / max(others):.1f} × what any other sends.")  # fmt: skip
    large = [op for op in step.ops if op.sent >= _LITTLE * total]
    if len(large) == 1 and large[0].source == "observed":
        return (f"A rank sends {words.size(total)} a step in {_count(large[0].number)} messages, "
                "in the mean.")  # fmt: skip
    parts = (f"{words.size(op.sent)} in {clean(op.op)}" for op in large)
    return f"A rank sends {', '.join(parts)} a step, in the mean."


def _rests_on(step: StepTraffic) -> str:
    """Return a sentence on the observed facts and the assumptions."""
    steps = f"Mean of steps {step.first}–{step.last}" if step.last > step.first else (
        f"Of step {step.first}"
    )  # fmt: skip
    most = step.ops[0]
    seen = [size for _, _, source, size in step.edges if source == "observed" and size >= 1]
    text = f"{steps}; {_count(most.number)} × {clean(most.op)} on {clean(most.axis)}"
    if len(step.ops) and all(op.source == "modelled" for op in step.ops if op.sent > 0):
        return f"{text}. Their bytes are known; who sent to whom is a ring's, not seen."
    if seen and step.ops[0].source == "observed":
        same = _near(min(seen), max(seen))
        return f"{text}. " + (
            "Each link carries the same." if same
            else f"A link carries {words.size(min(seen))} to {words.size(max(seen))}."
        )  # fmt: skip
    return f"{text}. Messages seen, rings modelled."


def _count(number: float) -> str:
    """Return ``64``, or ``0.25`` for an op that occurs only in some steps."""
    return words.count(round(number)) if number >= 1 else f"{number:.2f}"


# ------------------------------------------------------------------------------------- formula


def formula(snapshot: Snapshot, match: Match, cells: int) -> list[Line]:
    """Draw the formula of a ring with this run's numbers, the observed bytes, and the cost of other
    ways to sum the gradients."""
    n, z = match.num_ranks, match.gradients
    step = snapshot.traffic.step
    assert step is not None
    sent = 2 * (n - 1) / n * z
    put_in = f" = 2⋅{n - 1}/{n} ⋅ {words.fine_size(z)} = "
    seen = line(
        Segment("seen   ", "dim"), Segment(words.fine_size(match.op.sent), "strong"),
        Segment(f" on each of the {n} links, steps {step.first}–{step.last}  ", "dim"),
        Segment("✓", "good"),
    )  # fmt: skip
    if not match.seen:
        seen = line(Segment("moved  ", "dim"), Segment(words.fine_size(match.op.payload), "strong"),
                    Segment(" a step by the op ", "dim"), Segment("✓", "good"),
                    Segment("; its links are not seen", "dim"))  # fmt: skip
    return [
        line(Segment("ring all-reduce: every rank sends, every link carries", "dim")),
        line(Segment("2(N−1)/N ⋅ Z", "strong"), Segment(put_in),
             Segment(words.fine_size(sent), "strong"), Segment(" a step", "dim")),
        seen,
        (),
        *_otherwise(n, z, cells),
        (),
        *_with_more(z, cells),
    ]  # fmt: skip


def _otherwise(n: int, z: int, cells: int) -> list[Line]:
    """Draw the bytes that the busiest rank sends for other ways to sum the gradients."""
    share = (n - 1) / n
    ways = (("ring", "2(N−1)/N⋅Z", 2 * share * z), ("halving", "2(N−1)/N⋅Z", 2 * share * z),
            ("server", "N⋅Z", float(n * z)), ("ZeRO-3", "3(N−1)/N⋅Z", 3 * share * z))  # fmt: skip
    top = max(size for *_, size in ways)
    room = max(4, cells - 32)
    lines = [line(Segment("the same step otherwise: bytes out of the busiest rank", "dim"))]
    for name, text, size in ways:
        lines.append(line(
            Segment(left(name, 9), "accent" if name == "ring" else ""),
            Segment(left(text, 12), "dim"), Segment(thin(size / top, room), "spark"),
            Segment(right(words.size(size), 10), "strong" if name == "ring" else ""),
        ))  # fmt: skip
    return lines


def _with_more(z: int, cells: int) -> list[Line]:
    size = max(9, (cells - 16) // len(_MORE_RANKS))
    heads = "".join(right(f"N={n}", size) for n in _MORE_RANKS)
    ring = "".join(right(words.size(2 * (n - 1) / n * z), size) for n in _MORE_RANKS)
    server = "".join(right(words.size(n * z), size) for n in _MORE_RANKS)
    return [
        line(Segment("with more ranks ", "dim"), Segment(heads, "dim")),
        line(Segment(left("ring", 16)), Segment(ring)),
        line(Segment(left("server", 16)), Segment(server, "dim")),
        line(Segment(f"A ring's link never carries more than 2Z = {words.size(2 * z)}.", "dim")),
    ]


# ------------------------------------------------------------------------------------- chunks


def film(ring: RingStep, cells: int) -> list[Line]:
    """Draw how each rank's vector fills up, a strip of chunks per part of the collective: the
    number of ranks summed in each chunk, ``✓`` for all, ``▸`` before the newest chunk."""
    ranks = sorted({rank for _, moves in ring.film for m in moves for rank in (m.src, m.dst)})
    if len(ranks) < 2 or len(ranks) > _FILMED:
        return []
    strips = _summed(ring, ranks)
    each = len(ranks) * 3 + 3
    shown = min(len(strips), max(1, (cells - 6) // each))
    first = len(strips) - shown
    if shown < 2:
        return []
    heads = [Segment(left("  part", 8), "dim")]
    for at in range(first, len(strips)):
        now = at == len(strips) - 1
        name = "before" if at == 0 else f"{'▸' if now else ' '}{at}"
        heads.append(Segment(left(clip(name, each - 1), each), "accent" if now else "dim"))
    lines = [line(*heads)]
    for rank in ranks:
        row: list[Segment | str | Line] = [Segment(left(f"  r{rank}", 8), "dim")]
        for at, (counts, came) in enumerate(strips[first:], first):
            now = at == len(strips) - 1
            row += [*_cells(counts[rank], came.get(rank), len(ranks), now), "   "]
        lines.append(line(*row))
    moved = "  ".join(f"{m.src}▶{m.dst} c{m.chunk}" for m in ring.film[-1][1][:8])
    key = line(Segment(f"        number: ranks summed   ✓ all {len(ranks)}   ▸ just came: ", "dim"),
               Segment(moved))  # fmt: skip
    return [*lines, fit(key, cells)]


Strip = tuple[Mapping[int, Sequence[int]], Mapping[int, int]]
"""(rank -> ranks summed in each chunk, rank -> the chunk that has just come)"""


def _summed(ring: RingStep, ranks: Sequence[int]) -> list[Strip]:
    """Return each rank's chunks before and after each part of the collective."""
    counts = {rank: [1] * len(ranks) for rank in ranks}
    strips: list[Strip] = [({r: tuple(c) for r, c in counts.items()}, {})]
    for phase, moves in ring.film:
        before = {rank: tuple(held) for rank, held in counts.items()}
        for move in moves:
            if move.chunk < len(ranks):
                adds = before[move.dst][move.chunk] if phase == "reduce-scatter" else 0
                counts[move.dst][move.chunk] = before[move.src][move.chunk] + adds
        strips.append(({r: tuple(c) for r, c in counts.items()}, {m.dst: m.chunk for m in moves}))
    return strips


def _cells(held: Sequence[int], came: int | None, num_ranks: int, now: bool) -> list[Segment]:
    """Draw a rank's chunks after a part; ``came``: the chunk received in it, bright if ``now``."""
    made = []
    for chunk, number in enumerate(held):
        new = chunk == came
        text = "✓" if number >= num_ranks else str(number)
        depth = min(3, 1 + 2 * (number - 1) // max(1, num_ranks - 1))
        style = "chunk.now" if new and now else "chunk.all" if text == "✓" else f"chunk.{depth}"
        made.append(Segment(f"{'▸' if new else ' '}{text} ", style))
    return made


# ------------------------------------------------------------------------------------- axes


def axes(view: TrafficView, cells: int, formulas: bool = True) -> list[Line]:
    """Draw all groups by axis of the mesh, with their ops and bytes per step, largest first."""
    step = view.step
    assert step is not None
    total = sum(op.sent for op in step.ops) or 1.0
    lines: list[Line] = []
    for axis, whole in _hundredths(axes_of(step), 100).items():
        ops = [op for op in step.ops if op.axis == axis and op.sent > 0]
        shares = _hundredths({op.op: op.sent for op in ops}, whole)
        groups = max((op.groups for op in ops), key=len)
        shown = " ".join(f"({','.join(map(str, ranks))})" for ranks in groups)
        many = f"{words.plural(len(groups), 'group')} of {len(groups[0])}: "
        name = Segment(left(clip(clean(axis), 9), 10), "strong")
        head = (Segment("■ ", axis_style(step, axis)), name, Segment(many, "dim"),
                Segment(clip(shown, max(4, cells - 12 - len(many)))))  # fmt: skip
        lines += [(), line(*head)] if lines else [line(*head)]
        lines += [row for op in ops for row in _op(op, shares[op.op], total, cells, formulas)]
    return lines


def _op(op: StepOp, share: int, total: float, cells: int, formulas: bool) -> list[Line]:
    """Return ``all_reduce 64 × 32.8 kB 2.10 MB 79%``: number, bytes each, bytes a rank sends; and
    the formula, if the traffic is not observed."""
    each = op.payload / op.number if op.number else 0.0
    figures = line(
        "  ", Segment(left(clean(op.op), 16)),
        Segment(right(f"{_count(op.number)} × {words.size(each)}", max(14, cells - 36)), "dim"),
        Segment(right(words.size(op.sent), 10), "strong"),
        Segment(right(words.percent(share / 100, 0), 6), "dim"),
    )  # fmt: skip
    if not formulas or op.source == "observed" or op.sent < _LITTLE * total:
        return [figures]
    n, payload = len(op.groups[0]), words.size(op.payload)
    twice, put_in = ("2", "2⋅") if op.op == "all_reduce" else ("", "")
    factor = f"{twice}(N−1)/N ⋅ {payload} = {put_in}{n - 1}/{n} ⋅ {payload}"
    return [figures, line("  ", Segment(f"{factor} = {words.size(op.sent)}", "dim"))]


def owners(step: StepTraffic) -> dict[tuple[int, int], str]:
    """Return (sender, receiver) -> axis, for pairs with significant traffic: the smallest group
    with both ranks."""
    groups = sorted(
        ((len(ranks), op.axis, set(ranks)) for op in step.ops for ranks in op.groups),
        key=lambda one: one[:2],
    )
    top = max((size for *_, size in step.edges), default=0.0)
    found = {}
    for src, dst, _, size in step.edges:
        axis = next((axis for _, axis, ranks in groups if src in ranks and dst in ranks), None)
        if axis is not None and size >= _LITTLE * top:
            found[src, dst] = axis
    return found


def who_sends(step: StepTraffic, ranks: Sequence[int], cells: int, rows: int) -> list[Line]:
    """Draw senders down, receivers across, with the letter of the axis between a pair."""
    axis_of, shown = owners(step), list(ranks)[: max(1, min((cells - 8) // 4, rows - 1))]
    if len(shown) < 2:
        return []
    lines = [line("      ", *(Segment(right(f"r{rank}", 4), "dim") for rank in shown))]
    for src in shown:
        row: list[Segment | str | Line] = [Segment(right(f"r{src}", 5), "dim"), "  "]
        for dst in shown:
            axis = axis_of.get((src, dst))
            style = "faint/fill" if axis is None else f"brand/{axis_style(step, axis)}"
            mark = "·" if axis is None else clean(axis)[:1]
            row += [Segment(f" {mark} ", style), Segment(" ", "faint/fill")]
        lines.append(line(*row))
    beside = _by_letter(step, axis_of) if 6 + 4 * len(shown) + _LETTERS <= cells else []
    for at, said in enumerate(beside[: len(lines) - 1], 1):
        lines[at] = line(fit(lines[at], 8 + 4 * len(shown)), "  ", said)
    return lines


def _by_letter(step: StepTraffic, axis_of: Mapping[tuple[int, int], str]) -> list[Line]:
    """Draw the letter of each axis, and the most bytes per step from one rank to another on it."""
    most: dict[str, float] = {}
    for src, dst, _, size in step.edges:
        if (axis := axis_of.get((src, dst))) is not None:
            most[axis] = max(most.get(axis, 0.0), size)
    return [
        line(Segment(f" {clean(axis)[:1]} ", f"brand/{axis_style(step, axis)}"),
             Segment(f" {words.size(size)}", "dim"))
        for axis, size in sorted(most.items(), key=lambda one: -one[1])
    ]  # fmt: skip


def crossing(step: StepTraffic) -> dict[str, float]:
    """Return axis -> bytes per step that would cross between two hosts if each had half of that
    axis; only for axes with every rank in a group, all groups of one even size."""
    ranks = {rank for src, dst, _, _ in step.edges for rank in (src, dst)}
    found: dict[str, float] = {}
    for axis in axes_of(step):
        groups = max((op.groups for op in step.ops if op.axis == axis), key=len)
        members = [rank for group in groups for rank in group]
        sizes = {len(group) for group in groups}
        if sorted(members) != sorted(ranks) or len(sizes) > 1 or max(sizes) % 2:
            continue
        upper = {rank for group in groups for rank in group[len(group) // 2 :]}
        found[axis] = sum(
            size for src, dst, _, size in step.edges if (src in upper) != (dst in upper)
        )
    return found


def across(step: StepTraffic, cells: int) -> list[Line]:
    """Draw the traffic between two hosts, by the axis that is cut; empty for a single axis."""
    found = crossing(step)
    if len(found) < 2:
        return []
    top, least = max(found.values()) or 1.0, min(found.values())
    room = max(4, cells - 24)
    lines: list[Line] = []
    for axis, size in sorted(found.items(), key=lambda one: one[1]):
        lines.append(line(
            Segment(f" {left(clip(clean(axis), 4), 5)}"), Segment("cut  ", "dim"),
            Segment(thin(size / top, room), axis_style(step, axis)),
            Segment(right(words.size(size), 10), "good" if size == least else ""),
        ))  # fmt: skip
    return lines
