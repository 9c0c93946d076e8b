"""Session files as a stranger reads them: with mcap, msgpack, numpy and docs/session-format.md."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from mcap.reader import make_reader

from pardbg.events.decode import frame_head, records_from
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
        check=True,
    )  # fmt: skip
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
