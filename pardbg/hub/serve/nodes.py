"""The other nodes of a run, each behind its relay: who is there, what their rings say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pardbg.events.decode import Malformed
from pardbg.hub.ctrl_messages import VERSION, Node
from pardbg.hub.ranks.rings import Rescued
from pardbg.hub.serve.router import Router
from pardbg.words import MAX_TERMS, WHY_SILENT, duration, rank_set, ranks_text, silent_nodes

SILENT_NS: Final = 5_000_000_000
"""Silence after which a node counts as unreachable; a relay speaks once a second."""
RESCUE_NS: Final = 1_000_000_000
"""An answer to RESCUE may be lost with a connection: asked again."""
MAX_NODES: Final = 4096
TOGETHER_NS: Final = 1_000_000_000
"""Nodes that are lost, or back, within this time are one line on each node's terminal."""


@dataclass(slots=True)
class Known:
    """One node."""

    number: int
    host: str
    run: str
    identity: str
    """Identity of its relay."""
    link: int = -1
    heard_ns: int = 0
    silent: bool = False
    ended: bool = False
    """The job has, on that node."""
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    gone: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    """proc -> (when it was found dead, exit code)."""

    def ranks(self) -> list[int]:
        return sorted({row["rank"] for row in self.rows.values() if row["rank"] >= 0})

    def __str__(self) -> str:
        ranks = self.ranks()
        return f"node {self.number} ({self.host}{', ' + ranks_text(ranks) if ranks else ''})"


class Notices:
    """What the user at each node's terminal hears of other nodes, at most once a second: a line
    for each of a thousand nodes behind one switch would be a million messages."""

    def __init__(self) -> None:
        self._said: dict[str, dict[int, tuple[Known, str]]] = {}
        """event -> number -> the node and its line."""
        self._since_ns = 0

    def add(self, event: str, node: Known, text: str, now: int) -> None:
        self._since_ns = self._since_ns or now
        for said in self._said.values():
            said.pop(node.number, None)  # lost and back meanwhile: the newer holds
        self._said.setdefault(event, {})[node.number] = node, text

    def due(self, now: int) -> list[tuple[str, str]]:
        """Return (event, line) of what has come together."""
        if not self._since_ns or now - self._since_ns < TOGETHER_NS:
            return []
        said, self._said, self._since_ns = self._said, {}, 0
        return [
            (event, text if len(of) == 1 else _together(event, [node for node, _ in of.values()]))
            for event, of in said.items()
            for _, text in list(of.values())[:1]
        ]


def _together(event: str, nodes: Sequence[Known]) -> str:
    """Several nodes' ``node_lost`` or ``node_back`` as one line."""
    numbers = {node.number for node in nodes}
    if event == "node_lost":
        return silent_nodes(numbers, (rank for node in nodes for rank in node.ranks()))
    return f"nodes {rank_set(numbers, most=MAX_TERMS)} are back"


