"""How fast control answers: a key until the screen may change, a pause until everybody stands.

*Key to acknowledged*: ``step`` of one rank and ``tick`` of a held, paced 1F1B pipeline, through the
real client, hub and agents; and commands that move nobody: the way there and back. A step is
answered when all stand again, so it contains what the ranks did: an action sleeps 10 or 20 ms here,
and a rank that steps into a receive makes others run theirs, one after the other. Counted is the
time in which nobody ran one.

*Pause to a cut*: at real ranks of the same recipe, continued and paused again at random moments;
beyond the longest action under way. At 256 simulated agents: the real hub process and client, and
agents that hold 10 ms after they are told to, each a socket of its own, as a rank's is.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgpack
import zmq

from pardbg.analysis.base.asof import View as AsOf
from pardbg.events.control_codes import Verb
from pardbg.hub.client import HubControl
from pardbg.hub.run.config import RunConfig
from pardbg.hub.run.run_files import Launch, this_process, write_launch
from pardbg.hub.run.start import RunHandle
from pardbg.session.reader import load
from pardbg_agent.identity import boot_id
from tests.bench.bench_hub import make_run, short_dir
from tests.bench.figures import Figure
from tests.distributed.recorded import launched
from tests.distributed.runs import started, wait_ranks
from tests.harness import hub_process
from tests.processes import rank_env

KEY_MS: Final = 50.0
PAUSE_MS: Final = 250.0
KEYS: Final = 60
PAUSES: Final = 12
PACE_MS: Final = 5.0
SIMULATED: Final = 256
ANSWER_S: Final = 0.01
MS: Final = 1_000_000
Span = tuple[int, int]


def main() -> list[Figure]:
    """All of it; about two minutes."""
    figures = []
    for ranks in (2, 4, 8):
        figures += at_real_ranks(ranks, keys=ranks == 4)
    return [*figures, simulated()]


# ------------------------------------------------------------------ real ranks


def at_real_ranks(ranks: int, *, keys: bool) -> list[Figure]:
    """Pauses of a running pipeline; and keys, at one of the sizes."""
    job = [*launched("1f1b", ranks, 100_000), "--pace", str(PACE_MS)]
    with tempfile.TemporaryDirectory(prefix="pardbg-bench-") as folder:
        with started(job, Path(folder, "s.mcap"), env=rank_env()) as handle:
            control = HubControl(handle.run_dir)
            wait_ranks(control, ranks)
            assert control.command(Verb.UNTIL, expr="step==1", timeout_s=60).ok
            pressed = _keys(control) if keys else {}
            spans = _pauses(control)
            control.close()
        actions = _actions(handle)
    figures = [_key_figure(name, found, actions) for name, found in pressed.items()]
    beyond = [(end - begin - _longest(actions, begin, end)) / MS for begin, end in spans]
    worst = max(spans, key=lambda span: span[1] - span[0])
    busy = _busy(actions, *worst) / MS
    note = (
        f"beyond the longest action under way; worst of {PAUSES}, median"
        f" {statistics.median(beyond):.0f}; longest {(worst[1] - worst[0]) / MS:.0f} in all,"
        f" {busy:.0f} of it actions, one after the other"
    )
    pause = Figure(f"pause to a cut, {ranks} ranks", max(beyond), "ms", PAUSE_MS, note=note)
    return [*figures, pause]


def _keys(control: HubControl) -> dict[str, list[Span]]:
    """(pressed, answered) of each, interleaved."""
    spans: dict[str, list[Span]] = {"nobody moves": [], "refused": [], "step": [],
                                               "tick": []}  # fmt: skip
    for _ in range(KEYS):
        for name, verb, ranks, args in (
            ("nobody moves", Verb.STATUS, None, {}),
            ("refused", Verb.CONDITION, None, {"number": 99, "expr": "step==1"}),
            ("step", Verb.STEP, "0", {}),
            ("tick", Verb.TICK, None, {}),
        ):
            begin = time.monotonic_ns()
            control.command(verb, ranks, **args)
            spans[name].append((begin, time.monotonic_ns()))
    return spans


def _key_figure(name: str, spans: list[Span], actions: list[Span]) -> Figure:
    took = [(end - begin - _busy(actions, begin, end)) / MS for begin, end in spans]
    p95 = statistics.quantiles(took, n=20)[-1]
    note = f"p95 of {KEYS}, median {statistics.median(took):.1f}"
    if name in ("step", "tick"):
        whole = statistics.median((end - begin) / MS for begin, end in spans)
        note += f"; without the time in which a rank ran an action, with it {whole:.0f}"
    return Figure(f"key to acknowledged, {name}", p95, "ms", KEY_MS, note=note)


def _pauses(control: HubControl) -> list[Span]:
    """(asked, answered) of each, monotonic ns: the ranks' clock, too."""
    spans, chance = [], random.Random(3)
    for _ in range(PAUSES):
        assert control.command(Verb.CONTINUE).ok
        time.sleep(chance.uniform(0.2, 0.5))
        begin = time.monotonic_ns()
        reply = control.command(Verb.PAUSE)
        assert reply.ok, reply.refusal
        spans.append((begin, time.monotonic_ns()))
    return spans


