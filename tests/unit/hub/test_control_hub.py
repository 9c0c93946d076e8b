"""Control in a whole hub: killed with breakpoints set, forged and repeated messages, viewers that
take control from each other. Agents and viewers are made by hand, on real sockets."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import msgpack

from pardbg.control.machine.delivery import AGAIN_NS
from pardbg.events.control_codes import Why
from pardbg.events.control_events import event_of
from pardbg.events.control_facts import (
    Edited,
    Fact,
    Hit,
    HubRestarted,
    Lapsed,
    Left,
    Refusal,
    Refused,
    Resent,
    Stray,
    Taken,
)
from pardbg.hub.run import config as files
from pardbg.hub.serve.sockets import make_keys
from pardbg_agent.wire import Gate
from tests.harness import whole_messages
from tests.unit.hub.hub_rig import FakeAgent, Keyed, Peer, Rig, tcp_port


def audit(rig: Rig) -> list[Fact]:
    """The facts of the session's control messages."""
    plain = [
        msgpack.unpackb(message.payload, strict_map_key=False)
        for message in whole_messages(Path(rig.config.session)) if message.key == b"C"
    ]  # fmt: skip
    return [event.fact for event in map(event_of, plain) if event.fact is not None]


def paused(rig: Rig, ranks: int = 1) -> tuple[list[FakeAgent], Peer]:
    agents, viewer = [FakeAgent(rig, rank) for rank in range(ranks)], Peer(rig, "view-1")
    for agent in agents:
        agent.hello()
    number = viewer.request("command", verb="pause")
    for agent in agents:
        agent.obey()
    assert viewer.wait("reply", number)["ok"]
    return agents, viewer


# ------------------------------------------------------------------ a killed hub's breakpoints


def set_breaks(viewer: Peer) -> None:
    """Numbers 1 to 5; 2 and 5 are deleted again, and nothing has to remember that."""
    for expr, ranks, args in [
        ("step==100", None, {"keep": True, "lease_s": 60}), ("mb==3", None, {}),
        ("op==all_reduce and bytes>1e6", "0", {}), ("step==7", "0-1", {"keep": True}),
        ("seq==1", None, {}),
    ]:  # fmt: skip
        assert viewer.command("break", ranks, args, expr=expr)["ok"]
    assert viewer.command("ignore", number=4, count=2)["ok"]
    assert viewer.command("delete", numbers=[2, 5])["ok"]


def test_a_killed_hubs_breakpoints_are_set_again(rig: Rig) -> None:
    """As they were, under their numbers; an agent gets exactly these, whatever it had. Those of a
    viewer that does not come back within a lease go with it; a script's stay."""
    agents = [FakeAgent(rig, rank) for rank in (0, 1)]
    viewer = Peer(rig, "view-1")
    for agent in agents:
        agent.hello()
    set_breaks(viewer)
    before = rig.hub._machine.control.breakpoints.infos()
    rig.kill_hub()
    for agent in agents:
        agent.messages.clear()
        agent.hello()
    told = [[b["number"] for b in agent.wait("breaks")["breaks"]] for agent in agents]
    assert told == [[1, 3, 4], [1, 4]]
    assert rig.hub._machine.control.breakpoints.infos() == before
    script = Peer(rig, "view-2")
    answer = script.command("break", None, {"keep": True}, expr="step==1")["data"]
    assert [b["number"] for b in answer["breakpoints"]] == [6], "no number an agent may still have"
    (restarted,) = [fact for fact in audit(rig) if isinstance(fact, HubRestarted)]
    assert (restarted.set_again, restarted.not_set) == ((1, 3, 4), ())

    coming = "all_reduce dp #7"
    agents[0].state(None, int(Gate.COLLECTIVE), next=coming, hit=3)
    rig.until(lambda: rig.hub._machine.control.views[agents[0].proc].asked, "the hit")
    assert rig.hub._machine.control.lease.holder == "view-1", (
        "who set it, though it is not back yet"
    )
    rig.hub._viewers._missed["view-1"] = 0
    rig.until(
        lambda: rig.hub._machine.control.breakpoints.get(3) is None, "its viewer to be missed"
    )
    assert [b.number for b in rig.hub._machine.control.breakpoints.infos()] == [1, 4, 6]
    rig.hub._machine.control.lease.until_ns = 0
    rig.until(lambda: rig.hub._machine.control.lease.holder is None, "the lease to lapse")
    assert agents[0].wait("run")
    rig.finish()
    facts = audit(rig)
    (hit,) = [fact for fact in facts if isinstance(fact, Hit)]
    assert (hit.number, hit.rank, hit.next) == (3, 0, coming)
    gone = [fact for fact in facts if isinstance(fact, Edited) and fact.viewer_gone]
    assert [([b.number for b in f.breakpoints], f.viewer_gone) for f in gone] == [([3], "view-1")]
    assert Lapsed("view-1") in facts


