"""A recording in parts: each opens alone, the oldest go, nothing is lost between them."""

from __future__ import annotations

from pathlib import Path

from pardbg.analysis.answers.report import report
from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.run import run_info
from pardbg.hub.serve.job_output import Line
from pardbg.render.frame.chrome import Mode, header
from pardbg.render.reports.text import text
from pardbg.session.reader import load
from pardbg.session.rotation import PartLimits, Rotation, part_path
from pardbg.session.writer import RunFacts, SessionWriter
from pardbg.store.store import Store
from tests.unit.hub.hub_rig import Rig
from tests.unit.trace_builder import BEGIN, MS, Trace, ns

S = 1_000_000_000
FACTS = RunFacts("r-1", "made", "host", ("train.py",), "/", "", BEGIN, 1_760_000_000 * S)


def steps_of(store: Store) -> list[int]:
    (process,) = store.procs.values()
    process.settle()
    return [int(step) for step in process.table("step").col("step")]


def test_each_part_opens_alone_and_the_oldest_go(tmp_path: Path) -> None:
    """Ten steps of 1 s, a part every 2 s, three kept: part 1 has steps 0-1, part 5 steps 8-9."""
    first, trace = tmp_path / "S.mcap", Trace(1)
    (proc,) = trace.ranks
    phase = proc.name("forward")
    definitions = [(m.key, m.payload) for m in trace.messages]
    parts = Rotation(1, first, FACTS, PartLimits(0, 2 * S, 3), ns(0), lambda number: definitions)
    writer = SessionWriter(first, FACTS)
    for key, payload in definitions:
        writer.write(key, payload, ns(0))
    for step in range(10):
        proc.phase("forward", step * 1000, step * 1000 + 500, step)
        proc.step(step, step * 1000, step * 1000 + 999)
        proc.flush()
        writer.write(trace.messages[-1].key, trace.messages[-1].payload, ns(step * 1000 + 999))
        if step < 9:
            writer = parts.turn(writer, ns((step + 1) * 1000))
    writer.close(0)
    assert phase and parts.number == 5 and writer.path == tmp_path / "S.0005.mcap"
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "S.0003.mcap", "S.0004.mcap", "S.0005.mcap"
    ]  # fmt: skip
    for number, expected in ((3, [4, 5]), (4, [6, 7]), (5, [8, 9])):
        store = load(part_path(first, number))
        assert steps_of(store) == expected and not store.truncated
        (process,) = store.procs.values()
        assert process.rank == 0 and process.name(phase) == "forward"
        assert process.lost(None) == 0, "an earlier part has them: they are not lost"
    assert load(part_path(first, 4)).notes["next_part"] == "S.0005.mcap"


def test_a_hub_records_in_parts_and_a_new_one_goes_on_with_the_last(tmp_path: Path) -> None:
    """Output line by line over three parts: every line is in exactly one of them, and the hub
    that takes over neither repeats nor forgets what the part before it had."""
    rig = Rig(tmp_path, limits=PartLimits(0, S))
    said = 0
    while not part_path(tmp_path / "s.mcap", 3).exists():
        rig.hub._turn()
        line = Line("stdout", f"line {said}", None, (said + 1) * 8)
        rig.hub._say_lines([line])
        said += 1
    number = rig.hub._collector.number
    rig.close()
    again = Rig(tmp_path, limits=PartLimits(0, 3600 * S))
    try:
        assert again.hub._collector.writer is not None
        assert again.hub._collector.writer.path.name == "s.0003.mcap"
        assert again.hub._collector.number > number
        assert again.hub._resumed.restarted
    finally:
        again.close()
    seen = []
    for part in (1, 2, 3):
        store = load(part_path(tmp_path / "s.mcap", part))
        assert store.run["run"] == "test-1", "each part says what run it is of"
        seen += [line for _, (_, _, line) in store.output.last(None, 10**6)]
    assert seen == [f"line {i}" for i in range(said)]
    said_parts = []
    for part in (1, 2, 3):
        store = load(part_path(tmp_path / "s.mcap", part))
        said_parts.append(run_info(View(store, None)).part)
        line = header("s", snapshot(store, None), Mode(replay=True), 120)
        head = "".join(run.text for run in line)
        assert f"  part {part}  " in head
        assert f"Part {part} of a recording" in text(report(store))
    assert said_parts == [(1, "s.0002.mcap"), (2, "s.0003.mcap"), (3, "")]
    begins = [load(part_path(tmp_path / "s.mcap", part)).begin_ns for part in (1, 2, 3)]
    assert begins[1] - begins[0] >= S - 100 * MS and begins[2] - begins[1] >= S - 100 * MS
