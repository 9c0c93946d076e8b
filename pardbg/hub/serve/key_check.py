"""ZAP: libzmq asks, before a TCP client's handshake ends, who holds its key and what it is called.

[Note: names] A ROUTER gives an identity to whoever claims it last, before anybody sees a message.
So that no client takes another's: ours claim identities that cannot be guessed (``wire.address``),
and of a key in ``renamed`` libzmq takes the identity that we say instead of the claimed one. It
takes the later of the two, and goes on with the claimed one when it has asked us: so we answer when
its thread has done so.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import zmq
from zmq.utils import z85

_ENDPOINT: Final = "inproc://zeromq.zap.01"
"""Where libzmq asks; fixed by ZAP (RFC 27)."""
_VERSION: Final = b"1.0"
_STOP: Final = b"stop"
_NOWHERE: Final = "ipc:///dev/null/nowhere"


class KeyCheck:
    """Answers libzmq in a thread of its own, from ``start`` to ``stop``."""

    def __init__(
        self, context: zmq.Context[Any], role_of: Callable[[str, bytes], str | None],
        renamed: Mapping[str, bytes],
    ) -> None:  # fmt: skip
        self._context = context
        self._role_of = role_of
        """(socket's domain, Z85 key) -> its role there; None: refused."""
        self._renamed = renamed
        """Role -> prefix of the identities that we choose."""
        self._socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(_ENDPOINT)
        self._thread = threading.Thread(target=self._run, name="pardbg-keys", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._context.socket(zmq.REQ) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(_ENDPOINT)
            socket.send(_STOP)
            socket.recv()
        self._thread.join()

    def _run(self) -> None:
        with self._socket as socket:
            while (frames := socket.recv_multipart()) != [_STOP]:
                socket.send_multipart(self._answer(frames))
            socket.setsockopt(zmq.LINGER, -1)
            socket.send(b"")

    def _answer(self, frames: list[bytes]) -> list[bytes]:
        role = None
        if len(frames) == 7 and frames[0] == _VERSION and frames[5] == b"CURVE":
            role = self._role_of(frames[2].decode("ascii", "replace"), z85.encode(frames[6]))
        number = frames[1] if len(frames) > 1 else b""
        if role is None:
            return [_VERSION, number, b"400", b"unknown key", b"", b""]
        return [_VERSION, number, b"200", b"OK", role.encode(), self._metadata(role)]

    def _metadata(self, role: str) -> bytes:
        """The identity that libzmq takes for the claimed one, as a ZMTP property."""
        if role not in self._renamed:
            return b""
        self._let_finish()
        identity = self._renamed[role] + os.urandom(16).hex().encode()
        name = b"Identity"
        return bytes([len(name)]) + name + len(identity).to_bytes(4, "big") + identity

    def _let_finish(self) -> None:
        """Return once libzmq's only I/O thread is through with what it was in when it asked: then
        it tries to connect this socket."""
        with (
            self._context.socket(zmq.PAIR) as probe,
            probe.get_monitor_socket(zmq.EVENT_CONNECT_RETRIED) as tried,
        ):
            probe.connect(_NOWHERE)
            tried.recv_multipart()
            probe.disable_monitor()
