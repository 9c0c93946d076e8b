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
from typing import Any, Final

from pardbg.analysis.hangs.locks import MAX_TEXT, lock_waits
from pardbg.analysis.hangs.stacks import is_user

WAIT_NS: Final = 1_000_000_000
"""Silence after which an agent is inspected from outside: something holds its GIL."""
PY_SPY_S: Final = 5.0
ELSEWHERE_NS: Final = 7_000_000_000
"""Time for another node's answer, which may be lost."""
MAX_FRAMES: Final = 256
WAITING: Final = ("/threading.py", "/queue.py", "/concurrent/futures/_base.py", "/selectors.py",
                  "/concurrent/futures/thread.py")  # fmt: skip
"""Files in which a thread stands that waits for another thread."""
IN_OPS: Final = ("wait", "op", "call")
MAX_OUTSIDE: Final = 32
"""Maximum number of processes inspected from outside per request."""

Stack = list[list[Any]]
"""[[file, line, function], …], outermost first."""


@dataclass(slots=True)
class Request:
    """A request under way."""

    answer: Callable[[dict[str, Any]], None]
    waiting: dict[str, tuple[int, int]]
    """proc -> (rank, pid) of processes without an answer yet."""
    since_ns: int
    stacks: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """rank -> threads"""
    issued: dict[int, list[Any]] = field(default_factory=dict)
    """rank -> places that issued its open asynchronous ops"""
    source: dict[int, str] = field(default_factory=dict)
    """rank -> agent, py-spy, or the reason for a missing stack."""
    threads: dict[str, threading.Thread] = field(default_factory=dict)
    """proc -> thread that inspects it from outside."""
    elsewhere: set[str] = field(default_factory=set)
    """Processes inspected on their own nodes."""


class StackRequests:
    """All requests under way. ``dump`` reads a process from outside, in a thread of its own."""

    def __init__(self, dump: Callable[[int], list[dict[str, Any]]] | None = None) -> None:
        self._requests: dict[int, Request] = {}
        self._dump = dump or py_spy
        self.elsewhere: Callable[[int, str, int], bool] = lambda number, proc, pid: False
        """Asks a process's own node to inspect it; returns False for a process of this node."""
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
        """Register a request that agents got as ``number``; ``silent`` agents will not answer."""
        request = self._requests[number] = Request(answer, dict(procs), now)
        for proc in silent:
            self._inspect_outside(number, request, proc)
        self.tick(now)

    def answered(self, number: int, proc: str, message: dict[str, Any]) -> None:
        """Take an agent's ACK."""
        threads, issued, request = (
            message.get("stacks"),
            message.get("issued"),
            self._requests.get(number),
        )
        if request is not None and proc in request.waiting and isinstance(issued, list) and issued:
            request.issued[request.waiting[proc][0]] = issued
        self._take(number, proc, "agent", threads if isinstance(threads, list) else [])

    def looked(self, number: int, proc: str, found: list[dict[str, Any]] | str) -> None:
        """Take a process's threads from its own node, or the reason for missing ones."""
        self._results.put((number, proc, found))

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
                        self._results.put((number, proc, "no answer, neither from its node"))
        while not self._results.empty():
            number, proc, found = self._results.get()
            if isinstance(found, str):
                self._take(number, proc, found[:200])
            else:
                self._take(number, proc, "py-spy", found)

    def _inspect_outside(self, number: int, request: Request, proc: str) -> None:
        if len(request.threads) >= MAX_OUTSIDE and proc not in request.threads:
            self._results.put((number, proc, f"no answer; inspecting {MAX_OUTSIDE} others already"))
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
            self._results.put((number, proc, self._dump(pid)))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._results.put((number, proc, f"no answer, and py-spy: {error}"))

    def _take(
        self, number: int, proc: str, source: str, threads: list[dict[str, Any]] | None = None
    ) -> None:
        """Take the first result of a process: its threads, or in ``source`` why there are none."""
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
            tree, source = merge(request.stacks), cache(program_text)
            locks = {rank: lock_waits(threads, source) for rank, threads in request.stacks.items()}
            request.answer(
                {
                    "stacks": request.stacks,
                    "source": request.source,
                    "tree": tree,
                    "locks": locks,
                    "issued": request.issued,
                }
            )


def program_text(file: str) -> str:
    """Return the text of a source file; empty if it is no file, too long or not readable."""
    try:
        status = os.stat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_TEXT:
            return ""
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return ""


def merge(stacks: dict[int, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Merge equal main-thread stacks: [{"ranks": […], "frames": […]}], most ranks first."""
    groups: dict[str, tuple[list[int], Stack]] = {}
    for rank, threads in sorted(stacks.items()):
        frames: Stack = speaking(threads).get("frames", [])[:MAX_FRAMES]
        groups.setdefault(json.dumps(frames, default=str), ([], frames))[0].append(rank)
    parts = sorted(groups.values(), key=lambda part: (-len(part[0]), part[0]))
    return [{"ranks": ranks, "frames": frames} for ranks, frames in parts]


def speaking(threads: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the thread that shows the rank's place: the main thread, or a thread in an op that the
    main thread waits for."""
    main = next((t for t in threads if t.get("main")), threads[0] if threads else {})
    frames = main.get("frames") or [["", 0, ""]]
    if main.get("inside") or not str(frames[-1][0]).endswith(WAITING):
        return main
    return next((t for t in threads if t.get("inside") in IN_OPS), main)


def telling(thread: Mapping[str, Any]) -> bool:
    """Return whether a thread stands in an op or in the user's program."""
    frames = [(str(f[0]), 0, "") for f in thread.get("frames") or ()]
    return thread.get("inside") in IN_OPS or any(map(is_user, frames))


def py_spy(pid: int) -> list[dict[str, Any]]:
    """Return a process's threads, read from outside without stopping it. Raises OSError,
    ValueError."""
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
