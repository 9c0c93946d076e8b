"""The agent's thread against a hub with real sockets: data, control, restarts, ends."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from pardbg_agent import wire
from pardbg_agent.control.evaluate import KINDS
from pardbg_agent.ctrl import agent_messages as m
from pardbg_agent.defs import read_file
from pardbg_agent.ring import RingReader
from pardbg_agent.wire import GATE_ALL, LEASE_NS, Gate
from tests.distributed.agent_hub import FakeHub
from tests.processes import MARK

PROGRAM = Path(__file__).with_name("agent_program.py")
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def hub(run_dir: Path) -> Iterator[FakeHub]:
    hub = FakeHub(run_dir)
    yield hub
    hub.close()


@pytest.fixture
def start(run_dir: Path) -> Iterator[Start]:
    """Starts the program as a rank of the run; all are ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(*argv: str, **env: str) -> subprocess.Popen[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PARDBG") or k == MARK}
        clean |= {"PARDBG": str(run_dir), "RANK": "0", "WORLD_SIZE": "1"}
        clean |= {"STOP_FILE": str(run_dir / "stop"), **env}
        root = str(PROGRAM.parents[2])
        clean["PYTHONPATH"] = os.pathsep.join([root, f"{root}/agent"])
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *argv], env=clean, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ended(hub: FakeHub, process: subprocess.Popen[str], code: int = 0) -> list[str]:
    """Its stdout lines, after it ended as expected without a word on stderr."""
    hub.until(lambda: process.poll() is not None, what="the end")
    out, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (code, "")
    hub.poll()
    return out.splitlines()


def values(hub: FakeHub, proc: str) -> list[int]:
    """Field ``a`` of a process's records, in order, after a check that none is missing."""
    rows = hub.records[proc]
    assert sorted(rows) == list(range(len(rows)))
    return [wire.RECORD.unpack(rows[n])[12] for n in range(len(rows))]


def ring_values(run_dir: Path, proc: str) -> list[int]:
    """The same from the process's ring, as the hub reads what a dead process had not sent."""
    reader = RingReader.open(str(run_dir / "rings" / f"{proc}.ring"))
    found: list[int] = []
    while (batch := reader.read(final=True)) is not None:
        found += [fields[12] for fields in wire.RECORD.iter_unpack(batch[1])]
    assert reader.lost == 0
    return found


def stop(hub: FakeHub) -> None:
    (hub.run_dir / "stop").touch()


def test_everything_arrives_and_the_process_says_bye(hub: FakeHub, start: Start) -> None:
    process = start("plain")
    proc = hub.wait_proc()
    ended(hub, process)
    hub.until(lambda: hub.of(proc, m.Bye), what="bye")
    assert len(values(hub, proc)) == 500
    hello = hub.of(proc, m.Hello)[0]
    said = hello["process"]
    assert (said["rank"], said["world_size"], said["proc"]) == (0, 1, proc)
    assert said["pid"] == process.pid
    assert Path(hello["ring"]).name == f"{proc}.ring"
    bye = hub.of(proc, m.Bye)[0]
    assert (bye["last_index"], bye["dropped"]) == (499, 0)
    kinds = [d["k"] for d in hub.defs[proc]]
    assert kinds[:2] == ["process", "name"]
    assert len(read_file(hello["defs"])) == len(kinds)


def test_names_come_before_the_records_that_use_them(hub: FakeHub, start: Start) -> None:
    ended(hub, start("plain"))
    assert b"R" in {key[:1] for key in hub.data_keys}
    first_record = next(n for n, key in enumerate(hub.data_keys) if key[:1] == b"R")
    # process, start-up, process with its rank and name; that the main thread ended comes before
    # them if one flush sends it all
    assert 2 <= first_record <= 5


def test_records_of_a_thread_that_outlives_the_main_thread(hub: FakeHub, start: Start) -> None:
    process = start("thread_at_end")
    proc = hub.wait_proc()
    ended(hub, process)
    hub.until(lambda: hub.of(proc, m.Bye))
    assert len(values(hub, proc)) == 101


