"""Contents of the debug page: all ranks' stacks as one tree, in which ranks at the same place share
a line; and the console with commands, answers and the audit trail, by time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.hangs.stacks import is_user
from pardbg.events.commands import WhereFound
from pardbg.render.draw.cells import Line, Segment, clean, clip, line, line_width, width
from pardbg.render.frame.audit_trail import trail
from pardbg.words import stamp
from pardbg_agent.ctrl.agent_messages import Frame
from pardbg_agent.tables.code_files import in_reach


@dataclass(frozen=True, slots=True)
class Spot:
    """A frame of a stack."""

    text: str
    """``train.py:88 train_step``"""
    user: bool
    """Whether the frame is in the program's own files, which its author looks for."""
    file: str = ""
    line: int = 0


Stack = tuple[Spot, ...]
"""Spots of a stack, outermost first."""
_GAP: Final = Spot("…", False)


@dataclass(slots=True)
class _Node:
    ranks: list[int] = field(default_factory=list)
    children: dict[Spot, _Node] = field(default_factory=dict)


def stacks_of(found: WhereFound) -> dict[int, Stack]:
    """Return the main thread's stack per rank, from the answer to ``where``."""
    stacks = {}
    for rank, threads in found.stacks.items():
        main = next((t for t in threads if t.main), threads[0] if threads else None)
        if main is not None and main.frames:
            stacks[rank] = spots(main.frames)
    return stacks


def spots(frames: Sequence[Frame]) -> Stack:
    """Return a stack, outermost first, without the agent's own frames at the inner end."""
    ours = (at for at, frame in enumerate(frames) if "pardbg_agent/" in frame[0])
    own = next(ours, len(frames))
    while own > 1 and frames[own - 1][0].endswith("/threading.py"):
        own -= 1  # the gate's wait: it says nothing about the program either
    return tuple(map(_spot, frames[: own or 1]))


def spots_in_reach(stack: Stack, every: bool = False) -> list[Spot]:
    """Return the frames that can be inspected, numbered as on the rank, innermost first."""
    known = stack[::-1]
    return [known[at] for at in in_reach([spot.file for spot in known], every)]


def _spot(frame: Frame) -> Spot:
    file, number, function = frame
    text = f"{file.rpartition('/')[2]}:{number} {function}"
    return Spot(clean(text), is_user((file, 0, "")), file, number)


def tree(
    stacks: Mapping[int, Stack], cells: int, first: Sequence[int] = (), rows: int = 0
) -> list[Line]:
    """Return the merged tree, the branch with ranks of ``first`` first, then the larger ones; one
    frame per line if ``rows`` have room for all, else one line for each run of shared frames."""
    root = _Node()
    for rank, stack in sorted(stacks.items()):
        node = root
        node.ranks.append(rank)
        for spot in stack:
            node = node.children.setdefault(spot, _Node())
            node.ranks.append(rank)
    for apart in (True, False):
        lines: list[Line] = []
        for spot, child in _ordered(root, first):
            _branch(spot, child, "", cells, lines, first, apart)
        if len(lines) <= rows:
            break
    return lines


def _ordered(node: _Node, first: Sequence[int]) -> list[tuple[Spot, _Node]]:
    return sorted(
        node.children.items(),
        key=lambda item: (set(first).isdisjoint(item[1].ranks), -len(item[1].ranks)),
    )


def _branch(
    spot: Spot, node: _Node, indent: str, cells: int, lines: list[Line], first: Sequence[int],
    apart: bool,
) -> None:  # fmt: skip
    spots = [spot]
    while len(node.children) == 1:
        ((after, child),) = node.children.items()
        if child.ranks != node.ranks:
            break
        spots.append(after)
        node = child
    ranks = f"{words.plural(len(node.ranks), 'rank')} {words.rank_set(node.ranks)}"
    start = f" {indent}├ "
    room = cells - width(start) - width(ranks) - 4
    shown = [_runs(spots, room)]
    if apart:
        shown = [[Segment(clip(s.text, room), "strong" if s.user else "dim")] for s in spots]
    head = line(Segment(start, "faint"), Segment(ranks, "accent"), Segment("  "))
    for runs in shown:
        lines.append(line(*head, *runs))
        head = line(" " * line_width(head))
    for after, child in _ordered(node, first):
        _branch(after, child, indent + "  ", cells, lines, first, apart)


