"""Clients that claim another's identity: by key and by role, before its owner and after, many at
once. Nothing of the owner's reaches them, and pausing works at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from pardbg.hub.ctrl_messages import viewer_address, viewer_name
from pardbg.hub.run import config as files
from pardbg.hub.serve import router
from pardbg.hub.serve.sockets import Role, make_keys
from pardbg_agent.wire import address
from tests.harness import whole_messages
from tests.unit.hub.hub_rig import Keyed, Peer, Rig, shown, tcp_port

PROC, RELAY = "0.n0.4000000", "relay-1-77"
FLOOD = 30
COMMANDS = ("permit", "run", "lease", "welcome", "breaks", "known")
"""What only agents and relays are sent."""


@pytest.fixture
def keys(run_dir: Path) -> dict[str, Any]:
    keys = make_keys()
    files.write_json(run_dir / files.KEYS_FILE, keys)
    return keys


@pytest.fixture
def rig(run_dir: Path, keys: dict[str, Any]) -> Iterator[Rig]:
    rig = Rig(run_dir, ctrl=f"tcp://127.0.0.1:{tcp_port()}")
    yield rig
    rig.close()


def process(pid: int, boot_id: str) -> dict[str, Any]:
    return {"proc": PROC, "rank": 0, "world_size": 1, "host": "n0", "pid": pid, "epoch": 0,
            "boot_id": boot_id}  # fmt: skip


class Job:
    """A rank on an agent's key, held and let go by a viewer on a control key."""

    def __init__(self, rig: Rig, keys: dict[str, Any], agent: str, viewer: str) -> None:
        self.rig, self.sn = rig, 0
        self.agent = Keyed(rig, agent, keys, "agent")
        self.agent.send("hello", process=process(4000000, "elsewhere"))
        self.agent.wait("welcome")
        self.control = Keyed(rig, viewer, keys, "control")

    def command(self, verb: str, answer: str, held: int, by: Peer | None = None) -> None:
        """The verb reaches the rank, and its answer the viewer."""
        by = by or self.control
        self.agent.take()
        self.agent.messages.clear()
        number = by.request("command", verb=verb, ranks=None, args={})
        told = self.agent.wait(answer)
        self.sn += 1
        self.agent.send(
            "state", serial=self.sn, reply_to=told["id"], rank=0, held=held, next="x", step=0
        )
        assert by.wait("reply", number)["ok"]


def impostors(rig: Rig, keys: dict[str, Any], names: list[str], role: Role) -> list[Keyed]:
    """They say what the owners of these names would, and more."""
    found = []
    for name in names * FLOOD:
        peer = Keyed(rig, name, keys, role)
        peer.send("hello", process=process(1, "x"))
        peer.send("state", serial=999, reply_to=1, rank=0, held=4, next="x", step=0)
        peer.send("command", id=1, verb="continue", ranks=None, args={})
        peer.send("leave")
        peer.socket.send_multipart([PROC.encode(), b"\x80"], zmq.NOBLOCK)
        found.append(peer)
    one = Keyed(rig, viewer_address().decode(), keys, "control")
    assert one.command("status")["ok"]  # the hub turns
    return found


def check_told_nothing(peers: list[Keyed]) -> None:
    for peer in peers:
        peer.take()
        assert not [m["t"] for m in peer.messages if m["t"] in COMMANDS]
        replies = [m for m in peer.messages if m["t"] == "reply"]
        assert all(not m["ok"] for m in map(shown, replies))


@pytest.mark.parametrize("secret", [True, False], ids=["ours", "guessable"])
def test_a_view_only_key_takes_nobodys_identity(
    rig: Rig, keys: dict[str, Any], secret: bool
) -> None:
    """Of clients that claim an identity which can be guessed, too: theirs is not a looker's."""
    agent, viewer = PROC, "view-1"
    if secret:
        agent, viewer = address(PROC).decode(), viewer_address().decode()
    public = [PROC, viewer_name(viewer.encode()), RELAY]
    before = impostors(rig, keys, public, "viewer")
    job = Job(rig, keys, agent, viewer)
    job.command("pause", "permit", 4)
    after = impostors(rig, keys, public, "viewer")
    job.command("continue", "run", 0)
    job.command("pause", "permit", 4)
    check_told_nothing(before + after)
    assert job.control.command("status")["data"]["controller"] == viewer_name(viewer.encode())
    job.command("continue", "run", 0)
    fresh = Keyed(rig, viewer_address().decode(), keys, "control")
    assert fresh.ask("take")["ok"]
    job.command("pause", "permit", 4, by=fresh)


def test_an_agents_key_is_no_controller_and_a_controllers_no_agent(
    rig: Rig, keys: dict[str, Any]
) -> None:
    viewer = viewer_address().decode()
    name = viewer_name(viewer.encode())
    job = Job(rig, keys, address(PROC).decode(), viewer)
    job.command("pause", "permit", 4)
    peers = [
        *impostors(rig, keys, [PROC, RELAY], "control"), *impostors(rig, keys, [name], "agent")
    ]  # fmt: skip
    for relay in impostors(rig, keys, [address(RELAY).decode()], "agent")[:2]:
        for proc in (PROC, name):  # a relay that would have both behind it
            relay.socket.send_multipart([proc.encode(), b"\x80"])
            peers.append(relay)
    job.command("continue", "run", 0)
    job.command("pause", "permit", 4)
    check_told_nothing(peers)


def test_without_a_key_nobody_is_heard(rig: Rig, keys: dict[str, Any]) -> None:
    job = Job(rig, keys, PROC, "view-1")
    bare = [Peer(rig, name) for name in (PROC, "view-1", RELAY)]
    for peer in bare:
        peer.send("command", id=1, verb="status", ranks=None, args={})
    job.command("pause", "permit", 4)
    for peer in bare:
        peer.take()
        assert peer.messages == []


def test_lookers_do_not_keep_who_may_command_out(rig: Rig, keys: dict[str, Any]) -> None:
    lookers = [Keyed(rig, f"view-{n}", keys, "viewer") for n in range(router.MAX_VIEWERS + 4)]
    for peer in lookers:
        peer.request("join")
    rig.until(
        lambda: (
            sum(v.role == "viewer" for v in rig.hub._router.viewers.values()) == router.MAX_VIEWERS
        ),
        "as many lookers as there may be",
    )
    Job(rig, keys, address(PROC).decode(), viewer_address().decode()).command("pause", "permit", 4)


def test_the_audit_trail_tells_no_viewers_secret(rig: Rig, keys: dict[str, Any]) -> None:
    viewer = viewer_address()
    peer = Keyed(rig, viewer.decode(), keys, "control")
    assert peer.command("mark", text="here")["ok"]
    status = peer.ask("take")
    assert status["ok"]
    rig.hub._collector.flush(None)
    said = repr([*whole_messages(Path(rig.config.session)), rig.hub._viewers.hub_facts()]).encode()
    assert viewer_name(viewer).encode() in said
    assert viewer.partition(b"/")[2] not in said
