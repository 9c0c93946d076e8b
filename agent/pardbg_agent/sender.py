"""The agent's thread: the only part of the agent that knows ZeroMQ.

It ships slices of the ring as they are, answers the hub, and enforces the lease. The training
never waits for it: the ring is the queue, and when nobody takes from it the oldest records are
overwritten and counted.

The sockets are made, used and closed in this one thread, on a context of its own. Other threads
only write a byte into a pipe (``wake``).
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgpack
import zmq

from pardbg_agent import clock, wire
from pardbg_agent.control import evaluate, inspect
from pardbg_agent.control.breaks import breaks_of
from pardbg_agent.control.state_message import ControlState
from pardbg_agent.control.time_limit import TimeLimit
from pardbg_agent.control.watches import NO_WATCHES, watches_of
from pardbg_agent.ring import RingReader
from pardbg_agent.wire import Key, Msg
from pardbg_agent.words import duration

if TYPE_CHECKING:
    from pardbg_agent.core import Core

IDLE_MS: Final = 100
"""A wake-up costs 0.1-0.2 ms of CPU, cold caches and all: at 10 Hz 0.1-0.2 % of a core."""
CONTROL_MS: Final = 5
HELD_MS: Final = 25
"""Held with nothing open: what changes that wakes the agent's thread by itself, mostly."""
BATCH: Final = 1024
"""Records per DATA message at most (64 KiB): taking them holds the GIL for 60 us, which is what the
training may have to wait."""
DATA_HWM: Final = 16
CTRL_HWM: Final = 1024
CTRL_MAX_BYTES: Final = 1 << 20
SILENCE_NS: Final = 5_000_000_000
"""The hub said nothing for so long: say HELLO again (a restarted hub may not know us)."""
REWIND_NS: Final = 10_000_000_000
"""What was sent within this time is sent again to a new hub that does not say what it has (the
old one may have died with it in its queues); the store drops doubles."""
WELCOME_NS: Final = 3_000_000_000
"""After a lost connection records wait so long for the hub's WELCOME."""
MAX_FAILURES: Final = 20
"""Turns that may fail before the agent's thread gives up and the rank goes on without it."""


