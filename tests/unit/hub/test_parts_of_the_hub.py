"""The hub's parts without sockets: output lines, clocks, history, rings, stacks, messages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest

from pardbg.events.commands import WhereFound
from pardbg.events.decode import Malformed
from pardbg.hub.backlog import Definitions, Recent
from pardbg.hub.ctrl_messages import unpack
from pardbg.hub.ranks.processes import start_time
from pardbg.hub.ranks.rings import Rings
from pardbg.hub.ranks.stack_requests import WAIT_NS, StackRequests, merge
from pardbg.hub.removal import mark, remove_rings, remove_run
from pardbg.hub.run import config as files
from pardbg.hub.run.config import ConfigError
from pardbg.hub.run.launcher import ended, job_env
from pardbg.hub.run.runs import Run, RunError, find_run
from pardbg.hub.serve.collector import Heads
from pardbg.hub.serve.job_output import MAX_LINE, MAX_LINES, PARTIAL_NS, Tail, split_rank
from pardbg.hub.serve.sockets import check_endpoints, make_keys
from pardbg_agent import wire
from pardbg_agent.ctrl.agent_messages import FromAgent, Stacks, State, Thread
from pardbg_agent.ctrl.codec import decode, reader
from pardbg_agent.wire import NOTE_LEAVING, Kind, Lane
from tests.processes import wait_until
from tests.unit.hub.hub_rig import dead_ring, make_config

S = 1_000_000_000


def texts(tail: Tail, now: int = 0, final: bool = False) -> list[str]:
    return [line.text for line in tail.read(now, final=final)]


def test_output_comes_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "job.out"
    tail = Tail(path, "stdout")
    assert texts(tail) == []  # not there yet
    path.write_bytes(b"one\ntwo\r\nthr")
    assert texts(tail, 0) == ["one", "two"]
    assert not tail.at_end
    with path.open("ab") as file:
        file.write(b"ee\n")
    assert texts(tail, 1) == ["three"]
    assert tail.at_end
    tail.close()


def test_a_line_without_an_end_is_shown_after_a_while(tmp_path: Path) -> None:
    path = tmp_path / "job.out"
    path.write_bytes(b"loading 50%")
    tail = Tail(path, "stdout")
    assert texts(tail, 0) == []
    assert texts(tail, PARTIAL_NS) == ["loading 50%"]
    with path.open("ab") as file:
        file.write(b"\rloading 100%\nend")
    assert texts(tail, PARTIAL_NS + 1) == ["", "loading 100%"]
    assert texts(tail, PARTIAL_NS + 2, final=True) == ["end"]
    tail.close()


def test_a_line_without_limits_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "job.out"
    path.write_bytes(b"x" * (2 * MAX_LINE + 5) + b"\n")
    tail = Tail(path, "stdout")
    assert [len(text) for text in texts(tail)] == [MAX_LINE, MAX_LINE, 5]
    assert tail.at_end
    tail.close()


def test_of_a_flood_the_newest_lines_are_read_and_the_rest_is_counted(tmp_path: Path) -> None:
    """20 MB of 2-byte lines, written before anybody looks: bounded in bytes and in lines."""
    path = tmp_path / "job.out"
    path.write_bytes(b"y\n" * 10_000_000 + b"end\n")
    tail = Tail(path, "stdout")
    first, *lines = tail.read(0)
    assert len(lines) == MAX_LINES and lines[-1].text == "end" and tail.at_end
    assert tail.num_lost == 20_000_004 - len(lines) * 2 - 2
    assert str(tail.num_lost) in first.text
    tail.close()


def test_reading_goes_on_at_the_offset_of_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "job.out"
    path.write_bytes(b"one\ntwo\n")
    tail = Tail(path, "stdout")
    first = tail.read(0)[0]
    tail.close()
    again = Tail(path, "stdout", first.offset)
    assert texts(again) == ["two"]
    again.close()


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("[rank2]: Traceback", ("Traceback", 2)),
        ("[default0]:loss 2.5", ("loss 2.5", 0)),
        ("[rank1] loss", ("loss", 1)),
        ("[rank]: x", ("[rank]: x", None)),
        ("loss 2.5", ("loss 2.5", None)),
    ],
)
def test_the_rank_in_front_of_a_line(text: str, want: tuple[str, int | None]) -> None:
    assert split_rank(text) == want


def test_gaps_are_between_what_was_there_and_what_came_next() -> None:
    heads = Heads()
    heads.saw(b"a", 0, 10)
    heads.saw(b"a", 5, 10)  # overlap
    assert heads.gaps == {}
    heads.saw(b"a", 20, 5)
    assert heads.gaps == {"a": 5}


def define(defs: Definitions, process: str, **fields: Any) -> None:
    defs.add(b"D" + process.encode(), msgpack.packb(fields))


def test_definitions_are_kept_once() -> None:
    defs = Definitions()
    for _ in range(3):
        define(defs, "0.n0.1", k="name", id=1, s="forward")
        define(defs, "0.n0.1", k="process", proc="0.n0.1", rank=3)
    define(defs, "0.n0.1", k="group", id=1, key="g", name="dp", axis="dp", ranks=[0, 1])
    assert len(defs.messages()) == 3
    assert defs.process("0.n0.1").rank == 3
    assert defs.process("0.n0.1").names == {1: "forward"}
    assert defs.groups == {"g": (0, 1)}
    assert defs.axes == {"dp": {"g": (0, 1)}}


def test_a_launcher_is_no_rank_until_it_acts_as_one() -> None:
    """RANK is in its environment; what it starts names it."""
    defs, above, below = Definitions(), "0.n0.1", "0.n0.2"
    define(defs, above, k="process", proc=above, rank=0)
    define(defs, above, k="name", id=1, s="start-up")
    define(defs, below, k="process", proc=below, rank=-1, within=[above])
    assert defs.process(above).rank == 0  # a loader's worker that watches itself is no rank
    define(defs, below, k="process", proc=below, rank=1, within=[above])
    assert (defs.process(above).rank, defs.process(below).rank) == (-1, 1)
    define(defs, above, k="group", id=1, key="g", ranks=[0, 1])
    assert defs.process(above).rank == 0
    define(defs, below, k="process", proc=below, rank=1, within=[above])
    assert defs.process(above).rank == 0


def test_of_a_rank_and_the_one_that_it_forked_the_stack_of_the_child_is_asked() -> None:
    """Rank 0 has had a group before it forked the child that is rank 0 now, and waits for it."""
    defs, above, below, other = Definitions(), "0.n0.1", "0.n0.2", "0.n0.3"
    define(defs, above, k="process", proc=above, rank=0)
    define(defs, above, k="group", id=1, key="g", ranks=[0, 1])
    define(defs, below, k="process", proc=below, rank=0, within=[above])
    define(defs, other, k="process", proc=other, rank=1, within=[above])
    living = {above: 0, below: 0, other: 1, "0.n0.4": 2}
    assert defs.innermost(living, living) == [below, other, "0.n0.4"]
    del living[below]  # it has ended: the rank goes on itself
    assert defs.innermost(living, living) == [above, other, "0.n0.4"]


def test_a_process_says_that_it_leaves() -> None:
    defs = Definitions()
    define(defs, "0.n0.1", k="note", key="recipe", value="ddp")
    assert not defs.process("0.n0.1").leaving
    define(defs, "0.n0.1", k="note", key=NOTE_LEAVING, value="0.n0.1")
    assert defs.process("0.n0.1").leaving


def test_a_definition_that_was_replaced_is_not_sent_again() -> None:
    """A group gets its axis, a rank its number, after they were first defined: the file of a dead
    process has both versions, and only what never arrived is missing."""
    fields = {"k": "group", "id": 1, "key": "g", "ranks": [0, 1]}
    group = [msgpack.packb({**fields, "name": n, "axis": a}) for n, a in (("x", None), ("x", "dp"))]
    process = [msgpack.packb({"k": "process", "proc": "0.n0.1", "rank": r}) for r in (-1, 0)]
    name = msgpack.packb({"k": "name", "id": 1, "s": "forward"})
    defs = Definitions()
    for payload in (*process, *group):
        defs.add(b"D0.n0.1", payload)
    assert defs.missing("0.n0.1", [*process, *group, name, b"\xc1"]) == [name]
    assert Definitions().missing("0.n0.1", [*process, *group]) == [process[1], group[1]]


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", msgpack.packb([1]), msgpack.packb({"k": "name", "id": "x", "s": "y"}),
     msgpack.packb({"k": "group", "key": "g"}), msgpack.packb({"k": "name", "id": []})],
)  # fmt: skip
def test_a_definition_without_sense_is_counted(payload: bytes) -> None:
    defs = Definitions()
    assert defs.add(b"D0.n0.1", payload) is None
    assert defs.malformed == 1


def test_recent_history_is_bounded() -> None:
    recent = Recent(limit_bytes=1000)
    for i in range(20):
        recent.add(b"Rx", bytes(80))
        recent.add(b"S", b"%d" % i)
    kept = list(recent.messages())
    assert len(kept) == 5 + 1  # 200 bytes each with overhead, and the newest state
    assert kept[-1] == (b"S", b"19")


def test_what_a_dead_process_had_not_sent_is_read_from_its_ring(tmp_path: Path) -> None:
    """100 records written, 40 of them received: 60 are left."""
    child = subprocess.Popen(["true"])
    child.wait()
    dead_ring(tmp_path, "0.n0.7", 100, child.pid, rank=3)
    rings = Rings(tmp_path, Definitions())
    assert rings.scan() == ["0.n0.7"]
    assert rings.died(now=10**18) == ["0.n0.7"]
    assert rings.died(now=10**18) == []
    rescued = rings.rescue("0.n0.7", 40)
    assert [(first, len(raw) // 64) for first, raw in rescued.batches] == [(40, 60)]
    assert rescued.last_index == 99
    rings.forget("0.n0.7")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("told", "level", "size", "expected"),
    [(False, 2, 640, [(101, 640, 320)]),  # it died in the call into the backend
     (True, 2, 640, []), (False, 1, 640, []), (False, 2, 0, [])],
)  # fmt: skip
def test_an_op_in_whose_call_a_process_died_is_told(
    tmp_path: Path, told: bool, level: int, size: int, expected: list[tuple[int, int, int]]
) -> None:
    """Ops are recorded after their call; the status block knows of the one before."""
    child = subprocess.Popen(["true"])
    child.wait()
    ring = dead_ring(tmp_path, "0.n0.7", 100, child.pid)
    ring.record(Kind.PHASE, Lane.PHASE, 0, 0, 500, 501, 7, 0, 0xFFFF, -1, -1, -1, 0, 0)
    if told:
        ring.record(Kind.OP_ISSUE, Lane.COMM, 0, 9, 600, 610, 7, 41, 2, -1, -1, -1, 640, 320)
    ring.status.op(9, 41, 2, -1, 0, 600, 1, size, size // 2)
    ring.status.now(7, 0, 0, -1, -1, 0)
    ring.status.health(0, 0, 0, 0, level, 0)
    rings = Rings(tmp_path, Definitions())
    rings.scan()
    rescued = rings.rescue("0.n0.7", 101 + told)
    added = [(first, wire.RECORD.unpack(raw)) for first, raw in rescued.batches]
    assert [(first, one[12], one[13]) for first, one in added] == expected
    assert rescued.last_index == 100 + told + len(expected)
    for _, one in added:
        assert one[:10] == (Kind.OP_ISSUE, Lane.COMM, 0, 9, 600, 600, 7, 41, 2, -1)
    rings.close(remove=False)


@pytest.mark.parametrize("newest_told", [True, False])
def test_the_op_issued_last_is_told_where_a_device_runs_behind(
    tmp_path: Path, newest_told: bool
) -> None:
    """The oldest open op, #41, is recorded; the process died in the call of #69."""
    child = subprocess.Popen(["true"])
    child.wait()
    ring = dead_ring(tmp_path, "0.n0.7", 100, child.pid)
    for seq, told in ((41, True), (69, newest_told)):
        if told:
            ring.record(Kind.OP_ISSUE, Lane.COMM, 0, 9, 600 + seq, 700, 7, seq, 2, -1, -1, -1, 8, 8)
    ring.status.op(9, 41, 2, -1, 0, 641, 29, 8, 8)
    ring.status.newest_op(9, 69, 2, -1, 0, 669, 29, 640, 320)
    ring.status.health(0, 0, 0, 0, 2, 0)
    rings = Rings(tmp_path, Definitions())
    rings.scan()
    told_before = 101 + newest_told
    rescued = rings.rescue("0.n0.7", told_before)
    added = [wire.RECORD.unpack(raw) for _, raw in rescued.batches]
    expected = [] if newest_told else [(Kind.OP_ISSUE, 669, 69, 640, 320)]
    assert [(one[0], one[4], one[7], one[12], one[13]) for one in added] == expected
    assert rescued.last_index == told_before + len(expected) - 1
    rings.close(remove=False)


