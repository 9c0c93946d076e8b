"""A relay's two connections to the hub, and whether they are up."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from pardbg.hub.node_messages import RELAY, Node
from pardbg.hub.run.config import Endpoints
from pardbg.hub.serve.ctrl_messages import MAX_CTRL_BYTES, pack
from pardbg.hub.serve.security import secure_client

DATA_HWM: Final = 64
HEARTBEAT_MS: Final = 2_000
SILENCE_MS: Final = 10_000
"""A connection that says nothing for so long is given up, and made anew."""
RETRY_MS, MAX_RETRY_MS = 200, 2_000
_EVENTS: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)


class Uplink:
    """DATA and CTRL to the hub. A send never blocks: what the hub does not take stays here."""

    def __init__(
        self, context: zmq.Context[Any], hub: Endpoints, keys: dict[str, Any] | None, node: int
    ) -> None:
        self.num_links = 0
        """Connections made so far. What was under way in the one before may be lost."""
        self.problem = ""
        """Why there is no connection, where the hub said so."""
        self._up: dict[zmq.Socket[bytes], bool] = {}
        self._monitors: dict[zmq.Socket[bytes], zmq.Socket[bytes]] = {}
        identity = RELAY + f"{node}-{os.getpid()}-{os.urandom(4).hex()}".encode()
        self.data = self._connect(context, zmq.PUSH, hub.data, keys, identity)
        self.ctrl = self._connect(context, zmq.DEALER, hub.ctrl, keys, identity)

    def _connect(
        self, context: zmq.Context[Any], kind: int, endpoint: str, keys: dict[str, Any] | None,
        identity: bytes,
    ) -> zmq.Socket[bytes]:  # fmt: skip
        socket: zmq.Socket[bytes] = context.socket(kind)
        for option, value in (
            (zmq.LINGER, 0), (zmq.IMMEDIATE, 1), (zmq.IPV6, 1), (zmq.SNDHWM, DATA_HWM),
            (zmq.RECONNECT_IVL, RETRY_MS), (zmq.RECONNECT_IVL_MAX, MAX_RETRY_MS),
            (zmq.HEARTBEAT_IVL, HEARTBEAT_MS), (zmq.HEARTBEAT_TIMEOUT, SILENCE_MS),
            (zmq.MAXMSGSIZE, MAX_CTRL_BYTES), (zmq.IDENTITY, identity),
        ):  # fmt: skip
            socket.setsockopt(option, value)
        secure_client(socket, keys, "agent")
        monitor = socket.get_monitor_socket(_EVENTS)
        self._monitors[monitor], self._up[socket] = socket, False
        socket.connect(endpoint)
        return socket

    @property
    def up(self) -> bool:
        """Both are connected."""
        return all(self._up.values())

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """To wait on."""
        return [self.ctrl, *self._monitors]

    def look(self) -> None:
        """What has become of the connections."""
        for monitor, socket in self._monitors.items():
            while monitor.poll(0):
                event = recv_monitor_message(monitor)["event"]
                self._up[socket] = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
                if self._up[socket]:
                    self.num_links += 1
                    self.problem = ""
                elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                    self.problem = "it refused our key: is --key the file of this run?"
                elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                    self.problem = "what listens there is no hub of pardbg"

    def put(self, key: bytes, payload: bytes) -> bool:
        """Queue a DATA message; False if the hub takes no more now."""
        return self._send(self.data, (key, payload))

    def forward(self, proc: bytes, payload: bytes) -> bool:
        """Queue a process's CTRL message."""
        return self._send(self.ctrl, (proc, payload))

    def say(self, kind: Node, **fields: Any) -> bool:
        """Queue a message of the relay's own."""
        return self._send(self.ctrl, (b"", pack({"t": kind.value, **fields})))

    def _send(self, socket: zmq.Socket[bytes], frames: tuple[bytes, bytes]) -> bool:
        try:
            socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self, limit: int = 256) -> list[tuple[bytes, bytes]]:
        """(process, payload) of what the hub says."""
        out: list[tuple[bytes, bytes]] = []
        with contextlib.suppress(zmq.Again):
            while len(out) < limit:
                frames = self.ctrl.recv_multipart(zmq.NOBLOCK)
                if len(frames) == 2:
                    out.append((frames[0], frames[1]))
        return out

    def close(self, linger_ms: int) -> None:
        for socket in self._up:
            socket.disable_monitor()
            socket.close(linger=linger_ms)
