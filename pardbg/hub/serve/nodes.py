"""Other nodes of a run, each behind its relay: their processes and their rings' states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from pardbg.events.control_codes import NodeChange
from pardbg.events.control_facts import Node as NodeFact
from pardbg.events.decode import Malformed
from pardbg.hub import ctrl_messages as ctrl
from pardbg.hub.ranks.rings import Rescued
from pardbg.hub.serve.router import Router

SILENT_NS: Final = 5_000_000_000
"""Silence, in ns, after which a node counts as unreachable; a relay sends once a second."""
RESCUE_NS: Final = 1_000_000_000
"""Time, in ns, after which Salvage is sent again: its answer may be lost with a connection."""
MAX_NODES: Final = 4096
TOGETHER_NS: Final = 1_000_000_000
"""Time, in ns, within which lost (or returned) nodes are one line on each node's terminal."""


@dataclass(slots=True)
class KnownNode:
    """Node of the run."""

    number: int
    host: str
    run: str
    identity: str
    """Identity of the node's relay."""
    link: int = -1
    heard_ns: int = 0
    silent: bool = False
    ended: bool = False
    """Whether the job on that node has ended."""
    rows: dict[str, ctrl.Row] = field(default_factory=dict)
    gone: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    """Process -> (time at which it was found dead, exit code)."""

    def ranks(self) -> list[int]:
        return sorted({row["rank"] for row in self.rows.values() if row["rank"] >= 0})

    def fact(self, change: NodeChange, silent_ns: int = 0) -> NodeFact:
        return NodeFact(self.number, self.host, tuple(self.ranks()), change, silent_ns)


class Notices:
    """Notices about other nodes for the users at nodes' terminals, at most one a second: a line for
    each of a thousand nodes behind one switch would be a million messages."""

    def __init__(self) -> None:
        self._news: dict[int, NodeFact] = {}
        """Newest change by node: of lost and back meanwhile, the newer holds."""
        self._since_ns = 0

    def add(self, fact: NodeFact, now: int) -> None:
        self._since_ns = self._since_ns or now
        self._news.pop(fact.node, None)
        self._news[fact.node] = fact

    def due(self, now: int) -> list[list[NodeFact]]:
        """Return the collected changes, by kind of change."""
        if not self._since_ns or now - self._since_ns < TOGETHER_NS:
            return []
        news, self._news, self._since_ns = self._news, {}, 0
        kinds: dict[bool, list[NodeFact]] = {}
        for fact in news.values():
            if fact.change is not NodeChange.JOINED:
                kinds.setdefault(fact.change is NodeChange.LOST, []).append(fact)
        return list(kinds.values())


