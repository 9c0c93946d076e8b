"""Starting runs of fake ranks for tests, and looking at what they left."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack

from pardbg.events.decode import frame_head
from pardbg.hub.run.start import RunHandle, start_run
from pardbg.store.source import Message
from tests.harness import whole_messages
from tests.processes import end_tree, wait_until


def fake_job(ranks: int, steps: int, seconds: float = 0.002) -> list[str]:
    words = ["-m", "tests.distributed.fake_ranks", str(ranks), str(steps), str(seconds)]
    return [sys.executable, *words]


@contextmanager
def started(argv: list[str], session: Path, **more: Any) -> Iterator[RunHandle]:
    """A run; whatever is left of it at the end is ended."""
    handle = start_run(argv, name="test", session=session, **more)
    try:
        yield handle
    finally:
        if handle.launcher_alive():
            handle.kill()
            try:
                handle.wait(15)
            except TimeoutError:
                assert handle._launcher is not None
                end_tree(handle._launcher.pid)
        if handle._launcher is not None:
            handle._launcher.wait(40)  # one that ended by itself is reaped, too: its hub has 25 s


def maps(messages: list[Message], key: bytes) -> list[dict[str, Any]]:
    """The decoded payloads of one kind."""
    chosen = (m.payload for m in messages if m.key[:1] == key)
    return [msgpack.unpackb(payload, strict_map_key=False) for payload in chosen]


def events(messages: list[Message]) -> list[str]:
    """Names of the CONTROL messages: the verb of a command, a process and a node with what became
    of it, else the event."""
    return [_name(plain) for plain in maps(messages, b"C")]


def _name(plain: dict[str, Any]) -> str:
    event = str(plain["event"])
    if event in ("verb", "edit"):
        return str(plain["verb"])
    if event == "process_lost":
        return f"{plain['what']}_lost"
    if event == "node" and plain.get("change", "joined") != "joined":
        return f"node_{plain['change']}"
    return event


def coverage(messages: list[Message]) -> dict[str, list[tuple[int, int]]]:
    """proc -> stretches [first, end) of record indices, merged, as the store would have them."""
    out: dict[str, list[tuple[int, int]]] = {}
    for message in messages:
        if message.key[:1] == b"R":
            head = frame_head(message.payload)
            parts = out.setdefault(message.key[1:].decode(), [])
            if parts and parts[-1][0] <= head.first <= parts[-1][1]:
                parts[-1] = (parts[-1][0], max(parts[-1][1], head.first + head.count))
            else:
                parts.append((head.first, head.first + head.count))
    return out


def session_of(handle: RunHandle) -> list[Message]:
    return list(whole_messages(handle.session))


def hub_pid(handle: RunHandle) -> int:
    from pardbg.hub.run.run_files import read_hub

    hub = read_hub(handle.run_dir)
    assert hub is not None
    return hub.pid


def wait_ranks(control: Any, count: int) -> None:
    """Until the hub knows that many ranks."""
    wait_until(
        lambda: len(control.command("status").data.get("ranks", ())) == count,
        60, f"{count} ranks",
    )  # fmt: skip


def kill_hub(handle: RunHandle) -> int:
    """kill -9; waits for its successor; the successor's pid."""
    before = hub_pid(handle)
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: hub_pid(handle) != before, 30, "another hub")
    return hub_pid(handle)
