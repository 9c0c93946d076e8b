"""A hub that takes the place of a killed one: what it knows, what it asks for, what it cost."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path
from typing import Any

import msgpack
import pytest
from mcap.exceptions import EndOfFile
from mcap.records import Chunk
from mcap.stream_reader import StreamReader

from pardbg.hub import removal
from pardbg.hub.run import config as files
from pardbg.hub.serve import hub as hub_module
from pardbg.hub.serve.resume import read_state
from pardbg.session import writer
from pardbg.session.writer import NOTHING_KNOWN, Known
from pardbg_agent import wire
from tests.distributed.runs import coverage
from tests.harness import whole_messages
from tests.unit.hub.hub_rig import FakeAgent, Peer, Rig, dead_ring, recorded


def known(rig: Rig) -> dict[str, Any]:
    """What late viewers and ranks are told from."""
    hub = rig.hub
    return {
        "heads": dict(hub._collector.heads.next), "offsets": hub._output.offsets,
        "definitions": [p for k, p in hub._definitions.messages() if k != b"D"],
        "ended": dict(hub._agents.ended), "restarts": hub._resumed.restarts,
    }  # fmt: skip


def num_chunks(session: Path) -> int:
    found = 0
    with session.open("rb") as file, contextlib.suppress(EndOfFile):  # nobody closed it
        for record in StreamReader(file, emit_chunks=True).records:
            found += isinstance(record, Chunk)
    return found


def test_a_hub_reads_on_from_where_the_one_before_kept_its_state(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much is recorded before: it is not unpacked."""
    monkeypatch.setattr(hub_module, "KEEP_BYTES", 1)
    monkeypatch.setattr(rig.hub, "_keep_at", 1)
    monkeypatch.setattr(writer, "REPLAY_BYTES", 0)
    (rig.config.dir / files.OUT_FILE).write_text("one\n")
    agent, other, session = FakeAgent(rig, 0), FakeAgent(rig, 1), Path(rig.config.session)
    for number, peer in enumerate((agent, other)):
        peer.define("name", id=1, s="forward")
        peer.hello()
        peer.records(0, 50 + number)
        rig.hub._collector.flush(None)
    other.send("bye", last_index=50, dropped=0)
    rig.until(lambda: rig.hub._agents.ended, "its end")
    rig.until(lambda: known(rig)["offsets"]["stdout"] == 4, "the output")
    rig.until(lambda: read_state(rig.config.dir, session)[0].offset > 0, "the state")
    monkeypatch.setattr(rig.hub, "_keep_at", 1 << 40)  # not again: the rest is read
    agent.records(50, 5)
    rig.until(lambda: rig.hub._collector.counters.records == 106, "the rest")
    before, unpacked, real = known(rig), [], writer.unpack_chunk
    monkeypatch.setattr(writer, "unpack_chunk", lambda chunk: unpacked.append(1) or real(chunk))
    rig.kill_hub()
    assert len(unpacked) <= num_chunks(session) - 2  # the first records' are not
    assert known(rig) == {**before, "restarts": 1}
    rig.kill_hub()
    assert known(rig)["restarts"] == 2
    viewer = Peer(rig, "view-1")
    assert viewer.ask("join")["ok"]
    names = [msgpack.unpackb(p) for k, p in viewer.data if k == b"D" + agent.proc.encode()]
    assert {"k": "name", "id": 1, "s": "forward"} in names


def test_what_was_sent_before_the_rank_heard_of_the_new_hub_is_not_taken(rig: Rig) -> None:
    """It is ahead of what this hub wants: taken, all between would count as lost, in the recording
    and for every reader of it. The agent goes back and sends it again."""
    agent, late = FakeAgent(rig, 0), FakeAgent(rig, 1)
    agent.records(0, 10)
    rig.until(lambda: rig.hub._collector.counters.records == 10, "records")
    rig.kill_hub()
    agent.records(15, 5)  # as it would have been sent to the one before
    late.records(7, 3)
    assert agent.hello().get("next", 0) == 10 and late.hello().get("next", 0) == 0
    rig.until(lambda: rig.hub._collector.counters.messages == 2, "both")
    assert rig.hub._collector.counters.records == 0
    agent.records(10, 5, wire.FRAME_OLDEST)
    agent.records(15, 5)
    late.records(3, 3, wire.FRAME_OLDEST)  # all that its ring still has
    late.records(6, 4)
    rig.until(lambda: rig.hub._collector.counters.records == 17, "all")
    agent.records(25, 1)  # from here on what is missing is lost
    rig.until(lambda: rig.hub._collector.counters.records == 18, "the last")
    rig.finish()
    gaps = [m for m in recorded(rig, b"C") if m["event"] == "gap"]
    assert {gap["proc"]: gap["num"] for gap in gaps} == {agent.proc: 5, late.proc: 3}
    assert coverage(list(whole_messages(Path(rig.config.session)))) == {
        agent.proc: [(0, 20), (25, 26)], late.proc: [(3, 10)],
    }  # fmt: skip


def test_the_ring_of_an_ended_process_goes_after_the_file_has_what_was_in_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub that is killed at any moment: its file has the records, or the ring."""
    child = subprocess.Popen(["true"])
    child.wait()
    proc, rings = f"0.n0.{child.pid}", Path(rig.config.ring_dir)
    dead_ring(rings, proc, 10, child.pid)
    removed, real = [], removal.remove_ring
    monkeypatch.setattr(
        "pardbg.hub.ranks.rings.remove_ring",
        lambda *args: (
            removed.append(coverage(list(whole_messages(Path(rig.config.session))))) or real(*args)
        ),
    )
    rig.until(lambda: removed, "its ring removed")
    assert removed == [{proc: [(0, 10)]}]
    rig.finish()


@pytest.mark.parametrize("state", ["of another file", "beyond the file", "cut", "none"])
def test_a_state_that_is_not_of_this_file_is_not_believed(tmp_path: Path, state: str) -> None:
    session = tmp_path / "s.mcap"
    session.write_bytes(bytes(100))
    value = {"file": "s.mcap", "at": 100, "index": b"", "messages": [[b"D", b"x"]]}
    value |= {"of another file": {"file": "t.mcap"}, "beyond the file": {"at": 101}}.get(state, {})
    raw = msgpack.packb(value)[: -1 if state == "cut" else None]
    if state != "none":
        (tmp_path / files.STATE_FILE).write_bytes(raw)
    assert read_state(tmp_path, session) == (NOTHING_KNOWN, [])
    (tmp_path / files.STATE_FILE).write_bytes(msgpack.packb({**value, "file": "s.mcap", "at": 100}))
    assert read_state(tmp_path, session) == (Known(100, b""), [(b"D", b"x")])