def test_overwritten_records_are_counted(hub: FakeHub, start: Start) -> None:
    process = start("big", PARDBG_RING="1024")
    proc = hub.wait_proc()
    ended(hub, process)
    bye = hub.until(lambda: hub.of(proc, m.Bye))[0]
    assert bye["last_index"] == 199_999
    # Data and control come by two sockets: BYE may be here first.
    hub.until(lambda: len(hub.records[proc]) + bye["dropped"] == 200_000, what="all others")
    assert hub.dropped[proc] <= bye["dropped"]


def test_ping_where_and_level(hub: FakeHub, start: Start) -> None:
    process = start("paced")
    proc = hub.wait_proc()
    t0 = time.monotonic_ns()
    hub.send(proc, m.Ping, id=7, t_ns=t0)
    pong = hub.until(lambda: hub.of(proc, m.Pong))[0]
    assert pong["re"] == 7
    assert t0 <= pong["t_ns"] <= time.monotonic_ns()  # the same clock on this host
    hub.until(lambda: hub.records.get(proc), what="the program's first record")
    hub.send(proc, m.Where, id=8)
    ack = hub.until(lambda: hub.of(proc, m.Stacks))[0]
    assert ack["re"] == 8
    main = ack["threads"][0]
    assert main["thread"] == "MainThread"
    assert [frame[2] for frame in main["frames"]][:2] == ["<module>", "paced"]
    assert "pardbg" not in [stack["thread"] for stack in ack["threads"]]
    hub.send(proc, m.SetLevel, id=9, level=1)
    hub.until(lambda: hub.of(proc, m.Done))
    hub.until(lambda: any(d.get("level") == "summary" for d in hub.defs[proc]))
    stop(hub)
    ended(hub, process)


def test_malformed_control_messages_are_dropped(hub: FakeHub, start: Start) -> None:
    process = start("paced")
    proc = hub.wait_proc()
    for raw in (
        b"",
        b"\xc1",
        b"\x93\x01\x02\x03",
        b"\x81\xa1t\xa6permit",
        b"\x81\xa1t\x92\x01\x02",
    ):
        hub.send_raw(proc, raw)
    hub.send(proc, m.Permit, id="x", count="many", n=None)
    hub.send(proc, m.Ping, id=1)
    hub.until(lambda: hub.of(proc, m.Pong), what="still answers")
    stop(hub)
    ended(hub, process)


def test_hold_step_and_run(hub: FakeHub, start: Start) -> None:
    process = start("gates")
    proc = hub.wait_proc()
    hub.until(lambda: any(d["k"] == "op" for d in hub.defs.get(proc, [])), what="it runs")
    hub.send(proc, m.Permit, id=1, count=0, n=0, stop=int(Gate.ACTION), lease_ns=LEASE_NS)
    held = hub.state(proc, reply_to=1, held=int(Gate.ACTION))
    n = int(held["next"].removeprefix("0F"))
    assert held["plan"] == ["0F0", "0F1", "0F2", "0F3"]
    assert held["done"][-1] == f"0F{n - 1}"
    assert held["issued"] == {"dp": n}
    assert held["open"] == []
    # one gate at a time, whatever it is: the action, then its all_reduce
    permit = {"count": int(GATE_ALL), "n": 1, "stop": int(GATE_ALL), "lease_ns": LEASE_NS}
    hub.send(proc, m.Permit, id=2, **permit)
    at_op = hub.state(proc, reply_to=2, held=int(Gate.COLLECTIVE))
    assert at_op["next"] == f"all_reduce dp #{n}"
    assert at_op["done"][-1] == f"0F{n}"
    assert at_op["issued"] == {"dp": n}
    # the same once more, as when the answer was lost: told again, not moved again
    for _ in range(3):
        num_states = len(hub.of(proc, m.State))
        hub.send(proc, m.Permit, id=2, **permit)
        hub.until(lambda n=num_states: len(hub.of(proc, m.State)) > n)
    assert hub.of(proc, m.State)[-1]["next"] == at_op["next"]
    # held, but not started with --allow-eval: nobody runs anything here, whoever asks
    for number, kind in enumerate(KINDS, start=100):
        hub.send(proc, m.Ask, id=number, kind=kind, expr="c.pipeline.done.clear()", frame=0)
        answer = hub.until(
            lambda n=number: [a for a in hub.of(proc, m.Evaluated) if a["re"] == n]
        )[-1]  # fmt: skip
        refused = answer["refusal"] == "eval_off"
        assert refused is (kind not in ("list", "longlist")), answer
    assert hub.of(proc, m.State)[-1]["done"]
    hub.send(proc, m.Permit, id=3, **permit)
    after = hub.state(proc, reply_to=3, held=int(Gate.ACTION))
    assert after["next"] == f"0F{n + 1}"
    assert after["issued"] == {"dp": n + 1}
    hub.send(proc, m.Run, id=4)
    assert not hub.state(proc, reply_to=4, held=0)["closed"]
    hub.send(proc, m.Permit, id=3, **permit)  # late: it was sent before the RUN
    hub.until(lambda: hub.of(proc, m.State)[-1]["reply_to"] == 4)
    serials = [state["serial"] for state in hub.of(proc, m.State)]
    assert serials == sorted(set(serials))
    stop(hub)
    assert int(ended(hub, process)[-1]) > n + 1


