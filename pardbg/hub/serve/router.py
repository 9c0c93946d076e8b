"""CTRL: the ROUTER socket. Agents and viewers by name; histories for late viewers.

A name leads to the identity that its client made with its own key, and to no other (``sockets``,
[Note: names]): an agent or relay has the name that an agent's key claims, a viewer's name is a
digest of its secret."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

import zmq

from pardbg.errors import NONSENSE
from pardbg.events.commands import FromViewer, Reply
from pardbg.events.control_codes import Why
from pardbg.events.control_facts import Refusal
from pardbg.events.decode import Malformed, decode_map
from pardbg.hub import ctrl_messages as ctrl
from pardbg.hub.backlog import Wire
from pardbg.hub.serve.sockets import OWNER, Role, ServerSecurity
from pardbg_agent.ctrl.agent_messages import FromAgent, Hello, Ping, ToAgent
from pardbg_agent.ctrl.codec import decode, reader

MAX_VIEWERS: Final = 64
"""Maximum viewers with control, and without it: they do not keep each other out."""
MAX_LOGGED: Final = 20
PROBE_NS: Final = 200_000_000

_from_agent: Final = reader(FromAgent)
_from_relay: Final = reader(ctrl.FromRelay)
_from_viewer: Final = reader(FromViewer)


@dataclass(slots=True)
class Viewer:
    """Connected viewer."""

    address: bytes
    role: Role
    history: Iterator[Wire] = field(default_factory=lambda: iter(()))
    """Messages still to be sent, after ``waits``."""
    waits: Wire | None = None
    """Message that its socket did not take yet."""
    then: Reply | None = None
    """Reply that ends the history."""


class Router:
    """Receiver and sender of CTRL messages, which checks them, passes them on and never blocks."""

    def __init__(self, socket: zmq.Socket[bytes], security: ServerSecurity) -> None:
        self.viewers: dict[str, Viewer] = {}
        self.malformed = 0
        self.on_agent: Callable[[str, FromAgent, int], None] = lambda *_: None
        self.on_relay: Callable[[str, ctrl.FromRelay, int], None] = lambda *_: None
        self.on_viewer: Callable[[str, FromViewer, Role, int], None] = lambda *_: None
        """Handlers of (sender, message, time); they raise Malformed."""
        self._at: dict[str, bytes] = {}
        """Process or relay -> its identity in the newest Hello."""
        self._via: dict[str, str] = {}
        """Process -> relay that it is behind."""
        self.on_left: Callable[[str], None] = lambda viewer: None
        self._socket, self._security = socket, security
        self._probed_ns = 0
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # A restarted viewer or agent with its old identity replaces its former self.
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)

    def receive(self, limit: int = 500) -> int:
        """Take received messages; return their number."""
        for taken in range(limit):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return taken
            self._take(frames)
        return limit

    def send(self, proc: str, message: ToAgent) -> bool:
        """Send to a process; False if it is not connected (or takes no more)."""
        via = self._via.get(proc)
        if via is not None:
            return self._send(self._at.get(via), proc.encode("ascii"), ctrl.pack(message)) is True
        return self._send(self._at.get(proc), ctrl.pack(message)) is True

    def reply(self, viewer: str, reply: Reply) -> None:
        """Answer a viewer's request."""
        known = self.viewers.get(viewer)
        if known is not None:
            self._send(known.address, ctrl.pack(reply))

    def send_relay(self, relay: str, message: ctrl.ToRelay) -> bool:
        """Send a message to a relay itself."""
        return self._send(self._at.get(relay), b"", ctrl.pack(message)) is True

    def reach(self, proc: str, relay: str) -> None:
        """Note the relay that reaches a process. Raises Malformed for one of this node."""
        if proc in self._at:
            raise Malformed("a relay speaks for another's process")
        self._via[proc] = relay

    def forget(self, procs: Iterable[str]) -> None:
        """Forget the addresses of ended processes."""
        for proc in procs:
            self._via.pop(proc, None)
            self._at.pop(proc, None)

    def relay_of(self, proc: str) -> str | None:
        """Return the relay that a process is behind; None: it is here, or connected directly."""
        return self._via.get(proc)

    def history(self, viewer: str, messages: Iterable[Wire], then: Reply) -> None:
        """Send a late viewer the missed messages, bit by bit, then ``then``."""
        known = self.viewers[viewer]
        known.history, known.waits, known.then = iter(messages), None, then
        self._serve(viewer, known)

    def tick(self, now: int) -> None:
        """Continue histories; find viewers that have left."""
        for name, viewer in list(self.viewers.items()):
            if viewer.then is not None:
                self._serve(name, viewer)
        if now - self._probed_ns >= PROBE_NS:
            self._probed_ns = now
            for name, viewer in list(self.viewers.items()):
                if self._send(viewer.address, ctrl.pack(Ping(t_ns=now))) is None:
                    self._gone(name)

    @property
    def busy(self) -> bool:
        """Return whether a history is being sent."""
        return any(viewer.then is not None for viewer in self.viewers.values())

    def _take(self, frames: list[zmq.Frame]) -> None:
        identity, raw = frames[0].bytes, frames[-1].bytes
        try:
            role = self._security.role(frames[-1])
            now = time.monotonic_ns()
            if len(frames) != (3 if identity.startswith(ctrl.RELAY) else 2):
                raise Malformed("frames")
            if identity.startswith(ctrl.VIEWER):
                self._from_viewer(identity, raw, role, now)
            elif role not in ("agent", OWNER):
                raise Malformed("role")
            elif len(frames) == 2:
                self._from_agent(identity, ctrl.unpack(raw, _from_agent), now)
            else:
                self._from_relay(identity, frames[1].bytes.decode("ascii"), raw, now)
        except NONSENSE as error:
            self.malformed += 1
            if self.malformed <= MAX_LOGGED:
                print(f"dropped a message on CTRL of {identity!r}: {error!r}", flush=True)

    def _from_agent(self, identity: bytes, message: FromAgent, now: int) -> None:
        proc = ctrl.process_of(identity).decode("ascii")
        if proc not in self._at or isinstance(message, Hello):
            self._at[proc] = identity  # not of a late message: it may have attached again
        self._via.pop(proc, None)
        self.on_agent(proc, message, now)

    def _from_relay(self, identity: bytes, proc: str, raw: bytes, now: int) -> None:
        name = identity.decode("ascii")
        self._at[name] = identity
        if proc:
            self.reach(proc, name)
            self.on_agent(proc, ctrl.unpack(raw, _from_agent), now)
        else:
            self.on_relay(name, ctrl.unpack(raw, _from_relay), now)

    def _from_viewer(
        self, identity: bytes, raw: bytes, role: Role | Literal["owner"], now: int
    ) -> None:
        if role == "agent":
            raise Malformed("role")
        may: Role = "control" if role == OWNER else role
        name = ctrl.viewer_name(identity)
        if name not in self.viewers:
            if sum(viewer.role == may for viewer in self.viewers.values()) >= MAX_VIEWERS:
                refusal = Refusal(Why.MANY_VIEWERS, number=MAX_VIEWERS)
                self._send(identity, ctrl.pack(Reply(_request(raw), refusal)))
                return
            self.viewers[name] = Viewer(identity, may)
        try:
            message = ctrl.unpack(raw, _from_viewer)
        except Malformed:
            self._send(identity, ctrl.pack(Reply(_request(raw), Refusal(Why.MALFORMED))))
            raise
        self.on_viewer(name, message, may, now)

    def _serve(self, name: str, viewer: Viewer) -> None:
        while (message := viewer.waits or next(viewer.history, None)) is not None:
            viewer.waits = message
            sent = self._send(viewer.address, *message)
            if sent is None:
                self._gone(name)
                return
            if not sent:
                return
            viewer.waits = None
        if viewer.then is not None and self._send(viewer.address, ctrl.pack(viewer.then)):
            viewer.then = None

    def _gone(self, name: str) -> None:
        self.viewers.pop(name, None)
        self.on_left(name)

    def _send(self, address: bytes | None, *frames: bytes) -> bool | None:
        """Send frames. True: sent. False: its queue is full. None: it is not connected."""
        if address is None:
            return None
        try:
            self._socket.send_multipart((address, *frames), zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return None
            raise
        return True


def _request(raw: bytes) -> int:
    """Return the id of an otherwise unreadable request; 0: none. Raises Malformed."""
    return decode(_Request, decode_map(raw)).id


@dataclass(frozen=True, slots=True)
class _Request:
    id: int = 0
