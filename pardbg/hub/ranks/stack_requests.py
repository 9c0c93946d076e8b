"""Requests for all ranks' stacks (``where``): from their agents, else from outside by py-spy."""

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
from pardbg.analysis.hangs.stacks import is_user, waits_in_op
from pardbg.events.commands import StackGroup, WhereFound
from pardbg.hub.ctrl_messages import Looked
from pardbg_agent.ctrl.agent_messages import Frame, IssuedAt, Stacks, Thread

WAIT_NS: Final = 1_000_000_000
"""Silence after which an agent is inspected from outside: something holds its GIL."""
PY_SPY_S: Final = 5.0
ELSEWHERE_NS: Final = 7_000_000_000
"""Maximum time, in ns, for another node's answer, which may be lost."""
MAX_FRAMES: Final = 256
WAITING: Final = ("/threading.py", "/queue.py", "/concurrent/futures/_base.py", "/selectors.py",
                  "/concurrent/futures/thread.py", "/asyncio/threads.py")  # fmt: skip
"""Files in which a thread stands that waits for another thread."""
_LOOPS: Final = (WAITING[3], "/trio/_core/_io_epoll.py")
"""... or, with awaits below, for one that its event loop gave work to."""
MAX_OUTSIDE: Final = 32
"""Maximum number of processes inspected from outside per request."""


@dataclass(slots=True)
class Request:
    """A request under way."""

    answer: Callable[[WhereFound], None]
    waiting: dict[str, tuple[int, int]]
    """Process -> (rank, pid) of processes that have not answered."""
    since_ns: int
    stacks: dict[int, tuple[Thread, ...]] = field(default_factory=dict)
    """Rank -> threads."""
    issued: dict[int, tuple[IssuedAt, ...]] = field(default_factory=dict)
    """Rank -> call sites of its open asynchronous ops."""
    source: dict[int, str] = field(default_factory=dict)
    """Rank -> agent, py-spy, or the reason for a missing stack."""
    threads: dict[str, threading.Thread] = field(default_factory=dict)
    """Process -> thread that inspects it from outside."""
    elsewhere: set[str] = field(default_factory=set)
    """Processes inspected on their own nodes."""


