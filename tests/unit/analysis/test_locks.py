"""Who is inside a lock that a thread waits for, as the program's text says it."""

from __future__ import annotations

from pardbg.analysis.hangs.locks import lock_waits

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
"""
FILES = {"/job/log.py": PROGRAM}


def said(**threads: list[tuple[int, str]]) -> list[str]:
    """Of threads by name: (line, function), outermost first."""
    rows = [
        {"thread": name, "frames": [["/job/log.py", line, function] for line, function in frames]}
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
    assert lock_waits([{"thread": "a", "frames": [["/gone.py", 1, "f"]]}], lambda _: "") == []
