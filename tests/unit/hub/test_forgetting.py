"""What has ended makes room: a job that restarts for weeks is recorded to its end. What finds no
room all the same is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from pardbg.analysis.answers.report import report
from pardbg.hub import backlog
from pardbg.hub.backlog import Definitions
from pardbg.hub.serve import collector, hub
from pardbg.hub.uplink import BatchOrder
from pardbg.session.reader import load
from pardbg_agent.ctrl.agent_messages import Bye, Hello
from tests.distributed.runs import coverage
from tests.harness import whole_messages
from tests.unit.hub.hub_rig import Peer, Rig, dead_ring, frame, recorded

LIVES, RANKS = 6, 8


@pytest.fixture(autouse=True)
def _few_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "MAX_PROCESSES", 3 * RANKS)
    monkeypatch.setattr(hub, "MAX_PROCESSES", 3 * RANKS)


def sizes(rig: Rig) -> dict[str, int]:
    """How much the hub's tables hold of processes."""
    agents, data = rig.hub._agents, rig.hub._collector
    return {
        "heads": len(data.heads.next), "ended": len(agents.ended), "hello": len(agents._hello),
        "heard": len(agents._heard), "byes": len(agents._byes), "clocks": len(agents._clocks),
        "facts": len(rig.hub._definitions.processes), "via": len(rig.hub._router._via),
        "kept": len(rig.hub._definitions.messages()),
    }  # fmt: skip


def live(rig: Rig, life: int, end: str) -> None:
    """One life of the job: its ranks say hello, define, record, and end."""
    data, agents = rig.hub._collector, rig.hub._agents
    for rank in range(RANKS):
        pid = 4_000_000 + 1_000 * life + rank
        proc = f"{life}.n0.{pid}"
        key = proc.encode("ascii")
        ring = None
        if end == "killed":  # without BYE: found dead, its ring read
            ring = dead_ring(Path(rig.config.ring_dir), proc, 5, pid, rank)
        fields = {"proc": proc, "rank": rank, "boot_id": "another"}
        agents.message(proc, Hello(fields), 1)
        data._take([b"D" + key, msgpack.packb({"k": "process", **fields})])
        data._take([b"D" + key, msgpack.packb({"k": "name", "id": 1, "s": "forward"})])
        data._take([b"R" + key, frame(0, 3)])
        if end == "exit":
            agents.message(proc, Bye(2, 0), 1)
        del ring


@pytest.mark.parametrize("end", ["exit", "killed"])
def test_a_job_that_restarts_often_is_recorded_to_its_end(rig: Rig, end: str) -> None:
    """At 1,024 ranks all from the ninth life on had been dropped."""
    for life in range(LIVES):
        live(rig, life, end)
        rig.until(lambda: not rig.hub._agents.known(), "their ends")
        most = sizes(rig)
        assert all(size <= 3 * RANKS for name, size in most.items() if name != "kept"), most
        assert most["kept"] <= 3 * RANKS * 5 + 1  # process, 2 names, clock, end; the run
    counters = rig.hub._collector.counters
    assert (counters.malformed, counters.refused) == (0, 0)
    rig.finish()
    found = coverage(list(whole_messages(Path(rig.config.session))))
    assert len(found) == LIVES * RANKS
    assert {tuple(parts) for parts in found.values()} == {((0, 3 if end == "exit" else 5),)}
    assert not [event for event in recorded(rig, b"C") if event["event"] in ("gap", "limit")]


def test_a_limit_that_is_reached_is_a_finding(rig: Rig) -> None:
    """More at a time than the hub knows: what it does not take is neither malformed nor silent."""
    for rank in range(3 * RANKS + 2):
        for first in (0, 3):
            rig.hub._collector._take([b"R0.n0.%d" % (4_000_000 + rank), frame(first, 3)])
    counters = rig.hub._collector.counters
    assert (counters.malformed, counters.refused) == (0, 4)
    rig.until(lambda: rig.hub._told_limits, "said")
    assert Peer(rig, "view-1").command("status")["data"]["refused"] == 4
    rig.finish()
    (event,) = [event for event in recorded(rig, b"C") if event["event"] == "limit"]
    assert (event["what"], event["limit"], event["num"]) == ("processes", 3 * RANKS, 4)
    found = report(load(Path(rig.config.session))).findings
    assert [f.severity for f in found if f.kind == "recorder-limit"] == ["warning"]


def add(defs: Definitions, of: str, /, **fields: Any) -> None:
    defs.add(b"D" + of.encode(), msgpack.packb(fields))


def test_definitions_of_what_has_ended_make_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oldest ended ones first, with what the hub said of them; the living keep theirs."""
    monkeypatch.setattr(backlog, "DEFINITION_BYTES", 6_000)
    defs = Definitions()
    add(defs, "0.n0.1", k="name", id=1, s="of one that lives")
    for life in range(50):
        proc = f"{life}.n0.2"
        add(defs, proc, k="process", proc=proc, rank=0)
        add(defs, proc, k="name", id=1, s="x" * 100)
        add(defs, "", k="end", proc=proc, t_ns=1)
        defs.ended(proc)
    kept = [(key[1:].decode(), msgpack.unpackb(payload)) for key, payload in defs.messages()]
    assert kept[0][0] == "0.n0.1" and defs.process("0.n0.1").names == {1: "of one that lives"}
    assert defs.left_out == 0 and defs._bytes <= 6_000
    there = {said.get("proc", proc) for proc, said in kept} - {"0.n0.1"}
    assert there and there == {f"{life}.n0.2" for life in range(50 - len(there), 50)}
    assert len(defs.processes) == len(there) + 1


def test_definitions_of_the_living_beyond_the_limit_are_counted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "DEFINITION_BYTES", 6_000)
    proc = b"D0.n0.4000001"
    for number in range(100):
        rig.hub._collector._take([proc, msgpack.packb({"k": "name", "id": number, "s": "x" * 50})])
    defs = rig.hub._definitions
    assert 0 < len(defs.process("0.n0.4000001").names) == 100 - defs.left_out < 60
    rig.until(lambda: rig.hub._told_limits, "said")
    rig.finish()
    found = report(load(Path(rig.config.session))).findings
    assert [f.severity for f in found if f.kind == "recorder-limit"] == ["info"]


def test_groups_of_jobs_that_make_ever_new_ones_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog, "MAX_GROUPS", 10)
    defs = Definitions()
    for number in range(100):
        add(defs, "0.n0.1", k="group", id=number, key=f"g{number}", axis="dp", ranks=[0],
            timeout_ns=5)  # fmt: skip
    assert list(defs.groups) == [f"g{number}" for number in range(90, 100)]
    assert list(defs.process("0.n0.1").groups) == list(range(90, 100))
    assert defs.groups.keys() == defs.timeouts.keys() == defs.axes["dp"].keys()


def test_a_relay_forgets_what_the_hub_has() -> None:
    order = BatchOrder()
    for number in range(300):
        order.may_forward(b"0.n0.%d" % number, frame(0, 1))
    assert order.full
    for number in range(300):
        order.forget(b"0.n0.%d" % number)
    assert not order.full and not order._of
