"""``where``: every rank's stacks, asked of the agents, from outside where they do not answer."""

from __future__ import annotations

import json
import os
import queue
import shutil
import stat
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from pardbg.analysis.hangs.locks import MAX_TEXT, lock_waits
from pardbg.analysis.hangs.stacks import is_user

WAIT_NS: Final = 1_000_000_000
"""Silence after which an agent is inspected from outside: something holds its GIL."""
PY_SPY_S: Final = 5.0
ELSEWHERE_NS: Final = 7_000_000_000
"""Another node's answer may be lost."""
MAX_FRAMES: Final = 256
WAITING: Final = ("/threading.py", "/queue.py", "/concurrent/futures/_base.py", "/selectors.py",
                  "/concurrent/futures/thread.py")  # fmt: skip
"""Places of a thread that waits for another one."""
IN_OPS: Final = ("wait", "op", "call")
MAX_OUTSIDE: Final = 32
"""Processes looked at from outside for one question."""

Stack = list[list[Any]]
"""[[file, line, function], …], outermost first."""


@dataclass(slots=True)
class Asked:
    """One ``where`` under way."""

    answer: Callable[[dict[str, Any]], None]
    waiting: dict[str, tuple[int, int]]
    """proc -> (rank, pid) of who has not answered."""
    since_ns: int
    stacks: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """rank -> threads"""
    issued: dict[int, list[Any]] = field(default_factory=dict)
    """rank -> where its open asynchronous ops were issued"""
    source: dict[int, str] = field(default_factory=dict)
    """rank -> agent, py-spy or why not."""
    threads: dict[str, threading.Thread] = field(default_factory=dict)
    """proc -> who looks at it from outside."""
    elsewhere: set[str] = field(default_factory=set)
    """Looked at on other nodes."""


class Where:
    """All ``where`` requests under way. ``dump`` runs in threads of its own."""

    def __init__(self, dump: Callable[[int], list[dict[str, Any]]] | None = None) -> None:
        self._asked: dict[int, Asked] = {}
        self._dump = dump or py_spy
        self.elsewhere: Callable[[int, str, int], bool] = lambda number, proc, pid: False
        """Have a process looked at on its own node; False: it is here."""
        self._results: queue.SimpleQueue[tuple[int, str, list[dict[str, Any]] | str]] = (
            queue.SimpleQueue()
        )

    def ask(
        self,
        number: int,
        procs: dict[str, tuple[int, int]],
        answer: Callable[[dict[str, Any]], None],
        now: int,
        silent: Iterable[str] = (),
    ) -> None:
        """The agents were asked with id ``number``; ``silent`` ones are known not to answer."""
        asked = self._asked[number] = Asked(answer, dict(procs), now)
        for proc in silent:
            self._go_outside(number, asked, proc)
        self.tick(now)

    def answered(self, number: int, proc: str, message: dict[str, Any]) -> None:
        """An agent's ACK."""
        threads, issued, asked = (
            message.get("stacks"),
            message.get("issued"),
            self._asked.get(number),
        )
        if asked is not None and proc in asked.waiting and isinstance(issued, list) and issued:
            asked.issued[asked.waiting[proc][0]] = issued
        self._take(number, proc, "agent", threads if isinstance(threads, list) else [])

    def looked(self, number: int, proc: str, found: list[dict[str, Any]] | str) -> None:
        """Take what was seen of a process on another node, or why nothing was."""
        self._results.put((number, proc, found))

    def gone(self, proc: str) -> None:
        """A process ended meanwhile."""
        for number in list(self._asked):
            self._take(number, proc, "ended meanwhile")

    def tick(self, now: int) -> None:
        """Go outside for who is silent; collect what was found there."""
        for number, asked in list(self._asked.items()):
            if not asked.waiting:
                self._finish(number)
            elif now - asked.since_ns >= WAIT_NS:
                for proc in list(asked.waiting):
                    self._go_outside(number, asked, proc)
                    if proc in asked.elsewhere and now - asked.since_ns >= ELSEWHERE_NS:
                        self._results.put((number, proc, "no answer, neither from its node"))
        while not self._results.empty():
            number, proc, found = self._results.get()
            if isinstance(found, str):
                self._take(number, proc, found[:200])
            else:
                self._take(number, proc, "py-spy", found)

    def _go_outside(self, number: int, asked: Asked, proc: str) -> None:
        if len(asked.threads) >= MAX_OUTSIDE and proc not in asked.threads:
            self._results.put((number, proc, f"no answer; inspecting {MAX_OUTSIDE} others already"))
        elif proc in asked.waiting and proc not in asked.threads:
            arguments = (number, proc, asked.waiting[proc][1])
            if proc in asked.elsewhere or self.elsewhere(*arguments):
                asked.elsewhere.add(proc)
                return
            thread = threading.Thread(target=self._look, args=arguments, daemon=True)
            asked.threads[proc] = thread
            thread.start()

    def _look(self, number: int, proc: str, pid: int) -> None:
        try:
            self._results.put((number, proc, self._dump(pid)))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._results.put((number, proc, f"no answer, and py-spy: {error}"))

    def _take(
        self, number: int, proc: str, source: str, threads: list[dict[str, Any]] | None = None
    ) -> None:
        """Take what is known of one process, or why nothing is, unless that came before."""
        asked = self._asked.get(number)
        if asked is None or proc not in asked.waiting:
            return
        rank, _ = asked.waiting.pop(proc)
        asked.source[rank] = source
        if threads is not None:
            asked.stacks[rank] = threads
        self._finish(number)

    def _finish(self, number: int) -> None:
        asked = self._asked[number]
        if not asked.waiting:
            del self._asked[number]
            tree, source = merge(asked.stacks), cache(program_text)
            locks = {rank: lock_waits(threads, source) for rank, threads in asked.stacks.items()}
            asked.answer(
                {
                    "stacks": asked.stacks,
                    "source": asked.source,
                    "tree": tree,
                    "locks": locks,
                    "issued": asked.issued,
                }
            )


