"""A hub in this process, turned by hand, with hand-made agents and viewers on real sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import zmq

from pardbg.events.commands import Reply
from pardbg.hub.removal import mark
from pardbg.hub.run import config as files
from pardbg.hub.run.config import RunConfig
from pardbg.hub.serve.hub import Hub
from pardbg.hub.serve.sockets import Role, secure_client
from pardbg.render.reports.replies import as_json
from pardbg_agent import wire
from pardbg_agent.ctrl.codec import decode
from pardbg_agent.identity import boot_id
from pardbg_agent.ring import Ring
from pardbg_agent.wire import Kind, Lane
from tests.harness import whole_messages

LIMIT_S = 10.0


def make_config(root: Path, **changed: Any) -> RunConfig:
    """A run directory without launcher and job."""
    if not (root / "rings").exists():
        (root / "rings").mkdir(mode=0o700)
        mark(root / "rings", "test-1")
    fields: dict[str, Any] = {
        "run": "test-1", "name": "test", "argv": ("job",), "cwd": "/",
        "data": f"ipc://{root}/data", "pub": f"ipc://{root}/pub", "ctrl": f"ipc://{root}/ctrl",
        "session": str(root / "s.mcap"),
        "t_ns": time.monotonic_ns(), "wall_ns": time.time_ns(), "host": "n0",
        "boot_id": boot_id(), "dir": root, **changed,
    }  # fmt: skip
    config = RunConfig(**fields)
    config.save()
    return config


class Rig:
    """A hub and who talks to it. ``until`` turns the hub until a condition holds."""

    def __init__(self, root: Path, **changed: Any) -> None:
        self.config = make_config(root, **changed)
        self.hub = Hub(self.config)
        self.hub.open()
        self.context: zmq.Context[Any] = zmq.Context()
        self.agents: list[FakeAgent] = []
        self._sockets: list[zmq.Socket[bytes]] = []

    def socket(self, kind: int, endpoint: str, identity: str = "") -> zmq.Socket[bytes]:
        made: zmq.Socket[bytes] = self.context.socket(kind)
        made.setsockopt(zmq.LINGER, 0)
        if identity:
            made.setsockopt(zmq.IDENTITY, identity.encode())
        if kind == zmq.SUB:
            made.setsockopt(zmq.SUBSCRIBE, b"")
        made.connect(endpoint)
        self._sockets.append(made)
        return made

    def until(self, condition: Callable[[], Any], what: str = "condition") -> Any:
        deadline = time.monotonic() + LIMIT_S
        while True:
            self.hub._turn()
            found = condition()
            if found:
                return found
            assert time.monotonic() < deadline, f"waited in vain: {what}"

    def close(self) -> None:
        for one in self._sockets:
            one.close()
        self.context.term()
        self.hub.close()

    def kill_hub(self) -> None:
        """As kill -9 leaves it, but with what it recorded in the file; its successor is there."""
        self.hub._collector.flush(None)
        writer, self.hub._collector.writer = self.hub._collector.writer, None
        assert writer is not None
        writer.abandon()
        self.hub._closed = True
        self.hub.close()
        self.hub = Hub(self.config)
        self.hub.open()

    def finish(self, code: int = 0) -> None:
        """The job and its processes end; the hub writes the rest."""
        for agent in self.agents:
            agent.send("bye", last_index=0, dropped=0)
        files.write_json(self.config.dir / files.EXIT_FILE, {"code": code})
        deadline = time.monotonic() + LIMIT_S
        while not self.hub._turn():
            assert time.monotonic() < deadline
        self.close()


class Peer:
    """One CTRL socket: an agent (identity = proc id) or a viewer."""

    def __init__(self, rig: Rig, identity: str) -> None:
        self.rig, self.identity = rig, identity
        self.socket = rig.socket(zmq.DEALER, rig.config.ctrl, identity)
        self.messages: list[dict[str, Any]] = []
        self.data: list[tuple[bytes, bytes]] = []
        self._number = 0

    def send(self, kind: str, **fields: Any) -> None:
        self.socket.send(msgpack.packb({"v": 1, "t": kind, **fields}))

    def take(self) -> None:
        """Everything that has come."""
        try:
            while True:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
                if len(frames) == 2:
                    self.data.append((frames[0], frames[1]))
                else:
                    self.messages.append(msgpack.unpackb(frames[0], strict_map_key=False))
        except zmq.Again:
            pass

    def wait(self, kind: str, number: int | None = None) -> dict[str, Any]:
        """The newest message of that kind (answering ``number``), once there is one."""

        def found() -> dict[str, Any] | None:
            self.take()
            fitting = [m for m in self.messages if m["t"] == kind and number in (None, m.get("re"))]
            return fitting[-1] if fitting else None

        message: dict[str, Any] = self.rig.until(found, f"{kind} for {self.identity}")
        return shown(message) if kind == "reply" else message

    def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """A request; its reply, as ``ctl --json`` shows it under ``data``."""
        number = self.request(kind, **fields)
        return self.wait("reply", number)

    def request(self, kind: str, **fields: Any) -> int:
        self._number += 1
        self.send(kind, id=self._number, **fields)
        return self._number

    def command(
        self, verb: str, ranks: str | None = None, more: dict[str, Any] | None = None, **args: Any
    ) -> dict[str, Any]:
        """A command with these arguments; ``more``: its other fields."""
        return self.ask("command", verb=verb, ranks=ranks, args=args, **(more or {}))


def shown(plain: dict[str, Any]) -> dict[str, Any]:
    """A reply as it came: whether it is ok, why not, and its fields."""
    reply = decode(Reply, plain)
    why = reply.refusal.why if reply.refusal is not None else None
    data = as_json(reply)
    return {"ok": reply.ok, "why": why, "error": data["error"], "data": data, "re": reply.re,
            "n": reply.n}  # fmt: skip


def tcp_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Keyed(Peer):
    """A peer with a run's keys (or with wrong ones), over TCP."""

    def __init__(
        self, rig: Rig, identity: str, keys: dict[str, Any], role: Role, to: str = ""
    ) -> None:
        self.rig, self.identity = rig, identity
        self.socket = rig.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.IDENTITY, identity.encode())
        secure_client(self.socket, keys, role)
        self.socket.connect(to or rig.config.ctrl)
        rig._sockets.append(self.socket)
        self.messages, self.data, self._number = [], [], 0


