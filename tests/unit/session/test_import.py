"""Foreign evidence as sessions. tests/data/imported: dumps and traces of one small program on two
gloo ranks (DDP, 3 steps; an all_reduce of 1000 floats in a second group per step; rank 0 sends 10
floats to rank 1), torch 2.13, without source paths."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.steps import step_rows
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.comm.p2p import p2p_rows
from pardbg.errors import UserError
from pardbg.session.importers import read
from pardbg.session.importers.read import import_files
from pardbg.session.reader import load

DATA = Path(__file__).parents[2] / "data" / "imported"


def test_flight_recorder_dumps_of_gloo(tmp_path: Path) -> None:
    made = import_files([DATA / "fr_rank_0", DATA / "fr_rank_1"], tmp_path / "s.mcap")
    assert (made.ranks, made.num_ops) == ([0, 1], 22)
    assert "completion times: transfer and bandwidth are not known" in made.lacks
    view = View(load(tmp_path / "s.mcap"), None)
    rows = collectives(view, None)
    # as the program called them: the DDP set-up, then per step a gradient bucket and an all_reduce
    assert Counter((r.group, r.op, r.bytes) for r in rows) == {
        ("default_pg", "all_gather", 16): 1,
        ("default_pg", "broadcast", 48): 1,  # 6 int64
        ("default_pg", "broadcast", 16640): 1,  # 64 * 65 floats
        ("default_pg", "broadcast", 12): 1,
        ("default_pg", "broadcast", 4): 1,
        ("default_pg", "all_reduce", 16640): 3,
        ("pair", "all_reduce", 4000): 3,
    }
    assert {row.verdict for row in rows} == {"matched"}
    assert all(row.skew_ns is not None and row.skew_ns > 0 for row in rows)
    assert {row.transfer_ns for row in rows} == {None}  # a dump of gloo has no end times
    assert snapshot(view.store, None).memory[0].total_bytes is None


def dump(rank: int, entries: list[dict[str, Any]], path: Path, **more: Any) -> Path:
    """As NCCL's watchdog writes it."""
    made = path / f"nccl_trace_rank_{rank}"
    content = {
        "version": "2.10",
        "entries": entries,
        "pg_status": {},
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        **more,
    }
    made.write_bytes(pickle.dumps(content, protocol=2))
    return made


def entry(seq: int, created_ms: int, done_ms: int | None, **more: Any) -> dict[str, Any]:
    return {
        "process_group": ("0", "default_pg"), "collective_seq_id": seq, "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce", "time_created_ns": created_ms * 10**6,
        "input_sizes": [[1000]], "input_dtypes": ["Float"], "output_sizes": [[1000]],
        "output_dtypes": ["Float"], "state": "scheduled", "is_p2p": False, "retired": False,
        "time_discovered_completed_ns": None if done_ms is None else done_ms * 10**6, **more,
    }  # fmt: skip


def test_dumps_of_a_hang_on_nccl(tmp_path: Path) -> None:
    """Rank 1 never came to #2; #1 took at most the 3 ms from the last arrival to the watchdog's
    look."""
    dump(0, [entry(1, 100, 105), entry(2, 110, None)], tmp_path)
    dump(1, [entry(1, 102, 105)], tmp_path)
    made = import_files([tmp_path], tmp_path.parent / "hang.mcap")
    assert not any("completion" in line for line in made.lacks)
    first, second = collectives(View(load(tmp_path.parent / "hang.mcap"), None), None)
    assert (first.skew_ns, first.verdict) == (2_000_000, "matched")
    assert (first.transfer_ns, first.transfer_most_ns) == (None, 3_000_000)
    assert (second.seq, second.missing) == (2, (1,))


def test_p2p_of_a_dump(tmp_path: Path) -> None:
    common: dict[str, Any] = {"is_p2p": True, "p2p_seq_id": 1, "collective_seq_id": 0}
    dump(0, [entry(0, 10, 12, profiling_name="nccl:send 0->1", **common)], tmp_path)
    dump(1, [entry(0, 11, 12, profiling_name="nccl:recv 1<-0", **common)], tmp_path)
    import_files([tmp_path], tmp_path.parent / "p2p.mcap")
    (row,) = p2p_rows(View(load(tmp_path.parent / "p2p.mcap"), None), None)
    assert (row.src, row.dst, row.bytes, row.verdict) == (0, 1, 4000, "matched")


def test_profiler_traces_of_gloo(tmp_path: Path) -> None:
    """Steps and spans; a collective names no group here, so none is matched."""
    traces = [DATA / f"trace_rank{rank}.json.gz" for rank in (1, 0)]
    made = import_files(traces, tmp_path / "s.mcap")
    assert made.ranks == [0, 1] and made.num_ops == 0
    assert any("not matched over ranks" in line for line in made.lacks)
    store = load(tmp_path / "s.mcap")
    view = View(store, None)
    with gzip.open(traces[1]) as file:
        events = json.load(file)["traceEvents"]
    said = [e for e in events if e["name"].startswith("ProfilerStep#")]
    rows = step_rows(view, None)
    assert [row.step for row in rows] == [0, 1, 2, 3]
    table = view.ranks[0].table("step")
    took = (table.col("t1_ns") - table.col("t0_ns")).tolist()
    assert took == pytest.approx([e["dur"] * 1000 for e in said], abs=1)
    assert set(rows[0].phases) >= {"optimizer", "backward"}
    process = view.ranks[0]
    names = Counter(process.name(i) for i in process.table("span").col("name_id").tolist())
    assert names["my span"] == 3 and names["gloo:all_reduce"] == 6 and names["gloo:send"] == 3
    shown = snapshot(store, None)
    assert shown.collectives == () and shown.ranks[0].agent_overhead is None


