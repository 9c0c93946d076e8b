"""Which workers of a data loader are at work, of real ones: looked at from beside."""

from __future__ import annotations

import contextlib
import multiprocessing
import platform
import socket
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from pardbg_agent.sender import loader_workers
from pardbg_agent.sender.loader_workers import Loaders
from pardbg_agent.wire import LOADERS, Kind

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64")
        or not Path("/proc/self/syscall").exists(),
        reason="/proc shows no system calls here",
    ),
    pytest.mark.timeout(60),
]  # fmt: skip


class Samples(Dataset[int]):
    """Samples that come at once up to number 4; later ones when the test ends. Till then a worker
    sleeps or waits at a socket, as a fetch does: Python polls one that has a timeout."""

    def __init__(self, asleep: bool = False) -> None:
        self.asleep, self.ended = asleep, multiprocessing.Event()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> int:
        one, other = socket.socketpair()
        with one, other:
            one.settimeout(0.1)
            while at >= 4 and not self.ended.is_set():
                if self.asleep:
                    time.sleep(0.1)
                else:
                    with contextlib.suppress(TimeoutError):
                        one.recv(1)
        return at


class Core(SimpleNamespace):
    """What Loaders uses of a Core; ``told``: (name, a, b) of each record."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.step = loader, 0
        self.told: list[tuple[str, int, int]] = []

    def mark(self, kind: Kind, name: str, t: int, a: int, b: int) -> None:
        assert kind is Kind.PROBE
        self.told.append((name, a, b))


def looked(loader: Any, until: Callable[[int, int], bool]) -> tuple[int, int]:
    """Look twice, as often as it takes; return (a, b) of the first record that is as wanted."""
    while True:
        core: Any = Core(weakref.ref(loader))
        looks = Loaders(core)
        assert [looks.look(), looks.look()] == [0, 0]
        core.step += 1
        assert looks.look() == 1
        ((name, busy, seen),) = core.told
        assert name == LOADERS
        if until(busy, seen):
            return busy, seen
        time.sleep(0.01)


@pytest.mark.parametrize("asleep", [True, False])
def test_workers_are_at_work_until_what_they_prefetch_is_there(asleep: bool) -> None:
    """Two workers fetch four samples ahead and wait for indices. The first taken gives one of them
    the fifth sample, which does not come; the second taken the other one."""
    samples = Samples(asleep)
    loader = iter(DataLoader(samples, None, num_workers=2, prefetch_factor=2))
    try:
        assert looked(loader, lambda busy, seen: not busy) == (0, 6)
        next(loader)
        assert looked(loader, lambda busy, seen: busy == 3) == (3, 6)
        next(loader)
        assert looked(loader, lambda busy, seen: busy == 6) == (6, 6)
    finally:
        samples.ended.set()


def test_many_workers_are_looked_at_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six, four in a look, on from where the look before ended; the third and the sixth work."""
    asked: list[int] = []
    monkeypatch.setattr(
        loader_workers,
        "_works",
        lambda pid: asked.append(pid) or pid in (2, 5),  # type: ignore
    )
    workers = [SimpleNamespace(pid=pid) for pid in range(6)]
    core: Any = Core(lambda: SimpleNamespace(_workers=workers))
    looks = Loaders(core)
    for core.step in range(3):
        looks.look()
    assert asked == [4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert core.told == [(LOADERS, 3, 8)]


@pytest.mark.parametrize("loader", [None, lambda: None, lambda: iter([1])])
def test_without_workers_nothing_is_told(loader: Callable[[], object] | None) -> None:
    core: Any = Core(loader)
    looks = Loaders(core)
    for core.step in range(8):
        assert looks.look() == 0 and core.told == []


def test_a_rank_that_stands_still_records_nothing() -> None:
    loader = iter(DataLoader(Samples(), None, num_workers=1, prefetch_factor=2))
    core: Any = Core(weakref.ref(loader))
    looks = Loaders(core)
    assert [looks.look() for _ in range(300)] == [0] * 300 and core.told == []
