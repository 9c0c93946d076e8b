"""A whole hub in this process: recorded, published, served late, controlled."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from pardbg.analysis.answers.report import report
from pardbg.events.control_codes import Why
from pardbg.hub.ranks.processes import start_time
from pardbg.hub.run import config as files
from pardbg.hub.serve.hub import Hub
from pardbg.hub.serve.sockets import begin_to_listen, listen, make_keys
from pardbg.session.reader import load
from pardbg_agent import wire
from pardbg_agent.wire import Gate
from tests.harness import whole_messages
from tests.unit.hub.hub_rig import (
    FakeAgent,
    Keyed,
    Peer,
    Rig,
    dead_ring,
    event_names,
    frame,
    make_config,
    recorded,
    tcp_port,
)


def drain(sub: zmq.Socket[bytes]) -> list[tuple[bytes, bytes]]:
    out = []
    try:
        while True:
            key, payload = sub.recv_multipart(zmq.NOBLOCK)
            out.append((key, payload))
    except zmq.Again:
        return out


def test_what_agents_send_is_recorded_and_published_as_it_came(rig: Rig) -> None:
    sub = rig.socket(zmq.SUB, rig.config.pub)
    got: list[tuple[bytes, bytes]] = []
    rig.until(lambda: got.extend(drain(sub)) or got, "the state a subscription brings")
    agent = FakeAgent(rig, 0)
    agent.define("name", id=1, s="forward")
    agent.records(0, 3)
    key = b"R" + agent.proc.encode()
    rig.until(lambda: got.extend(drain(sub)) or (key, frame(0, 3)) in got, "the records")
    rig.finish()
    kept = [m.payload for m in whole_messages(Path(rig.config.session)) if m.key == key]
    assert kept == [frame(0, 3)]


def test_malformed_frames_are_counted_and_dropped(rig: Rig) -> None:
    push = rig.socket(zmq.PUSH, rig.config.data)
    bad: list[list[bytes]] = [
        [b"R0.n0.1"],
        [b"R0.n0.1", b"", b""],
        [b"X0.n0.1", b"x"],
        [b"O", b"\x80"],  # only the hub says output
        [b"S", b"\x80"],
        [b"R../../etc.1.1", frame(0, 1)],
        [b"R0.n0.1", b"short"],
        [b"R0.n0.1", frame(0, 2)[:-1]],
    ]
    for frames in bad:
        push.send_multipart(frames)
    rig.until(lambda: rig.hub._collector.counters.messages == len(bad), "all of them")
    assert rig.hub._collector.counters.malformed == len(bad)
    viewer = Peer(rig, "view-1")
    viewer.socket.send(b"\xc1")
    viewer.socket.send_multipart([b"a", b"b"])
    viewer.send("command")
    viewer.send("no such")
    assert viewer.command("status")["data"]["malformed"] == len(bad) + 4


def test_a_late_viewer_gets_all_definitions_and_the_recent_past(rig: Rig) -> None:
    agent = FakeAgent(rig, 0)
    agent.hello()
    agent.define("name", id=1, s="forward")
    agent.records(0, 5)
    rig.until(lambda: rig.hub._collector.counters.records == 5, "records")
    viewer = Peer(rig, "view-late")
    ack = viewer.ask("join")
    assert ack["ok"] and ack["data"]["hub"]
    keys = [key for key, _ in viewer.data]
    proc = agent.proc.encode()
    assert keys[0] == b"D" and b"D" + proc in keys
    assert keys.index(b"D" + proc) < keys.index(b"R" + proc)


def test_history_is_kept_as_it_is_recorded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed, so a tenth as large as it came; a late viewer gets the same messages, in order. As
    much of it is kept after an hour as after a minute."""
    monkeypatch.setattr(rig.hub._recent, "limit_bytes", 1 << 20)
    recent, sent = rig.hub._recent, []

    def held() -> int:
        packed = sum(len(stored.chunk.data) for stored, _ in recent._chunks)
        return packed + sum(len(payload) for _, payload in recent._open)

    sizes = []
    for number in range(400):
        sent.append((b"R0.n0.1", frame(100 * number, 100)))
        rig.hub._collector.accept(*sent[-1])
        if number % 10 == 9:
            rig.hub._collector.flush(None)
            sizes.append(held())
    assert max(sizes[20:]) <= 1.2 * sizes[19] < recent.num_bytes / 5
    rig.hub._collector.accept(*sent[-1])  # in no chunk yet
    viewer = Peer(rig, "view-late")
    assert viewer.ask("join")["ok"]
    got = [message for message in viewer.data if message[0] == b"R0.n0.1"]
    assert got == [*sent, sent[-1]][-len(got) :] and len(got) * 6400 > 900_000