def _runs(spots: Sequence[Spot], room: int) -> list[Segment]:
    """Return the frames that fit; the program's own innermost comes first and is bright (of library
    frames the innermost)."""
    last = len(spots) - 1
    loud = next((at for at in range(last, -1, -1) if spots[at].user), last)
    kept = {loud}
    for at in (last, *range(last - 1, -1, -1)):
        shown = _with_gaps(spots, kept | {at})
        if sum(width(spot.text) + 3 for _, spot in shown) - 3 > room:
            break
        kept.add(at)
    runs: list[Segment] = []
    for at, spot in _with_gaps(spots, kept):
        runs += [Segment(" › ", "faint")] if runs else []
        runs.append(Segment(clip(spot.text, room), "strong" if at == loud else "dim"))
    return runs


def _with_gaps(spots: Sequence[Spot], kept: set[int]) -> list[tuple[int, Spot]]:
    """Return (place, frame) of the kept frames, and a ``…`` for each run of others."""
    shown: list[tuple[int, Spot]] = []
    for at, spot in enumerate(spots):
        if at in kept:
            shown.append((at, spot))
        elif not shown or shown[-1][1] is not _GAP:
            shown.append((at, _GAP))
    return shown


_STAMP: Final = 12


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the console."""

    t_ns: int
    """Time by the run's clock; a recording's audit trail comes before all typed lines."""
    text: str
    style: str = ""
    n: int = 0
    """Number of the CONTROL message with the same content. If the audit trail has that message,
    with its time, this line is left out."""


def console(snapshot: Snapshot, typed: Sequence[Entry], you: str, cells: int) -> list[Line]:
    """Return all lines, the newest last; ``you`` is this viewer's name in the audit trail."""
    log = snapshot.control.log
    shown = {event.n for event in log if event.n}
    found = [
        (one.t_ns, at, _trail(one.t_ns - snapshot.t_begin_ns, clean(one.text), cells))
        for at, one in enumerate(trail(log, you))
    ]
    found += [
        (one.t_ns, at, _typed(one, cells))
        for at, one in enumerate(typed, len(found))
        if one.n not in shown
    ]
    return [row for _, _, rows in sorted(found, key=lambda e: e[:2]) for row in rows]


def _trail(since_ns: int, text: str, cells: int) -> list[Line]:
    rows = fold(text, cells - _STAMP - 1)
    return [
        line(
            Segment(f" {stamp(max(0, since_ns)) if at == 0 else '':>{_STAMP - 3}}  ", "faint"),
            Segment(row, "dim"),
        )
        for at, row in enumerate(rows)
    ]


def _typed(entry: Entry, cells: int) -> list[Line]:
    text = clean(entry.text.expandtabs(4))
    return [line(Segment(f" {row}", entry.style)) for row in fold(text, cells - 2)]


def fold(text: str, cells: int) -> list[str]:
    """Return ``text`` over as many rows as needed, each with the text's indentation."""
    indent = " " * min(len(text) - len(text.lstrip()), cells // 2)
    rows: list[str] = []
    while width(text) > cells:
        cut = _last_fitting(text, cells)
        rows.append(text[:cut].rstrip())
        text = f"{indent}  {text[cut:].lstrip()}"
    return [*rows, text]


def _last_fitting(text: str, cells: int) -> int:
    """Return where to cut: after the last blank that fits, unless that wastes half a row."""
    end = len(text)
    while width(text[:end]) > cells:
        end -= max(1, (width(text[:end]) - cells) // 2)
    blank = text.rfind(" ", 0, end) + 1
    return blank if blank > max(end // 2, len(text) - len(text.lstrip())) else max(1, end)