class Sender:
    """Owns the thread and, inside it, the sockets."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._reader = RingReader(core.ring.buffer)
        self._link: _Link | None = None
        self._thread = threading.Thread(target=self._run, name="pardbg", daemon=True)
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._waking = threading.Lock()
        """Held while the pipe is written or closed: its numbers are soon somebody else's."""
        self._stop_at_ns = 0
        self._flushed = threading.Event()
        self._flush_wanted = 0
        """Turns that must still send everything before ``flush`` returns."""
        self._defs_sent = 0
        self._sent = 0
        self._batches: collections.deque[tuple[int, int]] = collections.deque()
        """(sent_ns, index of the first record) of the last REWIND_NS."""
        self._control = ControlState(core)
        self._answers: collections.deque[tuple[dict[str, Any], dict[str, Any]]] = (
            collections.deque()
        )
        """What the held thread found, to be sent from here."""
        self._limit = TimeLimit()
        """Of what a person has the held thread run."""
        self._obeyed = -1
        """Id of the newest PERMIT or RUN that was obeyed."""
        self.bad_messages = 0
        """CTRL messages that made no sense."""
        self.cpu_ns = 0
        """CPU time of this thread so far."""

    def start(self) -> None:
        self._core.gate.wake = self.wake
        self._thread.start()

    def take_over(self, old: Sender) -> None:
        """Go on where an ended sender of the same ring stopped."""
        self._reader, self._sent, self._defs_sent = old._reader, old._sent, old._defs_sent

    def wake(self) -> None:
        """Have the thread look now. Any thread; a full pipe means it will anyway."""
        with self._waking:
            if self._wake_w >= 0:
                with contextlib.suppress(OSError):
                    os.write(self._wake_w, b"w")

    def flush(self, timeout_s: float) -> None:
        """Send what is in the ring now; wait for it, bounded."""
        if self._thread.is_alive():
            self._flushed.clear()
            self._flush_wanted = 2  # the turn under way may have looked at the ring before us
            self.wake()
            self._flushed.wait(timeout_s)
            self._flush_wanted = 0

    def stop(self, timeout_s: float) -> None:
        """Send the rest, say BYE, close; at most ``timeout_s``. What could not be sent stays in
        the ring file."""
        self._stop_at_ns = clock.now_ns() + int(timeout_s * 0.7e9)
        self.wake()
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            with self._waking:
                os.close(self._wake_r)
                os.close(self._wake_w)
                self._wake_r = self._wake_w = -1

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    # -- inside the thread from here on

    def _run(self) -> None:
        # Signals are the main thread's: one that lands here would not interrupt what it waits in.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._link = link = _Link(self._core, self._wake_r)
        except Exception as error:  # noqa: BLE001 - without a hub the ring still records
            self._core.guard.failed("sender", error)
            return
        failures = 0
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
            self._core.gate.end()  # without this thread nobody could open it
            self._core.watches = NO_WATCHES
            link.close()

    def _turn(self, link: _Link) -> None:
        """Wait for something to do, then do all of it."""
        core = self._core
        busy = core.gate.holding or self._control.active or self._flush_wanted
        rests = self._control.rests and not self._flush_wanted
        if link.wait((HELD_MS if rests else CONTROL_MS) if busy else IDLE_MS):
            for message in link.messages():
                self._take(message)
        self._answer()
        if core.gate.holding:
            core.gate.check_lease()
        self._limit.check()
        for poll in core.pollers:
            core.guard.call("poller", poll)
        if self._control.active or core.gate.holding:
            state = self._control.next_state()
            if state is not None:
                link.ctrl(state)
        silent = link.connected and clock.now_ns() - link.heard_ns > SILENCE_NS
        if link.greet or silent:
            self._hello()
        if self._ship(link) and self._flush_wanted:
            self._flush_wanted -= 1
            if not self._flush_wanted:
                self._flushed.set()
        self._health()

    def _hello(self) -> None:
        link, core = self._link, self._core
        assert link is not None
        link.greet = False
        link.heard_ns = clock.now_ns()
        fields = dict(core.defs.process, ring=core.ring.path, defs=core.defs.path)
        link.ctrl({"t": Msg.HELLO.value, **fields})

    def _take(self, raw: bytes) -> None:
        """One CTRL message; one that is no message is counted and dropped. What its handler
        raises (a field is missing, or the handler is wrong) is reported once per kind."""
        try:
            message = msgpack.unpackb(raw, max_map_len=256, max_array_len=4096)
            handler = self._HANDLERS.get(message.get("t"))
        except (ValueError, TypeError, AttributeError, msgpack.UnpackException):
            self.bad_messages += 1
            return
        if handler is None:
            return
        try:
            handler(self, message)
        except Exception as error:  # noqa: BLE001 - the guard; the next one may do
            self.bad_messages += 1
            self._core.guard.failed(f"control {message['t']}", error)

    def _welcome(self, message: dict[str, Any]) -> None:
        link = self._link
        assert link is not None
        hub, was_lost = message.get("hub"), link.lost_ns
        link.lost_ns = 0
        if hub == link.hub:
            return
        if link.hub is not None or was_lost:  # a new hub: it has neither definitions nor our HELLO
            self._defs_sent = 0
            wanted = message.get("next")
            recent = self._batches[0][1] if self._batches else self._reader.next
            self._reader.rewind(wanted if isinstance(wanted, int) else recent)
            link.greet = True
        link.hub, self._obeyed = hub, -1
        self._control.changed()

    def _permit(self, message: dict[str, Any]) -> None:
        count, n, stop = int(message["count"]), int(message["n"]), int(message["stop"])
        if self._is_new(message):
            lease_ns = int(message.get("lease_ns", wire.LEASE_NS))
            self._core.gate.permit(message.get("id"), count, n, stop, lease_ns)
        self._control.begin()

    def _go(self, message: dict[str, Any]) -> None:
        if self._is_new(message):
            self._core.gate.run(message.get("id"))
        self._control.begin()  # one more state says so

    def _is_new(self, message: dict[str, Any]) -> bool:
        """The hub sends a PERMIT or RUN again until a STATE follows it: obeyed once, told again."""
        number = message.get("id")
        if not isinstance(number, int):
            return True
        new, self._obeyed = number > self._obeyed, max(number, self._obeyed)
        return new

    def _lease(self, message: dict[str, Any]) -> None:
        self._core.gate.lease(int(message["lease_ns"]))

    def _ping(self, message: dict[str, Any]) -> None:
        assert self._link is not None
        self._link.ctrl({"t": Msg.PONG.value, "re": message.get("id"), "t_ns": clock.now_ns()})

    def _where(self, message: dict[str, Any]) -> None:
        found = inspect.stacks(threading.get_ident(), self._core.gate.raised())
        self._ack(message, stacks=found, t_ns=clock.now_ns())

    def _level(self, message: dict[str, Any]) -> None:
        self._core.set_level(int(message["level"]))
        self._ack(message, level=self._core.level)

    def _breaks(self, message: dict[str, Any]) -> None:
        try:
            watches = watches_of(message.get("watches"))
            self._core.gate.set_breaks(breaks_of(message.get("breaks")), watches)
            self._core.watches = watches
            self._core.guard.call("watches changed", self._core.watches_changed)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            self._ack(message, ok=False, error=f"breakpoints refused: {error}")
        else:
            self._ack(message, unknown=list(watches.unknown))

    def _delay(self, message: dict[str, Any]) -> None:
        self._core.gate.set_delay(int(message["ns"]))
        self._ack(message)

    def _ask(self, message: dict[str, Any]) -> None:
        """Something to be looked at in the held thread; the answer comes when that thread has it.
        Which of the hub's questions make sense is decided here, where the code would run."""
        kind, expr = str(message.get("kind")), str(message.get("expr") or "")
        run = self._core.run
        if kind != "list" and not (run is not None and run.allow_eval):
            refusal = "evaluation is off: start the job with --allow-eval"
            self._ack(message, ok=False, error=refusal)
            return
        number = message.get("frame")

        def work(innermost: Any) -> None:
            try:
                found = evaluate.answer(
                    kind,
                    expr,
                    number if isinstance(number, int) else 0,
                    innermost,
                    self._core.optimizers(),
                )
                self._answers.append((message, {**found, "ok": True}))
            except Exception as error:  # noqa: BLE001 - the training's thread must come back
                self._answers.append((message, {"ok": False, "error": str(error)[:500]}))

        def limited(innermost: Any) -> None:
            if not self._limit.run(lambda: work(innermost)):
                error = f"ended: it took more than {duration(self._limit.limit_ns)}"
                self._answers.append((message, {"ok": False, "error": error}))
            self.wake()

        if not self._core.gate.ask(limited):
            error = "it is not held at a gate: it runs, or waits in an op"
            self._ack(message, ok=False, error=error)

    def _answer(self) -> None:
        while self._answers:
            message, fields = self._answers.popleft()
            self._ack(message, **fields)

    def _ack(self, message: dict[str, Any], **fields: Any) -> None:
        assert self._link is not None
        self._link.ctrl({"t": Msg.ACK.value, "re": message.get("id"), "ok": True} | fields)

    _HANDLERS: Final[dict[Any, Callable[[Sender, dict[str, Any]], None]]] = {
        Msg.WELCOME.value: _welcome,
        Msg.PERMIT.value: _permit,
        Msg.RUN.value: _go,
        Msg.LEASE.value: _lease,
        Msg.PING.value: _ping,
        Msg.WHERE.value: _where,
        Msg.LEVEL.value: _level,
        Msg.BREAKS.value: _breaks,
        Msg.DELAY.value: _delay,
        Msg.ASK.value: _ask,
    }

    def _ship(self, link: _Link) -> bool:
        """Send definitions and records until nothing is left or the hub takes no more.

        Records are read before the definitions go out, so whatever a record names was defined
        before. True: everything is out.
        """
        reader = self._reader
        lost = link.lost_ns and not self._stop_at_ns
        if lost and clock.now_ns() - link.lost_ns < WELCOME_NS:
            return False  # a new hub must be told from the old one before it gets anything
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
            head = wire.FRAME.pack(wire.PROTOCOL_VERSION, 0, count, first, reader.lost, now)
            if not link.data(Key.RECORDS.value, head + raw):
                reader.put_back()
                return False
            self._sent += count
            self._remember(now, first)

    def _remember(self, now: int, first: int) -> None:
        self._batches.append((now, first))
        while now - self._batches[0][0] > REWIND_NS:
            self._batches.popleft()

    def _ship_definitions(self, link: _Link) -> bool:
        payloads = self._core.defs.payloads
        while self._defs_sent < len(payloads):
            if not link.data(Key.DEFINITION.value, payloads[self._defs_sent]):
                return False
            self._defs_sent += 1
        return True

    def _health(self) -> None:
        core = self._core
        self.cpu_ns = time.thread_time_ns()
        core.status.health(
            clock.now_ns(), self._sent, self._reader.lost, core.guard.errors, core.level,
            max(0, core.hook_ns),  # below 0 while a gate that was left is being settled up
        )  # fmt: skip

    def _end(self, link: _Link) -> None:
        """The process leaves: the rest of the ring, then BYE, by the deadline."""
        while not self._ship(link) and not link.absent and clock.now_ns() < self._stop_at_ns:
            link.wait(2)
        link.ctrl({"t": Msg.BYE.value, "last_index": self._reader.next - 1,
                   "dropped": self._reader.lost})  # fmt: skip
        self._health()
        left_ms = (self._stop_at_ns - clock.now_ns()) // 1_000_000
        link.linger_ms = max(1, int(left_ms)) if link.connected else 0


