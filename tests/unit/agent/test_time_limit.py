"""Code that a person runs in a held thread ends when its time is up, and nothing comes after."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from pardbg_agent.control.evaluate import TimeLimit


class Checked:
    """Looks every millisecond, as the agent's thread does."""

    def __init__(self, limit: TimeLimit) -> None:
        self._limit, self._over = limit, threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(0.001):
            self._limit.check()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def for_ever() -> None:
    while True:
        try:
            time.sleep(0.001)
        except Exception:  # noqa: BLE001 - as programs do: it must not take the limit for its own
            pass


def test_what_does_not_end_is_ended() -> None:
    limit = TimeLimit(limit_ns=20_000_000)
    with Checked(limit):
        assert not limit.run(for_ever)
        assert limit.run(lambda: None), "and the next one runs"


def test_a_limit_that_comes_too_late_comes_never() -> None:
    """2,000 pieces of work that end just about when their time is up."""
    limit = TimeLimit(limit_ns=30_000)

    def work() -> None:
        until = time.monotonic_ns() + 30_000
        while time.monotonic_ns() < until:
            pass

    with Checked(limit):
        ended = [limit.run(work) for _ in range(2000)]
        for _ in range(10_000):  # nothing is left to be raised here
            pass
    assert len(ended) == 2000


def test_nothing_stays_requested_of_the_interpreter() -> None:
    """A request that was taken back would hang a profiled thread, and slow any other down."""
    limit = TimeLimit(limit_ns=30_000)

    def work() -> None:
        until = time.monotonic_ns() + 30_000
        while time.monotonic_ns() < until:
            pass

    with Checked(limit):
        for _ in range(500):
            limit.run(work)
    seen: list[str] = []
    sys.setprofile(lambda frame, event, arg: seen.append(event))
    try:
        for _ in range(100):
            (lambda: None)()
    finally:
        sys.setprofile(None)
    assert seen.count("call") >= 100


def test_the_works_own_exception_passes() -> None:
    def fails(kind: type[BaseException]) -> Callable[[], None]:
        def work() -> None:
            raise kind

        return work

    limit = TimeLimit()
    for kind in (ValueError, KeyboardInterrupt):
        try:
            limit.run(fails(kind))
        except kind:
            continue
        raise AssertionError(kind)