class FakeAgent(Peer):
    """Says hello and what its states are; holds at once wherever it is told to."""

    def __init__(self, rig: Rig, rank: int, host: str = "n0", boot: str | None = None) -> None:
        self.rank, self.proc = rank, f"0.{host}.{4_000_000 + rank}"  # above any real pid
        super().__init__(rig, self.proc)
        rig.agents.append(self)
        self.push = rig.socket(zmq.PUSH, rig.config.data)
        self.serial = 0
        self.fields = {
            "proc": self.proc, "rank": rank, "world_size": 2, "host": host, "pid": 4_000_000 + rank,
            "epoch": 0, "boot_id": boot_id() if boot is None else boot,
        }  # fmt: skip

    def hello(self) -> dict[str, Any]:
        self.send("hello", process=self.fields)
        return self.wait("welcome")

    def define(self, kind: str, **fields: Any) -> None:
        payload = msgpack.packb({"k": kind, **fields})
        self.push.send_multipart((b"D" + self.proc.encode(), payload))

    def records(self, first: int, count: int, flags: int = 0) -> None:
        payload = bytearray(frame(first, count))
        payload[2:4] = flags.to_bytes(2, "little")
        self.push.send_multipart((b"R" + self.proc.encode(), bytes(payload)))

    def state(self, reply_to: int | None, held: int, **fields: Any) -> None:
        self.serial += 1
        self.send("state", serial=self.serial, reply_to=reply_to, rank=self.rank, held=held,
                  **fields)  # fmt: skip

    def obey(self, held: int = int(wire.Gate.COLLECTIVE), next: str = "all_reduce dp #0") -> None:
        """Answer the newest PERMIT: held at a gate."""
        permit = self.wait("permit")
        self.state(permit["id"], held, next=next)


def recorded(rig: Rig, key: bytes) -> list[dict[str, Any]]:
    """The hub's own messages of one kind, decoded."""
    messages = whole_messages(Path(rig.config.session))
    return [msgpack.unpackb(m.payload, strict_map_key=False) for m in messages if m.key == key]


def event_names(rig: Rig) -> list[str]:
    """Names of the recorded CONTROL messages: the verb of a command, else the event."""
    plain = recorded(rig, b"C")
    return [one["verb"] if one["event"] in ("verb", "edit") else one["event"] for one in plain]


def frame(first: int, count: int, dropped: int = 0) -> bytes:
    """A records payload with the marks a ring would have."""
    body = b"".join(record(i) for i in range(first, first + count))
    return wire.FRAME.pack(wire.PROTOCOL_VERSION, 0, count, first, dropped, 0) + body


def record(index: int) -> bytes:
    return wire.RECORD.pack(
        Kind.STEP, Lane.STEP, 0, 0, index, index + 1, index, 0, 0xFFFF, -1, -1, -1, 0, 0, index + 1
    )


def dead_ring(ring_dir: Path, proc: str, num: int, pid: int, rank: int = 0) -> Ring:
    """The ring file of a process that wrote ``num`` records and is gone."""
    ring = Ring.create(str(ring_dir / f"{proc}.ring"), 1024)
    ring.header(start_ns=1, wall_ns=1, rank=rank, world_size=1, pid=pid, epoch=0)
    for i in range(num):
        ring.record(Kind.STEP, Lane.STEP, 0, 0, i, i + 1, i, 0, 0xFFFF, -1, -1, -1, 0, 0)
    return ring
