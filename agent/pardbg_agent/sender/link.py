"""Sockets of a rank, and the pipe that wakes the thread which owns them.

The two sockets are made, used and closed in the agent's thread, on a context of its own."""

from __future__ import annotations

import contextlib
import select
from typing import TYPE_CHECKING, Any, Final

import msgpack
import zmq

from pardbg_agent import clock, wire
from pardbg_agent.ctrl.agent_messages import FromAgent
from pardbg_agent.ctrl.codec import encode
from pardbg_agent.sender.wake import WakePipe

if TYPE_CHECKING:
    from pardbg_agent.watched_rank import Core

DATA_HWM: Final = 16
CTRL_HWM: Final = 1024
CTRL_MAX_BYTES: Final = 1 << 20
MONITOR: Final = "inproc://monitor"
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)  # as enums, each use makes a new one
_NOBLOCK, _SNDMORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)


class Link:
    """Sockets of the agent. Never blocks: a send that would block is refused."""

    def __init__(self, core: Core, pipe: WakePipe) -> None:
        run = core.run
        assert run is not None
        self.hub: str | None = None
        """Id of the hub that welcomed this rank."""
        self.heard_ns = clock.now_ns()
        self.greet = False
        """Whether a Hello is due."""
        self.connected = False
        self.absent = False
        """Whether no hub listens (yet). If neither this nor ``connected``: still trying."""
        self.lost_ns = 0
        """Time when the connection was lost or came back; 0 once a hub has welcomed the rank."""
        self.linger_ms = 0
        self._proc = core.identity.proc.encode("ascii")
        self._pipe = pipe
        self._context = zmq.Context()
        self._data = self._socket(zmq.PUSH, run.keys)
        self._data.setsockopt(zmq.SNDHWM, DATA_HWM)
        # Only queue to a connected hub: messages queued here are lost with it, the ring is not.
        self._data.setsockopt(zmq.IMMEDIATE, 1)
        self._ctrl = self._socket(zmq.DEALER, run.keys)
        self._ctrl.setsockopt(zmq.IDENTITY, wire.address(core.identity.proc))
        self._ctrl.setsockopt(zmq.SNDHWM, CTRL_HWM)
        self._ctrl.setsockopt(zmq.RCVHWM, CTRL_HWM)
        self._ctrl.setsockopt(zmq.MAXMSGSIZE, CTRL_MAX_BYTES)
        self._events = self._ctrl.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED,
            MONITOR,  # a default address makes zmq import itself: see life.own_libraries
        )
        self._data.connect(run.data)
        self._ctrl.connect(run.ctrl)
        # poll(2) on the sockets' descriptors is cheaper than zmq's own poller, but they are edge-
        # triggered: check EVENTS before each sleep.
        self._poll = select.poll()
        for fd in (self._ctrl.getsockopt(zmq.FD), self._events.getsockopt(zmq.FD), pipe.fd):
            self._poll.register(int(fd), select.POLLIN)

    def _socket(self, kind: int, keys: dict[str, Any]) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        mine = keys.get("agent")
        if keys.get("server") and mine:
            socket.setsockopt(zmq.CURVE_SERVERKEY, str(keys["server"]).encode())
            socket.setsockopt(zmq.CURVE_PUBLICKEY, str(mine["public"]).encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, str(mine["secret"]).encode())
        return socket

    def wait(self, timeout_ms: int) -> bool:
        """Wait until something comes or the time is up. False: nothing came."""
        came = _readable(self._ctrl)
        if not came:
            for fd, _ in self._poll.poll(timeout_ms):
                came = True
                if fd == self._pipe.fd:
                    self._pipe.clear()
        if came:
            while _readable(self._events):
                event = self._events.recv_multipart(zmq.NOBLOCK)[0]
                self._connection_changed(int.from_bytes(event[:2], "little"))
        return came

    def _connection_changed(self, event: int) -> None:
        self.connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        self.absent = not self.connected
        # The first HELLO waits in the queue for the first connection; each later one needs its own.
        self.greet |= self.connected and self.lost_ns != 0
        if event == zmq.EVENT_DISCONNECTED or (self.connected and self.lost_ns):
            self.lost_ns = clock.now_ns()

    def messages(self, limit: int = 64) -> list[bytes]:
        """Return the received CTRL messages."""
        out: list[bytes] = []
        while len(out) < limit and _readable(self._ctrl):
            out.append(self._ctrl.recv_multipart(zmq.NOBLOCK)[-1])
        if out:
            self.heard_ns = clock.now_ns()
        return out

    def data(self, key: bytes, payload: bytes) -> bool:
        """Queue one DATA message; False if the hub takes no more now."""
        try:
            self._data.send(key + self._proc, _NOBLOCK | _SNDMORE)
            self._data.send(payload, _NOBLOCK)  # where the first part was taken, all are
        except zmq.Again:
            return False
        return True

    def ctrl(self, message: FromAgent) -> None:
        """Queue one CTRL message; dropped if the queue is full (states repeat)."""
        packed = msgpack.packb(encode(message), default=str, unicode_errors="backslashreplace")
        with contextlib.suppress(zmq.Again):
            self._ctrl.send(packed, zmq.NOBLOCK)

    def close(self) -> None:
        """Close within ``linger_ms``: records that the hub has not taken are in the ring file."""
        self._ctrl.disable_monitor()
        self._context.destroy(linger=self.linger_ms)


def _readable(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.getsockopt(_EVENTS)) & _POLLIN)
