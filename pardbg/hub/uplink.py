"""A relay's two connections to the hub, whether they are up, and what may pass over them.

No batch passes out of turn. What was under way to a hub that died, or in a connection that broke,
comes again: the hub's WELCOME says from which record on, and the agent goes back to it. Batches
that it had sent before that are still in the relay's queue; passed on first they would look like a
gap.
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
"""Silence after which a connection is given up and made anew."""
RETRY_MS, MAX_RETRY_MS = 200, 2_000
_EVENTS: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_REFUSED: Final = (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
"""Events of a refusal: of another run's key a hub says nothing and closes the connection."""
MAX_KEPT: Final = 256
"""Batches that wait for their process's WELCOME; beyond that nothing is taken from any."""
MAX_REFUSED: Final = 100
"""More than queues on the way can hold: then what is wanted does not come any more."""


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
        """Return whether both are connected."""
        return all(self._up.values())

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """To wait on."""
        return [self.ctrl, *self._monitors]

    def look(self) -> None:
        """Look at what has become of the connections."""
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
        """Queue a DATA message; False if the hub takes no more now."""
        return self._send(self.data, (key, payload))

    def forward(self, proc: bytes, payload: bytes) -> bool:
        """Queue a process's CTRL message."""
        return self._send(self.ctrl, (proc, payload))

    def say(self, message: FromRelay) -> bool:
        """Queue a message of the relay's own."""
        return self._send(self.ctrl, (b"", pack(message)))

    def _send(self, socket: zmq.Socket[bytes], frames: tuple[bytes, bytes]) -> bool:
        try:
            socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self, limit: int = 256) -> list[tuple[bytes, bytes]]:
        """Return (process, payload) of what the hub says."""
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
        for monitor in self._monitors:  # or the context would wait for them for ever
            monitor.close(linger=0)


@dataclass(slots=True)
class _Process:
    welcomed: bool = False
    """On this link."""
    wanted: int = 0
    """Index of the record that is to come next."""
    lost: int = 0
    """Records that its ring had lost, as the last batch said."""
    num_refused: int = 0
    kept: deque[bytes] = field(default_factory=deque)


class Turns:
    """The processes of this node, each with what may pass next."""

    def __init__(self) -> None:
        self._of: dict[bytes, _Process] = {}
        self._num_kept = 0

    @property
    def full(self) -> bool:
        return self._num_kept >= MAX_KEPT

    def new_link(self) -> None:
        """Nothing passes before each process is welcomed (again)."""
        for process in self._of.values():
            process.welcomed = False

    def welcome(self, proc: bytes, wanted: int) -> list[bytes]:
        """The hub wants the process's records from there on; what was kept of them. Once a link:
        a WELCOME that comes again changes nothing."""
        process = self._of.setdefault(proc, _Process())
        if process.welcomed:
            return []
        process.welcomed, process.wanted = True, wanted
        kept = [payload for payload in process.kept if self._passes(process, payload)]
        self._num_kept -= len(process.kept)
        process.kept.clear()
        return kept

    def passes(self, proc: bytes, payload: bytes) -> bool:
        """Return whether a batch may go on now. Else it is kept, or comes again by itself."""
        process = self._of.setdefault(proc, _Process())
        if process.welcomed:
            return self._passes(process, payload)
        process.kept.append(payload)
        self._num_kept += 1
        return False

    def forget(self, proc: bytes) -> None:
        """The process has ended, and the hub has everything of it."""
        ended = self._of.pop(proc, None)
        self._num_kept -= len(ended.kept) if ended is not None else 0

    @staticmethod
    def _passes(process: _Process, payload: bytes) -> bool:
        try:
            head = frame_head(payload)
        except Malformed:
            return True  # the hub counts it
        ahead = head.first - process.wanted
        # The ring may have lost what is wanted: then the batch says so.
        lost = head.flags & wire.FRAME_OLDEST or ahead <= max(0, head.dropped - process.lost)
        if not lost and process.num_refused < MAX_REFUSED:
            process.num_refused += 1
            return False
        process.wanted = max(process.wanted, head.first + head.count)
        process.lost, process.num_refused = head.dropped, 0
        return True
