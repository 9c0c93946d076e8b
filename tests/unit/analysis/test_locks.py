"""Who is inside a lock that a thread waits for, as the program's text says it."""

from __future__ import annotations

from pardbg.analysis.hangs.locks import lock_waits
from pardbg_agent.ctrl.agent_messages import Thread

PROGRAM = """\
import threading

class Log:
    def write(self):
        with self.lock:
            self.flush()

    def flush(self):
        self.file.wait()

    def again(self):
        with self.lock:
            with self.lock:
                pass

def step(log):
    log.lock.acquire()
    with open("x") as file:
        pass

class Queue:
    def put(self):
        self.lock.acquire()
        self.count += 1
        try:
            self.wait()
        finally:
            self.lock.release()
        self.tell()

    def get(self):
        if self.lock.acquire(timeout=1):
            self.wait()
"""
FILES = {"/job/log.py": PROGRAM}


def said(**threads: list[tuple[int, str]]) -> list[str]:
    """Of threads by name: (line, function), outermost first."""
    rows = [
        Thread(name, frames=tuple(("/job/log.py", line, function) for line, function in frames))
        for name, frames in threads.items()
    ]
    return lock_waits(rows, lambda file: FILES.get(file, ""))


def test_the_thread_that_is_inside_is_named_with_its_place() -> None:
    """The main thread is at ``with self.lock`` in write, the writer in flush, called from within
    it."""
    assert said(MainThread=[(5, "write")], writer=[(6, "write"), (9, "flush")]) == [
        "MainThread waits for self.lock; thread writer is inside it at log.py:9 in flush"
    ]


def test_a_thread_that_waits_for_its_own_lock() -> None:
    assert said(MainThread=[(12, "again"), (5, "write")]) == []
    assert said(MainThread=[(13, "again"), (5, "write")]) == [
        "MainThread waits for self.lock; it is inside it at log.py:13 in again"
    ]


def test_nothing_is_said_of_who_is_not_known_or_of_what_is_no_lock() -> None:
    """acquire() of a lock that no thread is inside of by ``with``; a file that is opened; a line
    that the file no longer has."""
    assert said(MainThread=[(17, "step")], writer=[(6, "write")]) == []
    assert said(MainThread=[(18, "step")], writer=[(19, "step")]) == []
    assert said(MainThread=[(400, "step")], writer=[(6, "write")]) == []
    assert lock_waits([Thread("a", frames=(("/gone.py", 1, "f"),))], lambda _: "") == []


def test_who_is_between_acquire_and_release_is_inside() -> None:
    """put() takes the lock in line 23 and gives it back in line 28; its thread is in line 26, or
    in 24. In line 29 it has given it back; of get() nothing says whether it has it."""
    for line in (24, 26):
        assert said(MainThread=[(5, "write")], feeder=[(line, "put")]) == [
            f"MainThread waits for self.lock; thread feeder is inside it at log.py:{line} in put"
        ]
    assert said(MainThread=[(23, "put")], feeder=[(26, "put"), (9, "flush")]) == [
        "MainThread waits for self.lock; thread feeder is inside it at log.py:9 in flush"
    ]
    assert said(MainThread=[(5, "write")], feeder=[(29, "put")]) == []
    assert said(MainThread=[(5, "write")], feeder=[(33, "get")]) == []