def test_a_living_process_is_not_dead(tmp_path: Path) -> None:
    dead_ring(tmp_path, "0.n0.7", 1, os.getpid())
    mark(tmp_path, "r")
    rings = Rings(tmp_path, Definitions(), "r")
    rings.scan()
    assert rings.died(now=10**18) == []
    row = rings.rows(0)["0.n0.7"]
    assert (row["rank"], row["alive"], row["held"]) == (0, True, 0)
    rings.close(remove=True)
    assert not tmp_path.exists()


_WITHOUT_MAIN = """
import ctypes, sys, threading
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_without_its_main_thread_lives_until_the_last_one_ends(tmp_path: Path) -> None:
    """/proc says that it is a zombie meanwhile."""
    child = subprocess.Popen([sys.executable, "-c", _WITHOUT_MAIN], stdin=subprocess.PIPE)
    assert child.stdin is not None
    dead_ring(tmp_path, "0.n0.7", 1, child.pid)
    rings = Rings(tmp_path, Definitions())
    rings.scan()
    wait_until(lambda: start_time(child.pid) == "", 20, "the main thread's end")
    assert rings.died(now=10**18) == []
    child.stdin.close()
    child.wait(20)
    assert rings.died(now=10**18) == ["0.n0.7"]
    rings.close(remove=True)


def test_a_file_that_is_no_ring_is_said(tmp_path: Path) -> None:
    (tmp_path / "0.n0.9.ring").write_bytes(bytes(8192))
    rings = Rings(tmp_path, Definitions())
    assert rings.scan() == []
    assert rings.unreadable == {"0.n0.9": "not a pardbg ring"}


def test_a_process_is_its_pid_and_its_start() -> None:
    assert start_time(os.getpid()).isdigit()
    assert start_time(2**22 + 1) == ""


OPEN = {"group": "g", "op": "send", "seq": 0, "peer": 3, "send": True, "tag": 9, "order": 1,
        "since_ns": 55}  # fmt: skip
STATE = {"serial": 1, "reply_to": 7, "rank": 2, "held": 4, "next": "x", "step": 3, "open": [OPEN],
         "issued": {"g": 2}, "p2p": [[["g", 3, 9, True], 2]], "done": ["0F0"],
         "plan": ["0F0", "0B0"]}  # fmt: skip


def test_a_state_as_a_value() -> None:
    state = decode(State, STATE)
    assert (state.rank, state.reply_to, state.held, state.step) == (2, 7, 4, 3)
    assert (state.open[0].peer, state.open[0].order, state.open[0].send) == (3, 1, True)
    assert state.p2p == {("g", 3, 9, True): 2}


@pytest.mark.parametrize("wrong", [{"serial": "x"}, {"open": [1]}, {"p2p": [[1]]}, {"issued": 3}])
def test_a_state_without_sense_is_malformed(wrong: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        decode(State, {**STATE, **wrong})


@pytest.mark.parametrize("raw", [b"", b"\xc1", msgpack.packb(3), bytes(5 << 20)])
def test_a_message_without_sense_is_malformed(raw: bytes) -> None:
    with pytest.raises(Malformed):
        unpack(raw, reader(FromAgent))


def threads(*functions: str) -> tuple[Thread, ...]:
    frames = tuple(("train.py", 1, name) for name in functions)
    return (Thread("MainThread", True, frames),)


def test_equal_stacks_are_merged() -> None:
    step, load = threads("main", "step"), threads("main", "load")
    tree = merge({0: step, 1: load, 3: step})
    assert [part.ranks for part in tree] == [(0, 3), (1,)]


def test_where_asks_the_agents_and_looks_from_outside_at_who_is_silent() -> None:
    answers: list[WhereFound] = []
    where = StackRequests(dump=lambda pid: threads("gil"))
    where.ask(1, {"p0": (0, 10), "p1": (1, 11)}, answers.append, now=0)
    where.answered("p0", Stacks(1, threads("step")))
    where.tick(WAIT_NS - 1)
    assert answers == []
    wait_until(lambda: where.tick(WAIT_NS) or answers, what="py-spy's answer")
    assert answers[0].source == {0: "agent", 1: "py-spy"}
    assert answers[0].stacks[1] == threads("gil")


def test_a_stack_that_came_out_empty_is_read_once_more() -> None:
    answers: list[WhereFound] = []
    looks = iter([(Thread("MainThread", True),), threads("train")])
    where = StackRequests(dump=lambda pid: next(looks))
    where.ask(1, {"p0": (0, 10)}, answers.append, now=0)
    wait_until(lambda: where.tick(WAIT_NS) or answers, what="the look from outside")
    assert answers[0].stacks == {0: threads("train")}


def test_where_says_why_a_rank_has_no_stack() -> None:
    def fails(pid: int) -> tuple[Thread, ...]:
        raise OSError("not installed")

    answers: list[WhereFound] = []
    where = StackRequests(dump=fails)
    where.ask(1, {"p0": (0, 10), "p1": (1, 11)}, answers.append, now=0)
    where.gone("p1")
    wait_until(lambda: where.tick(WAIT_NS) or answers, what="an answer")
    assert answers[0].source == {0: "no answer, and py-spy: not installed", 1: "ended meanwhile"}


def test_tcp_without_keys_is_refused(tmp_path: Path) -> None:
    for endpoint in ("tcp://127.0.0.1:5555", "tcp://*:5555"):
        with pytest.raises(ConfigError, match="TCP needs CURVE keys"):
            check_endpoints(make_config(tmp_path, ctrl=endpoint), None)
    with pytest.raises(ConfigError, match="only ipc:// and tcp://"):
        check_endpoints(make_config(tmp_path, pub="udp://x:1"), make_keys())
    check_endpoints(make_config(tmp_path, ctrl="tcp://127.0.0.1:5555"), make_keys())


def test_a_run_directory_is_private_and_reads_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    config = files.make(["job", "x"], name="a b/c", session=tmp_path / "s.mcap")
    try:
        assert config.dir.stat().st_mode & 0o777 == 0o700
        assert (config.dir / "run.json").stat().st_mode & 0o777 == 0o600
        assert Path(config.ring_dir).stat().st_mode & 0o777 == 0o700
        assert config.run.startswith("a-b-c-")
        assert files.load(config.dir) == config
    finally:
        assert remove_rings(config.ring_dir, config.run) and not config.ring_dir.exists()
        assert remove_run(config.dir) and not config.dir.exists()


def test_rings_lie_in_the_run_directory_where_shared_memory_is_full(
    small_tmpfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 2 MB, 1.25 are left, then half a one."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(files, "shm_root", lambda: small_tmpfs / "pardbg")
    for filled, inside in ((768, False), (1536, True)):
        (small_tmpfs / "fill").write_bytes(bytes(filled << 10))
        config = files.make(["job"], name="job", session=tmp_path / "s.mcap")
        assert (config.ring_dir.parent == config.dir) == inside and config.ring_dir.is_dir()


def test_a_directory_that_is_no_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run"):
        files.load(tmp_path)
    (tmp_path / "run.json").write_text('{"v": 99}')
    with pytest.raises(ConfigError, match="version 99"):
        files.load(tmp_path)


def test_a_jobs_environment_keeps_its_own_path(tmp_path: Path) -> None:
    env = job_env({"PYTHONPATH": "/mine"}, tmp_path)
    boot, *rest = env["PYTHONPATH"].split(os.pathsep)
    assert boot.endswith("pardbg_agent/boot")
    assert rest == ["/mine"]
    assert env["PARDBG"] == str(tmp_path)
    assert env["PARDBG_LINES"] == "1" and "PYTHONUNBUFFERED" not in env


@pytest.mark.parametrize(("code", "want"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", -9)])
def test_how_a_job_ended_can_still_be_asked_for(code: str, want: int) -> None:
    """Were the launcher killed before it has written that down, its guardian would need it."""
    job = subprocess.Popen([sys.executable, "-c", f"import os, sys; {code}"])
    wait_until(lambda: ended(job.pid) is not None, 20, "its end")
    assert ended(job.pid) == want
    assert job.wait(0) == want


def test_a_live_run_is_one_line_though_its_program_is_written_in_several() -> None:
    argv = ("python", "-c", "import sys\nfor _ in range(3):\n    pass")
    line = Run("r-1", "r", Path("/r"), argv, Path("/r/s.mcap"), 0, hub_alive=True).line()
    assert line.endswith("python -c import sys for _ in range(3): pass")


@pytest.mark.parametrize("order", [("1", "2", "3"), ("3", "2", "1"), ("2", "1", "3")])
def test_who_is_left_out_when_ranks_meet_again_has_no_number(order: tuple[str, ...]) -> None:
    """Of ranks 0 to 3 all but rank 1 meet again, in some order; then it does as well, as rank 3."""
    known = Definitions()
    world = {"1": (0, 0), "x": (1, -1), "2": (2, 1), "3": (3, 2)}

    def say(name: str, rank: int, **more: int | str) -> None:
        fields = {"k": "process", "rank": rank, "job": "j", **more}
        known.add(wire.Key.DEFINITION.value + f"0.h.{name}".encode(), msgpack.packb(fields))

    for name, (rank, _) in world.items():
        say(name, rank, epoch=0)
    for name in order:
        say(name, world[name][1], epoch=1, since=9)
    assert {name: known.process(f"0.h.{name}").rank for name in world} == {
        "1": 0, "x": -1, "2": 1, "3": 2
    }  # fmt: skip
    say("x", 1, epoch=0, level="full")  # said again
    assert known.process("0.h.x").rank == -1 and known.process("0.h.2").rank == 1
    say("x", 3, epoch=1, since=5)
    assert known.process("0.h.x").rank == 3


def test_a_file_that_is_no_live_run_is_sent_to_replay(tmp_path: Path) -> None:
    (file := tmp_path / "s.mcap").touch()
    with pytest.raises(RunError, match=f"pardbg replay {file}"):
        find_run(str(file))
