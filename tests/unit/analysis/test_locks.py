"""Who is inside a lock that a thread waits for, as the program's text says it."""

from __future__ import annotations

import pytest

from pardbg.analysis.hangs.locks import lock_waits
from pardbg_agent import wire
from pardbg_agent.ctrl.agent_messages import Thread
from tests.unit.analysis.test_waitgraph import C10D, WAITING, found
from tests.unit.facts import facts
from tests.unit.trace_builder import MS, Trace, ns

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
ASYNC = """\
async def feed(lock, batches):
    async with lock:
        await batches.get()

async def train(lock):
    async with lock:
        pass
"""
FILES = {"/job/log.py": PROGRAM, "/job/feed.py": ASYNC}


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


def test_a_task_that_is_inside_a_lock_of_asyncio_is_named() -> None:
    """Its awaits end in the queue; those of who waits for the lock end in asyncio's own code."""
    waits = (
        ("/job/feed.py", 6, "train"),
        ("/usr/lib/python3.11/asyncio/locks.py", 15, "__aenter__"),
    )
    holds = (("/job/feed.py", 3, "feed"), ("/usr/lib/python3.11/asyncio/queues.py", 158, "get"))
    threads = [
        Thread("MainThread", frames=waits),
        Thread("feeder", frames=holds, task_of="asyncio"),
    ]
    assert lock_waits(threads, lambda file: FILES.get(file, "")) == [
        "MainThread waits for lock; asyncio task feeder is inside it at feed.py:3 in feed"
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


@pytest.mark.parametrize(("ran_ns", "culprits"), [(0, (0, 1, 2)), (1500 * MS, (0,))])
def test_a_lock_that_a_thread_holds_in_an_op_is_part_of_the_deadlock(
    ran_ns: int, culprits: tuple[int, ...]
) -> None:
    """The metrics thread of rank 0 is in b with the lock that its main thread waits for; the
    others are in a. A main thread that computes waits for no lock of these."""
    trace = Trace(3, {"a": range(3), "b": range(3)})
    for proc in trace.ranks:
        proc.collective("a" if proc.rank else "b", "all_reduce", 1, None)
    trace.flush()
    for t in (500, 2500):
        rows = {
            proc.proc: {"rank": proc.rank, "alive": True, "open": 1, "open_since_ns": ns(1),
                        "since_ns": ns(1), "os": "S", "cpu": 0.0, "heartbeat_ns": ns(t),
                        "scheduled": [ran_ns if t > 500 else 0, 0]}
            for proc in trace.ranks
        }  # fmt: skip
        trace.state(t, **rows)
    lock = "MainThread waits for LOCK; thread metrics is inside it at metrics.py:3 in sums"
    at_lock = [["/job/train.py", 46, "step"]]
    sums = [["/job/metrics.py", 3, "sums"], [C10D, 3000, "all_reduce"]]
    threads = {
        "0": [{"thread": "MainThread", "frames": at_lock}, {"thread": "metrics", "frames": sums}]
    }
    parts = [{"ranks": [0], "frames": at_lock, "inside": {}, "threads": threads},
             {"ranks": [1, 2], "frames": WAITING, "inside": {}}]  # fmt: skip
    trace.hub(wire.Key.CONTROL, 2100, event="stall", since_ns=ns(2100), stacks=parts,
              source={str(rank): "agent" for rank in range(3)}, locks={"0": [lock]})  # fmt: skip
    (said,) = found(trace, 2500).values()
    assert said.culprits == culprits and said.where == "train.py:46 in step"
    locks = () if len(culprits) == 1 else ((0, lock),)
    assert said.kind == "missing-rank" if not locks else facts(said, "locks") == locks
