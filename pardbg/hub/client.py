"""Connections of a viewer: ``LiveSource`` feeds a store, ``HubControl`` sends commands."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import zmq

from pardbg.events import commands
from pardbg.events.control_codes import Verb, Why
from pardbg.events.control_facts import Refusal
from pardbg.events.decode import Malformed, decode_map, leading
from pardbg.hub.ctrl_messages import pack, unpack, viewer_address, viewer_name, whose
from pardbg.hub.serve.sockets import Role, secure_client
from pardbg.hub.target import Target, local
from pardbg.render.frame.control_words import refusal_text
from pardbg.store.source import Message
from pardbg.words import duration
from pardbg_agent.ctrl.agent_messages import Lease
from pardbg_agent.ctrl.codec import reader
from pardbg_agent.sender.wake import WakePipe
from pardbg_agent.wire import DefKind, Key

_from_hub: Final = reader(commands.FromHub)

RENEW_S: Final = 2.0
JOIN_AGAIN_NS: Final = 3_000_000_000
LOOK_NS: Final = 500_000_000
HEARTBEAT_MS, SILENCE_MS = 2_000, 10_000
SILENT_NS: Final = 5_000_000_000
"""Silence after which a remote hub is reported; a hub speaks once a second."""
WAITING: Final = 100_000
"""Maximum number of waiting messages; a thousand ranks send ten thousand per second."""
MAX_POLL: Final = 5_000
"""Maximum messages per ``poll``, so that a flood does not keep the caller from drawing."""
MAX_KEPT: Final = 100_000
"""Maximum new messages kept while the history comes; more wait in the socket, or are lost."""


def _socket(
    context: zmq.Context[Any], kind: int, target: Target, role: Role, identity: bytes = b""
) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 100)
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
    endpoint = target.ctrl if kind == zmq.DEALER else target.pub
    if endpoint.startswith("tcp:"):
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)
        secure_client(socket, target.keys, role)
    if kind == zmq.DEALER:
        socket.setsockopt(zmq.IDENTITY, identity or viewer_address())
        socket.setsockopt(zmq.RCVHWM, 10_000)
    else:
        socket.setsockopt(zmq.RCVHWM, WAITING)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(endpoint)
    return socket


class LiveSource:
    """Source of a store: the history, then live messages. For use in one thread.

    It subscribes first and keeps live messages until the history has arrived on CTRL. A hub that
    was restarted is joined again. Raises ConfigError for no run."""

    def __init__(self, run: Path | Target) -> None:
        self._target = run if isinstance(run, Target) else local(run)
        self._context: zmq.Context[Any] = zmq.Context()
        self._sub = _socket(self._context, zmq.SUB, self._target, "viewer")
        self._ctrl = _socket(self._context, zmq.DEALER, self._target, "viewer")
        self._poller = zmq.Poller()
        self._poller.register(self._sub, zmq.POLLIN)
        self._poller.register(self._ctrl, zmq.POLLIN)
        self._history_poller = zmq.Poller()
        self._history_poller.register(self._ctrl, zmq.POLLIN)
        self._kept: list[Message] = []
        self.joined = False
        """Whether the hub has sent the run's recent history."""
        self._asked_ns = self._looked_ns = 0
        self._came_ns = time.monotonic_ns()
        self._request = 0
        self._hub: str | None = None
        self._ended = self._run_ended = False
        self.notice = ""
        """Reason of the hub for sending nothing; the viewer keeps asking."""

    @property
    def live(self) -> bool:
        return not self.finished

    @property
    def finished(self) -> bool:
        return self._ended

    def poll(self, timeout_ms: int) -> list[Message]:
        """Return the received messages, oldest first."""
        if self._ended:
            return []
        full = not self.joined and len(self._kept) >= MAX_KEPT
        poller = self._history_poller if full else self._poller
        ready = dict(poller.poll(timeout_ms))
        out = self._from_ctrl() if self._ctrl in ready else []
        if self._sub in ready:
            fresh = self._from_sub()
            if self.joined:
                out += fresh
            else:
                self._kept += fresh
                self._join()
        if not out and not ready:
            self._look()
        elif self._target.where:
            self._came_ns, self.notice = time.monotonic_ns(), self.notice if not out else ""
            self._run_ended |= any(m.key == Key.DEFINITION.value and _is_end(m) for m in out)
        return out

    def close(self) -> None:
        """Disconnect; the run goes on."""
        self._ended = True
        self._sub.close(linger=0)
        self._ctrl.close(linger=100)
        self._context.term()

    def _from_sub(self) -> list[Message]:
        out: list[Message] = []
        with contextlib.suppress(zmq.Again):
            while len(out) < MAX_POLL:
                frames = self._sub.recv_multipart(zmq.NOBLOCK)
                if len(frames) != 2:
                    continue
                key, payload = frames
                out.append(Message(key, payload, time.monotonic_ns()))
                if key == Key.STATE.value:
                    self._check_hub(payload)
        return out

    def _from_ctrl(self) -> list[Message]:
        out: list[Message] = []
        with contextlib.suppress(zmq.Again):
            while len(out) < MAX_POLL:
                frames = self._ctrl.recv_multipart(zmq.NOBLOCK)
                if len(frames) == 2:
                    out.append(Message(frames[0], frames[1], time.monotonic_ns()))
                elif len(frames) == 1 and self._is_joined(frames[0]):
                    self.joined = True
                    out += self._kept
                    self._kept = []
        return out

    def _is_joined(self, raw: bytes) -> bool:
        try:
            message = unpack(raw, _from_hub)
        except Malformed:
            return False
        if not isinstance(message, commands.Reply) or message.re != self._request:
            return False
        if message.refusal is not None:
            self.notice = refusal_text(message.refusal)
            self._kept = []  # they are in the history, once it comes
            return False
        if not isinstance(message.answer, commands.Joined):
            return False
        self.notice, self._hub = "", message.answer.hub
        return True

    def _join(self) -> None:
        now = time.monotonic_ns()
        if self._request and now - self._asked_ns < JOIN_AGAIN_NS:
            return
        self._asked_ns = now
        self._request += 1
        with contextlib.suppress(zmq.Again):
            self._ctrl.send(pack(commands.Join(self._request)), zmq.NOBLOCK)

    def _check_hub(self, payload: bytes) -> None:
        """Join again if another hub sends: the previous one was killed."""
        if not self.joined:
            return
        try:
            hub = leading(payload, "hub").get("hub")
        except Malformed:
            return
        if hub != self._hub:
            self.joined, self._asked_ns = False, 0
            self._join()

    def _look(self) -> None:
        """Check whether the run has ended or its hub is silent."""
        now = time.monotonic_ns()
        if now - self._looked_ns >= LOOK_NS:
            self._looked_ns = now
            self._ended = self._run_ended or not self._target.alive()
        if self._target.where and now - self._came_ns > SILENT_NS:
            silent = duration(now - self._came_ns)
            self.notice = f"nothing from {self._target.where} for {silent}: the network, or its hub"