class Nodes:
    """All relays of a run."""

    def __init__(self, hub_id: str, router: Router) -> None:
        self.on_event: Callable[[str, Known, str], None] = lambda event, node, text: None
        self.on_welcome: Callable[[str], object] = lambda proc: None
        """The process's records from where the hub stands are to come (again)."""
        self.on_rescued: Callable[[str, Rescued, int, int | None], None] = lambda *_: None
        self.on_looked: Callable[[int, str, Any], None] = lambda number, proc, found: None
        self.on_boards: Callable[[Known, list[Any]], None] = lambda node, changes: None
        self.on_line: Callable[[str, int | None, str], None] = lambda stream, rank, text: None
        self._hub_id, self._router = hub_id, router
        self._nodes: dict[str, Known] = {}
        """By the relay's identity."""
        self.rows: dict[str, dict[str, Any]] = {}
        """STATE's rows of every process elsewhere, by its own clock."""
        self._node_of: dict[str, Known] = {}
        self._asked: dict[str, int] = {}
        self._parts: dict[str, Rescued] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Known]:
        return iter(self._nodes.values())

    def node_of(self, proc: str) -> Known | None:
        return self._node_of.get(proc)

    @property
    def running(self) -> list[Known]:
        """Nodes where the job goes on, as far as one can tell."""
        return [node for node in self if not node.ended and not node.silent]

    def message(self, relay: str, message: dict[str, Any], now: int) -> None:
        """One message of a relay. Raises Malformed, and what wrong fields lead to."""
        kind = message.get("t")
        if kind == Node.ROWS.value:
            self._rows(relay, message, now)
            return
        node = self._nodes.get(relay)
        if node is None:
            raise Malformed("an unknown relay")
        node.heard_ns = now
        if kind == Node.RESCUED.value:
            self._rescued(node, message)
        elif kind == Node.BOARDS.value:
            self.on_boards(node, message["changes"])
        elif kind == Node.LOOKED.value:
            self.on_looked(int(message["id"]), str(message["proc"]), message["found"])
        elif kind == Node.OUTPUT.value:
            for stream, rank, text in message["lines"]:
                self.on_line(str(stream), None if rank is None else int(rank), str(text))
        else:
            raise Malformed(f"relay: {kind!r}")

    def tick(self, now: int) -> None:
        """Say who cannot be reached."""
        for node in self:
            if not node.silent and not node.ended and now - node.heard_ns >= SILENT_NS:
                node.silent = True
                silent = duration(now - node.heard_ns)
                self.on_event("node_lost", node, f"{node} is silent for {silent}: {WHY_SILENT}")

    def rescue(self, proc: str, start: int, now: int) -> None:
        """Ask for what an ended process left."""
        node = self.node_of(proc)
        if node is not None and now - self._asked.get(proc, -RESCUE_NS) >= RESCUE_NS:
            self._asked[proc] = now
            self.tell(node, Node.RESCUE, proc=proc, start=start)

    def forget(self, proc: str) -> None:
        """Everything of it is here."""
        node = self.node_of(proc)
        if node is not None:
            self.tell(node, Node.FORGET, proc=proc)
            for rows in (node.rows, node.gone, self.rows, self._node_of):
                rows.pop(proc, None)

    def look(self, number: int, proc: str, pid: int) -> bool:
        """Have its stacks read where it runs; False if that is here, or out of reach."""
        node = self.node_of(proc)
        if node is None or node.silent:
            return False
        return self.tell(node, Node.LOOK, id=number, proc=proc, pid=pid)

    def tell_all(self, kind: Node, **fields: Any) -> None:
        for node in self:
            self.tell(node, kind, **fields)

    def tell(self, node: Known, kind: Node, **fields: Any) -> bool:
        return self._router.send_relay(node.identity, {"t": kind.value, **fields})

    def _rows(self, relay: str, message: dict[str, Any], now: int) -> None:
        node = self._nodes.get(relay) or self._arrived(relay, message, now)
        if node is None:
            return
        rows = {str(proc): dict(row) for proc, row in message["rows"].items()}
        if any(not isinstance(row.get("rank"), int) for row in rows.values()):
            raise Malformed("rows")
        node.gone = {str(p): (int(t), code) for p, (t, code) in message["gone"].items()}
        self._take(node, rows)
        node.ended = bool(message["ended"])
        if node.silent:
            node.silent = False
            away = duration(now - node.heard_ns)
            self.on_event("node_back", node, f"{node} is back after {away}")
        node.heard_ns = now
        if node.link != message["link"]:
            node.link = int(message["link"])
            self.tell(node, Node.KNOWN, hub=self._hub_id)
            for proc in rows.keys() - node.gone.keys():
                self._router.reach(proc, relay)
                self.on_welcome(proc)

    def _take(self, node: Known, rows: dict[str, dict[str, Any]]) -> None:
        for proc in node.rows.keys() - rows.keys():
            if self._node_of.get(proc) is node:
                del self.rows[proc], self._node_of[proc]
        node.rows = rows
        self.rows.update(rows)
        self._node_of.update(dict.fromkeys(rows, node))

    def _arrived(self, relay: str, message: dict[str, Any], now: int) -> Known | None:
        """A new relay, perhaps in the place of one that was killed."""
        number, run = int(message["node"]), str(message["run"])
        same = next((node for node in self if node.number == number), None)
        why = ""
        if message["version"] != VERSION:
            why = f"it speaks version {VERSION}, yours {message['version']}: install one version"
        elif same is not None and same.run != run and not (same.ended or same.silent):
            why = f"node {number} is already connected ({same.host}): another --node-rank, or wait"
        elif len(self._nodes) >= MAX_NODES:
            why = f"{MAX_NODES} nodes are already connected"
        if why:
            self._router.send_relay(relay, {"t": Node.REFUSED.value, "why": why})
            return None
        node = Known(number, str(message["host"])[:64], run, relay, heard_ns=now)
        if same is not None:
            del self._nodes[same.identity]
            self._take(same, {})
        self._nodes[relay] = node
        if same is None or same.run != run:
            self.on_event("node", node, f"node {number} ({node.host}) has joined")
        else:
            self.on_event("node_back", node, f"node {number} ({node.host}) has a new relay")
        return node

    def _rescued(self, node: Known, message: dict[str, Any]) -> None:
        proc = str(message["proc"])
        if proc not in node.gone:
            return
        if message["first"]:
            self._parts[proc] = Rescued(list(message["definitions"]))
        whole = self._parts.get(proc)
        if whole is None:
            return  # its beginning was lost with a connection
        whole.batches += [(int(first), bytes(raw)) for first, raw in message["batches"]]
        whole.last_index, whole.dropped = int(message["last"]), int(message["dropped"])
        if not message["more"]:
            del self._parts[proc]
            self._asked.pop(proc, None)
            self.on_rescued(proc, whole, *node.gone[proc])