def test_a_state_never_follows_a_permit_and_shows_the_old_hold(hub: FakeHub, start: Start) -> None:
    process = start("gates")
    proc = hub.wait_proc()
    permit = {"count": int(GATE_ALL), "n": 1, "stop": int(GATE_ALL), "lease_ns": LEASE_NS}
    hub.send(proc, m.Permit, id=0, **permit)
    order = []
    for n in range(40):
        hub.until(lambda n=n: any(s["reply_to"] == n and s["held"] for s in hub.of(proc, m.State)))
        order.append(
            next(s["next"] for s in hub.of(proc, m.State) if s["reply_to"] == n and s["held"])
        )
        hub.send(proc, m.Permit, id=n + 1, **permit)
    assert len(set(order)) == 40  # each hold is another gate
    hub.send(proc, m.Run, id=99)
    stop(hub)
    ended(hub, process)


def test_held_ranks_run_on_when_the_hub_dies(hub: FakeHub, start: Start) -> None:
    process = start("gates")
    proc = hub.wait_proc()
    hub.send(proc, m.Permit, id=1, count=0, n=0, stop=int(GATE_ALL), lease_ns=700_000_000)
    hub.until(lambda: any(s["held"] for s in hub.of(proc, m.State)))
    hub.close()
    stop(hub)
    _, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (0, "")


def test_renewed_leases_keep_it_held_and_a_lapse_is_said(hub: FakeHub, start: Start) -> None:
    process = start("gates")
    proc = hub.wait_proc()
    lease_ns = 1_000_000_000  # longer than a busy machine keeps a process waiting
    hub.send(proc, m.Permit, id=1, count=0, n=0, stop=int(GATE_ALL), lease_ns=lease_ns)
    held = hub.until(lambda: [s for s in hub.of(proc, m.State) if s["held"]])[-1]
    renewed = time.monotonic() + 2
    while time.monotonic() < renewed:
        hub.send(proc, m.Lease, lease_ns=lease_ns)
        hub.poll(50)
    states = hub.of(proc, m.State)
    assert (states[-1]["held"], states[-1]["next"]) == (held["held"], held["next"])
    assert not hub.state(proc, closed=False)["held"]
    stop(hub)
    ended(hub, process)


def test_a_new_hub_gets_all_definitions_and_what_the_old_one_may_have_lost(
    hub: FakeHub, start: Start, run_dir: Path
) -> None:
    process = start("paced")
    proc = hub.wait_proc()
    hub.until(lambda: len(hub.records.get(proc, {})) > 100)
    hub.close()
    second = FakeHub(run_dir, write_run=False)
    try:
        second.until(lambda: second.of(proc, m.Hello), what="hello to the new hub")
        second.until(lambda: len(second.records.get(proc, {})) > 200)
        stop(second)
        last = int(ended(second, process)[-1])
        second.until(lambda: second.of(proc, m.Bye))
        assert values(second, proc) == list(range(last))  # the ring had it all, from 0
        assert {"process", "name"} <= {d["k"] for d in second.defs[proc]}
        assert second.doubles == 0
    finally:
        second.close()


