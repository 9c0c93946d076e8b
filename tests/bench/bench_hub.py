"""Records per second of one core that the real hub process takes in, records and forwards.

A pusher process sends realistic record batches (steps with actions, ops and waits, as a pipeline
makes them) as fast as the hub takes them; a subscriber takes what is published. The figure is
records per second of the hub's CPU time, so other work on the machine does not change it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import zmq

from pardbg.events.decode import RECORD_DTYPE, frame_head
from pardbg.hub.removal import mark
from pardbg.hub.run import config as files
from pardbg.hub.run.config import RunConfig, write_json
from pardbg_agent import wire
from pardbg_agent.wire import Flag, Kind, Lane
from tests.bench.figures import Figure
from tests.harness import hub_process, whole_messages

BATCH = 4096
"""What the agent's sender sends at most in one message."""
BATCHES = 1500
RANKS = 4
MANY, MANY_RATE, MANY_BATCH = 1024, 200, 80
"""1,024 ranks at 200 records/s, each sending what 400 ms brought."""


def batch(first: int, rng: np.random.Generator) -> bytes:
    """BATCH records that look like a rank's: kinds in turn, times that advance unevenly."""
    records = np.zeros(BATCH, RECORD_DTYPE)
    index = np.arange(first, first + BATCH)
    kinds = np.array([Kind.ACTION, Kind.OP_ISSUE, Kind.OP_DONE, Kind.WAIT])
    lanes = np.array([Lane.COMPUTE, Lane.COMM, Lane.COMM, Lane.WAIT])
    records["kind"], records["lane"] = kinds[index % 4], lanes[index % 4]
    records["flags"] = np.where(index % 4 == 0, 0, Flag.P2P)
    records["name_id"] = 1 + index % 7
    records["t0_ns"] = 10**15 + np.cumsum(rng.integers(20_000, 3_000_000, BATCH)) + first * 10**6
    records["t1_ns"] = records["t0_ns"] + rng.integers(5_000, 2_000_000, BATCH)
    records["step"], records["seq"] = index // 64, index // 4
    records["group_id"], records["stage"], records["microbatch"] = 1, 2, index // 8 % 8
    records["peer"], records["a"], records["b"] = 1, 65536, 65536
    records["mark"] = index + 1
    return wire.FRAME.pack(wire.PROTOCOL_VERSION, 0, BATCH, first, 0, 0) + records.tobytes()


def push(endpoint: str, num: int, ranks: int, size: int) -> None:
    """The pusher process: ``ranks`` processes' batches of ``size`` records in turn, as fast as
    they are taken."""
    rng = np.random.default_rng(7)
    made = [batch(i * BATCH, rng)[wire.FRAME.size :][: size * 64] for i in range(32)]
    socket = zmq.Context().socket(zmq.PUSH)
    socket.setsockopt(zmq.SNDHWM, 16)
    socket.connect(endpoint)
    for i in range(num):
        proc = b"0.bench.%d" % (1000 + i % ranks)
        # Indices grow per process; the body's own marks may repeat, the hub does not look.
        head = wire.FRAME.pack(wire.PROTOCOL_VERSION, 0, size, i // ranks * size, 0, 0)
        socket.send_multipart((b"R" + proc, head + made[i % 32]))
    socket.close(linger=10_000)


def make_run(root: Path) -> RunConfig:
    """A run directory without a launcher and a job."""
    (root / "rings").mkdir(mode=0o700)
    mark(root / "rings", "bench")
    config = RunConfig(
        run="bench", name="bench", argv=("bench",), cwd="/", data=f"ipc://{root}/data",
        pub=f"ipc://{root}/pub", ctrl=f"ipc://{root}/ctrl",
        session=str(root / "bench.mcap"), t_ns=time.monotonic_ns(), wall_ns=time.time_ns(),
        host="bench", boot_id="", dir=root,
    )  # fmt: skip
    config.save()
    return config


def measure(
    root: Path, num: int, *, viewer: bool, ranks: int = RANKS, size: int = BATCH
) -> tuple[float, float, float]:
    """(records per CPU second of the hub, records per wall second, bytes on disk per record)."""
    config = make_run(root)
    context = zmq.Context()
    sub = context.socket(zmq.SUB)
    with hub_process(root) as hub:
        if viewer:
            sub.setsockopt(zmq.SUBSCRIBE, b"R")
            sub.connect(config.pub)
            time.sleep(0.3)
        process = psutil.Process(hub.pid)
        before, t0 = sum(process.cpu_times()[:2]), time.monotonic()
        pusher = multiprocessing.get_context("spawn").Process(
            target=push, args=(config.data, num, ranks, size)
        )
        pusher.start()
        while pusher.is_alive():
            try:
                while viewer:
                    sub.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                time.sleep(0.005)
        pusher.join()
        wall = time.monotonic() - t0
        write_json(root / files.EXIT_FILE, {"code": 0})
        cpu = 0.0
        while hub.poll() is None:  # to the very end: nothing is left in its queues uncounted
            with contextlib.suppress(psutil.Error):
                cpu = max(cpu, sum(process.cpu_times()[:2]) - before)
            time.sleep(0.005)
        on_disk = os.stat(config.session).st_size
        recorded = sum(
            frame_head(m.payload).count
            for m in whole_messages(Path(config.session))
            if m.key[:1] == b"R"
        )
        assert recorded == num * size, f"{num * size - recorded} records are not in the file"
    sub.close(linger=0)
    context.term()
    records = num * size
    return records / cpu, records / wall, on_disk / records


@contextlib.contextmanager
def short_dir() -> Iterator[Path]:
    """Its sockets' paths must be short."""
    root = Path(tempfile.mkdtemp(prefix="pdb-bench-", dir="/tmp"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def main() -> list[Figure]:
    figures = []
    for viewer in (False, True):
        with short_dir() as root:
            per_cpu, per_wall, disk = measure(root, BATCHES, viewer=viewer)
        name = "hub records in, one viewer" if viewer else "hub records in, recorded"
        note = f"{per_wall:,.0f}/s wall on this machine, {disk:.1f} B/record on disk"
        figures.append(
            Figure(name, per_cpu, "records/core-s", 1e6, higher_is_better=True, note=note)
        )
    with short_dir() as root:
        num = MANY * 20 * 3  # three seconds' worth
        per_cpu, _, _ = measure(root, num, viewer=True, ranks=MANY, size=MANY_BATCH)
    share = 100 * MANY * MANY_RATE / per_cpu
    note = f"{MANY} ranks × {MANY_RATE} records/s in messages of {MANY_BATCH}"
    figures.append(Figure("hub, 1,024 ranks: share of one core", share, "%", 100, note=note))
    return figures
