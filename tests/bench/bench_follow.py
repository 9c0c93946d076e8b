"""What following a live run of 1,024 ranks costs a viewer: the hub process, simulated relays that
send training steps in real time (205 records/s a rank, ten messages a second), and a viewer's
engine in a process of its own, with the rows of a screen in sight.

CPU seconds of that process for a second of the job, after its first half minute; a crowded machine
counts the same work as more.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import zmq

from pardbg.analysis.answers.snapshot import Viewport
from pardbg.events.decode import RECORD_DTYPE
from pardbg.hub.client import LiveSource
from pardbg.hub.run import config as files
from pardbg.hub.run.config import write_json
from pardbg.hub.serve.sockets import make_keys
from pardbg.store import Store
from pardbg.ui.engine.cursor import TimeCursor
from pardbg.ui.engine.engine import Engine
from pardbg.ui.engine.feed import Analysis, Want
from pardbg_agent import wire
from tests.bench.bench_hub import make_run, short_dir
from tests.bench.bench_nodes import PORT, FakeRelay
from tests.bench.bench_thousand_ranks import RANKS, STEP_MS, TP, one_step
from tests.bench.figures import Figure
from tests.harness import hub_process
from tests.unit.trace_builder import BEGIN, Trace

NODE: Final = 8
SECONDS, WARM_S = 70, 30
STEP_NS: Final = int(STEP_MS * 1e6)
LATE_NS: Final = 60_000_000
"""After its end half a step's records are sent."""


class Ranks:
    """Every rank's records of a step, and what says who they are."""

    def __init__(self) -> None:
        self._trace = trace = Trace()
        for first in range(0, RANKS, TP):
            trace.groups[f"tp{first // TP}"] = tuple(range(first, first + TP))
        for place in range(TP):
            trace.groups[f"dp{place}"] = tuple(range(place, RANKS, TP))
        self.procs = [trace.process(r, host=f"n{r // NODE + 1}", pid=1000 + r % NODE)
                      for r in range(RANKS)]  # fmt: skip
        self._steps = []
        for proc in self.procs:
            one_step(proc, 0)
            records = np.frombuffer(b"".join(proc._records), RECORD_DTYPE)
            self._steps.append(records[np.argsort(records["t1_ns"], kind="stable")])
        self.definitions = [m for m in trace.messages if m.key[:1] == wire.Key.DEFINITION.value]

    def half(self, rank: int, step: int, half: int, begin_ns: int) -> bytes:
        """The payload with half of a rank's step."""
        records = self._steps[rank]
        cut = int(records["t1_ns"].searchsorted(BEGIN + STEP_NS // 2))
        part = records[cut:] if half else records[:cut]
        first = step * len(records) + half * cut
        part = part.copy()
        for name in ("t0_ns", "t1_ns"):
            part[name] += begin_ns + step * STEP_NS - BEGIN
        ops = np.isin(part["kind"], (wire.Kind.OP_ISSUE, wire.Kind.OP_DONE))
        each = np.where(part["group_id"] == 1, 8, 2)  # its tp group was named first
        part["seq"] += (ops * each * step).astype(np.uint32)
        part["step"], part["mark"] = step, np.arange(first + 1, first + 1 + len(part))
        return wire.FRAME.pack(wire.PROTOCOL_VERSION, 0, len(part), first, 0, 0) + part.tobytes()


def feed(relays: list[FakeRelay], ranks: Ranks, seconds: float) -> None:
    """Send steps as their time comes."""
    for message in ranks.definitions:
        proc = message.key[1:]
        at = next(relay for relay in relays if proc in relay.procs)
        at.data.send_multipart((b"D" + proc, message.payload))
    begin_ns = time.monotonic_ns()
    for half in range(int(seconds / STEP_MS * 2000)):
        step, second = divmod(half, 2)
        due = begin_ns + step * STEP_NS + (second + 1) * STEP_NS // 2 + LATE_NS
        time.sleep(max(0, due - time.monotonic_ns()) / 1e9)
        for node, relay in enumerate(relays):
            for place, proc in enumerate(relay.procs):
                payload = ranks.half(node * NODE + place, step, second, begin_ns)
                relay.data.send_multipart((b"R" + proc, payload))
            if half % 4 == 0:
                relay.say_rows(step)
            relay.answer()


def measure(root: Path) -> dict[str, Any]:
    """What the viewer says of itself."""
    keys = make_keys()
    write_json(root / files.KEYS_FILE, keys)
    replace(make_run(root), hub=f"tcp://127.0.0.1:{PORT}").save()
    context = zmq.Context()
    with hub_process(root):
        nodes = range(1, RANKS // NODE + 1)
        relays = [FakeRelay(context, keys, node, NODE) for node in nodes]
        for relay in relays:
            relay.say_rows(0)
        ranks = Ranks()
        argv = [sys.executable, "-m", "tests.bench.bench_follow", str(root)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as viewer:
            try:
                time.sleep(3)
                feed(relays, ranks, SECONDS)
                found: dict[str, Any] = json.loads(viewer.communicate(timeout=60)[0])
            finally:
                viewer.kill()
    context.destroy(linger=0)
    return found


def view(root: Path) -> None:
    """The viewer: its engine, and nobody who draws."""
    source, store = LiveSource(root), Store(live=True)
    frames: list[object] = []
    engine = Engine(source, store, Analysis(), TimeCursor(), frames.append)
    engine.want(Want(viewport=Viewport(frozenset(range(40)), frozenset())))
    engine.start()
    time.sleep(WARM_S)
    cpu, begun, made = time.process_time(), time.monotonic(), len(frames)
    time.sleep(SECONDS - WARM_S - 3)
    share = (time.process_time() - cpu) / (time.monotonic() - begun)
    made, lost = len(frames) - made, store.lost(None)
    engine.stop(20)
    source.close()
    steps = max(process.table("step").base + len(process.table("step"))
                for process in store.procs.values())  # fmt: skip
    print(json.dumps({"share": share, "frames": made, "lost": lost, "steps": steps}))


def main() -> list[Figure]:
    with short_dir() as root:
        said = measure(root)
    between = (SECONDS - WARM_S - 3) / max(1, said["frames"])
    note = f"a frame every {between:.1f} s; {said['steps']} steps"
    return [
        Figure("following 1,024 ranks: share of one core", 100 * said["share"], "%", 30, note=note),
        Figure("following 1,024 ranks: records lost", said["lost"], "", 0.5),
    ]


if __name__ == "__main__":
    view(Path(sys.argv[1]))
