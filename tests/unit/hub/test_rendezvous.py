"""Who has come to the job's store, asked of a real TCPStore and of what is none."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pardbg.hub.ranks.processes import environ
from pardbg.hub.ranks.rendezvous import Rendezvous, came

STORE = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
for rank in (0, 2):
    store.set(f"default_pg/0//cpu//0/{rank}", "address")
print(store.port, flush=True)
sys.stdin.read()
print(store.num_keys(), flush=True)
"""


def test_the_store_is_asked_and_nothing_is_left_there() -> None:
    """Ranks 0 and 2 of four left their address: two keys before, and two after."""
    store = subprocess.Popen(
        [sys.executable, "-c", STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert store.stdin is not None and store.stdout is not None
    try:
        assert came("127.0.0.1", int(store.stdout.readline()), range(4)) == [0, 2]
        said, _ = store.communicate(timeout=30)
        assert int(said) == 2
    finally:
        store.kill()
        store.wait()


def test_what_is_no_store_and_what_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            other, _ = server.accept()
            with other:
                other.recv(64)
                other.sendall(b"HTTP/1.1 400")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ValueError, match="no TCPStore"):
            came("127.0.0.1", port, [0])
        thread.join()
    with pytest.raises(OSError):
        came("127.0.0.1", port, [0])


def test_only_a_rank_whose_environment_says_so_is_gone_by(tmp_path: Path) -> None:
    """This process is no rank 0: nothing is asked, and nothing raised."""
    assert environ(os.getpid()).get("PATH") and environ(1 << 30) == {}
    asks = Rendezvous()
    asks.look({0: os.getpid()}, time.monotonic_ns())
    for thread in threading.enumerate():
        if thread.name == "rendezvous":
            thread.join(5)
    assert asks.took() == []
