"""Query of the job's TCPStore for ranks that the hub has not heard of.

Each rank of gloo's default group puts its address into the store before it waits for the others.
The hub, as one more client, only checks whether keys exist: it writes nothing and waits for
nothing. A store without keys of known ranks is left alone.
"""

from __future__ import annotations

import queue
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from pardbg.events.control_facts import Rendezvous as Came
from pardbg.hub.ranks.processes import environ

MAX_WORLD: Final = 4096
TIMEOUT_S: Final = 2.0
AGAIN_NS: Final = 4_000_000_000
_HELLO: Final = struct.pack("<BI", 0, 0x3C85F7CE)
_CHECK: Final = 5
_THERE, _NOT_THERE = b"\0", b"\1"
_KEY: Final = "/default_pg/0//cpu//0/{}"


class Rendezvous:
    """Queries, each in a thread of its own; ``took`` returns the results."""

    def __init__(self) -> None:
        self._found: queue.SimpleQueue[Came] = queue.SimpleQueue()
        self._asked_ns = 0

    def look(self, known: Mapping[int, int], now: int) -> None:
        """Query the store, at intervals, while a rank waits. ``known``: rank -> pid."""
        if now - self._asked_ns >= AGAIN_NS and known:
            self._asked_ns = now
            threading.Thread(None, self._ask, "rendezvous", (dict(known),), daemon=True).start()

    def took(self) -> list[Came]:
        """Return the findings since the last call."""
        return [self._found.get() for _ in range(self._found.qsize())]

    def _ask(self, known: Mapping[int, int]) -> None:
        try:
            of = next(e for r, pid in known.items() if (e := environ(pid)).get("RANK") == str(r))
            size = int(of["WORLD_SIZE"])
            if len(known) < size <= MAX_WORLD:
                there = came(of["MASTER_ADDR"], int(of["MASTER_PORT"]), range(size))
                if set(there) & known.keys():
                    self._found.put(Came(tuple(there)))
        except (StopIteration, KeyError, ValueError, OSError):
            return  # unknown, and not reported


def came(address: str, port: int, ranks: Sequence[int], timeout_s: float = TIMEOUT_S) -> list[int]:
    """Return ranks with an address in the store. Raises OSError; ValueError: not a TCPStore."""
    found = []
    with socket.create_connection((address, port), timeout_s) as store:
        store.sendall(_HELLO)
        for rank in ranks:
            key = _KEY.format(rank).encode()
            store.sendall(struct.pack("<BQQ", _CHECK, 1, len(key)) + key)
            answer = store.recv(1)
            if answer not in (_THERE, _NOT_THERE):
                raise ValueError("it is no TCPStore")
            if answer == _THERE:
                found.append(rank)
    return found