def program_text(file: str) -> str:
    """The text of a program's file; empty for what is no file, is too long or cannot be read."""
    try:
        status = os.stat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_TEXT:
            return ""
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return ""


def merge(stacks: dict[int, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Equal main-thread stacks together: [{"ranks": […], "frames": […]}], most ranks first."""
    groups: dict[str, tuple[list[int], Stack]] = {}
    for rank, threads in sorted(stacks.items()):
        frames: Stack = speaking(threads).get("frames", [])[:MAX_FRAMES]
        groups.setdefault(json.dumps(frames, default=str), ([], frames))[0].append(rank)
    parts = sorted(groups.values(), key=lambda part: (-len(part[0]), part[0]))
    return [{"ranks": ranks, "frames": frames} for ranks, frames in parts]


def speaking(threads: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the thread that says where a rank is: the main one, unless it waits for other threads
    and one of these is in an op."""
    main = next((t for t in threads if t.get("main")), threads[0] if threads else {})
    frames = main.get("frames") or [["", 0, ""]]
    if main.get("inside") or not str(frames[-1][0]).endswith(WAITING):
        return main
    return next((t for t in threads if t.get("inside") in IN_OPS), main)


def telling(thread: Mapping[str, Any]) -> bool:
    """Return whether it stands in an op, or somewhere in the program."""
    frames = [(str(f[0]), 0, "") for f in thread.get("frames") or ()]
    return thread.get("inside") in IN_OPS or any(map(is_user, frames))


def py_spy(pid: int) -> list[dict[str, Any]]:
    """Threads of a process, read from outside without stopping it. Raises OSError or ValueError."""
    beside = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    program = shutil.which("py-spy", path=os.pathsep.join(map(str, beside)))
    program = program or shutil.which("py-spy")
    if program is None:
        raise OSError("not installed (pip install py-spy)")
    argv = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    done = subprocess.run(
        argv, capture_output=True, timeout=PY_SPY_S, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise OSError(words[-1] if words else f"exit code {done.returncode}")
    return [
        {
            "thread": str(thread.get("thread_name") or thread.get("thread_id")),
            "main": thread.get("thread_name") == "MainThread",
            "inside": "gil" if thread.get("owns_gil") else "",
            "frames": [
                [frame.get("filename"), frame.get("line"), frame.get("name")]
                for frame in reversed(thread.get("frames", [])[:MAX_FRAMES])
            ],
        }
        for thread in json.loads(done.stdout)
    ]
