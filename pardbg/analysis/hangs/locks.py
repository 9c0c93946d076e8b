"""Finds the thread that holds a lock which another waits for, from the program's text and the
threads' lines: Python keeps no owner of a lock, and the program is not asked."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from pardbg.analysis.hangs.stacks import is_user, place, thread_text, thread_title
from pardbg.store.definitions import Frame
from pardbg_agent.ctrl.agent_messages import Thread

MAX_TEXT: Final = 1_000_000
"""Maximum size of a file that is parsed, in characters."""
_MAX_TOLD: Final = 3
_ASYNCIO: Final = "/asyncio/locks.py"
Source = Callable[[str], str]
"""File -> its text; empty if it cannot be read"""
Inside = tuple[str, int, int, int]
"""(lock as written, line that takes it, first and last line inside)"""


def lock_waits(threads: Sequence[Thread], source: Source) -> list[str]:
    """Return ``MainThread waits for self.lock; thread writer is inside it at a.py:30 in run``, one
    text for each thread that waits for a lock which another thread of the rank holds."""
    stacks = [(thread, _program(thread.frames)) for thread in threads]
    found = []
    for thread, frames in stacks:
        lock = _awaited(frames[-1], source) if frames else ""
        holders = [
            f"{'it' if other is thread else thread_text(other.thread, other.task_of)} "
            f"is inside it at {place(part)}"
            for other, others in stacks
            if (part := _inside(others, frames[-1][0], lock, source, other is thread))
        ] if lock else []  # fmt: skip
        if holders:
            waits = f"{thread_title(thread.thread, thread.task_of)} waits for {lock}"
            found.append(f"{waits}; {', '.join(holders[:_MAX_TOLD])}")
    return found


def _program(frames: Sequence[Frame]) -> Sequence[Frame]:
    """Return the frames without asyncio's own, inside a lock."""
    while frames and frames[-1][0].endswith(_ASYNCIO):
        frames = frames[:-1]
    return frames


def _awaited(frame: Frame, source: Source) -> str:
    """Return the lock that the line of a thread's innermost frame takes; empty if it takes none."""
    file, line, _ = frame
    text = source(file) if is_user(frame) else ""
    lines = text.splitlines()
    here = lines[line - 1] if 0 < line <= len(lines) else ""
    if "with " not in here and ".acquire(" not in here:
        return ""
    return next((lock for lock, at, _, _ in _held(text) if at == line), "")


def _inside(
    frames: Sequence[Frame], file: str, lock: str, source: Source, same: bool
) -> Sequence[Frame]:
    """Return the part of a thread's stack up to where it is inside the lock; empty if it is not.
    The innermost frame of the waiting thread itself does not count."""
    bodies = [(first, last) for name, _, first, last in _held(source(file)) if name == lock]
    shown = frames[:-1] if same else frames
    for at in range(len(shown), 0, -1):
        of, line, _ = shown[at - 1]
        if of == file and any(first <= line <= last for first, last in bodies):
            return shown if not same else shown[:at]
    return ()


def _held(text: str) -> Iterator[Inside]:
    """Yield the regions of code that hold a lock: ``with`` statements over named things (locks are
    objects, not calls), and from an ``acquire()`` statement to the statement of its block that
    releases it (``try`` … ``finally`` as a whole), or to the block's end."""
    for node in _nodes(text):
        if isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if isinstance(item.context_expr, (ast.Name, ast.Attribute, ast.Subscript)):
                    lock = ast.unparse(item.context_expr)
                    yield lock, item.context_expr.lineno, node.body[0].lineno, _last(node)
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(node, block, None)
            yield from _acquired(statements) if isinstance(statements, list) else ()


def _acquired(block: Sequence[ast.stmt]) -> Iterator[Inside]:
    for at, statement in enumerate(block):
        lock = _called(statement.value, "acquire") if isinstance(statement, ast.Expr) else ""
        if not lock:
            continue
        rest, last = block[at + 1 :], _last(statement)
        for after in rest:
            calls = (n for n in ast.walk(after) if isinstance(n, ast.Call))
            released = [n.lineno for n in calls if _called(n, "release") == lock]
            last = max(released) - 1 if released else _last(after)
            if released:
                break
        yield lock, statement.lineno, _last(statement) + 1, last


def _called(node: ast.AST, method: str) -> str:
    """Return the object whose method is called; empty if the node is no such call."""
    func = node.func if isinstance(node, ast.Call) else None
    return (
        ast.unparse(func.value) if isinstance(func, ast.Attribute) and func.attr == method else ""
    )


def _last(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _nodes(text: str) -> Iterator[ast.AST]:
    try:
        yield from ast.walk(ast.parse(text)) if len(text) <= MAX_TEXT else ()
    except (SyntaxError, ValueError, RecursionError):
        return
