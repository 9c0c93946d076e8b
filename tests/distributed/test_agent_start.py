"""Zero-code start under a real torchrun: who becomes a process of the run, and who does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pardbg_agent import wire
from pardbg_agent.ctrl.agent_messages import Bye, Hello
from pardbg_agent.wire import Kind
from tests.distributed.agent_hub import FakeHub
from tests.processes import Finished

ROOT = Path(__file__).parents[2]
BOOT = ROOT / "agent" / "pardbg_agent" / "boot"
PROGRAM = str(Path(__file__).with_name("agent_torch_program.py"))
EXITS = str(Path(__file__).parent / "programs" / "exit_handlers.py")


@pytest.fixture
def hub(run_dir: Path) -> Iterator[FakeHub]:
    """A hub that answers on a thread of its own until the test asks it."""
    hub = FakeHub(run_dir)
    yield hub
    hub.close()


def watched(hub: FakeHub, run: Callable[[], Finished]) -> Finished:
    """Run it while the hub answers; everything that was sent has been taken afterwards."""
    found: list[Finished] = []
    thread = threading.Thread(target=lambda: found.append(run()))
    thread.start()
    while thread.is_alive():
        hub.poll(20)
    hub.poll(100)
    assert found[0].code == 0, found[0].err
    assert "agent is off" not in found[0].err, found[0].err
    return found[0]


def kinds(hub: FakeHub, proc: str, kind: Kind) -> int:
    """How many records of a kind came from a process."""
    return sum(wire.RECORD.unpack(row)[0] == kind for row in hub.records[proc].values())


def errors(hub: FakeHub) -> list[str]:
    return [d["text"] for defs in hub.defs.values() for d in defs if d["k"] == "error"]


def test_ranks_and_only_ranks_become_processes(
    hub: FakeHub, run_dir: Path, torchrun: Callable[..., Finished]
) -> None:
    """Not the launcher, not forked and not spawned DataLoader workers."""
    env = {"PARDBG": str(run_dir), "PYTHONPATH": str(BOOT)}
    done = watched(hub, lambda: torchrun(PROGRAM, "workers", nproc=2, env=env))
    assert done.lines(0) == done.lines(1) == ["workers 2 own False"]
    assert errors(hub) == []
    hellos = [hub.of(proc, Hello)[0] for proc in hub.procs()]
    assert sorted(hello["process"]["rank"] for hello in hellos) == [0, 1]
    assert [len(hub.of(proc, Bye)) for proc in hub.procs()] == [1, 1]
    assert len(list((run_dir / "rings").glob("*.ring"))) == 2
    for proc in hub.procs():
        assert kinds(hub, proc, Kind.OP_ISSUE) == 6


def test_a_restarted_rank_is_another_process_of_the_next_epoch(
    hub: FakeHub, run_dir: Path, torchrun: Callable[..., Finished]
) -> None:
    env = {"PARDBG": str(run_dir), "PYTHONPATH": str(BOOT)}
    watched(hub, lambda: torchrun("--max-restarts=1", PROGRAM, "restart", nproc=2, env=env))
    said = sorted(
        (said["epoch"], said["rank"])
        for p in hub.procs()
        for said in [hub.of(p, Hello)[0]["process"]]
    )
    assert said == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert sorted(proc.split(".")[0] for proc in hub.procs()) == ["0", "0", "1", "1"]


@pytest.mark.parametrize("what", ["reads", "raises"])
def test_a_rank_is_watched_until_its_last_exit_handler_ends(
    hub: FakeHub, run_dir: Path, torchrun: Callable[..., Finished], what: str, way: str
) -> None:
    """Also in those older than torch; then all that it recorded is sent, and one BYE."""
    env = {"PARDBG": str(run_dir), "PYTHONPATH": str(BOOT)}
    done = watched(hub, lambda: torchrun(EXITS, what, nproc=2, env=env))
    assert done.lines(0) == done.lines(1) == ["watched True"]
    assert ("LookupError" in done.err) == (what == "raises")
    assert errors(hub) == []
    for proc in hub.procs():
        (bye,) = hub.of(proc, Bye)
        assert bye["last_index"] == len(hub.records[proc]) - 1
        assert kinds(hub, proc, Kind.OP_ISSUE) == 1
    assert len(hub.procs()) == 2


def test_attach_detach_attach(
    hub: FakeHub, run_dir: Path, torchrun: Callable[..., Finished]
) -> None:
    env = {"RUN_DIR": str(run_dir), "PYTHONPATH": str(ROOT / "agent")}
    watched(hub, lambda: torchrun(PROGRAM, "attach", nproc=2, env=env))
    assert errors(hub) == []
    assert len(hub.procs()) == 2
    for proc in hub.procs():
        assert kinds(hub, proc, Kind.OP_ISSUE) == 3 + 5  # not the 2 before, not the 4 between
        assert sorted(hub.records[proc]) == list(range(len(hub.records[proc])))
        assert len(hub.of(proc, Hello)) == 2
        # Attached again, it takes the place of its old self, whose BYE may be under way.
        byes = hub.of(proc, Bye)
        assert len(byes) in (1, 2)
        assert byes[-1]["last_index"] == len(hub.records[proc]) - 1
