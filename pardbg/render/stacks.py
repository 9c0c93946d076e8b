"""All ranks' stacks as one tree: ranks that stand in the same place share a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pardbg.render import words
from pardbg.render.cells import Line, Run, clean, clip, line, width

Stack = tuple[str, ...]
"""Frames as text, outermost first: ``train.py:88 train_step``."""


@dataclass(slots=True)
class _Node:
    ranks: list[int] = field(default_factory=list)
    children: dict[str, _Node] = field(default_factory=dict)


def stacks_of(data: Mapping[str, Any]) -> dict[int, Stack]:
    """The main thread's stack per rank, from the reply to ``where``; odd entries are left out."""
    per_rank = data.get("stacks", data.get("ranks", {}))
    found: dict[int, Stack] = {}
    if not isinstance(per_rank, Mapping):
        return found
    for rank, value in per_rank.items():
        threads = value.get("stacks", []) if isinstance(value, Mapping) else value
        stack = _main_thread(threads)
        if stack and str(rank).lstrip("-").isdigit():
            found[int(rank)] = stack
    return found


def _main_thread(threads: Any) -> Stack:
    if not isinstance(threads, Sequence) or isinstance(threads, (str, bytes)):
        return ()
    maps = [thread for thread in threads if isinstance(thread, Mapping)]
    main = next((t for t in maps if t.get("main")), maps[0] if maps else {})
    frames = main.get("frames")
    if not isinstance(frames, Sequence):
        return ()
    own = next((at for at, frame in enumerate(frames) if _ours(frame)), len(frames))
    while own > 1 and _file(frames[own - 1]).endswith("/threading.py"):
        own -= 1  # the gate's wait: it says nothing about the program either
    return tuple(map(_frame, frames[: own or 1]))


def _file(frame: Any) -> str:
    return str(frame[0]) if isinstance(frame, Sequence) and frame else ""


def _ours(frame: Any) -> bool:
    """The agent's own frames (its hooks and its gate) say nothing about the program."""
    return "pardbg_agent/" in _file(frame)


def _frame(frame: Any) -> str:
    if isinstance(frame, Sequence) and not isinstance(frame, str) and len(frame) >= 3:
        file, number, function = frame[:3]
        return f"{str(file).rpartition('/')[2]}:{number} {function}"
    return str(frame)


def tree(stacks: Mapping[int, Stack], cells: int) -> list[Line]:
    """The merged tree, the larger branch first; a run of frames shared by all is one line."""
    root = _Node()
    for rank, stack in sorted(stacks.items()):
        node = root
        node.ranks.append(rank)
        for frame in stack:
            node = node.children.setdefault(frame, _Node())
            node.ranks.append(rank)
    lines: list[Line] = []
    for frame, child in root.children.items():
        _branch(frame, child, "", cells, lines)
    return lines


def _branch(frame: str, node: _Node, indent: str, cells: int, lines: list[Line]) -> None:
    frames = [frame]
    while len(node.children) == 1:
        ((after, child),) = node.children.items()
        if child.ranks != node.ranks:
            break
        frames.append(after)
        node = child
    who = f"{words.plural(len(node.ranks), 'rank')} {words.rank_set(node.ranks)}"
    start = f" {indent}├ "
    room = cells - width(start) - width(who) - 4
    lines.append(line(Run(start, "faint"), Run(who, "accent"), Run("  "),
                      *_frames(frames, room)))  # fmt: skip
    for after, child in sorted(node.children.items(), key=lambda item: -len(item[1].ranks)):
        _branch(after, child, indent + "  ", cells, lines)


def _frames(frames: Sequence[str], room: int) -> list[Run]:
    """The innermost frames that fit, the last one loud: that is where it stands."""
    shown: list[str] = []
    used = 0
    for frame in reversed(frames):
        need = width(frame) + 3
        if shown and used + need > room - 2:
            shown.insert(0, "…")
            break
        shown.insert(0, clip(clean(frame), room))
        used += need
    runs: list[Run] = []
    for at, text in enumerate(shown):
        last = at == len(shown) - 1
        runs += [Run(text, "strong" if last else "dim"), Run("" if last else " › ", "faint")]
    return runs
