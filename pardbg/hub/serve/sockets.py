"""The hub's three sockets: DATA in, what is published out, CTRL both ways."""

from __future__ import annotations

from typing import Any, Final

import zmq

from pardbg.hub.run.config import ConfigError, RunConfig
from pardbg.hub.serve.collector import MAX_MESSAGE_BYTES
from pardbg.hub.serve.ctrl_messages import MAX_CTRL_BYTES
from pardbg.hub.serve.security import ServerSecurity

PULL_HWM: Final = 256
PUB_HWM: Final = 2_000
LINGER_MS: Final = 1_000
"""How long viewers may take to fetch what is in their queues."""


def listen(socket: zmq.Socket[bytes], endpoint: str) -> None:
    """Bind; over TCP on every kind of address there is. Raises ConfigError."""
    problem = ""
    for ipv6 in (1, 0) if endpoint.startswith("tcp:") else (0,):
        socket.setsockopt(zmq.IPV6, ipv6)
        try:
            socket.bind(endpoint)
            return
        except zmq.ZMQError as error:
            problem = str(error.strerror)
    raise ConfigError(f"cannot listen on {endpoint}: {problem}")


class Sockets:
    """Bound when made. Raises ConfigError where an endpoint cannot be."""

    def __init__(self, config: RunConfig, keys: dict[str, Any] | None) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self.security = ServerSecurity(self._context, keys)
        self.security.start()
        self._nodes = config.upstream.everywhere() if config.hub else None
        """Where the other nodes of the run find us."""
        try:
            self.pull = self._bind(zmq.PULL, config.data, "data")
            self.pub = self._bind(zmq.XPUB, config.pub, "pub")
            self.ctrl = self._bind(zmq.ROUTER, config.ctrl, "ctrl")
        except ConfigError:
            self.security.stop()
            self._context.destroy(linger=0)
            raise
        self._poller = zmq.Poller()
        for socket in (self.pull, self.pub, self.ctrl):
            self._poller.register(socket, zmq.POLLIN)

    def _bind(self, kind: int, endpoint: str, domain: str) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_CTRL_BYTES if domain == "ctrl" else MAX_MESSAGE_BYTES)
        if kind == zmq.PULL:
            socket.setsockopt(zmq.RCVHWM, PULL_HWM)
        elif kind == zmq.XPUB:
            socket.setsockopt(zmq.SNDHWM, PUB_HWM)
            socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        if endpoint.startswith("tcp:"):
            self.security.secure(socket, domain)
        listen(socket, endpoint)
        if self._nodes is not None:
            self.security.secure(socket, domain)
            listen(socket, getattr(self._nodes, domain))
        return socket

    def wait(self, timeout_ms: int) -> None:
        """Until a message comes, or the time is up."""
        self._poller.poll(timeout_ms)

    def subscribed(self) -> bool:
        """Return whether a viewer has subscribed since the last call."""
        found = False
        try:
            while True:
                found |= self.pub.recv(zmq.NOBLOCK)[:1] == b"\x01"
        except zmq.Again:
            return found

    def close(self) -> None:
        """Close them; viewers get LINGER_MS for what is in their queues."""
        for socket in (self.pull, self.pub, self.ctrl):
            socket.close(linger=LINGER_MS)
        self.security.stop()
        self._context.term()
