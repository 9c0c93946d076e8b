"""What a DAP client may say to the debugger in a rank."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import pytest

from pardbg_agent.control.dap_stream import FromClient, carry, is_ours, listener


def framed(**message: Any) -> bytes:
    body = json.dumps(message).encode()
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def said(data: bytes) -> list[dict[str, Any]]:
    out = []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        size = int(head.rpartition(b":")[2])
        out.append(json.loads(rest[:size]))
        data = rest[size:]
    return out


def test_messages_pass_whole_however_they_are_cut() -> None:
    stream, client = framed(seq=1, command="next") + framed(seq=2, command="threads"), FromClient()
    out = [client.feed(stream[at : at + 7]) for at in range(0, len(stream), 7)]
    assert b"".join(out) == stream
    assert not client.leaves


@pytest.mark.parametrize("command", ["terminate", "disconnect"])
def test_who_would_end_the_program_detaches(command: str) -> None:
    client = FromClient()
    asked = framed(seq=3, command=command, arguments={"terminateDebuggee": True, "restart": True})
    assert said(client.feed(asked)) == [{"seq": 3, "command": "disconnect", "arguments": {}}]
    assert client.leaves


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"Content-Length: 99999999\r\n\r\n", b"x" * 5000]
)
def test_what_is_no_dap_ends_the_stream(data: bytes) -> None:
    with pytest.raises(ValueError, match="no "):
        FromClient().feed(data)


def test_a_process_of_this_user_is_let_in() -> None:
    with listener() as door, socket.create_connection(door.getsockname()), door.accept()[0] as one:
        assert is_ours(one)


def test_leaving_is_known_before_the_debugger_hears_of_it() -> None:
    heard: list[bytes] = []
    over, (client, ours), (debugger, inner) = threading.Event(), *(
        socket.socketpair() for _ in range(2)
    )  # fmt: skip

    def leave() -> None:
        debugger.setblocking(False)
        try:
            heard.append(debugger.recv(100))
        except BlockingIOError:
            heard.append(b"")
        debugger.setblocking(True)

    with client, ours, debugger, inner:
        client.sendall(framed(seq=1, command="disconnect"))
        thread = threading.Thread(target=carry, args=(ours, inner, over, leave))
        thread.start()
        assert said(debugger.recv(1000))[0]["command"] == "disconnect"
        debugger.sendall(b"answered")
        assert client.recv(100) == b"answered"
        client.close()
        thread.join(10)
        assert not thread.is_alive()
    assert heard[0] == b""
