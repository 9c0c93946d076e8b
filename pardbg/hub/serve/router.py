"""CTRL: the ROUTER socket. Agents and viewers by identity; histories for late viewers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import zmq

from pardbg.errors import NONSENSE, UserError
from pardbg.events.decode import Malformed
from pardbg.hub.backlog import Wire
from pardbg.hub.ctrl_messages import RELAY, pack, unpack
from pardbg.hub.serve.sockets import Role, ServerSecurity
from pardbg_agent.wire import Msg

VIEWER: Final = b"view-"
MAX_VIEWERS: Final = 64
MAX_LOGGED: Final = 20
PROBE_NS: Final = 200_000_000

Handler = Callable[[str, dict[str, Any], int], None]
"""(who, message, when). UserError and NONSENSE say that the message makes no sense."""


@dataclass(slots=True)
class Viewer:
    """One connected viewer."""

    history: Iterator[Wire] = field(default_factory=lambda: iter(()))
    """Still to be sent, after ``waits``."""
    waits: Wire | None = None
    """What its socket did not take yet."""
    then: dict[str, Any] | None = None
    """The ACK that ends the history."""


class Router:
    """Receives, checks, hands on; sends without ever blocking."""

    def __init__(self, socket: zmq.Socket[bytes], security: ServerSecurity) -> None:
        self.viewers: dict[str, Viewer] = {}
        self.malformed = 0
        self.on_agent: Handler = lambda proc, message, now: None
        self.on_relay: Handler = lambda relay, message, now: None
        self.on_viewer: Callable[[str, dict[str, Any], Role, int], None] = lambda *_: None
        self._via: dict[str, str] = {}
        """Process -> relay that it is behind."""
        self.on_left: Callable[[str], None] = lambda viewer: None
        self._socket, self._security = socket, security
        self._probed_ns = 0
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # A restarted viewer or agent with its old identity takes the place of its old self.
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)

    def receive(self, limit: int = 500) -> int:
        """Take what has come; how many messages that was."""
        for taken in range(limit):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return taken
            self._take(frames)
        return limit

    def send(self, identity: str, message: dict[str, Any]) -> bool:
        """Send; return False if nobody of that name is connected (or takes no more)."""
        via = self._via.get(identity)
        if via is not None:
            return self._send(via, identity.encode("ascii"), pack(message)) is True
        return self._send(identity, pack(message)) is True

    def ack(
        self, viewer: str, re: Any, error: str | None = None, data: Mapping[str, Any] | None = None
    ) -> None:
        """Answer a viewer's request: with what it is refused for, or data."""
        answer = {"t": Msg.ACK.value, "re": re, "ok": error is None, "error": error}
        self.send(viewer, {**answer, "data": data or {}})

    def send_relay(self, relay: str, message: dict[str, Any]) -> bool:
        """Send to a relay itself."""
        return self._send(relay, b"", pack(message)) is True

    def reach(self, proc: str, relay: str) -> None:
        """The process is behind that relay."""
        self._via[proc] = relay

    def forget(self, procs: Iterable[str]) -> None:
        """Forget where processes are that have ended."""
        for proc in procs:
            self._via.pop(proc, None)

    def relay_of(self, proc: str) -> str | None:
        """Return the relay that the process is behind; None: it is here, or reaches us itself."""
        return self._via.get(proc)

    def history(self, viewer: str, messages: Iterable[Wire], then: dict[str, Any]) -> None:
        """Send a late viewer what it missed, bit by bit, then ``then``."""
        known = self.viewers[viewer]
        known.history, known.waits, known.then = iter(messages), None, then
        self._serve(viewer, known)

    def tick(self, now: int) -> None:
        """Go on with histories; find out who has left."""
        for name, viewer in list(self.viewers.items()):
            if viewer.then is not None:
                self._serve(name, viewer)
        if now - self._probed_ns >= PROBE_NS:
            self._probed_ns = now
            for name in list(self.viewers):
                if self._send(name, pack({"t": Msg.PING.value, "t_ns": now})) is None:
                    self._gone(name)

    @property
    def busy(self) -> bool:
        """Return whether a history is being sent."""
        return any(viewer.then is not None for viewer in self.viewers.values())

    def _take(self, frames: list[zmq.Frame]) -> None:
        identity = frames[0].bytes
        try:
            name = identity.decode("ascii")
            message = unpack(frames[-1].bytes)
            role = self._security.role(frames[-1])
            now = time.monotonic_ns()
            if len(frames) != (3 if identity.startswith(RELAY) else 2):
                raise Malformed("frames")
            if identity.startswith(VIEWER):
                self._from_viewer(name, message, role, now)
            elif role == "viewer":
                raise Malformed("role")
            elif len(frames) == 2:
                self.on_agent(name, message, now)
            elif proc := frames[1].bytes.decode("ascii"):
                self.reach(proc, name)
                self.on_agent(proc, message, now)
            else:
                self.on_relay(name, message, now)
        except (UserError, *NONSENSE) as error:
            self.malformed += 1
            if self.malformed <= MAX_LOGGED:
                print(f"dropped a message on CTRL of {identity!r}: {error!r}", flush=True)

    def _from_viewer(self, name: str, message: dict[str, Any], role: Role, now: int) -> None:
        if role == "agent":
            raise Malformed("role")
        if name not in self.viewers:
            if len(self.viewers) >= MAX_VIEWERS:
                text = f"{MAX_VIEWERS} viewers are connected already: close one"
                self.ack(name, message.get("id"), text)
                return
            self.viewers[name] = Viewer()
        self.on_viewer(name, message, role, now)

    def _serve(self, name: str, viewer: Viewer) -> None:
        """As much of the history as the socket takes now."""
        while (message := viewer.waits or next(viewer.history, None)) is not None:
            viewer.waits = message
            sent = self._send(name, *message)
            if sent is None:
                self._gone(name)
                return
            if not sent:
                return
            viewer.waits = None
        if viewer.then is not None and self._send(name, pack(viewer.then)):
            viewer.then = None

    def _gone(self, name: str) -> None:
        self.viewers.pop(name, None)
        self.on_left(name)

    def _send(self, name: str, *frames: bytes) -> bool | None:
        """True: sent. False: its queue is full. None: nobody of that name is connected."""
        try:
            self._socket.send_multipart((name.encode("ascii"), *frames), zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return None
            raise
        return True