def test_history_is_there_though_nothing_is_recorded_any_more(rig: Rig) -> None:
    for number in range(10):
        rig.hub._collector.accept(b"R0.n0.1", frame(10 * number, 10))
        if number == 4:
            rig.hub._collector.flush(None)
        if number == 7:
            rig.hub._collector.stop_recording(OSError(28, "No space left on device"))
    viewer = Peer(rig, "view-late")
    assert viewer.ask("join")["ok"]
    got = [payload for key, payload in viewer.data if key == b"R0.n0.1"]
    assert got == [frame(10 * number, 10) for number in range(10)]


def test_a_long_history_does_not_stop_the_hub(rig: Rig) -> None:
    """More messages than a socket queues: the hub goes on answering others meanwhile."""
    for i in range(5000):
        rig.hub._collector.accept(b"R0.n0.1", frame(i, 1))
    slow, other = Peer(rig, "view-slow"), Peer(rig, "view-other")
    number = slow.request("join")
    assert other.command("status")["ok"]
    slow.wait("reply", number)
    assert sum(key.startswith(b"R") for key, _ in slow.data) == 5000


def test_pause_step_continue_with_one_agent(rig: Rig) -> None:
    agent, viewer = FakeAgent(rig, 0), Peer(rig, "view-1")
    agent.hello()
    pause = viewer.request("command", verb="pause")
    agent.obey(int(Gate.COLLECTIVE), "all_reduce dp #7")
    ack = viewer.wait("reply", pause)
    assert ack["ok"] and ack["data"]["held"] == {0: "all_reduce dp #7"}
    agent.messages.clear()
    step = viewer.request("command", verb="step", ranks="0")
    agent.obey(int(Gate.OPTIMIZER), "optimizer")
    assert viewer.wait("reply", step)["data"]["held"] == {0: "optimizer"}
    go = viewer.request("command", verb="continue")
    agent.state(agent.wait("run")["id"], 0)
    assert viewer.wait("reply", go)["data"]["mode"] == "running"
    rig.finish()
    assert event_names(rig)[:6] == ["pause", "cut", "step", "cut", "continue", "running"]


def test_a_viewer_that_cannot_be_reached_has_left(rig: Rig) -> None:
    agent, viewer = FakeAgent(rig, 0), Peer(rig, "view-1")
    agent.hello()
    pause = viewer.request("command", verb="pause")
    agent.obey()
    assert viewer.wait("reply", pause)["ok"]
    viewer.socket.close()
    agent.wait("run")
    assert rig.hub._machine.control.lease.holder is None


def test_leave_lets_go_at_once(rig: Rig) -> None:
    agent, viewer = FakeAgent(rig, 0), Peer(rig, "view-1")
    agent.hello()
    pause = viewer.request("command", verb="pause")
    agent.obey()
    assert viewer.wait("reply", pause)["ok"]
    viewer.send("leave")
    agent.wait("run")


def test_a_second_viewer_looks_until_it_takes_over(rig: Rig) -> None:
    agent, first, second = FakeAgent(rig, 0), Peer(rig, "view-1"), Peer(rig, "view-2")
    agent.hello()
    pause = first.request("command", verb="pause")
    agent.obey()
    assert first.wait("reply", pause)["ok"]
    assert second.command("continue")["why"] is Why.TAKEN
    assert second.command("status")["data"]["controller"] == "view-1"
    assert second.ask("take")["ok"]
    assert first.command("continue")["why"] is Why.TAKEN


