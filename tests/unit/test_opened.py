"""``pardbg.open``: values and columns; the examples of docs/python.md."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import pardbg
from pardbg.errors import UserError
from tests.unit.session.test_reader import write

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def session() -> object:
    return pardbg.open(ROOT / "sessions" / "1f1b.mcap")


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import sys, pardbg; print(*{m.partition('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "click", "mcap", "zmq", "textual", "torch"} & {*done.stdout.split()}


def test_columns_are_those_of_the_report() -> None:
    opened = pardbg.open(ROOT / "sessions" / "1f1b.mcap")
    report = opened.report()
    steps = opened.steps()
    assert steps["step"].tolist() == [one.step for one in report.steps]
    assert steps["duration_ns"].dtype == np.int64 and steps["loss"].dtype == np.float64
    assert opened.memory()["rank"].tolist() == [one.rank for one in report.memory]
    assert opened.collectives()["op"].tolist() == [one.op for one in report.collectives]
    assert opened.findings() is report.findings and opened.pipeline() is report.pipeline
    assert {len(column) for column in steps.values()} == {len(report.steps)}
    assert np.asarray(opened.memory())["rank"].tolist() == opened.memory()["rank"].tolist()


def test_one_ranks_records_are_the_stores_own_memory() -> None:
    opened = pardbg.open(ROOT / "sessions" / "1f1b.mcap")
    one, every = opened.records("action", rank=0), opened.records("action")
    table = next(p for p in opened.store.of_part() if p.rank == 0).table("action")
    assert np.shares_memory(one["t0_ns"], table.col("t0_ns"))
    assert set(one["rank"]) == {0} and len(set(every["rank"])) == 4
    with pytest.raises(ValueError):
        one["t0_ns"][0] = 1
    assert {"F", "B"} <= set(every["action"])


def test_arrow_takes_every_table() -> None:
    opened = pardbg.open(ROOT / "sessions" / "fault-kill.mcap")
    for columns in (opened.steps(), opened.collectives(), opened.memory(), opened.records("step")):
        assert pa.table(columns).column_names == list(columns)


def test_an_empty_recording_has_empty_columns(tmp_path: Path) -> None:
    opened = pardbg.open(write(tmp_path / "s.mcap"))
    assert opened.records("fsdp")["t0_ns"].tolist() == []
    with pytest.raises(UserError):
        opened.records("nonsense")
    with pytest.raises(UserError):
        pardbg.open(tmp_path / "none.mcap")


def test_a_notebook_shows_the_report_apart_from_its_own_page() -> None:
    shown = pardbg.open(ROOT / "sessions" / "fault-kill.mcap")._repr_html_()
    assert (
        shown.startswith("<iframe") and shown.count("<") == 2
    )  # all of the page is in an attribute


EXECUTE = """
import json, nbformat, sys
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], 4)
NotebookClient(notebook, timeout=50, resources={"metadata": {"path": sys.argv[2]}}).execute()
print(json.dumps(notebook.cells))
"""


def test_the_notebook_of_the_docs_runs() -> None:
    """It prints what stands in it; its last cell shows the report, which is not kept there."""
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    path = ROOT / "docs" / "notebook.ipynb"
    argv = [sys.executable, "-c", EXECUTE, str(path), str(path.parent)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=55)
    cells, kept = json.loads(done.stdout), json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [(now, one) for now, one in zip(cells, kept, strict=True) if "outputs" in one]
    printed = [(now["outputs"][0].get("text"), "".join(one["outputs"][0].get("text", [])))
               for now, one in code]  # fmt: skip
    assert len(printed) == 4 and all(now == then for now, then in printed[:3])
    assert code[-1][0]["outputs"][0]["data"]["text/html"].startswith("<iframe")


def test_the_examples_of_the_page_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(blocks) >= 3
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
