"""A relay's two connections to the hub, and the order in which batches of records pass over them.

Batches that were lost with a hub or a connection are sent again: the hub's WELCOME names the next
record that it wants, and the agent resumes there. Batches sent before the WELCOME may still be in
the relay's queue; forwarded first, they would look like a gap, so they wait or are dropped.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from pardbg.events.decode import Malformed, frame_head
from pardbg.hub import MAX_CTRL_BYTES
from pardbg.hub.ctrl_messages import RELAY, FromRelay, pack
from pardbg.hub.run.config import Endpoints
from pardbg.hub.serve.sockets import secure_client
from pardbg_agent import wire
from pardbg_agent.wire import address

DATA_HWM: Final = 64
HEARTBEAT_MS: Final = 2_000
SILENCE_MS: Final = 10_000
"""Silence after which a connection is replaced."""
RETRY_MS, MAX_RETRY_MS = 200, 2_000
_EVENTS: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_REFUSED: Final = (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
"""Events of a refused key: the hub closes the connection without an answer."""
MAX_KEPT: Final = 256
"""Limit on batches that wait for a WELCOME; beyond it no agent's records are taken."""
MAX_REFUSED: Final = 100
"""Refused batches after which the wanted records are lost: more than all queues can hold."""


class Uplink:
    """DATA and CTRL connections to the hub. A send never blocks; it reports a full queue."""

    def __init__(
        self, context: zmq.Context[Any], hub: Endpoints, keys: dict[str, Any] | None, node: int
    ) -> None:
        self.num_links = 0
        """Number of connections so far; messages in an earlier one may be lost."""
        self.problem = ""
        """Reason for a missing connection, if known."""
        self._up: dict[zmq.Socket[bytes], bool] = {}
        self._monitors: dict[zmq.Socket[bytes], zmq.Socket[bytes]] = {}
        identity = address(f"{RELAY.decode()}{node}-{os.getpid()}")
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
        """Return whether both connections are up."""
        return all(self._up.values())

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Return the sockets to wait on."""
        return [self.ctrl, *self._monitors]

    def refresh(self) -> None:
        """Update ``up``, ``num_links`` and ``problem`` from the sockets' events."""
        for monitor, socket in self._monitors.items():
            while monitor.poll(0):
                event = recv_monitor_message(monitor)["event"]
                self._up[socket] = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
                if self._up[socket]:
                    self.num_links += 1
                    self.problem = ""
                elif event in _REFUSED:
                    self.problem = "it refused the key: is --key the key file of this run?"
                elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                    self.problem = "what listens there is not a pardbg hub"

    def put(self, key: bytes, payload: bytes) -> bool:
        """Queue a DATA message; return False if the queue is full."""
        return self._send(self.data, (key, payload))

    def forward(self, proc: bytes, payload: bytes) -> bool:
        """Queue a process's CTRL message."""
        return self._send(self.ctrl, (proc, payload))

    def send(self, message: FromRelay) -> bool:
        """Queue a message of the relay's own."""
        return self._send(self.ctrl, (b"", pack(message)))

    def _send(self, socket: zmq.Socket[bytes], frames: tuple[bytes, bytes]) -> bool:
        try:
            socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self, limit: int = 256) -> list[tuple[bytes, bytes]]:
        """Return messages of the hub: (process, payload)."""
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
        for monitor in self._monitors:  # an open one would keep the context from ending
            monitor.close(linger=0)


@dataclass(slots=True)
class _Process:
    welcomed: bool = False
    """Whether the hub has sent WELCOME over this connection."""
    wanted: int = 0
    """Index of the next record that the hub wants."""
    lost: int = 0
    """Records that its ring had overwritten, according to the last batch."""
    num_refused: int = 0
    kept: deque[bytes] = field(default_factory=deque)


class BatchOrder:
    """Order of the batches of this node's processes over a connection."""

    def __init__(self) -> None:
        self._of: dict[bytes, _Process] = {}
        self._num_kept = 0

    @property
    def full(self) -> bool:
        return self._num_kept >= MAX_KEPT

    def new_link(self) -> None:
        """Hold every process's batches until its next WELCOME."""
        for process in self._of.values():
            process.welcomed = False

    def welcome(self, proc: bytes, wanted: int) -> list[bytes]:
        """Take a process's WELCOME, with the index of the record that the hub wants; return kept
        batches to forward. A repeated WELCOME on one connection changes nothing."""
        process = self._of.setdefault(proc, _Process())
        if process.welcomed:
            return []
        process.welcomed, process.wanted = True, wanted
        kept = [payload for payload in process.kept if self._is_next(process, payload)]
        self._num_kept -= len(process.kept)
        process.kept.clear()
        return kept

    def may_forward(self, proc: bytes, payload: bytes) -> bool:
        """Return whether to forward now; otherwise it is queued or will be resent."""
        process = self._of.setdefault(proc, _Process())
        if process.welcomed:
            return self._is_next(process, payload)
        process.kept.append(payload)
        self._num_kept += 1
        return False

    def forget(self, proc: bytes) -> None:
        """Drop a process that has ended and whose records the hub has."""
        ended = self._of.pop(proc, None)
        self._num_kept -= len(ended.kept) if ended is not None else 0

    @staticmethod
    def _is_next(process: _Process, payload: bytes) -> bool:
        try:
            head = frame_head(payload)
        except Malformed:
            return True  # the hub counts malformed batches
        ahead = head.first - process.wanted
        # A batch says if its ring has overwritten the wanted records.
        lost = head.flags & wire.FRAME_OLDEST or ahead <= max(0, head.dropped - process.lost)
        if not lost and process.num_refused < MAX_REFUSED:
            process.num_refused += 1
            return False
        process.wanted = max(process.wanted, head.first + head.count)
        process.lost, process.num_refused = head.dropped, 0
        return True
