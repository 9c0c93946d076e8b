"""A DAP client such as VS Code is one, over a socket: requests, and events as they come."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

Message = dict[str, Any]


class DapClient:
    """Asks one debugger; every wait ends."""

    def __init__(self, port: int, timeout_s: float = 30.0) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), timeout_s)
        self._rest, self._seq, self._timeout_s = b"", 0, timeout_s
        self._events: list[Message] = []
        self._answers: dict[int, Message] = {}
        self.thread = 0
        """The one that stopped last."""

    def __enter__(self) -> DapClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def attach(self) -> None:
        """As VS Code: initialize, attach, configurationDone once initialized came; then it stops
        where the rank is held."""
        self.ask("initialize", adapterID="debugpy", clientID="test", pathFormat="path",
                 linesStartAt1=True, columnsStartAt1=True)  # fmt: skip
        seq = self.send("attach", justMyCode=True)
        self.event("initialized")
        self.ask("configurationDone")
        self._answer(seq)
        self.stopped()

    def send(self, command: str, **arguments: Any) -> int:
        self._seq += 1
        body = json.dumps({"seq": self._seq, "type": "request", "command": command,
                           "arguments": arguments}).encode()  # fmt: skip
        self._sock.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return self._seq

    def ask(self, command: str, **arguments: Any) -> Message:
        """The body of the answer."""
        return self._answer(self.send(command, **arguments))

    def event(self, name: str) -> Message:
        while True:
            for at, event in enumerate(self._events):
                if event["event"] == name:
                    return dict(self._events.pop(at).get("body") or {})
            self._read()

    def stopped(self) -> Message:
        """Wait until a thread stops; its innermost frame."""
        self.thread = self.event("stopped")["threadId"]
        return self.frames()[0]

    def frames(self) -> list[Message]:
        return list(self.ask("stackTrace", threadId=self.thread)["stackFrames"])

    def step(self, command: str = "next") -> Message:
        """One line on; the frame after it."""
        self.ask(command, threadId=self.thread)
        return self.stopped()

    def value(self, expression: str) -> str:
        frame = self.frames()[0]["id"]
        found = self.ask("evaluate", expression=expression, frameId=frame, context="watch")
        return str(found["result"])

    def detach(self) -> None:
        self.ask("disconnect", terminateDebuggee=False)
        self.close()

    def close(self) -> None:
        self._sock.close()

    def _answer(self, seq: int) -> Message:
        while seq not in self._answers:
            self._read()
        message = self._answers.pop(seq)
        assert message["success"], message
        return dict(message.get("body") or {})

    def _read(self) -> None:
        """Take the next message."""
        until = time.monotonic() + self._timeout_s
        while True:
            head, found, body = self._rest.partition(b"\r\n\r\n")
            size = int(head.rpartition(b":")[2]) if found else 0
            if found and len(body) >= size:
                self._rest = body[size:]
                message: Message = json.loads(body[:size])
                if message["type"] == "event":
                    self._events.append(message)
                elif message["type"] == "response":
                    self._answers[message["request_seq"]] = message
                return
            assert time.monotonic() < until, self._events
            data = self._sock.recv(65536)
            assert data, "the debugger closed the connection"
            self._rest += data