def test_a_new_hub_that_says_what_it_has_gets_the_rest(
    hub: FakeHub, start: Start, run_dir: Path
) -> None:
    process = start("paced")
    proc = hub.wait_proc()
    hub.until(lambda: len(hub.records.get(proc, {})) > 100)
    hub.close()
    second = FakeHub(run_dir, write_run=False)
    second.welcome = False
    try:
        second.until(lambda: second.of(proc, m.Hello))
        second.send(proc, m.Welcome, hub=second.hub_id, next=50)
        second.until(lambda: len(second.records.get(proc, {})) > 100)
        assert min(second.records[proc]) == 50
        stop(second)
        ended(second, process)
    finally:
        second.close()


@pytest.mark.parametrize("meanwhile", ["runs", "ends"])
def test_a_new_hub_that_comes_late_gets_nothing_before_it_has_spoken(
    hub: FakeHub, start: Start, run_dir: Path, meanwhile: str
) -> None:
    """Newer records first, and it counts those before them as lost."""
    process = start("paced")
    proc = hub.wait_proc()
    hub.until(lambda: len(hub.records.get(proc, {})) > 100)
    hub.close()
    second = FakeHub(run_dir, write_run=False)
    second.welcome = False
    try:
        second.until(lambda: len(second.of(proc, m.Hello)) >= 5, what="HELLO, again and again")
        if meanwhile == "ends":
            stop(second)
        began = time.monotonic()
        second.until(lambda: time.monotonic() - began > 0.3)
        assert proc not in second.records
        second.send(proc, m.Welcome, hub=second.hub_id, next=50)
        second.until(lambda: len(second.records.get(proc, {})) > 100)
        assert next(iter(second.records[proc])) == 50
        assert second.flags[proc][0] == wire.FRAME_OLDEST and not any(second.flags[proc][1:])
        stop(second)
        ended(second, process)
    finally:
        second.close()


def test_the_agent_finds_a_hub_that_comes_late(run_dir: Path, start: Start) -> None:
    early = FakeHub(run_dir)
    early.close()
    process = start("paced")
    time.sleep(0.3)  # it runs without a hub for a while: nothing to wait for
    assert process.poll() is None
    late = FakeHub(run_dir, write_run=False)
    try:
        proc = late.wait_proc()
        late.until(lambda: len(late.records.get(proc, {})) > 50)
        stop(late)
        last = int(ended(late, process)[-1])
        late.until(lambda: late.of(proc, m.Bye))
        assert values(late, proc) == list(range(last))
    finally:
        late.close()


def test_a_process_that_ends_before_its_second_connection_is_made_says_hello_and_bye(
    hub: FakeHub, run_dir: Path, start: Start
) -> None:
    run = json.loads((run_dir / "run.json").read_text())
    run["ctrl"] = f"ipc://{run_dir}/slow"
    (run_dir / "run.json").write_text(json.dumps(run))
    with slow_to_answer(run_dir / "slow", run_dir / "ctrl", delay_s=0.3):
        process = start("plain")
        ended(hub, process)
        proc = hub.wait_proc()
        hub.until(lambda: hub.of(proc, m.Bye))
        assert len(values(hub, proc)) == 500