def test_a_viewer_that_comes_back_keeps_its_breakpoints(rig: Rig) -> None:
    viewer = Peer(rig, "view-1")
    FakeAgent(rig, 0).hello()
    assert viewer.command("break", expr="mb==3")["ok"]
    rig.kill_hub()
    viewer.send("lease", lease_ns=0)
    rig.until(lambda: "view-1" in rig.hub._router.viewers, "it to be seen")
    rig.hub._viewers._missed["view-1"] = 0
    rig.until(lambda: not rig.hub._viewers._missed, "the list to be gone through")
    assert rig.hub._machine.control.breakpoints.get(1) is not None


def test_what_a_killed_hub_held_runs_on_and_a_lost_number_is_said(rig: Rig) -> None:
    """Rank 0 is held by the old hub's permit, rank 1 by a breakpoint that never reached the file:
    neither stays held, and the audit trail has both."""
    agents, _ = paused(rig, 2)
    rig.kill_hub()
    for agent in agents:
        agent.messages.clear()
        agent.hello()
    agents[0].state(1, int(Gate.COLLECTIVE), next="all_reduce dp #7")
    agents[1].state(None, int(Gate.ACTION), next="1F0", hit=9)
    for agent in agents:
        agent.state(agent.wait("run")["id"], 0)
    rig.finish()
    facts = audit(rig)
    assert Stray(0, runs=True) in facts and Stray(1, 9, "1F0", runs=True) in facts
    assert [fact.were_held for fact in facts if isinstance(fact, HubRestarted)] == [True]


# ------------------------------------------------------------------ messages that come again


def test_a_permit_that_is_not_answered_is_sent_again(rig: Rig) -> None:
    agent, viewer = FakeAgent(rig, 0), Peer(rig, "view-1")
    agent.hello()
    pause = viewer.request("command", verb="pause")
    first = agent.wait("permit")["id"]
    agent.messages.clear()
    assert agent.wait("permit")["id"] == first, "the same message, not another one"
    agent.obey()
    assert viewer.wait("reply", pause)["ok"]
    rig.finish()
    assert Resent((0,), ("permit",), AGAIN_NS) in audit(rig)


def test_a_command_that_comes_twice_is_obeyed_once(rig: Rig) -> None:
    (agent,), viewer = paused(rig)
    agent.messages.clear()
    request = viewer.request("command", verb="step")
    again = {"id": request, "verb": "step"}
    viewer.send("command", **again)
    agent.obey(int(Gate.OPTIMIZER), "optimizer")
    assert viewer.wait("reply", request)["ok"]
    viewer.send("command", **again)
    rig.until(lambda: rig.hub._router.malformed == 2, "both to be refused")
    assert sum(m["t"] == "permit" for m in agent.messages) == 1
    rig.finish()
    repeated = Refused("", Refusal(Why.REPEATED, number=request))
    assert audit(rig).count(repeated) == 2


# ------------------------------------------------------------------ who may what


def test_control_is_taken_over_and_the_ranks_stay_held(rig: Rig) -> None:
    """The first viewer's end changes nothing any more; the second one's does."""
    (agent,), first = paused(rig)
    second = Peer(rig, "view-2")
    agent.messages.clear()
    assert second.ask("take")["ok"]
    first.send("leave")
    first.socket.close()
    rig.until(lambda: "view-1" not in rig.hub._router.viewers, "the first to be gone")
    assert second.command("status")["data"]["mode"] == "held"
    assert not any(m["t"] == "run" for m in agent.messages)
    second.socket.close()
    agent.state(agent.wait("run")["id"], 0)
    rig.finish()
    facts = audit(rig)
    assert Taken("view-1") in facts
    assert [f for f in facts if isinstance(f, Left)] == [Left("view-2", disconnected=True)]