@pytest.mark.parametrize(
    ("verb", "why"),
    [("pause", Why.NO_RANK_YET), ("dance", Why.MALFORMED), ("kill", Why.UNCONFIRMED)],
)
def test_refused_in_one_line(rig: Rig, verb: str, why: Why) -> None:
    answer = Peer(rig, "view-1").command(verb)
    assert answer["why"] is why and "\n" not in answer["error"]


def test_an_unknown_rank_set_is_refused(rig: Rig) -> None:
    agent, viewer = FakeAgent(rig, 0), Peer(rig, "view-1")
    agent.hello()
    assert viewer.command("ranks", "7")["why"] is Why.INVALID
    assert viewer.command("pause", "some")["why"] is Why.INVALID


def test_where_merges_what_the_agents_answer(rig: Rig) -> None:
    agents = [FakeAgent(rig, rank) for rank in (0, 1)]
    viewer = Peer(rig, "view-1")
    for agent in agents:
        agent.hello()
    number = viewer.request("command", verb="where")
    frames = [["train.py", 88, "step"]]
    for agent in agents:
        asked = agent.wait("where")
        threads = [{"thread": "MainThread", "main": True, "frames": frames}]
        agent.send("stacks", re=asked["id"], threads=threads)
    data = viewer.wait("reply", number)["data"]
    assert data["tree"] == [{"ranks": [0, 1], "frames": frames}]


def test_clocks_are_the_same_on_this_boot_and_estimated_elsewhere(rig: Rig) -> None:
    here, there = FakeAgent(rig, 0), FakeAgent(rig, 1, host="n1", boot="another boot")
    here.hello()
    there.hello()
    ping = there.wait("ping")
    there.send("pong", re=ping["id"], t_ns=ping["t_ns"] - 5_000_000_000)

    def clocks() -> dict[str, dict[str, Any]]:
        maps = [msgpack.unpackb(p) for k, p in rig.hub._definitions.messages() if k == b"D"]
        return {m["proc"]: m for m in maps if m["k"] == "clock"}

    rig.until(lambda: len(clocks()) == 2, "two clocks")
    assert (clocks()[here.proc]["offset_ns"], clocks()[here.proc]["error_ns"]) == (0, 0)
    found = clocks()[there.proc]
    assert abs(found["offset_ns"] - 5_000_000_000) <= found["error_ns"] < 1_000_000_000


def test_a_dead_process_is_salvaged_and_its_files_go(rig: Rig) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    proc = f"0.n0.{child.pid}"
    ring_dir = Path(rig.config.ring_dir)
    dead_ring(ring_dir, proc, 10, child.pid)
    push = rig.socket(zmq.PUSH, rig.config.data)
    push.send_multipart((b"R" + proc.encode(), frame(0, 4)))
    rig.until(lambda: rig.hub._collector.counters.records >= 4, "what it had sent")
    rig.until(lambda: proc in rig.hub._agents.ended, "its end")
    rig.finish()
    assert not ring_dir.exists()
    batches = [m.payload for m in whole_messages(Path(rig.config.session)) if m.key[:1] == b"R"]
    assert [int.from_bytes(b[8:16], "little") for b in batches] == [0, 4]  # FRAME's first
    ends = [d for d in recorded(rig, b"D") if d["k"] == "end"]
    assert (ends[0]["proc"], ends[0]["reason"], ends[0]["last_index"]) == (proc, "killed", 9)
    assert (ends[1]["proc"], ends[1]["code"]) == (None, 0)


def test_output_is_recorded_with_its_rank(rig: Rig) -> None:
    (rig.config.dir / files.OUT_FILE).write_text("[default1]:loss 2\nplain")
    (rig.config.dir / files.ERR_FILE).write_text("[rank0]: oops\n")
    rig.finish(code=3)
    lines = [(o["stream"], o["rank"], o["text"]) for o in recorded(rig, b"O")]
    assert [line for line in lines if line[0] == "stderr"] == [("stderr", 0, "oops")]
    assert [line[1:] for line in lines if line[0] == "stdout"] == [(1, "loss 2"), (None, "plain")]


