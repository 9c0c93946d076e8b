"""Thread of the agent: it sends slices of the ring as they are, and enforces the lease.

The training never waits for it: the ring is the queue, and without a reader the oldest records are
overwritten and counted. Other threads only write a byte into a pipe (``wake``)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgpack

from pardbg_agent import clock, wire
from pardbg_agent.control.watches import NO_WATCHES
from pardbg_agent.ctrl.agent_messages import Bye, FromAgent, Hello, ToAgent, Welcome
from pardbg_agent.ctrl.codec import reader
from pardbg_agent.ring import RingReader
from pardbg_agent.sender.blocked import Blocked
from pardbg_agent.sender.link import Link
from pardbg_agent.sender.requests import Requests, StateReports
from pardbg_agent.sender.wake import WakePipe
from pardbg_agent.wire import Key

if TYPE_CHECKING:
    from pardbg_agent.watched_rank import Core

IDLE_MS: Final = wire.BEAT_NS // 1_000_000
"""Poll interval when idle. A wake-up costs 0.1-0.2 ms of CPU: at 5 Hz 0.05-0.1 % of a core."""
FLOW_MS: Final = 100
"""Poll interval with device ops in flight, or after a turn with many records."""
CONTROL_MS: Final = 5
HELD_MS: Final = 25
"""Poll interval while held with no op open: most changes then wake the agent's thread."""
BATCH: Final = 1024
"""Maximum records per DATA message (64 KiB): taking them holds the GIL for 60 us, for which the
training may have to wait."""
MANY: Final = 128
"""Number of ranks above which each sends its records only every SPACED_NS: otherwise a thousand
ranks send ten thousand messages a second, whose handling is most of hub's and viewer's cost."""
SPACED_NS: Final = 2 * wire.BEAT_NS
SILENCE_NS: Final = 5_000_000_000
"""Silence of the hub after which Hello is repeated (a restarted hub may not know this rank)."""
UNWELCOMED_NS: Final = 1_000_000_000
"""Silence after which Hello is repeated before the hub's Welcome: until then nothing is sent."""
_read: Final = reader(ToAgent)
MAX_FAILURES: Final = 20
"""Failed turns after which the agent's thread gives up and the rank goes on without it."""


