"""A hub for the agent's tests: real sockets, everything it got kept in lists, nothing else."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import zmq

from pardbg_agent import wire
from pardbg_agent.ctrl.agent_messages import FromAgent, Hello, State, Welcome
from pardbg_agent.ctrl.codec import decode, encode
from pardbg_agent.wire import Key


class FakeHub:
    """PULL and ROUTER; answers HELLO with WELCOME as the protocol says."""

    def __init__(self, run_dir: Path, *, write_run: bool = True, keys: Any = None) -> None:
        self.run_dir = run_dir
        self.hub_id = uuid.uuid4().hex[:8]
        self.records: dict[str, dict[int, bytes]] = {}
        """proc -> index -> raw record."""
        self.doubles = 0
        """Records that came more than once."""
        self.dropped: dict[str, int] = {}
        self.flags: dict[str, list[int]] = {}
        """FRAME's, of each batch."""
        self.defs: dict[str, list[dict[str, Any]]] = {}
        self.ctrl: dict[str, list[dict[str, Any]]] = {}
        """proc -> CTRL messages, in order."""
        self._at: dict[str, bytes] = {}
        self.data_keys: list[bytes] = []
        self.welcome = True
        self._context = zmq.Context()
        self._pull = self._bind(zmq.PULL, "data", keys)
        self._router = self._bind(zmq.ROUTER, "ctrl", keys)
        if write_run:
            run = {
                "v": 1, "run": "t", "ring_dir": str(run_dir / "rings"), "keys": keys,
                "data": f"ipc://{run_dir}/data", "ctrl": f"ipc://{run_dir}/ctrl",
            }  # fmt: skip
            (run_dir / "run.json").write_text(json.dumps(run))

    def _bind(self, kind: int, name: str, keys: Any) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        if kind == zmq.ROUTER:
            socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # as the real one: who attaches again
        if keys:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, keys["server_secret"].encode())
        socket.bind(f"ipc://{self.run_dir}/{name}")
        return socket

    def poll(self, timeout_ms: int = 10) -> None:
        """Take what has come."""
        poller = zmq.Poller()
        poller.register(self._pull, zmq.POLLIN)
        poller.register(self._router, zmq.POLLIN)
        for socket, _ in poller.poll(timeout_ms):
            take = self._take_data if socket is self._pull else self._take_ctrl
            try:
                while True:
                    take(socket.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                continue

    def until(self, condition: Callable[[], Any], timeout_s: float = 30, what: str = "") -> Any:
        """Poll until the condition gives something true; that is the result."""
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            assert time.monotonic() < deadline, f"never came: {what or condition}"
            self.poll()
        return found

    def send(self, proc: str, kind: Any, /, **fields: Any) -> None:
        message = msgpack.packb({"t": kind.TAG, **fields})
        self._router.send_multipart([self._at[proc], message])

    def send_raw(self, proc: str, raw: bytes) -> None:
        self._router.send_multipart([self._at[proc], raw])

    def of(self, proc: str, *kinds: Any) -> list[dict[str, Any]]:
        """Messages of these classes, with all their fields."""
        tags = [kind.TAG for kind in kinds]
        return [m for m in self.ctrl.get(proc, []) if m["t"] in tags]

    def procs(self) -> list[str]:
        """Who said HELLO, in order of the first."""
        return list(self.ctrl)

    def wait_proc(self, known: set[str] = frozenset()) -> str:  # type: ignore[assignment]
        """The next process that says HELLO."""
        new = self.until(lambda: [p for p in self.procs() if p not in known], what="hello")
        return str(new[0])

    def state(self, proc: str, timeout_s: float = 30, **wanted: Any) -> dict[str, Any]:
        """Wait for a STATE, newest first, whose fields are as wanted."""

        def newest() -> Any:
            states = self.of(proc, State)
            return states and all(states[-1][k] == v for k, v in wanted.items()) and states[-1]

        return dict(self.until(newest, timeout_s, what=f"state {wanted}"))

    def _take_data(self, frames: list[bytes]) -> None:
        key, payload = frames
        proc = key[1:].decode()
        self.data_keys.append(key)
        if key[:1] == Key.DEFINITION.value:
            self.defs.setdefault(proc, []).append(msgpack.unpackb(payload))
            return
        version, flags, count, first, dropped, sent_ns = wire.FRAME.unpack_from(payload)
        raw = payload[wire.FRAME.size :]
        assert (version, len(raw)) == (wire.PROTOCOL_VERSION, count * wire.RECORD_BYTES)
        assert sent_ns <= time.monotonic_ns()
        self.dropped[proc] = dropped
        self.flags.setdefault(proc, []).append(flags)
        rows = self.records.setdefault(proc, {})
        for n in range(count):
            record = raw[n * 64 : (n + 1) * 64]
            assert wire.RECORD.unpack(record)[-1] == first + n + 1
            self.doubles += (first + n) in rows
            rows[first + n] = record

    def _take_ctrl(self, frames: list[bytes]) -> None:
        if frames[0].startswith(b"\0"):
            return  # zmq's own name for who lost its place to a newer self
        proc = frames[0].decode().partition("/")[0]
        plain = msgpack.unpackb(frames[1], strict_map_key=False)
        message = encode(decode(FromAgent, plain), whole=True)
        if message["t"] == Hello.TAG:
            self._at[proc] = frames[0]
        self.ctrl.setdefault(proc, []).append(message)
        if message["t"] == Hello.TAG and self.welcome:
            self.send(proc, Welcome, hub=self.hub_id, t_ns=time.monotonic_ns())

    def close(self) -> None:
        self._context.destroy(linger=0)