def test_a_killed_hubs_successor_goes_on_in_the_same_file(rig: Rig) -> None:
    """Killed: the mcap file has no end. The next hub keeps what is whole, knows how far each
    process had come, reads the output on where it stopped, and uses no number twice."""
    (rig.config.dir / files.OUT_FILE).write_text("one\n")
    agent = FakeAgent(rig, 0)
    agent.hello()
    agent.records(0, 8)
    rig.until(lambda: rig.hub._collector.counters.records == 8, "records")
    rig.until(lambda: recorded(rig, b"O"), "the output in the file")
    last = rig.hub._collector.number
    rig.kill_hub()
    with (rig.config.dir / files.OUT_FILE).open("a") as file:
        file.write("two\n")
    agent.messages.clear()
    assert agent.hello()["next"] == 8
    agent.records(10, 2, wire.FRAME_OLDEST)
    rig.until(lambda: rig.hub._collector.counters.records == 2, "new records")
    rig.finish()
    control = recorded(rig, b"C")
    assert [event["event"] for event in control] == ["hub_restart", "gap"]
    assert (control[1]["rank"], control[1]["num"]) == (0, 2)
    assert [line["text"] for line in recorded(rig, b"O")] == ["one", "two"]
    assert all(event["n"] > last for event in control)


def test_a_full_disk_ends_the_recording_and_not_the_run(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    assert rig.hub._collector.writer is not None
    monkeypatch.setattr(rig.hub._collector.writer, "write", full)
    viewer = Peer(rig, "view-1")
    rig.until(lambda: rig.hub._collector.writer is None, "the writer given up")
    status = viewer.command("status")["data"]
    assert status["recording"] == "recording stopped: No space left on device"


def test_a_session_that_cannot_be_written_is_said(run_dir: Path) -> None:
    rig = Rig(run_dir, session=str(run_dir / "no" / "such" / "s.mcap"))
    status = Peer(rig, "view-1").command("status")["data"]
    assert "No such file or directory" in status["recording"]
    rig.close()


def test_a_socket_that_cannot_be_bound_is_one_line(run_dir: Path) -> None:
    config = make_config(run_dir, data="ipc:///no/such/dir/data")
    hub = Hub(config)
    with pytest.raises(files.ConfigError, match="cannot listen on ipc:///no/such/dir/data"):
        hub.open()


def test_a_port_that_is_taken_is_told_with_what_to_do(run_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        endpoint = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        told = pytest.raises(files.ConfigError, match=r"is another hub .*--node-rank.* port")
        with zmq.Context() as context, context.socket(zmq.PULL) as ours, told:
            listen(ours, endpoint)


def test_a_hub_that_died_before_it_wrote_anything(run_dir: Path) -> None:
    """It listened, so the job runs; the next one records, and says that one was lost."""
    config = make_config(run_dir)
    Path(config.session).touch()
    begin_to_listen(config).sockets.close()
    rig = Rig(run_dir)
    rig.finish()
    kinds = {finding.kind for finding in report(load(Path(config.session))).findings}
    assert "recorder-lost" in kinds


def test_over_tcp_each_key_may_what_it_may(run_dir: Path) -> None:
    """A viewer's key joins and asks; commands want the control key; a stranger gets nothing."""
    keys = make_keys()
    files.write_json(run_dir / files.KEYS_FILE, keys)
    rig = Rig(run_dir, ctrl=f"tcp://127.0.0.1:{tcp_port()}")

    viewer, control = Keyed(rig, "view-1", keys, "viewer"), Keyed(rig, "view-2", keys, "control")
    stranger = Peer(rig, "view-3")
    stranger.send("join", id=1)
    assert viewer.ask("join")["ok"]
    assert viewer.command("status")["ok"]
    not_allowed = viewer.command("pause")["error"]
    assert not_allowed and control.command("pause")["error"] not in ("", not_allowed)
    stranger.take()
    assert stranger.messages == []
    assert "view-3" not in rig.hub._router.viewers
    rig.close()


def test_the_hubs_files_are_there_when_it_listens(rig: Rig) -> None:
    found = files.read_json(rig.config.dir / files.HUB_FILE)
    assert found == {
        "pid": os.getpid(), "start": start_time(os.getpid()), "hub": rig.hub.id,
    }  # fmt: skip
