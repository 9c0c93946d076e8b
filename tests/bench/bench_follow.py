"""What following a live run of 1,024 ranks costs a viewer: the hub process, simulated relays that
send training steps in real time (205 records/s a rank, five messages in two seconds), and a
viewer's engine in a process of its own, with the rows of a screen in sight.

CPU seconds of that process for a second of the job, after its first half minute, and its memory; a
crowded machine counts the same work as more. A rank in 128 comes 30 ms late to every step; in the
end one stands still in its forward, and everybody else in the op for which it is missing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import zmq
from textual.message import Message

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
from pardbg.ui.engine.messages import FrameReady
from pardbg_agent import wire
from pardbg_agent.sender.agent_thread import SPACED_NS
from tests.bench.bench_hub import make_run, short_dir
from tests.bench.bench_nodes import PORT, FakeRelay
from tests.bench.bench_thousand_ranks import RANKS, STEP_MS, TP, one_step
from tests.bench.figures import Figure
from tests.harness import hub_process
from tests.unit.trace_builder import BEGIN, Trace

NODE: Final = 8
SECONDS, WARM_S, HUNG_S = 70, 30, 20
STUCK: Final = 300
STEP_NS: Final = int(STEP_MS * 1e6)
TURNS: Final = 2 * SPACED_NS // STEP_NS
"""Halves of a step in which each rank sends once."""
LATE_NS: Final = 60_000_000
"""After its end half a step's records are sent."""

HANG: Final = "hang at the top"
Told = tuple[int, set[str]]
"""(when a frame came, ns of the monotonic clock; kinds of its findings that name a rank, and
HANG where the line at the top of each page does)"""


