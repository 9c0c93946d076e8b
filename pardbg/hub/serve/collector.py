"""DATA: PULL, record, publish. Only the head of a batch of records is read, never its records."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack
import zmq

from pardbg.events.control_events import ControlEvent
from pardbg.events.decode import Head, Malformed, frame_head
from pardbg.hub.backlog import Definitions, Recent
from pardbg.session.rotation import Rotation
from pardbg.session.writer import SessionWriter
from pardbg_agent import wire
from pardbg_agent.wire import Key

MAX_PROCESSES: Final = 32_768
"""Maximum number of known processes. Ended ones, the oldest first, make room for others."""
_MAX_KEYS: Final = 65_536
"""Maximum number of keys known to be well formed; then they are checked anew."""
EARLY_NS: Final = 30_000_000_000
"""Time after a restart of the hub for all ranks to hear of it."""
TURN_NS: Final = 20_000_000
"""Maximum drain, in ns, before the other sockets get their turn."""
_PROC: Final = re.compile(rb"[A-Za-z0-9_-]{1,20}\.[A-Za-z0-9_.-]{1,100}\.[0-9]{1,20}")
_FROM_AGENTS: Final = (Key.RECORDS.value, Key.DEFINITION.value)


@dataclass(slots=True)
class Counters:
    """Message counts, for STATUS and the log."""

    messages: int = 0
    records: int = 0
    malformed: int = 0
    """Messages that were dropped because they are malformed."""
    refused: int = 0
    """Messages of processes beyond MAX_PROCESSES."""


@dataclass(slots=True)
class Heads:
    """Index, per process, after the newest record the hub has."""

    next: dict[bytes, int] = field(default_factory=dict)
    """Indices of all known processes."""
    gaps: dict[str, int] = field(default_factory=dict)
    """Process -> records that did not come, since the last reset."""

    early_until_ns: int = 0
    """End of the early time of a hub that replaces another."""
    heard: set[bytes] = field(default_factory=set)
    """Processes whose first batch for this hub has come."""

    def is_early(self, proc: bytes, head: Head, now: int) -> bool:
        """Return whether a batch was sent before the agent knew what this hub wants: taken now, all
        earlier records would count as lost. The agent goes back, so the batch comes again."""
        if now >= self.early_until_ns or proc in self.heard:
            return False
        if head.first > self.next.get(proc, 0) and not head.flags & wire.FRAME_OLDEST:
            return True
        self.heard.add(proc)
        return False

    def saw(self, proc: bytes, first: int, count: int) -> None:
        """Note a batch."""
        expected = self.next.get(proc, 0)
        if first > expected:
            name = proc.decode("ascii")
            self.gaps[name] = self.gaps.get(name, 0) + first - expected
        self.next[proc] = max(expected, first + count)


class Collector:
    """Gate of all messages of the run: ``accept`` records them first, then publishes them."""

    def __init__(
        self,
        pull: zmq.Socket[bytes],
        pub: zmq.Socket[bytes],
        writer: SessionWriter | None,
        definitions: Definitions,
        recent: Recent,
        parts: Rotation | None = None,
    ) -> None:
        self.counters = Counters()
        self.heads = Heads()
        self.number = 0
        """``n`` of the newest hub message."""
        self.write_error: str | None = None
        """Write error that stopped recording (disk full); None while recording."""
        self.missing = 0
        """Messages missing in the file since ``missing_since_ns``."""
        self.missing_since_ns = 0
        self.make_room: Callable[[], None] = lambda: None
        """Callback at too many processes, which has ended ones forgotten."""
        self.on_definition: Callable[[str, dict[str, Any]], None] = lambda proc, fields: None
        self._pull, self._pub, self.writer = pull, pub, writer
        self.has_file = writer is not None
        """Whether the file is this run's, from the beginning on."""
        if writer is not None:
            writer.on_chunk = recent.closed
        self._definitions, self._recent, self._parts = definitions, recent, parts
        self._known: set[bytes] = set()

    def drain(self) -> int:
        """Take received messages, for TURN_NS at most; return their number."""
        receive, accept = self._pull.recv_multipart, self._take
        taken, until = 0, time.monotonic_ns() + TURN_NS
        try:
            while True:
                for _ in range(32):
                    accept(receive(zmq.NOBLOCK))
                    taken += 1
                if time.monotonic_ns() > until:
                    return taken
        except zmq.Again:
            return taken

    def admit(self, proc: bytes) -> bool:
        """Return whether there is room for a process, which is known from then on."""
        known = self.heads.next
        if proc in known:
            return True
        if len(known) >= MAX_PROCESSES:
            self.make_room()
        if len(known) >= MAX_PROCESSES:
            self.counters.refused += 1
            return False
        known[proc] = 0
        return True

    def forget(self, procs: Iterable[str]) -> None:
        """Forget ended processes."""
        for proc in procs:
            name = proc.encode("ascii")
            self.heads.next.pop(name, None)
            self.heads.heard.discard(name)

    def accept(self, key: bytes, payload: bytes) -> None:
        """Record a message, keep it for late viewers, publish it."""
        if key[:1] != Key.DEFINITION.value:
            self._recent.add(key, payload)
        if self.writer is not None:
            try:
                self.writer.write(key, payload, time.monotonic_ns())
            except OSError as error:
                self.stop_recording(error)
        elif self.write_error:
            self.missing += 1
        if key[:1] == Key.DEFINITION.value:
            fields = self._definitions.add(key, payload)
            if fields is not None:
                self.on_definition(key[1:].decode("ascii"), fields)
        try:
            self._pub.send_multipart((key, payload), zmq.NOBLOCK)
        except zmq.Again:
            pass  # XPUB drops for slow viewers by itself; this is a full pipe to all of them

    def say(self, key: Key, **fields: Any) -> None:
        """Record and publish a message of the hub: OUTPUT, CONTROL or STATE."""
        self.number += 1
        fields = {"n": self.number, "t_ns": time.monotonic_ns(), **fields}
        self.accept(key.value, msgpack.packb(fields, unicode_errors="backslashreplace"))

    def control(self, event: ControlEvent) -> int:
        """Record and publish an event of control; return the message's number."""
        plain = event.plain()
        self.say(Key.CONTROL, **{k: v for k, v in plain.items() if k not in ("n", "t_ns")})
        return self.number

    def define(self, **fields: Any) -> None:
        """Record and publish a definition of the hub."""
        self.accept(
            Key.DEFINITION.value,
            msgpack.packb(fields, default=str, unicode_errors="backslashreplace"),
        )

    def records(self, proc: str, payload: bytes, first: int, count: int) -> None:
        """Record and publish a batch that the hub took from a ring."""
        name = proc.encode("ascii")
        self.heads.saw(name, first, count)
        self.counters.records += count
        self.accept(Key.RECORDS.value + name, payload)

    def stop_recording(self, error: OSError) -> None:
        """Stop recording, as the file cannot be written; keep what is in it."""
        self.write_error = f"recording stopped: {error.strerror or error}"
        if self.writer is not None:
            self.missing += self.writer.num_messages - self.writer.num_written
            self.missing_since_ns = self.writer.written_ns
            self.writer.abandon()
            self.writer = None

    def flush(self, now: int | None) -> None:
        """Close the session's chunk when it is old enough; None: now."""
        if self.writer is not None:
            try:
                if now is None:
                    self.writer.flush()
                else:
                    self.writer.tick(now)
                    if self._parts is not None:
                        self.writer = self._parts.turn(self.writer, now)
            except OSError as error:
                self.stop_recording(error)

    def _take(self, frames: list[bytes]) -> None:
        counters = self.counters
        counters.messages += 1
        if len(frames) != 2:
            counters.malformed += 1
            return
        key, payload = frames
        if key not in self._known and not self._is_well_formed(key):
            counters.malformed += 1
            return
        proc, heads = key[1:], self.heads
        if proc not in heads.next and not self.admit(proc):
            return
        if key[:1] == Key.RECORDS.value:
            try:
                head = frame_head(payload)
            except Malformed:
                counters.malformed += 1
                return
            if heads.early_until_ns and heads.is_early(proc, head, time.monotonic_ns()):
                return
            heads.saw(proc, head.first, head.count)
            counters.records += head.count
        self.accept(key, payload)

    def _is_well_formed(self, key: bytes) -> bool:
        good = key[:1] in _FROM_AGENTS and _PROC.fullmatch(key[1:]) is not None
        if good:
            if len(self._known) >= _MAX_KEYS:
                self._known.clear()
            self._known.add(key)
        return good