class Sender:
    """Owner of the agent's thread and, inside it, of the sockets."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._reader = RingReader(core.ring.buffer)
        self._link: Link | None = None
        self._thread = threading.Thread(target=self._run, name="pardbg", daemon=True)
        self._pipe = WakePipe()
        self.wake = self._pipe.wake
        """Wakes the agent's thread. Any thread."""
        self._stop_at_ns = 0
        self._flushed = threading.Event()
        self._flush_wanted = 0
        """Number of turns that must still send everything before ``flush`` returns."""
        self._defs_sent = 0
        self._sent = 0
        self._made = self._reader.next
        """Index after the newest record that was seen in the ring."""
        self._shipped_ns = 0
        self._many = min(BATCH, core.ring.capacity // 8)
        """Number of records in a turn after which the next turn comes sooner."""
        self._idle_ms = FLOW_MS
        self._flags = wire.FRAME_OLDEST
        """FRAME flags of the next batch."""
        self._control = StateReports(core)
        self._requests = Requests(core, self._control, self._reply, self.wake)
        self._blocked: Blocked | None = None

    def start(self) -> None:
        self._core.gate.wake = self.wake
        self._thread.start()

    def take_over(self, old: Sender) -> None:
        """Continue where an ended sender of the same ring stopped."""
        self._reader, self._sent, self._defs_sent = old._reader, old._sent, old._defs_sent
        self._made = old._made

    def flush(self, timeout_s: float) -> None:
        """Send the records in the ring now; wait for it, bounded."""
        if self._thread.is_alive():
            self._flushed.clear()
            self._flush_wanted = 2  # the turn under way may have read the ring before
            self.wake()
            self._flushed.wait(timeout_s)
            self._flush_wanted = 0

    def stop(self, timeout_s: float) -> None:
        """Send the rest, then Bye, and close, in ``timeout_s`` at most. The ring keeps the rest."""
        self._stop_at_ns = clock.now_ns() + int(timeout_s * 0.7e9)
        self.wake()
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._pipe.close()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    # -- inside the thread from here on

    def _run(self) -> None:
        # Signals are the main thread's: one that lands here would not interrupt its wait.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._link = link = Link(self._core, self._pipe)
        except Exception as error:  # noqa: BLE001 - without a hub the ring still records
            self._core.guard.failed("sender", error)
            return
        failures = 0
        self._blocked = self._core.guard.call("blocked", Blocked, self._core)
        try:
            self._core.guard.call("hello", self._hello)
            while not self._stop_at_ns and failures < MAX_FAILURES:
                try:
                    self._turn(link)
                except Exception as error:  # noqa: BLE001 - reported once; the next turn may work
                    failures += 1
                    self._core.guard.failed("sender", error)
            self._core.guard.call("sender end", self._end, link)
        finally:
            self._core.gate.end()  # without this thread the gate could not be opened
            self._core.watch(NO_WATCHES)
            if self._blocked is not None:
                self._blocked.close()
            link.close()

    def _turn(self, link: Link) -> None:
        core = self._core
        busy = core.gate.holding or self._control.active or self._flush_wanted
        rests = self._control.rests and not self._flush_wanted
        if link.wait((HELD_MS if rests else CONTROL_MS) if busy else self._idle_ms):
            for message in link.messages():
                self._take(message)
        self._requests.answer()
        if core.gate.holding:
            core.gate.check_lease()
        self._requests.limit.check()
        looked = False
        for poll in core.pollers:
            looked |= bool(core.guard.call(_name_of(poll), poll))  # each fails alone
        if self._control.active or core.gate.holding:
            state = self._control.next_state()
            if state is not None:
                link.ctrl(state)
        patience = UNWELCOMED_NS if link.lost_ns else SILENCE_NS
        silent = link.connected and clock.now_ns() - link.heard_ns > patience
        if link.greet or silent:
            self._hello()
        before = self._made
        self._made = self._reader.head_from(before)
        if self._blocked is not None:
            core.guard.call("blocked", self._blocked.look, self._made)
        if (busy or self._is_due()) and self._ship(link) and self._flush_wanted:
            self._flush_wanted -= 1
            if not self._flush_wanted:
                self._flushed.set()
        many = self._made - before > self._many
        self._idle_ms = FLOW_MS if looked or many else IDLE_MS
        self._health()

    def _is_due(self) -> bool:
        """Return whether the ring's records are sent in this turn."""
        now = clock.now_ns()
        few = self._core.identity.world_size <= MANY or self._made - self._reader.next >= BATCH
        if not few and now - self._shipped_ns < SPACED_NS:
            return False
        self._shipped_ns = now
        return True

    def _reply(self, message: FromAgent) -> None:
        assert self._link is not None
        self._link.ctrl(message)

    def _hello(self) -> None:
        link, core = self._link, self._core
        assert link is not None
        link.greet = False
        link.heard_ns = clock.now_ns()
        link.ctrl(Hello(core.defs.process, core.ring.path, core.defs.path))

    def _take(self, raw: bytes) -> None:
        """Handle a CTRL message. Its errors are reported once per class of messages."""
        kind = "message"
        try:
            message = _read(msgpack.unpackb(raw, max_map_len=256, max_array_len=4096))
            kind = type(message).__name__
            if isinstance(message, Welcome):
                self._welcome(message)
            else:
                Requests.HANDLERS[type(message)](self._requests, message)
        except Exception as error:  # noqa: BLE001 - the guard
            self._core.guard.failed(f"control {kind}", error)

    def _welcome(self, message: Welcome) -> None:
        link = self._link
        assert link is not None
        hub, was_lost = message.hub, link.lost_ns
        if hub == link.hub and not link.connected:
            return  # the last word of a hub that is gone
        link.lost_ns = 0
        if hub == link.hub:
            return
        if link.hub is not None or was_lost:  # a new hub: it has neither definitions nor our HELLO
            self._defs_sent = 0
            self._reader.rewind(message.next)
            self._flags = wire.FRAME_OLDEST
            link.greet = True
        link.hub = hub
        self._requests.new_hub()
        self._control.changed()

    def _ship(self, link: Link) -> bool:
        """Send definitions and records until none is left or the hub takes no more.

        Records are read before the definitions are sent, so every name in a record was defined
        before. True: everything is sent."""
        reader = self._reader
        if link.lost_ns:
            # A new hub must be known from the old one before it gets anything: records that the old
            # one lacks come first, or they are counted as lost, now and for good. Meanwhile the
            # ring keeps them.
            return False
        while True:
            batch = reader.read(BATCH)
            if not self._ship_definitions(link):
                if batch is not None:
                    reader.put_back()
                return False
            if batch is None:
                return True
            first, raw = batch
            count, now = len(raw) // wire.RECORD_BYTES, clock.now_ns()
            head = wire.FRAME.pack(
                wire.PROTOCOL_VERSION, self._flags, count, first, reader.lost, now
            )
            if not link.data(Key.RECORDS.value, head + raw):
                reader.put_back()
                return False
            self._sent, self._flags = self._sent + count, 0

    def _ship_definitions(self, link: Link) -> bool:
        payloads = self._core.defs.payloads
        while self._defs_sent < len(payloads):
            if not link.data(Key.DEFINITION.value, payloads[self._defs_sent]):
                return False
            self._defs_sent += 1
        return True

    def _health(self) -> None:
        core = self._core
        core.status.health(
            clock.now_ns(), self._sent, self._reader.lost, core.guard.errors, core.level,
            max(0, core.cost()[0]),  # below 0 while a gate that was left is being settled up
        )  # fmt: skip

    def _end(self, link: Link) -> None:
        """Send the rest of the ring, then Bye, by the deadline."""
        # The sockets connect one by one: all records may be out before a HELLO or BYE can be.
        while not (self._ship(link) and link.connected) and not link.absent:
            if clock.now_ns() >= self._stop_at_ns:
                break
            if link.wait(2) and link.lost_ns:
                for message in link.messages():
                    self._take(message)
        link.ctrl(Bye(self._reader.next - 1, self._reader.lost))
        self._health()
        left_ms = (self._stop_at_ns - clock.now_ns()) // 1_000_000
        link.linger_ms = max(1, int(left_ms)) if link.connected else 0


def _name_of(poll: Callable[[], Any]) -> str:
    return f"poller {getattr(poll, '__module__', '')}.{getattr(poll, '__qualname__', '')}"
