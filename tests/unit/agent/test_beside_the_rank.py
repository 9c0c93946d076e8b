"""What a rank waits for beside its own threads: a pool's workers, and tasks of an event loop."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types
from types import SimpleNamespace
from typing import Any

import pytest

from pardbg_agent.control import awaiting
from pardbg_agent.sender import blocked

CALLS = {
    "waits": "__import__('os').read(0, 1)",
    "sleeps": "__import__('time').sleep(60)",
    "locks": "l = __import__('threading').Lock(); l.acquire(); l.acquire()",
}


@pytest.mark.parametrize(
    ("workers", "told"),
    [(("waits",), "\tidle"), (("waits", "sleeps"), "1\tsleep"), (("waits", "locks"), "1\tlock")],
)
def test_what_the_workers_of_a_pool_do(workers: tuple[str, ...], told: str) -> None:
    """All of one that was killed wait for tasks: the one that it had is gone."""
    reader, writer = os.pipe()
    pool: Any = SimpleNamespace(
        _inqueue=SimpleNamespace(_reader=SimpleNamespace(fileno=lambda: reader)),
        _pool=[
            subprocess.Popen([sys.executable, "-c", CALLS[what]], stdin=reader) for what in workers
        ],
    )
    try:
        until, found = time.monotonic() + 20, ""
        while found != told and time.monotonic() < until:
            number, _, does = blocked._of_pool(pool).partition("\t")
            numbers = [str(one.pid) for one in pool._pool]
            found = f"{numbers.index(number) if number else ''}\t{does}"
        assert found == told
    finally:
        for child in pool._pool:
            child.kill()
            child.wait()
        os.close(reader), os.close(writer)


def test_a_loop_of_trio_with_nothing_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that waits for those of its nursery stands where one of these does."""
    told: list[Any] = []

    class Task(SimpleNamespace): ...

    class Runner(SimpleNamespace): ...

    @types.coroutine
    def pause() -> Any:
        yield

    async def stands() -> None:
        await pause()

    async def logs() -> None:
        await pause()

    async def _nested_child_finished() -> None:
        await pause()

    def get_events() -> None:
        frame = sys._getframe()
        told.extend(frame[2] for frame in awaiting.awaited(frame))
        told.append([(one.task_of, one.thread) for one in awaiting.other_tasks(frame)])

    child = Task(name="train.feed", coro=stands(), child_nurseries=[])
    beside = Task(name="train.logs", coro=logs(), child_nurseries=[])
    nursery = SimpleNamespace(child_tasks=[child])
    main = Task(name="train.main", coro=_nested_child_finished(), child_nurseries=[nursery])
    for task in (child, beside, main):
        task.coro.send(None)
    monkeypatch.setitem(sys.modules, "trio._core._run", SimpleNamespace(Task=Task, Runner=Runner))
    code = compile("def run(runner, get_events): get_events()", "/trio/_core/_run.py", "exec")
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    namespace["run"](Runner(tasks=[child, beside, main], main_task=main), get_events)
    assert told == ["_nested_child_finished", "pause", "stands", "pause", [("trio", "logs")]]
