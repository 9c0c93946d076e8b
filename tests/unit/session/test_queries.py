"""docs/export.md's queries give what ``report`` says, on recorded sessions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import pytest

from pardbg.analysis.answers.report import Report
from pardbg.analysis.answers.report import report as make_report
from pardbg.session.export.tables import sheets, write_parquet
from pardbg.session.reader import load

ROOT = Path(__file__).parents[3]
QUERIES = dict(
    re.findall(r"```sql\n-- (\w+): (.*?)```", (ROOT / "docs/export.md").read_text("utf-8"), re.S)
)
SESSIONS = ("ddp", "zero3", "moe", "tp-sp", "dp-pp", "fault-missing-rank", "fault-straggler")


@pytest.fixture(scope="module", params=SESSIONS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tables")
    store = load(ROOT / "sessions" / f"{request.param}.mcap")
    write_parquet(sheets(store), folder)
    return make_report(store), folder


def ask(name: str, folder: Path) -> list[tuple[Any, ...]]:
    query = "--" + QUERIES[name].replace("'tables/", f"'{folder}/")
    return duckdb.connect().execute(query).fetchall()


def middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def test_steps(exported: tuple[Report, Path]) -> None:
    report, folder = exported
    found = [(step, ns) for step, ns, _ in ask("steps", folder)]
    assert found == [(row.step, row.duration_ns) for row in report.steps]


def test_collectives(exported: tuple[Report, Path]) -> None:
    report, folder = exported
    rows = defaultdict(list)
    for row in report.collectives:
        rows[row.group, row.op].append(row)
    expected = {
        (*key, len(ops), median(op.bytes for op in ops), middle(op.skew_ns for op in ops),
         middle(op.wait_ns for op in ops), middle(op.transfer_ns for op in ops))
        for key, ops in rows.items()
    }  # fmt: skip
    assert set(ask("collectives", folder)) == expected


def test_stragglers(exported: tuple[Report, Path]) -> None:
    report, folder = exported
    last: dict[int, list[int]] = defaultdict(list)
    for row in report.collectives:
        if row.last_rank is not None:
            last[row.last_rank].append(row.wait_ns or 0)
    expected = {(rank, len(waits), sum(waits)) for rank, waits in last.items()}
    assert {tuple(map(int, row)) for row in ask("stragglers", folder)} == expected
