"""Session files as a stranger reads them: with mcap, msgpack, numpy and docs/session-format.md."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from mcap.reader import make_reader

import pardbg
from pardbg.events.decode import frame_head, records_from
from pardbg.session.export.tables import sheets, write_parquet
from pardbg.session.export.trace import write_trace
from pardbg.session.reader import load
from pardbg_agent import wire
from tests.harness import whole_messages

ROOT = Path(__file__).parents[3]
SESSIONS = sorted((ROOT / "sessions").glob("*.mcap"))
MAPS, RECORDS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs/session-format.md").read_text("utf-8"), re.DOTALL
)


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.stem)
def test_mcaps_own_reader_names_what_is_in_a_session(path: Path) -> None:
    with path.open("rb") as file:
        reader = make_reader(file, validate_crcs=True)
        summary = reader.get_summary()
        assert summary is not None and summary.statistics is not None
        metadata = {each.name: each.metadata for each in reader.iter_metadata()}
        counts = Counter(m.channel_id for _, _, m in reader.iter_messages())
    topics = {channel.topic for channel in summary.channels.values()}
    ranks = {f"/rank/{rank}" for rank in range(8 if path.stem == "3d" else 4)}
    assert topics >= {f"{rank}/{name}" for rank in ranks for name in ("records", "definitions")}
    assert topics >= {"/hub/definitions", "/hub/output", "/hub/state"}
    assert {schema.name for schema in summary.schemas.values()} == {"pardbg.maps", "pardbg.records"}
    assert summary.statistics.channel_message_counts == counts
    assert summary.statistics.chunk_count == len(summary.chunk_indexes) > 0
    assert metadata["pardbg.run"]["host"] == "node0" and metadata["pardbg.end"]


def run(code: str, path: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", ["1f1b", "fault-kill"])
def test_the_documented_code_reads_what_was_recorded(name: str) -> None:
    path = ROOT / f"sessions/{name}.mcap"
    messages = list(whole_messages(path))
    lines = run(MAPS, path)
    assert len(lines) == sum(message.key[:1] != b"R" for message in messages)
    assert all(re.fullmatch(r"/(hub|rank/\d)/\w+ \{.*\}", line) for line in lines)
    expected: dict[str, tuple[int, int]] = {}
    for message in messages:
        if message.key[:1] == wire.Key.RECORDS.value:
            records = records_from(message.payload[wire.FRAME.size :])
            rank = message.key.decode()
            count, newest = expected.get(rank, (0, 0))
            assert frame_head(message.payload).count == len(records)
            expected[rank] = (count + len(records), max(newest, int(records["t1_ns"].max())))
    found: dict[str, tuple[int, int]] = {}
    for line in run(RECORDS, path):
        topic, number, end = line.split()
        count, newest = found.get(topic, (0, 0))
        found[topic] = (count + int(number), max(newest, int(end)))
    assert sorted(found) == [f"/rank/{rank}/records" for rank in range(4)]
    assert sorted(found.values()) == sorted(expected.values())


def example(name: str) -> str:
    """The block of docs/export.md that begins with this comment or import."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/export.md").read_text("utf-8"), re.S)
    return next(block for block in blocks if block.startswith(name))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a recording named as in the documentation."""
    (tmp_path / "S.mcap").symlink_to(ROOT / "sessions/1f1b.mcap")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_pandas_and_polars_read_the_parquet_folders(folder: Path) -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    Path("tables").mkdir()
    written = write_parquet(sheets(load(Path("S.mcap"))), Path("tables"))
    exec(example("import pandas"), {})
    for name, rows in written.items():
        assert len(pandas.read_parquet(f"tables/{name}")) == rows
        assert len(polars.read_parquet(f"tables/{name}/*.parquet")) == rows


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_gets_losses_and_times_of_the_steps(folder: Path) -> None:
    found = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    exec(example("# tensorboard"), {})
    events = found.EventAccumulator("runs/pardbg").Reload()
    losses = [(each.step, each.value) for each in events.Scalars("pardbg/loss")]
    assert losses == [(n, pytest.approx(v)) for n, v in enumerate(steps_of_1f1b("loss"))]
    assert "pardbg/duration_ns" in events.Tags()["scalars"]


def test_wandb_gets_losses_of_the_steps(folder: Path) -> None:
    pytest.importorskip("wandb")
    run(example("# wandb"), Path("S.mcap"))
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    written = path.read_bytes()  # its numbers are JSON in protobuf
    losses = steps_of_1f1b("loss")
    assert losses and all(repr(float(loss)).encode() in written for loss in losses)


def steps_of_1f1b(name: str) -> list[float]:
    return list(pardbg.open(ROOT / "sessions/1f1b.mcap").steps()[name])


@pytest.mark.parametrize("name", ["1f1b", "3d", "fault-kill"])
def test_a_trace_is_what_perfettos_importer_asks_for(name: str, tmp_path: Path) -> None:
    """It drops slices of a thread that overlap without nesting, and arrows that end in no slice."""
    write_trace(load(ROOT / f"sessions/{name}.mcap"), tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text("utf-8"))["traceEvents"]
    assert {event["ph"] for event in events} <= set("MXCistf")
    slices: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            end = begin + round(event["dur"] * 1000)
            slices[event["pid"], event["tid"]].append((begin, -end))
    for found in slices.values():
        open_until: list[int] = []
        for begin, end in sorted(found):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert begin <= -end <= min(open_until, default=-end)
            open_until.append(-end)
    arrows: dict[int, set[str]] = defaultdict(set)
    for event in events:
        if event["ph"] in "stf":
            arrows[event["id"]].add(event["ph"])
            at, lane = round(event["ts"] * 1000), slices[event["pid"], event["tid"]]
            assert any(begin <= at <= -end for begin, end in lane), event
    assert slices and arrows and all(ends >= {"s", "f"} for ends in arrows.values())