def test_a_profiler_trace_of_nccl(tmp_path: Path) -> None:
    """``record_param_comms`` says group and number; its kernel's end is the completion."""
    for rank, late_us in ((0, 0.0), (1, 500.0)):
        args = {
            "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000,
            "dtype": "Float", "Process Group Name": "0", "Seq": 7, "External id": 5,
        }  # fmt: skip
        events = [
            {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 0, "dur": 9000},
            {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": 1000 + late_us,
             "dur": 10.5, "args": args},
            {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
             "ts": 1600.25, "dur": 399.75, "args": {"External id": 5}},
            {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 3000, "dur": 100},
            {"ph": "X", "cat": "kernel", "name": "relu", "ts": 3110, "dur": 90},
        ]  # fmt: skip
        content = {
            "baseTimeNanoseconds": 10**18, "traceEvents": events, "distributedInfo": {
                "backend": "nccl", "rank": rank, "world_size": 2,
                "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}],
            },
        }  # fmt: skip
        (tmp_path / f"host_{rank + 4711}.pt.trace.json").write_text(json.dumps(content))
    made = import_files([tmp_path], tmp_path.parent / "k.mcap")
    assert made.num_ops == 2
    view = View(load(tmp_path.parent / "k.mcap"), None)
    (row,) = collectives(view, None)
    # issued 0.5 ms apart; both kernels end at 2 ms, 0.5 ms after the last arrival
    assert (row.skew_ns, row.transfer_ns, row.seq, row.step) == (500_000, 500_000, 7, 3)
    assert (row.bytes, row.verdict) == (4000, "matched")
    spans = view.ranks[0].table("span")
    assert (spans.col("t1_ns") - spans.col("t0_ns")).tolist() == [200_000]  # one stretch


class Evil:
    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('ran code')",))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a_rank_0", pickle.dumps({"entries": [Evil()]}), "refused, it could run code"),
        ("a_rank_0", pickle.dumps({"entries": [Path("x")]}), "refused"),
        ("a_rank_0", b"\x80\x02}q\x00(X\xff\xff\xff\xff", "damaged"),
        ("a_rank_0", pickle.dumps([1]), "neither"),
        ("a_rank_0", b"", "neither"),
        ("a_rank_0", b"{" * 100_000, "neither"),
        ("a_rank_0", b"[" * 100_000, "neither"),
        ("a_rank_0", b'{"entries": 5}', "neither"),
        ("a_rank_0", b'{"entries": []}', "nothing in it"),
        ("a_rank_0", b'{"entries": [{"time_created_ns": "x"}, 7, null]}', "nothing in it"),
        ("trace", b'{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1, "name": "x"}]}', "its rank"),
        ("a_rank_0", b"\x1f\x8bgarbage", "neither|cannot read"),
    ],
)
def test_what_cannot_be_imported(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=says) as error:
        import_files([path], tmp_path / "s.mcap")
    assert "\n" not in str(error.value)


BOMBS = {
    "memo": b"\x80\x02}r" + struct.pack("<I", 200_000_000) + b".",
    "bytearray": b"\x80\x05\x96" + struct.pack("<Q", 3 << 30) + b".",
    "lists": gzip.compress(b'{"traceEvents": [' + b"[]," * 70_000_000 + b"[]]}", 1),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_file_takes_little_memory(tmp_path: Path, bomb: str) -> None:
    """Up to 0.9 MB that would become 3 GB and more: within 1 GB of address space."""
    path = tmp_path / "a_rank_0"
    path.write_bytes(BOMBS[bomb])
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from pardbg.session.importers.read import UserError, import_files\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "try:\n    import_files([Path(sys.argv[1])], Path(sys.argv[2]))\n"
        "except UserError as error:\n    print(error)\n"
    )
    argv = [sys.executable, "-c", code, str(path), str(tmp_path / "s.mcap")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=50)
    assert done.stderr == "" and len(done.stdout.splitlines()) == 1


def test_odd_sets_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "s.mcap"
    with pytest.raises(UserError, match="no such file"):
        import_files([tmp_path / "none"], out)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="is empty"):
        import_files([tmp_path / "empty"], out)
    with pytest.raises(UserError, match="two files of rank 0"):
        import_files([DATA / "fr_rank_0", DATA / "fr_rank_0"], out)
    with pytest.raises(UserError, match="import them apart"):
        import_files([DATA / "fr_rank_0", DATA / "trace_rank1.json.gz"], out)
    monkeypatch.setattr(read, "MAX_PICKLE_BYTES", 1000)
    with pytest.raises(UserError, match="larger than"):
        import_files([DATA / "fr_rank_0"], out)
