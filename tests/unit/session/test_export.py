"""Exports, read back: the same numbers as were recorded."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from pardbg.errors import UserError
from pardbg.session.export import tables
from pardbg.session.export.slices import nesting_rows
from pardbg.session.export.tables import OTHERS, RECORDS, sheets
from pardbg.session.export.trace import write_trace
from pardbg.store.store import Store
from pardbg_agent.wire import Flag
from tests.unit.trace_builder import Trace, ns

DOCS = Path(__file__).parents[3] / "docs" / "export.md"


def small_run() -> Store:
    """Two ranks: F on stage 0, sent to rank 1; two all_reduces of 1000 B, the second one never
    completes on rank 1; loss, memory, output."""
    trace = Trace(2)
    a, b = trace.ranks
    a.action("0F0", 1, 3, a=500)
    a.p2p("world", 1, True, 3, 3.5, 100, mb=0, label="F")
    b.p2p("world", 0, False, 2, 4, 100, mb=0, label="F")
    b.action("1F0", 4, 6)
    for proc, late in ((a, 0), (b, 1)):
        proc.collective("world", "all_reduce", 10 + late, 12)
        proc.collective("world", "all_reduce", 20 + late, 22 if proc is a else None)
        proc.step(0, 0, 23)
        proc.metric("loss", 22, 2.5)
        proc.memory("rss", 22, 4096)
    a.metric("loss", 23, float("nan"))
    trace.output(22, "step 0, loss 2.5", rank=0)
    return trace.store()


def events(store: Store, path: Path) -> list[dict[str, Any]]:
    write_trace(store, path)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        read = json.load(file)
    assert read["otherData"]["begin_ns"] == ns(0)
    assert read["otherData"]["times"] == "host"
    found: list[dict[str, Any]] = read["traceEvents"]
    return found


def test_a_trace_has_a_slice_per_record_in_its_rank_and_lane(tmp_path: Path) -> None:
    found = events(small_run(), tmp_path / "t.json.gz")
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == "thread_name"}
    drawn = Counter((e["pid"], threads[e["pid"], e["tid"]]) for e in found if e["ph"] == "X")
    both = {"steps": 1, "compute": 1, "collectives": 2, "p2p": 1, "issuing": 3}
    assert drawn == {(rank, lane): n for rank in (0, 1) for lane, n in both.items()}
    f = next(e for e in found if e["name"] == "0F0")
    assert (f["pid"], f["ts"], f["dur"]) == (0, 1000.0, 2000.0)
    assert f["args"]["activation_bytes"] == 500
    # rank 1's second all_reduce was issued at 21 ms and is open to the run's end, 23 ms
    never = [e for e in found if e.get("args", {}).get("completed") is False]
    assert [(e["pid"], e["ts"], e["dur"]) for e in never] == [(1, 21000.0, 2000.0)]
    names = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    assert names[0].startswith("rank 0") and names[1].startswith("rank 1")


def test_a_traces_arrows_counters_and_marks(tmp_path: Path) -> None:
    found = events(small_run(), tmp_path / "t.json.gz")
    slices = [e for e in found if e["ph"] == "X"]
    arrows = [e for e in found if e["ph"] in "stf"]
    for arrow in arrows:  # an arrow that touches no slice is not drawn
        assert any(
            e["pid"] == arrow["pid"] and e["tid"] == arrow["tid"]
            and e["ts"] <= arrow["ts"] <= e["ts"] + e["dur"]
            for e in slices
        ), arrow  # fmt: skip
    # the send (3 ms) to the receive (posted at 2 ms: they meet at 3 ms); both all_reduces
    assert [(e["ph"], e["pid"], e["ts"]) for e in arrows] == [
        ("s", 0, 3000.0), ("f", 1, 3000.0),
        ("s", 0, 10000.0), ("f", 1, 11000.0), ("s", 0, 20000.0), ("f", 1, 21000.0),
    ]  # fmt: skip
    counters = [(e["pid"], e["name"], e["args"]) for e in found if e["ph"] == "C"]
    expected = [("memory: rss", {"bytes": 4096}), ("loss", {"loss": 2.5})]
    assert counters == [(rank, *counter) for rank in (0, 1) for counter in expected]
    assert "loss is nan" in [e["name"] for e in found if e["ph"] == "i"]


def test_slices_that_overlap_get_rows_in_which_they_nest() -> None:
    # 0-10 holds 2-4; 3-12 crosses both; 10-11 follows the first, within nothing
    begins, ends = np.array([10, 0, 3, 2]), np.array([11, 10, 12, 4])
    order, rows = nesting_rows(begins, ends, np.zeros(4, np.int64))
    assert list(zip(begins[order], rows, strict=True)) == [(0, 0), (2, 0), (3, 1), (10, 0)]


def test_slices_of_two_lanes_do_not_keep_each_other_from_a_row() -> None:
    begins, ends = np.array([3, 0, 1, 0]), np.array([12, 10, 2, 10])
    order, rows = nesting_rows(begins, ends, np.array([7, 5, 5, 7]))
    assert order.tolist() == [1, 2, 3, 0]
    assert rows.tolist() == [0, 0, 0, 1]


def test_an_export_calls_numpy_as_often_for_many_ranks_as_for_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 16,384 processes a few calls for each took 20 s."""
    calls: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Any]:
        call = getattr(np, name)

        def count(*args: Any, **words: Any) -> Any:
            if "session/export" in sys._getframe(1).f_code.co_filename:
                calls[name] += 1
            return call(*args, **words)

        return count

    for name in ("unique", "concatenate", "lexsort", "isin"):
        monkeypatch.setattr(np, name, counted(name))

    def needed(ranks: int) -> Counter[str]:
        trace = Trace(ranks)
        for number, rank in enumerate(trace.ranks):
            rank.action("0F0", 1, 3)
            rank.collective("world", "all_reduce", 10 + number, 12 + number)
            rank.step(0, 0, 20)
        store = trace.store()
        for process in store.of_part():
            process.settle()
        calls.clear()
        tables.write_csv(sheets(store), tmp_path)
        write_trace(store, tmp_path / "t.json")
        return calls.copy()

    assert needed(24) == needed(2)