class Ranks:
    """Every rank's records of a step, and what says who they are."""

    def __init__(self) -> None:
        self.made = 0
        """Halves of steps."""
        self._trace = trace = Trace()
        for first in range(0, RANKS, TP):
            trace.groups[f"tp{first // TP}"] = tuple(range(first, first + TP))
        for place in range(TP):
            trace.groups[f"dp{place}"] = tuple(range(place, RANKS, TP))
        self.procs = [trace.process(r, host=f"n{r // NODE + 1}", pid=1000 + r % NODE)
                      for r in range(RANKS)]  # fmt: skip
        steps = []
        for proc in self.procs:
            one_step(proc, 0)
            records = np.frombuffer(b"".join(proc._records), RECORD_DTYPE)
            steps.append(records[np.argsort(records["t1_ns"], kind="stable")])
        self._steps = np.stack(steps)
        self._each = np.where(self._steps["group_id"] == 1, 8, 2)  # its tp group was named first
        self._each *= np.isin(self._steps["kind"], (wire.Kind.OP_ISSUE, wire.Kind.OP_DONE))
        self.definitions = [m for m in trace.messages if m.key[:1] == wire.Key.DEFINITION.value]

    def part(self, half: int, begin_ns: int) -> Any:
        """Make each rank's records of half a step: ranks x records."""
        cut = self._steps.shape[1] // 2
        self.made = half + 1
        return self._at(half // 2, begin_ns, slice(cut, None) if half % 2 else slice(cut))

    def sent(self, half: int) -> int:
        """Return how many records come before this half of a step."""
        number = self._steps.shape[1]
        return half // 2 * number + half % 2 * (number // 2)

    def until_op(self, step: int, begin_ns: int) -> list[bytes]:
        """Return each rank's payload up to the op that it stands in once STUCK does: its first one
        of the tp group that STUCK is in, or that of its dp group."""
        found = []
        for rank, records in enumerate(self._at(step, begin_ns)):
            peer = rank // TP == STUCK // TP
            own = records["group_id"] == (1 if peer else 2)
            at = int((own & (records["kind"] == wire.Kind.OP_ISSUE)).argmax())
            early = records["t1_ns"] < records["t0_ns"][at] + (0 if peer else LATE_NS)
            part = np.concatenate([records[early & ~own], records[at : at + 1]])
            part["mark"] = step * len(records) + 1 + np.arange(len(part))
            found.append(_framed(part.tobytes(), step * len(records)))
        return found

    def _at(self, step: int, begin_ns: int, part: slice = slice(None)) -> Any:
        """Records of a step, all or a part: ranks x records."""
        made = self._steps[:, part].copy()
        for name in ("t0_ns", "t1_ns"):
            made[name] += begin_ns + step * STEP_NS - BEGIN
        made["seq"] += (self._each[:, part] * step).astype(np.uint32)
        made["step"] = step
        made["mark"] = np.arange(self._steps.shape[1])[part] + step * self._steps.shape[1] + 1
        return made


def _framed(body: bytes, first: int) -> bytes:
    number = len(body) // wire.RECORD_BYTES
    return wire.FRAME.pack(wire.PROTOCOL_VERSION, 0, number, first, 0, 0) + body


def feed(relays: list[FakeRelay], ranks: Ranks, seconds: float) -> float:
    """Send steps as their time comes, then a hang. Return how many seconds behind that time the
    last step was: with hub and viewer on its cores the sender itself may be late."""
    for message in ranks.definitions:
        proc = message.key[1:]
        at = next(relay for relay in relays if proc in relay.procs)
        at.data.send_multipart((b"D" + proc, message.payload))
    begin_ns = time.monotonic_ns()
    num_halves, due = int(seconds / STEP_MS * 2000), begin_ns
    parts: deque[Any] = deque(maxlen=TURNS)
    since = dict.fromkeys((relay.node for relay in relays), 0)
    for half in range(num_halves):
        due = begin_ns + (half + 1) * STEP_NS // 2 + LATE_NS
        time.sleep(max(0, due - time.monotonic_ns()) / 1e9)
        parts.append(ranks.part(half, begin_ns))
        for relay in relays:
            if relay.node % TURNS == half % TURNS or half + 1 == num_halves:
                since[relay.node] = ship(relay, ranks, since[relay.node], parts)
            if half % TURNS == 0:
                relay.say_rows(half // 2, head=ranks.sent(since[relay.node]))
            relay.answer()
    behind_s = (time.monotonic_ns() - due) / 1e9
    hang(relays, ranks, num_halves // 2, begin_ns)
    return behind_s


def ship(relay: FakeRelay, ranks: Ranks, since: int, parts: deque[Any]) -> int:
    """Send what a node's ranks have made: of the last halves of steps (ranks x records each) those
    from ``since`` on. Return which one comes next."""
    new = list(parts)[len(parts) - (ranks.made - since) :]
    ranks_here = slice((relay.node - 1) * NODE, relay.node * NODE)
    records = np.concatenate([part[ranks_here] for part in new], axis=1)
    raw, each = records.tobytes(), records[0].nbytes
    for at, proc in enumerate(relay.procs):
        body = raw[at * each : (at + 1) * each]
        relay.data.send_multipart((b"R" + proc, _framed(body, ranks.sent(since))))
    return ranks.made


def hang(relays: list[FakeRelay], ranks: Ranks, step: int, begin_ns: int) -> None:
    """Send the records of a step that ends in no rank, then rows that say where all stand."""
    opened = {
        rank: f"all_reduce tp{rank // TP} #{8 * step}"
        if rank // TP == STUCK // TP
        else f"all_reduce dp{rank % TP} #{2 * step}"
        for rank in range(RANKS) if rank != STUCK
    }  # fmt: skip
    since_ns = begin_ns + step * STEP_NS
    payloads = enumerate(ranks.until_op(step, begin_ns))
    for relay in relays:
        for proc in relay.procs:
            rank, payload = next(payloads)
            if rank != STUCK:
                relay.data.send_multipart((b"R" + proc, payload))
    for turn in range(10 * HUNG_S):
        time.sleep(max(0, since_ns + turn * 100_000_000 - time.monotonic_ns()) / 1e9)
        for relay in relays:
            relay.say_rows(step, opened, since_ns, ranks.sent(2 * step))
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
                behind_s = feed(relays, ranks, SECONDS)
                found: dict[str, Any] = json.loads(viewer.communicate(timeout=60)[0])
            finally:
                viewer.kill()
    context.destroy(linger=0)
    return found | {"behind": behind_s}


def view(root: Path) -> None:
    """The viewer: its engine, and nobody who draws."""
    source, store = LiveSource(root), Store(live=True)
    frames: list[Told] = []

    def take(message: Message) -> None:
        if isinstance(message, FrameReady):
            found, hang = message.frame.snapshot.findings, message.frame.snapshot.hang
            kinds = {one.kind for one in found if one.culprits}
            shown = {HANG} if hang is not None and hang.culprits else set()
            frames.append((time.monotonic_ns(), kinds | shown))

    engine = Engine(source, store, Analysis(), TimeCursor(), take)
    engine.want(Want(viewport=Viewport(frozenset(range(40)), frozenset())))
    engine.start()
    time.sleep(WARM_S)
    cpu, begun, made = time.process_time(), time.monotonic(), len(frames)
    time.sleep(SECONDS - WARM_S - 3)
    share = (time.process_time() - cpu) / (time.monotonic() - begun)
    made, lost = len(frames) - made, store.lost(None)
    memory = psutil.Process().memory_info().rss
    now_ns, said_ns, sent_ns = time.monotonic_ns(), store.states.newest_ns or 0, store.horizon_ns
    time.sleep(HUNG_S)
    engine.stop(20)
    source.close()
    steps = [process.table("step") for process in store.procs.values()]
    hung_ns = max(int(t.col("t1_ns")[-1]) for t in steps)
    print(json.dumps({
        "share": share, "states": (now_ns - said_ns) / 1e9, "records": (now_ns - sent_ns) / 1e9,
        "frames": made, "lost": lost, "memory": memory,
        "steps": max(table.base + len(table) for table in steps),
        "slow": told_after(frames, "straggler", min(int(t.col("t0_ns")[0]) for t in steps)),
        "hung": told_after(frames, "missing-rank", hung_ns),
        "shown": told_after(frames, HANG, hung_ns),
    }))  # fmt: skip


def told_after(frames: list[Told], kind: str, since_ns: int) -> float | None:
    """Return after how many seconds there was a frame that names a rank so."""
    return next(
        (came_ns / 1e9 - since_ns / 1e9 for came_ns, kinds in frames if kind in kinds), None
    )


def main() -> list[Figure]:
    with short_dir() as root:
        said = measure(root)
    between = (SECONDS - WARM_S - 3) / max(1, said["frames"])
    note = f"a frame every {between:.1f} s; {said['steps']} steps"
    note += f", sent {said['behind']:.1f} s late, there after {said['records']:.1f} s"
    note += f" (states {said['states']:.1f} s)"
    return [
        Figure("following 1,024 ranks: share of one core", 100 * said["share"], "%", 30, note=note),
        Figure("following 1,024 ranks: records lost", said["lost"], "", 0.5),
        Figure("following 1,024 ranks: memory", said["memory"] / 1e6, "MB", 600),
        Figure("following 1,024 ranks: a slow rank is told after", _told(said["slow"]), "s", 10),
        Figure("following 1,024 ranks: a hang is shown after", _told(said["shown"]), "s", 3),
        Figure("following 1,024 ranks: a stopped rank is told after", _told(said["hung"]), "s", 3),
    ]


def _told(after: float | None) -> float:
    return float("inf") if after is None else after


if __name__ == "__main__":
    view(Path(sys.argv[1]))
