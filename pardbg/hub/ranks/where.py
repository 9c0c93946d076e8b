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
from typing import Final

from pardbg.analysis.hangs.locks import MAX_TEXT, lock_waits
from pardbg.analysis.hangs.stacks import is_user
from pardbg.events.commands import StackGroup, WhereFound
from pardbg.hub.ctrl_messages import Looked
from pardbg_agent.ctrl.agent_messages import Frame, IssuedAt, Stacks, Thread

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


@dataclass(slots=True)
class Asked:
    """One ``where`` under way."""

    answer: Callable[[WhereFound], None]
    waiting: dict[str, tuple[int, int]]
    """proc -> (rank, pid) of processes that have not answered."""
    since_ns: int
    stacks: dict[int, tuple[Thread, ...]] = field(default_factory=dict)
    """rank -> threads"""
    issued: dict[int, tuple[IssuedAt, ...]] = field(default_factory=dict)
    """rank -> where its open asynchronous ops were issued"""
    source: dict[int, str] = field(default_factory=dict)
    """rank -> agent, py-spy or why not."""
    threads: dict[str, threading.Thread] = field(default_factory=dict)
    """proc -> who looks at it from outside."""
    elsewhere: set[str] = field(default_factory=set)
    """Looked at on other nodes."""


class Where:
    """All ``where`` requests under way. ``dump`` runs in threads of its own."""

    def __init__(self, dump: Callable[[int], tuple[Thread, ...]] | None = None) -> None:
        self._asked: dict[int, Asked] = {}
        self._dump = dump or py_spy
        self.elsewhere: Callable[[int, str, int], bool] = lambda number, proc, pid: False
        """Have a process looked at on its own node; False: it is here."""
        self._results: queue.SimpleQueue[Looked] = queue.SimpleQueue()

    def ask(
        self,
        number: int,
        procs: dict[str, tuple[int, int]],
        answer: Callable[[WhereFound], None],
        now: int,
        silent: Iterable[str] = (),
    ) -> None:
        """The agents were asked with id ``number``; ``silent`` ones are known not to answer."""
        asked = self._asked[number] = Asked(answer, dict(procs), now)
        for proc in silent:
            self._go_outside(number, asked, proc)
        self.tick(now)

    def answered(self, proc: str, answer: Stacks) -> None:
        """Take an agent's answer."""
        asked = self._asked.get(answer.re)
        if asked is not None and proc in asked.waiting and answer.issued:
            asked.issued[asked.waiting[proc][0]] = answer.issued
        self._take(answer.re, proc, "agent", answer.threads)

    def looked(self, found: Looked) -> None:
        """Take what was seen of a process on another node, or why nothing was."""
        self._results.put(found)

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
                        problem = "no answer, neither from its node"
                        self._results.put(Looked(number, proc, problem=problem))
        while not self._results.empty():
            found = self._results.get()
            if found.problem:
                self._take(found.id, found.proc, found.problem[:200])
            else:
                self._take(found.id, found.proc, "py-spy", found.threads)

    def _go_outside(self, number: int, asked: Asked, proc: str) -> None:
        if len(asked.threads) >= MAX_OUTSIDE and proc not in asked.threads:
            problem = f"no answer; inspecting {MAX_OUTSIDE} others already"
            self._results.put(Looked(number, proc, problem=problem))
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
            self._results.put(Looked(number, proc, self._dump(pid)))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            problem = f"no answer, and py-spy: {error}"
            self._results.put(Looked(number, proc, problem=problem))

    def _take(
        self, number: int, proc: str, source: str, threads: tuple[Thread, ...] | None = None
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
            source = cache(program_text)
            locks = {
                rank: waits
                for rank, threads in asked.stacks.items()
                if (waits := tuple(lock_waits(threads, source)))
            }
            tree = merge(asked.stacks)
            asked.answer(WhereFound(asked.stacks, asked.source, tree, locks, asked.issued))


def program_text(file: str) -> str:
    """The text of a program's file; empty for what is no file, is too long or cannot be read."""
    try:
        status = os.stat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_TEXT:
            return ""
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return ""


def merge(stacks: Mapping[int, tuple[Thread, ...]]) -> tuple[StackGroup, ...]:
    """Return equal main-thread stacks together, most ranks first."""
    groups: dict[tuple[Frame, ...], list[int]] = {}
    for rank, threads in sorted(stacks.items()):
        found = speaking(threads)
        groups.setdefault(found.frames[:MAX_FRAMES] if found else (), []).append(rank)
    parts = sorted(groups.items(), key=lambda part: (-len(part[1]), part[1]))
    return tuple(StackGroup(tuple(ranks), frames) for frames, ranks in parts)


def speaking(threads: Sequence[Thread]) -> Thread | None:
    """Return the thread that says where a rank is: the main one, unless it waits for other threads
    and one of these is in an op."""
    main = next((t for t in threads if t.main), threads[0] if threads else None)
    if main is None or main.inside or not (main.frames and main.frames[-1][0].endswith(WAITING)):
        return main
    return next((t for t in threads if t.inside in IN_OPS), main)


def telling(thread: Thread) -> bool:
    """Return whether it stands in an op, or somewhere in the program."""
    return thread.inside in IN_OPS or any(map(is_user, thread.frames))


def py_spy(pid: int) -> tuple[Thread, ...]:
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
    return tuple(
        Thread(
            str(thread.get("thread_name") or thread.get("thread_id")),
            thread.get("thread_name") == "MainThread",
            tuple(
                (str(frame.get("filename")), int(frame.get("line") or 0), str(frame.get("name")))
                for frame in reversed(thread.get("frames", [])[:MAX_FRAMES])
            ),
            "gil" if thread.get("owns_gil") else "",
        )
        for thread in json.loads(done.stdout)
    )
