"""The faults that let the training go on, and the healthy training, one after the other in one
process group. Each rank prints which one begins, and what only it can know of it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pardbg.lab.recipes.catalogue import RECIPES
from pardbg.lab.recipes.faults.slow import SO_MAX_PACING_RATE, open_sockets
from pardbg.lab.recipes.launch import Options, World, main
from tests.faults.programs.plan import RANK, SIZES, STEP


def train(world: World, options: Options) -> None:
    for name in ("ddp", *(f"fault:{name}" for name in SIZES)):
        world.say(f"begins {name}")
        with counted_sleep() as slept, longest_silence() as silent:
            recipe = RECIPES[name]
            own = {**recipe.read(words(name)), "steps": options.steps}
            its = Options(options.steps, options.seed, options.pace_ms, options.lr, own)
            recipe.load()(world, its)
        world.say(f"slept {round(sum(slept) * 1e3)} ms")
        world.say(f"silent {round(max(silent) * 1e3)} ms")
        rates = {s.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE) for s in open_sockets()}
        world.say(f"paced {sorted(rate for rate in rates if rate > 0)}")


def words(name: str) -> list[str]:
    size = SIZES.get(name.removeprefix("fault:"))
    has = {option.name for option in RECIPES[name].options}
    given = {"fault-rank": str(RANK), "fault-step": str(STEP), "fault-size": size}
    return [f"--{key}={value}" for key, value in given.items() if key in has and value]


@contextmanager
def counted_sleep() -> Iterator[list[float]]:
    """What the training asks to sleep, in seconds: exact where a measured time would not be."""
    asked: list[float] = []
    real = time.sleep

    def sleep(seconds: float) -> None:
        asked.append(seconds)
        real(seconds)

    time.sleep = sleep
    try:
        yield asked
    finally:
        time.sleep = real


@contextmanager
def longest_silence() -> Iterator[list[float]]:
    """Times between two turns of another Python thread, in seconds: long if the GIL was held."""
    gaps, ended = [0.0], threading.Event()

    def tick() -> None:
        last = time.monotonic()
        while not ended.wait(0.01):
            now = time.monotonic()
            gaps.append(now - last)
            last = now

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield gaps
    finally:
        ended.set()
        thread.join()


if __name__ == "__main__":
    main("ddp", train)