class _Link:
    """The sockets. Never blocks: a send that would is refused."""

    def __init__(self, core: Core, wake_fd: int) -> None:
        run = core.run
        assert run is not None
        self.hub: Any = None
        """Id of the hub that welcomed us."""
        self.heard_ns = clock.now_ns()
        self.greet = False
        """HELLO is due."""
        self.connected = False
        self.absent = False
        """Nobody listens there (yet). Neither this nor connected: still trying."""
        self.lost_ns = 0
        """When the connection was lost; 0 once a hub has welcomed us (again)."""
        self.linger_ms = 0
        self._proc = core.identity.proc.encode("ascii")
        self._wake_fd = wake_fd
        self._context = zmq.Context()
        self._data = self._socket(zmq.PUSH, run.keys)
        self._data.setsockopt(zmq.SNDHWM, DATA_HWM)
        # Only queue to a hub that is there: what waits here is lost with it, the ring is not.
        self._data.setsockopt(zmq.IMMEDIATE, 1)
        self._ctrl = self._socket(zmq.DEALER, run.keys)
        self._ctrl.setsockopt(zmq.IDENTITY, self._proc)
        self._ctrl.setsockopt(zmq.SNDHWM, CTRL_HWM)
        self._ctrl.setsockopt(zmq.RCVHWM, CTRL_HWM)
        self._ctrl.setsockopt(zmq.MAXMSGSIZE, CTRL_MAX_BYTES)
        self._events = self._ctrl.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED
        )
        self._data.connect(run.data)
        self._ctrl.connect(run.ctrl)
        # poll(2) on the sockets' descriptors is cheaper than zmq's own poller, but they are edge-
        # triggered: whoever sleeps looks at EVENTS first.
        self._poll = select.poll()
        for fd in (self._ctrl.getsockopt(zmq.FD), self._events.getsockopt(zmq.FD), wake_fd):
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
        """Until something comes, or the time is up. False: nothing did."""
        came = _readable(self._ctrl)
        if not came:
            for fd, _ in self._poll.poll(timeout_ms):
                came = True
                if fd == self._wake_fd:
                    with contextlib.suppress(OSError):
                        os.read(self._wake_fd, 4096)
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
        if event == zmq.EVENT_DISCONNECTED and not self.lost_ns:
            self.lost_ns = clock.now_ns()

    def messages(self, limit: int = 64) -> list[bytes]:
        """CTRL messages that have come."""
        out: list[bytes] = []
        while len(out) < limit and _readable(self._ctrl):
            out.append(self._ctrl.recv_multipart(zmq.NOBLOCK)[-1])
        if out:
            self.heard_ns = clock.now_ns()
        return out

    def data(self, key: bytes, payload: bytes) -> bool:
        """Queue one DATA message; False if the hub takes no more now."""
        try:
            self._data.send_multipart((key + self._proc, payload), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def ctrl(self, message: dict[str, Any]) -> None:
        """Queue one CTRL message; dropped if the queue is full (states repeat)."""
        with contextlib.suppress(zmq.Again):
            self._ctrl.send(msgpack.packb({"v": 1, **message}, default=str), zmq.NOBLOCK)

    def close(self) -> None:
        """Within ``linger_ms``: what the hub has not taken by then is in the ring file."""
        self._ctrl.disable_monitor()
        self._context.destroy(linger=self.linger_ms)


def _readable(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
