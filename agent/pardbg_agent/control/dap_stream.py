"""Relay of bytes between a DAP client and the debugger in this process.

They pass through the agent for three reasons: a port on loopback is open to every user of the
machine, and the debugger runs code; a client may ask to end the program, which a held rank must
survive; and when either end dies, the other must be told."""

from __future__ import annotations

import json
import os
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Final

LOOPBACK: Final = "127.0.0.1"
LOOK_S: Final = 0.1
"""Maximum time, in s, until a closed end is noticed."""
STUCK_S: Final = 5.0
"""Time in s without progress after which an end is given up."""
BYE_S: Final = 2.0
"""Time in s that a detached client has to read its answer."""
MAX_MESSAGE: Final = 16 << 20
_HEAD: Final = b"Content-Length:"
_ENDS: Final = ("disconnect", "terminate")


def listener() -> socket.socket:
    """Return a socket on any free port of loopback."""
    return socket.create_server((LOOPBACK, 0), backlog=1)


def is_ours(peer: socket.socket) -> bool:
    """Return whether a loopback peer is a process of this user or root; False if unknown."""
    ends = [f"0100007F:{name[1]:04X}" for name in (peer.getpeername(), peer.getsockname())]
    try:
        with open("/proc/net/tcp", encoding="ascii") as table:
            for row in map(str.split, table):
                if row[1:3] == ends:
                    return int(row[7]) in (os.getuid(), 0)
    except (OSError, ValueError, IndexError):
        pass
    return False


class FromClient:
    """Client's messages, of which one that would end the program detaches instead."""

    def __init__(self) -> None:
        self.leaves = False
        """Whether the client has detached."""
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return the messages that ``data`` completes. Raises ValueError if this is not DAP."""
        self._rest += data
        out = b""
        while (found := self._message()) is not None:
            out += found
        return out

    def _message(self) -> bytes | None:
        head, found, body = self._rest.partition(b"\r\n\r\n")
        if not found:
            if len(self._rest) > 4096:
                raise ValueError("no header")
            return None
        lines = [line for line in head.split(b"\r\n") if line.startswith(_HEAD)]
        size = int(lines[0][len(_HEAD) :]) if lines else -1
        if not 0 <= size <= MAX_MESSAGE:
            raise ValueError("no length")
        if len(body) < size:
            return None
        self._rest = body[size:]
        return self._allowed(body[:size])

    def _allowed(self, body: bytes) -> bytes:
        message = json.loads(body)
        if isinstance(message, dict) and message.get("command") in _ENDS:
            self.leaves = True
            message |= {"command": "disconnect", "arguments": {}}
            body = json.dumps(message).encode()
        return b"%s %d\r\n\r\n%s" % (_HEAD, len(body), body)


def carry(
    client: socket.socket, debugger: socket.socket, over: threading.Event, leave: Callable[[], None]
) -> None:
    """Carry bytes both ways until one end is gone, the client has detached or ``over`` is set.
    ``leave`` is called in the first two cases, before the debugger is told."""
    said, left_s = FromClient(), BYE_S
    with selectors.DefaultSelector() as both:  # no select(): a rank may have many files open
        for end in (client, debugger):
            end.settimeout(STUCK_S)
            both.register(end, selectors.EVENT_READ)
        while left_s > 0 and (said.leaves or not over.is_set()):
            ready = {key.fileobj for key, _ in both.select(LOOK_S)}
            left_s -= LOOK_S if said.leaves and not ready else 0
            for end in (one for one in (client, debugger) if one in ready):
                data = end.recv(65536)
                if not data:
                    leave()
                    return
                if end is debugger:
                    client.sendall(data)
                    continue
                data = said.feed(data)
                if said.leaves:
                    leave()
                debugger.sendall(data)