@contextlib.contextmanager
def slow_to_answer(path: Path, behind: Path, delay_s: float) -> Iterator[None]:
    """A listener that passes one connection on to the other one, after a while."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def pass_on() -> None:
            near, far = listener.accept()[0], socket.socket(socket.AF_UNIX)
            time.sleep(delay_s)
            far.connect(str(behind))
            with near, far, contextlib.suppress(OSError):
                while ready := select.select([near, far], [], [], 10)[0]:
                    for side in ready:
                        data = side.recv(1 << 16)
                        if not data:
                            return
                        (far if side is near else near).sendall(data)

        thread = threading.Thread(target=pass_on)
        thread.start()
        yield
        thread.join()


@pytest.mark.parametrize("hub_is", ["absent", "stopped reading"])
def test_the_end_does_not_wait_for_a_hub(run_dir: Path, start: Start, hub_is: str) -> None:
    hub = FakeHub(run_dir)
    if hub_is == "absent":
        hub.close()
    began = time.monotonic()
    process = start("plain")
    _, err = process.communicate(timeout=20)
    took = time.monotonic() - began
    assert (process.returncode, err) == (0, "")
    assert took < 12  # the start, busy machine or not, and at most 1 s: no hub ever comes
    ring = next((run_dir / "rings").glob("*.ring"))
    assert RingReader.open(str(ring)).head() == 500
    hub.close()


@pytest.mark.parametrize(("what", "code"), [("os_exit", 3), ("killed", -signal.SIGKILL)])
def test_what_was_not_sent_is_in_the_ring(
    hub: FakeHub, start: Start, run_dir: Path, what: str, code: int
) -> None:
    process = start(what)
    proc = ended(hub, process, code)[-1]
    assert len(ring_values(run_dir, proc)) == 300
    names = read_file(str(run_dir / "rings" / f"{proc}.defs"))
    assert any(b"work" in payload for payload in names)


def test_forked_children_are_ranks_only_if_they_act_as_such(
    hub: FakeHub, start: Start, run_dir: Path
) -> None:
    process = start("fork")
    lines = dict(line.split() for line in ended(hub, process))
    child, parent = lines["child"], lines["parent"]
    hub.until(lambda: hub.of(parent, m.Bye))
    assert child != parent
    assert values(hub, parent) == [1] * 10 + [3] * 10
    # The child left by os._exit: what its sockets still held is in its ring.
    assert ring_values(run_dir, child) == [2] * 20
    assert set(hub.procs()) <= {parent, child}
    rings = sorted(path.stem for path in (run_dir / "rings").glob("*.ring"))
    assert rings == sorted([parent, child])  # the first child left nothing


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_children_are_processes_of_their_own(
    hub: FakeHub, start: Start, run_dir: Path, method: str
) -> None:
    process = start("processes", method)
    hub.until(lambda: len(hub.procs()) == 3 and set(hub.procs()) == set(hub.records))
    stop(hub)
    children = [line.split()[1] for line in ended(hub, process)]
    assert len(hub.procs()) == 3
    for child in children:
        said = read_file(str(run_dir / "rings" / f"{child}.defs"))
        assert any(wire.NOTE_LEAVING.encode() in payload for payload in said)
        written = ring_values(run_dir, child)
        if method == "spawn":
            hub.until(lambda child=child: hub.of(child, m.Bye))
            assert values(hub, child) == written
        else:  # it leaves by os._exit, without BYE: its sockets may still hold the last of it
            assert values(hub, child) == written[: len(hub.records[child])]
    assert sorted(len(ring_values(run_dir, child)) for child in children) == [30, 31]


def test_what_a_forked_child_wrote_last_is_sent_as_it_leaves(
    hub: FakeHub, start: Start, run_dir: Path
) -> None:
    """Before its os._exit. Where it got no core for that, its ring has the rest: of three tries
    one has to do."""
    for number in range(3):
        known, stop_file = set(hub.procs()), run_dir / f"stop{number}"
        process = start("processes", "fork", STOP_FILE=str(stop_file))
        hub.until(lambda known=known: len(set(hub.records) - known) == 3)
        stop_file.touch()
        children = [line.split()[1] for line in ended(hub, process)]
        until = time.monotonic() + 1
        while time.monotonic() < until:
            if all(values(hub, child) == ring_values(run_dir, child) for child in children):
                return
            hub.poll()
    raise AssertionError("some of it is in the ring alone")


def test_curve_keys_of_the_run_are_used(run_dir: Path, start: Start) -> None:
    server_public, server_secret = (key.decode() for key in zmq.curve_keypair())
    public, secret = (key.decode() for key in zmq.curve_keypair())
    keys = {
        "server": server_public, "server_secret": server_secret,
        "agent": {"public": public, "secret": secret},
    }  # fmt: skip
    hub = FakeHub(run_dir, keys=keys)
    try:
        process = start("plain")
        proc = hub.wait_proc()
        ended(hub, process)
        hub.until(lambda: hub.of(proc, m.Bye))
        assert len(values(hub, proc)) == 500
    finally:
        hub.close()
