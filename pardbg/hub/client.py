"""A viewer's two ends: ``LiveSource`` feeds a store, ``HubControl`` speaks to control."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import threading
import time
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, Final

import zmq

from pardbg.control.language.verbs import Reply, Verb
from pardbg.events.decode import Malformed, leading
from pardbg.hub.ctrl_messages import pack, unpack, viewer_address, viewer_name
from pardbg.hub.serve.sockets import Role, secure_client
from pardbg.hub.target import Target, local
from pardbg.store.source import Message
from pardbg.words import duration
from pardbg_agent.sender.wake import WakePipe
from pardbg_agent.wire import DefKind, Key, Msg

RENEW_S: Final = 2.0
JOIN_AGAIN_NS: Final = 3_000_000_000
LOOK_NS: Final = 500_000_000
HEARTBEAT_MS, SILENCE_MS = 2_000, 10_000
SILENT_NS: Final = 5_000_000_000
"""Silence after which a remote hub is reported; a hub speaks once a second."""
WAITING: Final = 100_000
"""Limit on waiting messages; a thousand ranks send ten thousand per second."""
MAX_POLL: Final = 5_000
"""Messages per ``poll`` at most, so that a flood does not keep the caller from drawing."""


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
    """A store's source: the history, then live messages. For use in one thread.

    It subscribes first and keeps live messages until the history has arrived on CTRL. A hub that
    was restarted is joined again. Raises ConfigError for no run.
    """

    def __init__(self, run: Path | Target) -> None:
        self._target = run if isinstance(run, Target) else local(run)
        self._context: zmq.Context[Any] = zmq.Context()
        self._sub = _socket(self._context, zmq.SUB, self._target, "viewer")
        self._ctrl = _socket(self._context, zmq.DEALER, self._target, "viewer")
        self._poller = zmq.Poller()
        self._poller.register(self._sub, zmq.POLLIN)
        self._poller.register(self._ctrl, zmq.POLLIN)
        self._kept: list[Message] = []
        self._joined = False
        self._asked_ns = self._looked_ns = 0
        self._came_ns = time.monotonic_ns()
        self._request = 0
        self._hub: str | None = None
        self._ended = self._run_ended = False
        self.history: dict[str, Any] = {}
        """Size of the history that the hub sent: messages, bytes, dropped."""
        self.notice = ""
        """Reason of the hub for sending nothing; the viewer keeps asking."""
        self.malformed = 0

    @property
    def live(self) -> bool:
        return not self.finished

    @property
    def finished(self) -> bool:
        return self._ended

    def poll(self, timeout_ms: int) -> list[Message]:
        """Return what has come, oldest first."""
        if self._ended:
            return []
        ready = dict(self._poller.poll(timeout_ms))
        out = self._from_ctrl() if self._ctrl in ready else []
        if self._sub in ready:
            fresh = self._from_sub()
            if self._joined:
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
                    self.malformed += 1
                    continue
                key, payload = frames
                out.append(Message(key, payload, time.monotonic_ns()))
                if key == Key.STATE.value:
                    self._check_hub(payload)
        return out

    def _from_ctrl(self) -> list[Message]:
        """Return messages of the history and, after its end, those kept meanwhile."""
        out: list[Message] = []
        with contextlib.suppress(zmq.Again):
            while len(out) < MAX_POLL:
                frames = self._ctrl.recv_multipart(zmq.NOBLOCK)
                if len(frames) == 2:
                    out.append(Message(frames[0], frames[1], time.monotonic_ns()))
                elif len(frames) == 1 and self._is_joined(frames[0]):
                    self._joined = True
                    out += self._kept
                    self._kept = []
        return out

    def _is_joined(self, raw: bytes) -> bool:
        try:
            message = unpack(raw)
        except Malformed:
            self.malformed += 1
            return False
        if message.get("t") != Msg.ACK or message.get("re") != self._request:
            return False
        if not message.get("ok"):
            self.notice = str(message.get("error") or "the hub refuses this viewer")
            self._kept = []  # the history, once it comes, has it
            return False
        self.notice = ""
        self._hub = str(message.get("hub"))
        self.history = message.get("history") or {}
        return True

    def _join(self) -> None:
        now = time.monotonic_ns()
        if self._request and now - self._asked_ns < JOIN_AGAIN_NS:
            return
        self._asked_ns = now
        self._request += 1
        with contextlib.suppress(zmq.Again):
            self._ctrl.send(pack({"t": Msg.JOIN.value, "id": self._request}), zmq.NOBLOCK)

    def _check_hub(self, payload: bytes) -> None:
        """Join again if another hub sends: the previous one was killed."""
        if not self._joined:
            return
        try:
            hub = leading(payload, "hub").get("hub")
        except Malformed:
            self.malformed += 1
            return
        if hub != self._hub:
            self._joined, self._asked_ns = False, 0
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
    """Return whether a message is the run's end, the hub's last definition."""
    with contextlib.suppress(Malformed):
        fields = unpack(message.payload)
        return fields.get("k") == DefKind.END.value and fields.get("proc") is None
    return False


class HubControl:
    """Control port of a live run, for any thread; its socket has a thread of its own.

    ``script``: commands come from one process each, so control stays between them and ends with the
    lease (``lease_s`` of a command).
    """

    def __init__(self, run: Path | Target, *, script: bool = False) -> None:
        self._target = run if isinstance(run, Target) else local(run)
        self._script = script
        self._lock = threading.Lock()
        """Lock for the attributes below: any thread asks, and the socket's thread answers."""
        self._identity = viewer_address()
        self.name = viewer_name(self._identity)
        """Name of this viewer in the audit trail."""
        self._numbers = itertools.count(1)
        self._out: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._waiting: dict[int, Future[Reply]] = {}
        self._ended = ""
        """Reason for sending no more; empty while the thread works."""
        self._pipe = WakePipe()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="pardbg-control", daemon=True)
        self._thread.start()

    def command(
        self, verb: Verb | str, ranks: str | None = None, timeout_s: float = 30.0, **args: Any
    ) -> Reply:
        """Send and wait for the acknowledgement (a verb, ``signal`` or ``kill``)."""
        word = verb.value if isinstance(verb, Verb) else verb
        args = {**args, "timeout_s": timeout_s, "pid": os.getpid()}
        if self._script:
            args["keep"] = True
        message = {"t": Msg.COMMAND.value, "verb": word, "ranks": ranks, "args": args}
        return self._ask(message, timeout_s + 1.0)

    def take(self) -> Reply:
        """Take control over from whoever has it."""
        return self._ask({"t": Msg.TAKE.value}, 5.0)

    def leave(self) -> None:
        """Give control up; every rank runs on."""
        self._send({"t": Msg.LEAVE.value}, None)

    def close(self) -> None:
        """Leave (unless ``script``) and end the thread."""
        if self._closed:
            return
        self._closed = True
        if not self._script:
            self.leave()
        with self._lock:
            if not self._ended:
                self._out.put(None)
                self._pipe.wake()
        self._thread.join(2.0)

    def _ask(self, message: dict[str, Any], timeout_s: float) -> Reply:
        if self._closed:
            return Reply(False, "control is closed", {})
        future: Future[Reply] = Future()
        number = self._send(message, future)
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                wait([future], timeout=min(0.5, max(0.01, deadline - time.monotonic())))
                if future.done():
                    return future.result()
                if not self._target.alive():
                    return Reply(False, f"{self._target.run} has ended", {})
                if time.monotonic() >= deadline:
                    took = duration(timeout_s * 1e9)
                    return Reply(False, f"no answer from the hub in {took}", {})
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def _send(self, message: dict[str, Any], future: Future[Reply] | None) -> int:
        """Queue a message for the thread; return its number. Numbers reach the hub in rising
        order."""
        with self._lock:
            number = next(self._numbers)
            if self._ended:
                if future is not None:
                    future.set_result(Reply(False, self._ended, {}))
                return number
            if future is not None:
                self._waiting[number] = future
            self._out.put({**message, "id": number})
            self._pipe.wake()
        return number

    # -- inside the thread

    def _run(self) -> None:
        why = "control is closed"
        try:
            self._serve()
        except Exception as error:  # noqa: BLE001 - whoever asks must hear of it at once
            why = f"this viewer's control has failed: {type(error).__name__}: {error}"
        finally:
            self._end(why)

    def _end(self, why: str) -> None:
        """Fail all requests without an answer, and close the pipe."""
        with self._lock:
            self._ended = why
            waiting, self._waiting = self._waiting, {}
        self._pipe.close()
        for future in waiting.values():
            future.set_result(Reply(False, why, {}))

    def _serve(self) -> None:
        context: zmq.Context[Any] = zmq.Context()
        socket = _socket(context, zmq.DEALER, self._target, "control", self._identity)
        try:
            self._exchange(socket)
        finally:
            socket.close(linger=200)
            context.term()

    def _exchange(self, socket: zmq.Socket[bytes]) -> None:
        """Send and receive until ``close``."""
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
            # Also where it holds nothing: a rank at its exception is held while somebody is there.
            if time.monotonic() - renewed >= RENEW_S and not self._script:
                renewed = time.monotonic()
                with contextlib.suppress(zmq.Again):
                    socket.send(pack({"t": Msg.LEASE.value}), zmq.NOBLOCK)

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
                    self._answered(unpack(frames[0]))

    def _answered(self, message: dict[str, Any]) -> None:
        number = message.get("re")
        if message.get("t") != Msg.ACK or not isinstance(number, int):
            return
        with self._lock:
            future = self._waiting.pop(number, None)
        if future is not None:
            data = message.get("data") or message.get("history") or {}
            error = message.get("error")
            future.set_result(Reply(bool(message.get("ok")), error and str(error), dict(data)))