def _actions(handle: RunHandle) -> list[Span]:
    """(begin, end) of every pipeline action of the recording."""
    out: list[Span] = []
    for process in AsOf(load(handle.session), None).ranks.values():
        table = process.table("action")
        out += zip(table.col("t0_ns").tolist(), table.col("t1_ns").tolist(), strict=True)
    return out


def _longest(actions: list[Span], begin: int, end: int) -> int:
    """The longest action that ran in that time, as far as it lies in it."""
    inside = [min(t1, end) - max(t0, begin) for t0, t1 in actions if t0 < end and t1 > begin]
    return max(inside, default=0)


def _busy(actions: list[Span], begin: int, end: int) -> int:
    """How long some rank ran an action in that time."""
    total, at = 0, begin
    for t0, t1 in sorted(actions):
        if t1 > at and t0 < end:
            total += min(t1, end) - max(t0, at)
            at = max(at, min(t1, end))
    return total


# ------------------------------------------------------------------ simulated agents


class Agents(threading.Thread):
    """256 agents: they hold where they are told to, a moment later."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(daemon=True)
        self._context: zmq.Context[Any] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 2 * SIMULATED + 16)
        self._ended = threading.Event()
        self._poller = zmq.Poller()
        self._sockets: dict[zmq.Socket[bytes], list[int]] = {}
        for rank in range(SIMULATED):
            pid = 4_000_000 + rank
            socket = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.IDENTITY, f"0.bench.{pid}".encode())
            socket.connect(config.ctrl)
            self._sockets[socket] = [rank, 0]
            self._poller.register(socket, zmq.POLLIN)
            self._send(socket, "hello", proc=f"0.bench.{pid}", rank=rank, world_size=SIMULATED,
                       host="bench", pid=pid, epoch=0, boot_id=boot_id())  # fmt: skip

    def _send(self, socket: zmq.Socket[bytes], kind: str, **fields: Any) -> None:
        socket.send(msgpack.packb({"v": 1, "t": kind, **fields}))

    def run(self) -> None:
        due: list[tuple[float, zmq.Socket[bytes], dict[str, Any]]] = []
        while not self._ended.is_set():
            for socket, _ in self._poller.poll(2):
                message = msgpack.unpackb(socket.recv())
                if message["t"] in ("permit", "run"):
                    due.append((time.monotonic() + ANSWER_S, socket, message))
            now = time.monotonic()
            for _, socket, message in [one for one in due if one[0] <= now]:
                state = self._sockets[socket]
                state[1] += 1
                held = 4 if message["t"] == "permit" else 0
                self._send(socket, "state", sn=state[1], re=message["id"], rank=state[0], held=held,
                           next="all_reduce dp #7", step=3, issued={"dp": 7})  # fmt: skip
            due = [one for one in due if one[0] > now]
        self._context.destroy(linger=0)

    def end(self) -> None:
        self._ended.set()
        self.join(10)


def simulated() -> Figure:
    """Pause and continue, PAUSES times, at SIMULATED agents."""
    with short_dir() as root:
        config = make_run(root)
        write_launch(root, Launch(this_process()))
        with hub_process(root), closing(HubControl(root)) as control:
            agents = Agents(config)
            agents.start()
            wait_ranks(control, SIMULATED)
            took = []
            for _ in range(PAUSES):
                before = time.perf_counter()
                reply = control.command(Verb.PAUSE)
                took.append((time.perf_counter() - before) * 1e3 - ANSWER_S * 1e3)
                assert reply.ok and len(reply.data["held"]) == SIMULATED, reply
                assert control.command(Verb.CONTINUE).ok
            agents.end()
    note = f"worst of {PAUSES}, median {statistics.median(took):.0f}; each answers after 10 ms"
    return Figure(f"pause to a cut, {SIMULATED} agents", max(took), "ms", PAUSE_MS, note=note)