@pytest.mark.parametrize("format_", ["parquet", "csv"])
def test_tables_read_back(tmp_path: Path, format_: str) -> None:
    rows = tables.TABLE_WRITERS[format_](sheets(small_run()), tmp_path)
    assert rows == {
        "action": 2, "op_issue": 6, "op_done": 5, "step": 2, "metric": 3, "memory": 2,
        "process": 2, "group": 1, "output": 1,
    }  # fmt: skip
    issued, done = read(tmp_path, "op_issue"), read(tmp_path, "op_done")
    assert len(issued) == 6
    by_op: Counter[str] = Counter()
    for row in issued:
        by_op[row["op"]] += int(row["bytes_in"])
    assert by_op == {"send": 100, "recv": 100, "all_reduce": 4000}
    assert {(int(r["rank"]), r["group"]) for r in issued} == {(0, "world"), (1, "world")}
    # all_reduce on rank 0: issued at 10 and 20, done at 12 and 22; on rank 1: 11 to 12
    took = [int(r["t1_ns"]) - int(r["t0_ns"]) for r in done if r["op"] == "all_reduce"]
    assert sorted(took) == [1_000_000, 2_000_000, 2_000_000]
    assert {r["source"] for r in done} == {"completed", "waited"}
    send = next(r for r in issued if r["op"] == "send")
    assert (int(send["peer"]), int(send["microbatch"]), send["reduce"]) == (1, 0, "F")
    reduce = next(r for r in issued if r["op"] == "all_reduce")
    assert reduce["microbatch"] in (None, "")
    assert float(read(tmp_path, "metric")[0]["value"]) == 2.5
    assert read(tmp_path, "output")[0]["text"] == "step 0, loss 2.5"
    assert int(read(tmp_path, "action")[0]["t0_ns"]) == ns(1)


def read(folder: Path, table: str) -> list[dict[str, Any]]:
    path = folder / table
    if path.is_dir():
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        return rows
    with open(folder / f"{table}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_parquet_table_is_files_by_rank_block_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "FILE_ROWS", 100)
    trace = Trace(130)
    for proc in reversed(trace.ranks):
        for at in (5, 3):
            proc.metric("loss", at + proc.rank / 1000, 1.0)
    assert tables.write_parquet(sheets(trace.store()), tmp_path)["metric"] == 260
    rows = {
        path.stem: parquet.read_table(path).select(["rank", "t_ns"]).to_pylist()
        for path in (tmp_path / "metric").iterdir()
    }
    assert {name: len(of) for name, of in rows.items()} == {
        "ranks-0-63": 100, "ranks-0-63.1": 28, "ranks-64-127": 100, "ranks-64-127.1": 28,
        "ranks-128-191": 4,
    }  # fmt: skip
    block = [(row["t_ns"], row["rank"]) for row in rows["ranks-64-127"] + rows["ranks-64-127.1"]]
    assert block == [(ns(at + r / 1000), r) for at in (3, 5) for r in range(64, 128)]
    assert len({parquet.read_schema(path) for path in (tmp_path / "metric").iterdir()}) == 1


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'pardbg\[export\]'"):
        tables.write_parquet(sheets(small_run()), tmp_path)


def test_every_column_is_documented() -> None:
    sections = DOCS.read_text(encoding="utf-8").split("\n### ")[1:]
    by_name = {section.split("\n", 1)[0].strip("`"): section for section in sections}
    for table, columns in {**RECORDS, **OTHERS}.items():
        for column in columns:
            assert f"| `{column.name}` | {column.type} | {column.doc} |" in by_name[table]


def test_an_op_that_its_device_never_came_to_is_among_the_records() -> None:
    trace = Trace(2)
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 2, None, flags=Flag.DEVICE)
        trace.define_end(proc, 8, "left")
    trace.end(9)
    sheet = tables.records(trace.store(), "op_issue")
    (times,) = [one.data.tolist() for one in sheet.columns if one.column.name == "t0_ns"]
    assert times == [ns(2), ns(2)]
