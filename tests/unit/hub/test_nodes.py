"""The other nodes of a run, as the hub knows them: who is there, who is not any more, who may not
join; and what a viewer finds of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.kinds.recording_kinds import NodeLost
from pardbg.events.control_codes import NodeChange
from pardbg.events.control_events import ControlEvent
from pardbg.events.control_facts import Node
from pardbg.hub.ctrl_messages import VERSION, Rows, ToRelay, TurnedAway
from pardbg.hub.serve.nodes import SILENT_NS, TOGETHER_NS, Nodes, Notices
from pardbg.render.frame.control_words import nodes_text
from pardbg.store.source import Message
from pardbg.store.store import Store
from pardbg.words import silent_nodes

S = 1_000_000_000


class FakeRouter:
    """What the hub sends to relays."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, ToRelay]] = []

    def send_relay(self, relay: str, message: ToRelay) -> bool:
        self.sent.append((relay, message))
        return True

    def reach(self, proc: str, relay: str) -> None:
        """Nothing is sent to processes here."""


class World:
    """Nodes, with what they said kept in a store."""

    def __init__(self) -> None:
        self.router, self.store, self.now = FakeRouter(), Store(), 0
        self.nodes = Nodes("hub", self.router)  # type: ignore[arg-type]
        self.nodes.on_event = self.event
        self.said: list[NodeChange] = []

    def event(self, fact: Node) -> None:
        self.said.append(fact.change)
        event = ControlEvent(fact, n=len(self.said), t_ns=self.now)
        self.store.apply(Message(b"C", msgpack.packb(event.plain()), self.now))

    def rows(self, relay: str, at: int, node: int = 1, **more: Any) -> None:
        """A relay's ROWS: two ranks of it."""
        self.now = at
        rows = {f"0.n{node}.{p}": {"rank": 2 * node + p, "action": ""} for p in (0, 1)}
        said = {"version": VERSION, "node": node, "host": f"n{node}", "run": "r", "link": 1,
                "rows": rows, "gone": {}, "ended": False, **more}  # fmt: skip
        self.nodes.message(relay, Rows(**said), at)

    def tick(self, at: int) -> None:
        self.now = at
        self.nodes.tick(at)

    def findings(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(f.kind, f.ranks) for f in findings(View(self.store, None))]

    def refused(self) -> list[str]:
        return [m.why for _, m in self.router.sent if isinstance(m, TurnedAway)]


@pytest.fixture
def world() -> World:
    world = World()
    world.rows("relay-1-a", 0)
    return world


def test_a_silent_node_is_a_finding_until_it_is_back(world: World) -> None:
    world.tick(SILENT_NS - 1)
    assert world.findings() == []
    world.tick(SILENT_NS)
    assert world.findings() == [("node-lost", (2, 3))]
    (found,) = findings(View(world.store, None))
    assert found.facts == NodeLost((1,))
    assert list(findings(View(world.store, SILENT_NS - 1))) == []  # as of before
    world.rows("relay-1-a", SILENT_NS + S)
    assert world.findings() == []
    world.tick(3 * SILENT_NS)
    assert world.findings() == [("node-lost", (2, 3))]
    world.rows("relay-1-b", 3 * SILENT_NS + S)  # another relay of the same run
    assert world.findings() == [] and world.said[-1] is NodeChange.NEW_RELAY


def test_two_lost_nodes_are_two_findings(world: World) -> None:
    world.rows("relay-2-a", 0, node=2)
    world.tick(SILENT_NS)
    assert world.findings() == [("node-lost", (2, 3)), ("node-lost", (4, 5))]
    world.rows("relay-1-a", SILENT_NS + S)
    assert world.findings() == [("node-lost", (4, 5))]


def test_many_lost_nodes_are_one_finding(world: World) -> None:
    for node in range(2, 701):
        world.rows(f"relay-{node}-a", 0, node=node)
    world.tick(SILENT_NS)
    ((kind, ranks),) = world.findings()
    assert (kind, ranks) == ("node-lost", tuple(range(2, 1402)))
    (found,) = findings(View(world.store, None))
    assert found.facts == NodeLost(tuple(range(1, 701)))


def test_nodes_that_are_lost_together_are_one_line() -> None:
    notices = Notices()
    lost = [Node(number, f"n{number}", change=NodeChange.LOST) for number in range(1, 2049)]
    back = [replace(node, change=NodeChange.BACK) for node in lost]
    notices.add(lost[0], S)
    assert notices.due(S) == []
    assert notices.due(S + TOGETHER_NS) == [[lost[0]]]
    assert notices.due(9 * S) == []
    for node in lost:
        notices.add(node, 10 * S)
    for node in back[:-1]:
        notices.add(node, 10 * S + 1)
    assert notices.due(11 * S) == [lost[-1:], back[:-1]]
    assert nodes_text(back[:-1]) == "nodes 1–2047 are back"
    assert nodes_text(lost) == silent_nodes(range(1, 2049), ())


def test_a_node_whose_job_has_ended_is_not_lost(world: World) -> None:
    world.rows("relay-1-a", S, ended=True)
    world.tick(10 * SILENT_NS)
    assert world.findings() == []


def test_who_may_not_join_hears_why(world: World) -> None:
    world.rows("relay-1-x", S, run="other")  # node 1 twice
    world.rows("relay-3-a", S, node=3, version=VERSION + 1)
    assert "node 1 is already connected (n1)" in world.refused()[0] and len(world.refused()) == 2
    assert f"speaks version {VERSION}, yours {VERSION + 1}" in world.refused()[1]
    assert set(world.nodes.rows) == {"0.n1.0", "0.n1.1"}


def test_a_node_that_was_started_anew_takes_the_place_of_a_silent_one(world: World) -> None:
    world.tick(SILENT_NS)
    world.rows("relay-1-x", SILENT_NS + S, run="other")
    assert world.refused() == [] and world.findings() == []


def test_rows_are_those_of_the_newest_word(world: World) -> None:
    assert world.nodes.rows["0.n1.1"]["rank"] == 3
    one = world.nodes.node_of("0.n1.1")
    assert one is not None and one.identity == "relay-1-a"
    world.rows("relay-1-a", S, rows={"0.n1.0": {"rank": 2, "action": ""}})
    assert set(world.nodes.rows) == {"0.n1.0"} and world.nodes.node_of("0.n1.1") is None
    world.nodes.forget("0.n1.0")
    assert world.nodes.rows == {} and world.nodes.node_of("0.n1.0") is None