def _is_end(message: Message) -> bool:
    with contextlib.suppress(Malformed):
        fields = decode_map(message.payload)
        return fields.get("k") == DefKind.END.value and fields.get("proc") is None
    return False


class HubControl:
    """Control port of a live run, for any thread; its socket has a thread of its own.

    ``script``: commands come from one process each, so control stays between them and ends with the
    lease (``lease_s`` of a command). ``kind``: begin of the viewer's name in the audit trail, by
    default user and terminal.
    """

    def __init__(self, run: Path | Target, *, script: bool = False, kind: str = "") -> None:
        self._target = run if isinstance(run, Target) else local(run)
        self._script = script
        self._lock = threading.Lock()
        """Lock for the attributes below: any thread asks, and the socket's thread answers."""
        self._identity = viewer_address(kind or whose())
        self.name = viewer_name(self._identity)
        """Name of this viewer in the audit trail."""
        self._numbers = itertools.count(1)
        self._out: queue.SimpleQueue[commands.FromViewer | None] = queue.SimpleQueue()
        self._waiting: dict[int, Future[commands.Reply]] = {}
        self._ended: Refusal | None = None
        """Reason why nothing is sent any more; None: messages are sent."""
        self._pipe = WakePipe()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="pardbg-control", daemon=True)
        self._thread.start()

    def command(
        self, verb: Verb | str, ranks: str | None = None, timeout_s: float = 30.0, *,
        lease_s: float = 0.0, **args: Any,
    ) -> commands.Reply:  # fmt: skip
        """Send a command and wait for the answer; ``args`` are fields of Arguments."""
        asked = commands.Arguments(**args)
        message = commands.Command(0, Verb(verb), ranks, asked, timeout_s, self._script, lease_s)
        return self._ask(message, timeout_s + 1.0)

    def take(self) -> commands.Reply:
        """Take control over from its present holder."""
        return self._ask(commands.Take(0), 5.0)

    def leave(self) -> None:
        """Give control up; every rank runs on."""
        self._send(commands.Leave(), None)

    def close(self) -> None:
        """Leave (unless ``script``) and end the thread."""
        if self._closed:
            return
        self._closed = True
        if not self._script:
            self.leave()
        with self._lock:
            if self._ended is None:
                self._out.put(None)
                self._pipe.wake()
        self._thread.join(2.0)

    def _ask(self, message: commands.Command | commands.Take, timeout_s: float) -> commands.Reply:
        if self._closed:
            return commands.Reply(refusal=Refusal(Why.CLOSED))
        future: Future[commands.Reply] = Future()
        number = self._send(message, future)
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                wait([future], timeout=min(0.5, max(0.01, deadline - time.monotonic())))
                if future.done():
                    return future.result()
                if not self._target.alive():
                    return commands.Reply(refusal=Refusal(Why.RUN_ENDED, self._target.run))
                if time.monotonic() >= deadline:
                    return commands.Reply(refusal=Refusal(Why.NO_ANSWER, ns=int(timeout_s * 1e9)))
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def _send(
        self,
        message: commands.Command | commands.Take | commands.Leave,
        future: Future[commands.Reply] | None,
    ) -> int:
        """Pass a message to the thread; return its number. They reach the hub in rising order."""
        with self._lock:
            number = next(self._numbers)
            if self._ended is not None:
                if future is not None:
                    future.set_result(commands.Reply(refusal=self._ended))
                return number
            if future is not None:
                self._waiting[number] = future
            self._out.put(replace(message, id=number))
            self._pipe.wake()
        return number

    # -- inside the thread

    def _run(self) -> None:
        why = Refusal(Why.CLOSED)
        try:
            self._serve()
        except Exception as error:  # noqa: BLE001 - whoever asks must hear of it at once
            why = Refusal(Why.FAILED, f"{type(error).__name__}: {error}")
        finally:
            self._end(why)

    def _end(self, why: Refusal) -> None:
        """Release callers that wait for an answer, which cannot come; write the pipe no more."""
        with self._lock:
            self._ended = why
            waiting, self._waiting = self._waiting, {}
        self._pipe.close()
        for future in waiting.values():
            future.set_result(commands.Reply(refusal=why))

    def _serve(self) -> None:
        context: zmq.Context[Any] = zmq.Context()
        socket = _socket(context, zmq.DEALER, self._target, "control", self._identity)
        try:
            self._exchange(socket)
        finally:
            socket.close(linger=200)
            context.term()

    def _exchange(self, socket: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._pipe.fd, zmq.POLLIN)
        renewed = 0.0
        going = True
        while going:
            poller.poll(200)
            self._pipe.clear()
            going = self._send_all(socket)
            self._receive_all(socket)
            # Also without held ranks: a rank at its exception is held while a viewer is there.
            if time.monotonic() - renewed >= RENEW_S and not self._script:
                renewed = time.monotonic()
                with contextlib.suppress(zmq.Again):
                    socket.send(pack(Lease(0)), zmq.NOBLOCK)

    def _send_all(self, socket: zmq.Socket[bytes]) -> bool:
        """Send queued messages; return False at a request to close."""
        while not self._out.empty():
            message = self._out.get()
            if message is None:
                return False
            with contextlib.suppress(zmq.Again):
                socket.send(pack(message), zmq.NOBLOCK)
        return True

    def _receive_all(self, socket: zmq.Socket[bytes]) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                frames = socket.recv_multipart(zmq.NOBLOCK)
                with contextlib.suppress(Malformed):
                    self._answered(unpack(frames[0], _from_hub))

    def _answered(self, message: commands.FromHub) -> None:
        if not isinstance(message, commands.Reply):
            return
        with self._lock:
            future = self._waiting.pop(message.re, None)
        if future is not None:
            future.set_result(message)
