"""NCCL's files and RAS, as the hub reads them."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

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


def test_ras_is_asked_over_its_socket() -> None:
    answer = (RAS % (", ".join([ras_rank(0, 7), ras_rank(1, 6), ras_rank(2, 7)]), ",")).encode()
    server = socket.create_server(("127.0.0.1", 0))
    asked: list[bytes] = []

    def serve() -> None:
        one, _ = server.accept()
        asked.append(one.recv(1000))
        one.sendall(b"OK\n" + answer)
        one.close()

    thread = threading.Thread(target=serve)
    thread.start()
    text = nccl_reports.answer(f"127.0.0.1:{server.getsockname()[1]}", 5)
    thread.join(5)
    server.close()
    assert asked == [ras.QUERY]
    status = ras.parse(text)
    ranks = {one.pid: 10 + one.rank for comm in status.comms for one in comm.ranks}
    assert fact_of(status, ranks) == Ras("2.28.9", 1, (
        RasRow("0xae94", "unresponsive", (3,), False),  # its process is not known here
        RasRow("0xae94", "AllReduce", (11,), True),
    ))  # fmt: skip
