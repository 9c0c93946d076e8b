"""Odd frames of each kind over the sockets of a live hub, while a real job goes on: each of the
job's records is in the recording, and its output and exit code are its own."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import zmq

from pardbg.events.control_codes import Verb
from pardbg.hub.client import HubControl
from pardbg.session.reader import load
from tests.distributed.runs import coverage, events, fake_job, session_of, started, wait_ranks
from tests.harness import Found
from tests.siege.frames import ARGS, DEFINITIONS, from_agent
from tests.siege.values import mutated_map, mutated_records
from tests.unit.hub.hub_rig import frame

RANKS = 2
ASKS = (Verb.WHERE, Verb.BREAKS, Verb.RANKS, Verb.STATUS, Verb.MARK, Verb.INSPECT, Verb.CONTINUE,
        Verb.CONDITION, Verb.IGNORE, Verb.ENABLE, Verb.DISABLE, Verb.DELETE)  # fmt: skip
"""What a viewer may do that neither holds the job, nor ends it, nor has less of it recorded."""
WORDS = ("join", "take", "leave", "lease", "pong", "hello", "welcome", "permit", "")

Kind = Callable[[random.Random, bytes], list[bytes]]


def _records(rng: random.Random, proc: bytes) -> list[bytes]:
    return [b"R" + proc, mutated_records(frame(rng.randrange(99), rng.randrange(1, 5)), rng)]


def _definition(rng: random.Random, proc: bytes) -> list[bytes]:
    said = msgpack.packb(rng.choice(DEFINITIONS))
    return [b"D" + proc, mutated_map(said, rng)]


def _agent(rng: random.Random, proc: bytes) -> list[bytes]:
    return [mutated_map(msgpack.packb(from_agent(rng, rng.randrange(2))), rng)]


def _viewer(rng: random.Random, proc: bytes) -> list[bytes]:
    word = "command" if rng.random() < 0.7 else rng.choice(WORDS)
    asked: dict[str, Any] = {
        "v": 1, "t": word, "id": rng.randrange(1 << 30), "verb": rng.choice(ASKS).value,
        "ranks": rng.choice((None, "0", "0-1", "held", "all")), "args": dict(ARGS),
        "lease_ns": 10**10,
    }  # fmt: skip
    return [mutated_map(msgpack.packb(asked), rng)]


KINDS: dict[str, tuple[int, str, Kind]] = {
    "records": (zmq.PUSH, "data", _records), "definitions": (zmq.PUSH, "data", _definition),
    "agents": (zmq.DEALER, "ctrl", _agent), "viewers": (zmq.DEALER, "ctrl", _viewer),
}  # fmt: skip


def _send(config: Any, seed: int, count: int) -> None:
    """``count`` frames of each kind, in turn; answers are taken and thrown away."""
    rng, context = random.Random(seed), zmq.Context[Any]()
    proc = b"0.n7.%d" % rng.randrange(5_000_000, 6_000_000)  # no rank of the job
    sockets = []
    for name, (kind, endpoint, made) in KINDS.items():
        socket = context.socket(kind)
        if kind == zmq.DEALER:
            socket.setsockopt(zmq.IDENTITY, b"view-odd" if name == "viewers" else proc)
        socket.connect(getattr(config, endpoint))
        sockets.append((socket, kind, made))
    for _ in range(count):
        for socket, kind, made in sockets:
            socket.send_multipart(made(rng, proc))
            while kind == zmq.DEALER and socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                socket.recv_multipart()
    context.destroy(linger=10_000)


def run(seed: int, count: int) -> Found:
    """Try so many frames of each kind at one job."""
    begun, bad, steps = time.monotonic(), [], 200 + count // 8
    with tempfile.TemporaryDirectory(prefix="pds-", dir="/tmp") as folder:
        done = Path(folder) / "done"
        with started([*fake_job(RANKS, steps, 0.003), str(done)], Path(folder, "s.mcap")) as handle:
            control = HubControl(handle.run_dir)
            wait_ranks(control, RANKS)
            jobs = set(control.command(Verb.RANKS).data["ranks"])
            control.close()
            _send(handle.config, seed, count)
            done.touch()
            code = handle.wait(120)
            messages = session_of(handle)
            out = (handle.run_dir / "job.out").read_text().splitlines()
        found = {p: parts for p, parts in coverage(messages).items() if p in jobs}
        if found != {proc: [(0, 4 * steps)] for proc in jobs}:
            bad.append(f"seed {seed}: of {4 * steps} records each: {found}")
        if code != 0 or len(out) != steps:
            bad.append(f"seed {seed}: exit code {code}, {len(out)} of {steps} lines")
        if "hub_restart" in events(messages):
            bad.append(f"seed {seed}: the hub ended")
        load(handle.session)
    return len(KINDS) * count, bad, time.monotonic() - begun
