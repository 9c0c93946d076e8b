"""What the hub of many nodes costs: simulated relays over TCP with keys, the real hub process.

Each relay sends its ranks' records, status rows twice a second (as where every rank runs on), and
answers pings, all as fast as the hub takes it. The figure is the hub's CPU time for a second of
the job, so other work on the machine changes it little.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import zmq

from pardbg.hub.client import HubControl
from pardbg.hub.ctrl_messages import RELAY, VERSION, Rows, ToRelay, pack, unpack
from pardbg.hub.run import config as files
from pardbg.hub.run.config import Endpoints, write_json
from pardbg.hub.serve.sockets import make_keys, secure_client
from pardbg_agent import wire
from pardbg_agent.ctrl.agent_messages import Hello, Ping, Pong, ToAgent
from pardbg_agent.ctrl.codec import reader
from pardbg_agent.sender.agent_thread import SPACED_NS
from tests.bench.bench_hub import BATCH, batch, make_run, short_dir
from tests.bench.figures import Figure
from tests.harness import hub_process
from tests.processes import wait_until

PORT: Final = 29_300
RELAYS, RANKS, RATE, SECONDS = 128, 8, 200, 4
_NONE: Final[Mapping[int, str]] = {}
SOCKETS: Final = 400
"""Relays of one context: it has 1,023 sockets at most."""


class FakeRelay:
    """Two sockets and the ranks behind them."""

    def __init__(self, context: zmq.Context[Any], keys: dict[str, Any], node: int, ranks: int):
        self.node, self._num = node, ranks
        self.procs = [f"0.n{node}.{1000 + rank}".encode() for rank in range(ranks)]
        ends, identity = Endpoints(f"tcp://127.0.0.1:{PORT}"), RELAY + b"%d-1" % node
        self.data, self.ctrl = context.socket(zmq.PUSH), context.socket(zmq.DEALER)
        for socket, end in ((self.data, ends.data), (self.ctrl, ends.ctrl)):
            socket.setsockopt(zmq.SNDHWM, 64)
            socket.setsockopt(zmq.IDENTITY, identity)
            secure_client(socket, keys, "agent")
            socket.connect(end)
        for rank, proc in enumerate(self.procs):
            hello = Hello({"rank": (node - 1) * ranks + rank, "boot_id": f"n{node}"})
            self.ctrl.send_multipart((proc, pack(hello)))

    def say_rows(
        self, turn: int, opened: Mapping[int, str] = _NONE, since_ns: int = 0, head: int = 0
    ) -> None:
        """``opened``: rank -> the op that it waits in. ``since_ns``: whence all stand still.
        ``head``: how many records each has sent at least."""
        now = time.monotonic_ns()
        first = (self.node - 1) * self._num
        rows = {
            proc.decode(): {
                "rank": rank + first, "alive": True, "step": turn, "phase": "step",
                "action": "", "stage": -1, "mb": -1, "what": "forward",
                "since_ns": since_ns or now, "open": int(rank + first in opened),
                "open_op": opened.get(rank + first),
                "open_since_ns": since_ns if rank + first in opened else 0,
                "held": 0, "held_since_ns": 0, "next": "", "heartbeat_ns": now,
                "sent": turn, "dropped": 0, "errors": 0, "level": 2, "hook_ns": turn,
                "os": "S" if since_ns else "R", "cpu": 0.0 if since_ns else 0.9,
                "head": head, "seen_ns": now,
            }
            for rank, proc in enumerate(self.procs)
        }  # fmt: skip
        said = Rows(VERSION, self.node, f"n{self.node}", "r", 1, rows, {}, ended=False)
        self.ctrl.send_multipart((b"", pack(said)))

    def send(self, first: int, body: bytes) -> None:
        count = len(body) // wire.RECORD_BYTES
        head = wire.FRAME.pack(wire.PROTOCOL_VERSION, 0, count, first, 0, 0)
        for proc in self.procs:
            self.data.send_multipart((b"R" + proc, head + body))

    def answer(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                proc, raw = self.ctrl.recv_multipart(zmq.NOBLOCK)
                message = unpack(raw, reader(ToAgent | ToRelay))
                if isinstance(message, Ping):
                    self.ctrl.send_multipart((proc, pack(Pong(message.id, time.monotonic_ns()))))


def measure(root: Path, relays: int, ranks: int, rate: int) -> tuple[float, float]:
    """(CPU seconds of the hub for a second of the job, seconds that this one took)"""
    keys = make_keys()
    write_json(root / files.KEYS_FILE, keys)
    replace(make_run(root), hub=f"tcp://127.0.0.1:{PORT}").save()
    contexts: list[zmq.Context[Any]] = []
    every: list[FakeRelay] = []
    with hub_process(root) as hub:
        process = psutil.Process(hub.pid)
        for node in range(1, relays + 1):
            if (node - 1) % SOCKETS == 0:
                contexts.append(zmq.Context(io_threads=1))
            every.append(FakeRelay(contexts[-1], keys, node, ranks))
        for relay in every:
            relay.say_rows(0)
        size = rate * SPACED_NS // 10**9
        body = batch(0, np.random.default_rng(7))[wire.FRAME.size :][: size * wire.RECORD_BYTES]
        assert size <= BATCH
        time.sleep(3)  # handshakes are not what is measured
        before, begun = sum(process.cpu_times()[:2]), time.monotonic()
        batches = SECONDS * rate // size
        for turn in range(batches):
            for relay in every:
                relay.say_rows(turn + 1)
                relay.send(turn * size, body)
                relay.answer()
        _wait_taken(root, batches * size * relays * ranks)
        took = time.monotonic() - begun
        cpu = sum(process.cpu_times()[:2]) - before
    for context in contexts:
        context.destroy(linger=0)
    return cpu / SECONDS, took / SECONDS


def _wait_taken(root: Path, records: int) -> None:
    """Until the hub has recorded them all."""
    with contextlib.closing(HubControl(root, script=True)) as control:
        wait_until(
            lambda: control.command("status").data.get("records") == records, 60, "all records"
        )


def main() -> list[Figure]:
    with short_dir() as root:
        cpu, took = measure(root, RELAYS, RANKS, RATE)
    note = f"{RATE} records/s a rank; a second of the job in {took:.1f} s here"
    name = f"hub, {RELAYS * RANKS:,} ranks, {RELAYS} relays: share of one core"
    return [Figure(name, 100 * cpu, "%", 100, note=note)]