class StackRequests:
    """All requests under way. ``dump`` reads a process from outside, in a thread of its own."""

    def __init__(self, dump: Callable[[int], tuple[Thread, ...]] | None = None) -> None:
        self._requests: dict[int, Request] = {}
        self._dump = dump or py_spy
        self.elsewhere: Callable[[int, str, int], bool] = lambda number, proc, pid: False
        """Has a process inspected on its own node; False: it is here."""
        self._results: queue.SimpleQueue[Looked] = queue.SimpleQueue()

    def ask(
        self,
        number: int,
        procs: dict[str, tuple[int, int]],
        answer: Callable[[WhereFound], None],
        now: int,
        silent: Iterable[str] = (),
    ) -> None:
        """Register a request that agents got as ``number``; ``silent`` agents will not answer."""
        request = self._requests[number] = Request(answer, dict(procs), now)
        for proc in silent:
            self._inspect_outside(number, request, proc)
        self.tick(now)

    def answered(self, proc: str, answer: Stacks) -> None:
        """Take an agent's answer."""
        request = self._requests.get(answer.re)
        if request is not None and proc in request.waiting and answer.issued:
            request.issued[request.waiting[proc][0]] = answer.issued
        self._take(answer.re, proc, "agent", answer.threads)

    def looked(self, found: Looked) -> None:
        """Take the result of an inspection on another node, or the reason for a missing one."""
        self._results.put(found)

    def gone(self, proc: str) -> None:
        """Stop waiting for a process that has ended."""
        for number in list(self._requests):
            self._take(number, proc, "ended meanwhile")

    def tick(self, now: int) -> None:
        """Inspect silent processes from outside; collect the results."""
        for number, request in list(self._requests.items()):
            if not request.waiting:
                self._finish(number)
            elif now - request.since_ns >= WAIT_NS:
                for proc in list(request.waiting):
                    self._inspect_outside(number, request, proc)
                    if proc in request.elsewhere and now - request.since_ns >= ELSEWHERE_NS:
                        problem = "no answer, neither from its node"
                        self._results.put(Looked(number, proc, problem=problem))
        while not self._results.empty():
            found = self._results.get()
            if found.problem:
                self._take(found.id, found.proc, found.problem[:200])
            else:
                self._take(found.id, found.proc, "py-spy", found.threads)

    def _inspect_outside(self, number: int, request: Request, proc: str) -> None:
        if len(request.threads) >= MAX_OUTSIDE and proc not in request.threads:
            problem = f"no answer; inspecting {MAX_OUTSIDE} others already"
            self._results.put(Looked(number, proc, problem=problem))
        elif proc in request.waiting and proc not in request.threads:
            arguments = (number, proc, request.waiting[proc][1])
            if proc in request.elsewhere or self.elsewhere(*arguments):
                request.elsewhere.add(proc)
                return
            thread = threading.Thread(target=self._look, args=arguments, daemon=True)
            request.threads[proc] = thread
            thread.start()

    def _look(self, number: int, proc: str, pid: int) -> None:
        try:
            threads = self._dump(pid)
            if (first := speaking(threads)) is None or not first.frames:
                threads = self._dump(pid)  # a stack that changes as it is read may come out empty
            self._results.put(Looked(number, proc, threads))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            problem = f"no answer, and py-spy: {error}"
            self._results.put(Looked(number, proc, problem=problem))

    def _take(
        self, number: int, proc: str, source: str, threads: tuple[Thread, ...] | None = None
    ) -> None:
        """Take the first result of a process: its threads, or in ``source`` the reason for none."""
        request = self._requests.get(number)
        if request is None or proc not in request.waiting:
            return
        rank, _ = request.waiting.pop(proc)
        request.source[rank] = source
        if threads is not None:
            request.stacks[rank] = threads
        self._finish(number)

    def _finish(self, number: int) -> None:
        request = self._requests[number]
        if not request.waiting:
            del self._requests[number]
            source = cache(program_text)
            locks = {
                rank: waits
                for rank, threads in request.stacks.items()
                if (waits := tuple(lock_waits(threads, source)))
            }
            tree = merge(request.stacks)
            request.answer(WhereFound(request.stacks, request.source, tree, locks, request.issued))


def program_text(file: str) -> str:
    """Return the text of a source file; empty if it is no file, too long or not readable."""
    try:
        status = os.stat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_TEXT:
            return ""
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return ""


def merge(stacks: Mapping[int, tuple[Thread, ...]]) -> tuple[StackGroup, ...]:
    """Return equal main-thread stacks grouped, most ranks first."""
    groups: dict[tuple[Frame, ...], list[int]] = {}
    for rank, threads in sorted(stacks.items()):
        found = speaking(threads)
        groups.setdefault(found.frames[:MAX_FRAMES] if found else (), []).append(rank)
    parts = sorted(groups.items(), key=lambda part: (-len(part[1]), part[1]))
    return tuple(StackGroup(tuple(ranks), frames) for frames, ranks in parts)


def speaking(threads: Sequence[Thread]) -> Thread | None:
    """Return the thread that shows a rank's place: one in an op if the main one waits for it."""
    main = next((t for t in threads if t.main), threads[0] if threads else None)
    if main is None or main.inside or not main.frames:
        return main
    idle = any(file.endswith(_LOOPS) for file, _, _ in main.frames)
    if not idle and not main.frames[-1][0].endswith(WAITING):
        return main
    return next((t for t in threads if t is not main and waits_in_op(t.frames, t.inside)), main)


def telling(thread: Thread) -> bool:
    """Return whether the thread stands in an op, or somewhere in the program."""
    return waits_in_op((), thread.inside) or any(map(is_user, thread.frames))


def py_spy(pid: int) -> tuple[Thread, ...]:
    """Read a process's threads from outside without a stop. Raises OSError or ValueError."""
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
        text = done.stderr.decode("utf-8", "replace").partition("Stack backtrace")[0]
        words = text.strip().splitlines()
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