class Nodes:
    """All relays of a run."""

    def __init__(self, hub_id: str, router: Router) -> None:
        self.on_event: Callable[[NodeFact], None] = lambda fact: None
        self.on_welcome: Callable[[str], object] = lambda proc: None
        """Called when a process's records from the hub's position on are to come (again)."""
        self.on_rescued: Callable[[str, Rescued, int, int | None], None] = lambda *_: None
        self.on_looked: Callable[[ctrl.Looked], None] = lambda looked: None
        self.on_boards: Callable[[KnownNode, tuple[ctrl.Change, ...]], None] = lambda *_: None
        self.on_line: Callable[[str, int | None, str], None] = lambda stream, rank, text: None
        self._hub_id, self._router = hub_id, router
        self._nodes: dict[str, KnownNode] = {}
        """Nodes by the relay's identity."""
        self.rows: dict[str, ctrl.Row] = {}
        """STATE's rows of every process elsewhere, by its own clock."""
        self._node_of: dict[str, KnownNode] = {}
        self._asked: dict[str, int] = {}
        self._parts: dict[str, Rescued] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[KnownNode]:
        return iter(self._nodes.values())

    def node_of(self, proc: str) -> KnownNode | None:
        return self._node_of.get(proc)

    @property
    def running(self) -> list[KnownNode]:
        """Return the nodes where the job goes on, as far as known."""
        return [node for node in self if not node.ended and not node.silent]

    def message(self, relay: str, message: ctrl.FromRelay, now: int) -> None:
        """Handle one message of a relay. Raises Malformed."""
        if isinstance(message, ctrl.Rows):
            self._rows(relay, message, now)
            return
        node = self._nodes.get(relay)
        if node is None:
            raise Malformed("an unknown relay")
        node.heard_ns = now
        if isinstance(message, ctrl.Salvaged):
            self._rescued(node, message)
        elif isinstance(message, ctrl.BoardNews):
            self.on_boards(node, message.changes)
        elif isinstance(message, ctrl.Looked):
            self.on_looked(message)
        else:
            for line in message.lines:
                self.on_line(*line)

    def tick(self, now: int) -> None:
        """Report nodes that cannot be reached."""
        for node in self:
            if not node.silent and not node.ended and now - node.heard_ns >= SILENT_NS:
                node.silent = True
                self.on_event(node.fact(NodeChange.LOST, now - node.heard_ns))

    def rescue(self, proc: str, start: int, now: int) -> None:
        """Request the remains of an ended process."""
        node = self.node_of(proc)
        if node is not None and now - self._asked.get(proc, -RESCUE_NS) >= RESCUE_NS:
            self._asked[proc] = now
            self.tell(node, ctrl.Salvage(proc, start))

    def forget(self, proc: str) -> None:
        """Forget a process of which everything is here."""
        node = self.node_of(proc)
        if node is not None:
            self.tell(node, ctrl.Forget(proc))
            for rows in (node.rows, node.gone, self.rows, self._node_of):
                rows.pop(proc, None)

    def look(self, number: int, proc: str, pid: int) -> bool:
        """Have a process's stacks read on its node; False if that is here, or out of reach."""
        node = self.node_of(proc)
        if node is None or node.silent:
            return False
        return self.tell(node, ctrl.Look(number, proc, pid))

    def tell_all(self, message: ctrl.ToRelay) -> None:
        for node in self:
            self.tell(node, message)

    def tell(self, node: KnownNode, message: ctrl.ToRelay) -> bool:
        return self._router.send_relay(node.identity, message)

    def _rows(self, relay: str, message: ctrl.Rows, now: int) -> None:
        node = self._nodes.get(relay) or self._arrived(relay, message, now)
        if node is None:
            return
        rows = {proc: row for proc, row in message.rows.items() if isinstance(row, dict)}
        if any(not isinstance(row.get("rank"), int) for row in rows.values()):
            raise Malformed("rows")
        node.gone = dict(message.gone)
        self._take(node, rows)
        node.ended = message.ended
        if node.silent:
            node.silent = False
            self.on_event(node.fact(NodeChange.BACK, now - node.heard_ns))
        node.heard_ns = now
        if node.link != message.link:
            node.link = message.link
            self.tell(node, ctrl.Known(self._hub_id))
            for proc in rows.keys() - node.gone.keys():
                self._router.reach(proc, relay)
                self.on_welcome(proc)

    def _take(self, node: KnownNode, rows: dict[str, ctrl.Row]) -> None:
        for proc in node.rows.keys() - rows.keys():
            if self._node_of.get(proc) is node:
                del self.rows[proc], self._node_of[proc]
        node.rows = rows
        self.rows.update(rows)
        self._node_of.update(dict.fromkeys(rows, node))

    def _arrived(self, relay: str, message: ctrl.Rows, now: int) -> KnownNode | None:
        """Admit a new relay, perhaps in the place of one that was killed."""
        number, run = message.node, message.run
        same = next((node for node in self if node.number == number), None)
        why = ""
        if message.version != ctrl.VERSION:
            why = f"it speaks version {ctrl.VERSION}, yours {message.version}: install one version"
        elif same is not None and same.run != run and not (same.ended or same.silent):
            why = f"node {number} is already connected ({same.host}): another --node-rank, or wait"
        elif len(self._nodes) >= MAX_NODES:
            why = f"{MAX_NODES} nodes are already connected"
        if why:
            self._router.send_relay(relay, ctrl.TurnedAway(why))
            return None
        node = KnownNode(number, message.host, run, relay, heard_ns=now)
        if same is not None:
            del self._nodes[same.identity]
            self._take(same, {})
        self._nodes[relay] = node
        if same is None or same.run != run:
            self.on_event(node.fact(NodeChange.JOINED))
        else:
            self.on_event(node.fact(NodeChange.NEW_RELAY))
        return node

    def _rescued(self, node: KnownNode, message: ctrl.Salvaged) -> None:
        proc = message.proc
        if proc not in node.gone:
            return
        if message.first:
            self._parts[proc] = Rescued(list(message.definitions))
        whole = self._parts.get(proc)
        if whole is None:
            return  # its beginning was lost with a connection
        whole.batches += message.batches
        whole.last_index, whole.dropped = message.last, message.dropped
        if not message.more:
            del self._parts[proc]
            self._asked.pop(proc, None)
            self.on_rescued(proc, whole, *node.gone[proc])