class Ear:
    """Between a viewer and the hub: passes bytes on and keeps the viewer's."""

    def __init__(self, port: int, hub_port: int) -> None:
        self.heard = bytearray()
        self._server = socket.create_server(("127.0.0.1", port))
        self._hub_port = hub_port
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def _serve(self) -> None:
        here, _ = self._server.accept()
        there = socket.create_connection(("127.0.0.1", self._hub_port))
        back = threading.Thread(target=self._copy, args=(there, here, bytearray()), daemon=True)
        self._threads.append(back)
        back.start()
        self._copy(here, there, self.heard)

    def _copy(self, source: socket.socket, target: socket.socket, kept: bytearray) -> None:
        try:
            while data := source.recv(65536):
                kept += data
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def close(self) -> None:
        self._server.close()
        for thread in self._threads:
            thread.join(5)


def test_keys_and_messages_that_are_forged_or_replayed_are_refused(run_dir: Path) -> None:
    """Another run's keys, an agent's key for a viewer, a viewer's key to command, to renew or to
    leave in the controller's name, and the bytes of a real session once more."""
    keys = make_keys()
    files.write_json(run_dir / files.KEYS_FILE, keys)
    hub_port, ear_port = tcp_port(), tcp_port()
    rig = Rig(run_dir, ctrl=f"tcp://127.0.0.1:{hub_port}")
    ear = Ear(ear_port, hub_port)
    try:
        agent = Keyed(rig, "0.n0.4000000", keys, "agent")
        process = {"proc": agent.identity, "rank": 0, "world_size": 1, "host": "n0",
                   "pid": 4000000, "epoch": 0, "boot_id": "elsewhere"}  # fmt: skip
        agent.send("hello", process=process)
        agent.wait("welcome")
        control = Keyed(rig, "view-1", keys, "control", f"tcp://127.0.0.1:{ear_port}")
        pause = control.request("command", verb="pause")
        agent.send("state", serial=1, reply_to=agent.wait("permit")["id"], rank=0, held=4)
        assert control.wait("reply", pause)["ok"]

        looker = Keyed(rig, "view-2", keys, "viewer")
        assert looker.command("status")["data"]["mode"] == "held"
        for verb in ("pause", "continue", "step", "break", "delay", "inspect", "level", "mark"):
            assert looker.command(verb)["why"] is Why.VIEW_ONLY
        assert looker.ask("take")["why"] is Why.VIEW_ONLY
        assert looker.command("kill", confirm=True)["why"] is Why.VIEW_ONLY
        looker.send("leave")
        before = rig.hub._router.malformed
        Keyed(rig, "view-3", keys, "agent").send("command", id=1, verb="continue", args={})
        rig.until(lambda: rig.hub._router.malformed == before + 1, "an agent that commands")
        stranger = Keyed(rig, "view-4", make_keys(), "control")
        guesser = {**make_keys(), "server": keys["server"]}
        guessing = Keyed(rig, "view-5", guesser, "control")
        for peer in (stranger, guessing):
            peer.send("command", id=1, verb="continue")
        with socket.create_connection(("127.0.0.1", hub_port)) as replay:
            replay.sendall(bytes(ear.heard))  # a viewer's greeting, handshake and commands
            replay.settimeout(5)
            assert looker.command("status")["ok"]  # the hub turns, and has seen it all by then
            while replay.recv(4096):
                looker.command("status")
        assert len(ear.heard) > 500 and len(rig.hub._router.viewers) == 2

        impostor = Keyed(rig, "view-1", keys, "viewer")  # takes the controller's place ...
        impostor.send("lease", lease_ns=0)
        impostor.send("leave")
        assert impostor.command("continue")["why"] is Why.VIEW_ONLY
        mode = looker.command("status")["data"]["mode"]
        assert mode == "held", "... and may not do more than look"
        assert not any(m["t"] == "run" for m in agent.messages)
    finally:
        rig.close()
        ear.close()
