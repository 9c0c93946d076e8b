"""NCCL's files and RAS, as the hub reads them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pardbg.events.device_facts import Ras, RasRow
from pardbg.hub.serve import nccl_reports
from pardbg.hub.serve.nccl_reports import InspectedOps, NcclFiles, fact_of
from pardbg.nccl import ras
from tests.unit.nccl.test_readers import OP, RAS, ras_rank

SECOND = 1_000_000_000


def test_lines_of_debug_files_come_as_they_are_written(tmp_path: Path) -> None:
    files = NcclFiles({"NCCL_DEBUG_FILE": f"{tmp_path}/nccl.%h.%p"}, 0, restarted=False)
    assert files.lines(10 * SECOND) == []
    path = tmp_path / "nccl.n0.12"
    path.write_text("NCCL version 2.21.5+cuda12.4\nhalf")
    assert [line.text for line in files.lines(20 * SECOND)] == ["NCCL version 2.21.5+cuda12.4"]
    with path.open("a") as file:
        file.write(" a line\n")
    assert [line.text for line in files.lines(21 * SECOND)] == ["half a line"]
    files.close()


def test_files_of_an_earlier_run_and_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "nccl.n0.12").write_text("old\n")
    later = (1 << 33) * SECOND
    files = NcclFiles({"NCCL_DEBUG_FILE": f"{tmp_path}/nccl.%h.%p"}, later, restarted=False)
    assert files.lines(10 * SECOND, final=True) == []
    nothing = NcclFiles({}, 0, restarted=False)
    assert nothing.lines(10 * SECOND) == [] and nothing.inspected(1 << 62) is None


def test_inspected_ops_are_counted_by_kind(tmp_path: Path) -> None:
    lines = [json.dumps(OP)] * 3
    (tmp_path / "n0-pid12.log").write_text("\n".join(lines) + "\nno JSON\n")
    files = NcclFiles({"NCCL_INSPECTOR_DUMP_DIR": str(tmp_path)}, 0, restarted=False)
    assert files.lines(10 * SECOND) == []  # none of them is a debug line
    [row] = files.inspected(1 << 62) or []
    assert row[4] == 3 and files.inspected(1 << 62) is None
    files.close()
    assert InspectedOps().changed(1 << 62) is None


ANSWER = RAS % (", ".join([ras_rank(0, 7), ras_rank(1, 6), ras_rank(2, 7)]), ",")


@contextlib.contextmanager
def listening(answer: str) -> Iterator[tuple[str, list[bytes]]]:
    """RAS at an address: (it, what it was asked)."""
    server = socket.create_server(("127.0.0.1", 0))
    asked: list[bytes] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = server.accept()
                asked.append(one.recv(1000))
                one.sendall(b"OK\n" + answer.encode())
                one.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}", asked
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(5)


@contextlib.contextmanager
def using(library: Path, **environ: str) -> Iterator[int]:
    """A process that has a library of this name mapped."""
    library.write_bytes(b"x")
    program = "import mmap, sys; f = open(sys.argv[1]); m = mmap.mmap(f.fileno(), 1, prot=1)"
    command = [sys.executable, "-c", f"{program}; print(flush=True); input()", str(library)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environ}
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process.pid
    finally:
        process.communicate()


def test_ras_is_asked_over_its_socket() -> None:
    with listening(ANSWER) as (address, asked):
        status = ras.parse(nccl_reports.answer(address, 5))
    assert asked == [ras.QUERY]
    ranks = [(10 + one.rank, one.host, one.pid) for comm in status.comms for one in comm.ranks]
    assert fact_of(status, ranks) == Ras("2.28.9", 1, (
        RasRow("0xae94", "unresponsive", (3,), False),  # its process is not known here
        RasRow("0xae94", "AllReduce", (11,), True),
    ))  # fmt: skip


@pytest.mark.timeout(60)
def test_ras_is_asked_where_nccl_is(tmp_path: Path) -> None:
    """At the address of the process that uses NCCL; of another job's, nothing is said."""
    with (
        listening(ANSWER) as (address, asked),
        using(tmp_path / "libother.so", NCCL_RAS_ADDR=address) as without,
        using(tmp_path / "libnccl.so.2", NCCL_RAS_ADDR=address) as pid,
    ):
        assert nccl_reports.status_of([without]) is None and not asked
        assert nccl_reports.status_of([without, pid]) is None and len(asked) == 1
    with (
        using(tmp_path / "libplain.so") as pid,
        listening(ANSWER.replace('"pid": 1,', f'"pid": {pid},')) as (address, asked),
        using(tmp_path / "libnccl.so.2", NCCL_RAS_ADDR=address) as there,
    ):
        query, ranks = nccl_reports.RasQuery(), [(4, "h1", 0), (5, "h1", pid), (6, "h1", 2)]
        query.ask([*ranks, (7, "elsewhere", 2)], [there, pid], 1)
        while not (found := query.took()):
            time.sleep(0.01)
    assert [row.ranks for row in found[0].rows if row.what == "AllReduce"] == [(5,)]
