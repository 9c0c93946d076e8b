"""Agents' side of CTRL: hello, clocks, states, ends; and additional facts from the rings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from pardbg.control.machine import machine
from pardbg.events.control_codes import Gone
from pardbg.events.decode import Malformed
from pardbg.events.fields import text, within
from pardbg.hub.backlog import Definitions, older_half
from pardbg.hub.ctrl_messages import BoardNews, Change, Row
from pardbg.hub.ranks.boards import Boards
from pardbg.hub.ranks.processes import start_time
from pardbg.hub.ranks.rings import Rescued, Rings
from pardbg.hub.ranks.stack_requests import StackRequests
from pardbg.hub.serve.collector import Collector
from pardbg.hub.serve.nodes import KnownNode, Nodes
from pardbg.hub.serve.questions import Questions
from pardbg.hub.serve.router import Router
from pardbg.store.clocks import SAME, ClockEstimate, Offset
from pardbg.words import whole
from pardbg_agent import wire
from pardbg_agent.ctrl import agent_messages as messages
from pardbg_agent.wire import DefKind, Key

SCAN_NS: Final = 250_000_000
SETTLE_NS: Final = 150_000_000
"""Time for a dead process's last messages to arrive through the sockets."""
PING_LOOK_NS: Final = 20_000_000
"""Interval, in ns, between checks for clocks that are due."""
LOST_NS: Final = 15_000_000_000
"""Silence after which a process on another host counts as lost."""


class Agents:
    """Every process of the run, from hello to end."""

    def __init__(
        self, hub_id: str, boot_id: str, router: Router, collector: Collector,
        definitions: Definitions, rings: Rings, machine: machine.Machine, where: StackRequests,
        boards: Boards,
    ) -> None:  # fmt: skip
        self.ended: dict[str, str] = {}
        """Process -> reason of its end: exit, killed or lost."""
        self.first_code: Callable[[int], int | None] = lambda pid: None
        """Exit code of the job's first process, if that is ``pid``: it is reaped at once."""
        self.questions = Questions()
        self.boards = boards
        self._hub_id, self._boot_id = hub_id, boot_id
        self._router, self._collector, self._definitions = router, collector, definitions
        self._rings, self._machine, self._where = rings, machine, where
        self.nodes = Nodes(hub_id, router)
        self.nodes.on_welcome = lambda proc: self._welcome(proc, time.monotonic_ns())
        self.nodes.on_rescued = self._rescued
        self.nodes.on_boards = self._on_boards
        self._clocks: dict[str, ClockEstimate] = {}
        """Clocks by process; those behind one relay share its node's."""
        self._node_clocks: dict[str, ClockEstimate] = {}
        """Clocks by the relay's identity."""
        self._byes: dict[str, messages.Bye] = {}
        self._hello: set[str] = set()
        self._launchers: set[str] = set()
        """Processes that control was told are not ranks."""
        self._heard: dict[str, int] = {}
        self._left: dict[str, int] = {}
        """Process on another node -> time at which its end was found."""
        self._taken: list[str] = []
        """Ended processes whose remains were taken just now."""
        self._scanned_ns = self._ping = self._pinged_ns = 0

    def known(self) -> dict[str, int]:
        """Return process -> rank for every process that has not ended."""
        procs = {*self._hello, *self._rings.mapped, *self.nodes.rows} - self.ended.keys()
        return {proc: self._rank(proc) for proc in procs}

    def rows(self, now: int) -> dict[str, Row]:
        """Return STATE's ``ranks`` of every node."""
        return self.nodes.rows | self._rings.rows(now)

    def computing(self) -> dict[str, int]:
        """Return process -> begin of its running pipeline action, by its own clock."""
        elsewhere = {p: row["since_ns"] for p, row in self.nodes.rows.items() if row["action"]}
        return elsewhere | self._rings.computing()

    def offset_ns(self, proc: str) -> int:
        """Return the offset from a process's clock to ours; 0 if unknown."""
        clock = self._clocks.get(proc)
        return clock.offset.offset_ns if clock is not None and clock.offset is not None else 0

    def pid(self, proc: str) -> int:
        """Return the process id (on its own host)."""
        return int(proc.rpartition(".")[2])

    def place(self, proc: str) -> tuple[str, int]:
        """Return (host, pid) of a process."""
        return proc.rpartition(".")[0].partition(".")[2], self.pid(proc)

    def ranks_here(self) -> dict[int, tuple[int, str]]:
        """Return pid -> (rank, its device's id) of the processes on this host that have not
        ended."""
        here = [(p, rank) for p, rank in self.known().items() if self.nodes.node_of(p) is None]
        facts = self._definitions.processes
        ids = {proc: text(facts[proc].fields, "device_id") for proc, _ in here if proc in facts}
        return {self.pid(proc): (rank, ids.get(proc, "")) for proc, rank in here}

    def innermost(self, procs: Iterable[str]) -> list[str]:
        """Return ``Definitions.innermost`` among processes that have not ended."""
        return self._definitions.innermost(procs, self.known())

    def defined(self, proc: str, fields: Mapping[str, object]) -> None:
        """Pass a definition's facts on to control."""
        kind = fields.get("k")
        for one in (proc, *within(fields)) if kind in (DefKind.PROCESS, DefKind.GROUP) else ():
            self._rank_told(one, self._rank(one))
        for one, facts in self._definitions.processes.items() if "since" in fields else ():
            if facts.left:
                self._rank_told(one, -1)
        if kind in (DefKind.GROUP, DefKind.PLAN):
            known = self._definitions
            self._machine.take(machine.Learned(known.groups, known.timeouts, known.pipelines))

    def _rank_told(self, proc: str, rank: int) -> None:
        """Tell control, which has ranks only, that a process turned out to be a launcher, not a
        rank (or a rank after all), or that ranks met again without it."""
        now = time.monotonic_ns()
        if proc in self._machine.control.views:
            self._machine.take(machine.Joined(proc, rank, now))
            if proc not in self._machine.control.views:
                self._launchers.add(proc)
        elif proc in self._launchers and rank >= 0:
            self._launchers.discard(proc)
            self._machine.take(machine.Joined(proc, rank, now))

    def message(self, proc: str, message: messages.FromAgent, now: int) -> None:
        """Handle one CTRL message of an agent. Raises Malformed."""
        if proc.count(".") < 2 or whole(proc.rpartition(".")[2]) is None:
            raise Malformed("process")
        if isinstance(message, messages.State):
            self._machine.take(machine.Reported(replace(message, proc=proc), now))
        elif isinstance(message, messages.Hello):
            self._on_hello(proc, message, now)
        elif isinstance(message, messages.Pong):
            self._on_pong(proc, message, now)
        elif isinstance(message, messages.Done):
            self._machine.take(machine.Acknowledged(proc, message.re))
        elif isinstance(message, messages.Stacks):
            self._where.answered(proc, message)
        elif isinstance(message, messages.Evaluated):
            self.questions.answered(proc, message)
        else:
            self._on_bye(proc, message, now)
        if proc in self._hello:
            self._heard[proc] = now

    def tick(self, now: int) -> None:
        """Check for new rings, dead processes, due pings."""
        self._gone(self._rings.left(now), now)
        for changes in self.boards.changes(now) if self.nodes else ():
            self._pass_boards(changes, None, 0)
        if now - self._scanned_ns >= SCAN_NS:
            self._scanned_ns = now
            self._rings.scan()
            self._gone(self._rings.died(now), now)
            self._find_lost(now)
        for proc, ring in list(self._rings.mapped.items()):
            if not ring.dead_ns or now - ring.dead_ns < SETTLE_NS:
                continue
            if proc not in self.ended:
                self._salvage(proc, now)
            else:  # taken by the previous hub
                self._taken.append(proc)
        for node in list(self.nodes):
            for proc in list(node.gone):
                self._gone_elsewhere(proc, now)
        self._forget_taken()
        self.nodes.tick(now)
        self._ping_remote(now)

    def _on_boards(self, node: KnownNode, changes: tuple[Change, ...]) -> None:
        by_ns = self.offset_ns(next(iter(node.rows), ""))
        self.boards.take(changes, by_ns)
        self._pass_boards(changes, node, by_ns)

    def _pass_boards(self, changes: Iterable[Change], source: KnownNode | None, by_ns: int) -> None:
        """Send boards' changes to other nodes. ``by_ns``: offset of their times to our clock."""
        for node in self.nodes:
            if node is not source and not node.silent:
                theirs = self.offset_ns(next(iter(node.rows), ""))
                self.nodes.tell(node, BoardNews(tuple(changes), by_ns - theirs))

    def _gone_elsewhere(self, proc: str, now: int) -> None:
        """Handle a process's end on another node; fetch its remains after its last messages."""
        if proc in self.ended:
            self.nodes.forget(proc)
            return
        if proc not in self._left:
            self._left[proc] = now
            self._gone([proc], now)
        elif now - self._left[proc] >= SETTLE_NS:
            self.nodes.rescue(proc, self._head(proc), now)

    def _rescued(self, proc: str, rescued: Rescued, dead_ns: int, code: int | None) -> None:
        if proc not in self.ended:
            self._take_rest(proc, rescued, dead_ns + self.offset_ns(proc), code)
        self._taken.append(proc)

    def finish(self, now: int) -> None:
        """Take the rest of the rings after the end of the job."""
        self._rings.scan()
        for proc in list(self._rings.mapped):
            if proc not in self.ended:
                self._salvage(proc, now)
        for proc in self.nodes.rows.keys() - self.ended.keys():
            self._end(proc, "lost", self._head(proc) - 1, 0, now)
        self._forget_taken()

    def _gone(self, procs: list[str], now: int) -> None:
        for proc in procs:
            self._where.gone(proc)
            self.questions.gone(proc)
            if proc not in self._byes:
                self._machine.take(machine.Departed(proc, now, Gone.GONE))

    # -- messages

    def _on_hello(self, proc: str, message: messages.Hello, now: int) -> None:
        if not self._collector.admit(proc.encode("ascii")):
            return
        first = proc not in self._hello
        self._hello.add(proc)
        self._byes.pop(proc, None)
        facts = self._definitions.process(proc)
        if not facts.fields:
            facts.fields = dict(message.process)
        if proc not in self._rings.mapped:
            self._rings.scan()
        self._welcome(proc, now)
        if not first or proc in self.ended:
            return
        if message.process.get("boot_id") == self._boot_id:
            self._define_clock(proc, SAME, now)
        else:
            relay, clock = self._router.relay_of(proc), ClockEstimate()
            clock = clock if relay is None else self._node_clocks.setdefault(relay, clock)
            self._clocks[proc] = clock
            if clock.offset is not None:
                self._define_clock(proc, clock.offset, now)
        if facts.launches or facts.left:  # known from other processes, to a later hub
            self._launchers.add(proc)
        else:
            self._machine.take(machine.Joined(proc, self._rank(proc), now))

    def _on_pong(self, proc: str, message: messages.Pong, now: int) -> None:
        clock = self._clocks.get(proc)
        offset = clock.answered(message.re, message.t_ns, now) if clock is not None else None
        if offset is not None:
            for other, same in self._clocks.items():
                if same is clock and other not in self.ended:
                    self._define_clock(other, offset, now)

    def _on_bye(self, proc: str, message: messages.Bye, now: int) -> None:
        self._byes[proc] = message
        self._hello.discard(proc)
        self._where.gone(proc)
        self.questions.gone(proc)
        self._machine.take(machine.Departed(proc, now))
        if proc not in self._rings.mapped and self.nodes.node_of(proc) is None:
            self._end(proc, "exit", message.last_index, message.dropped, now)

    # -- ends

    def _salvage(self, proc: str, now: int) -> None:
        ring = self._rings.mapped[proc]
        rescued = self._rings.rescue(proc, self._head(proc))
        outlives = not ring.dead_ns and start_time(ring.pid) == ring.started != ""
        code = self.first_code(ring.pid) if ring.code is None else ring.code
        self._take_rest(proc, rescued, ring.dead_ns or now, code, outlives)
        self._taken.append(proc)

    def _forget_taken(self) -> None:
        """Remove files of ended processes, after writing their contents to the recording's file:
        else a hub killed now would take the only other copy with it."""
        if not self._taken:
            return
        self._collector.flush(None)
        taken, self._taken = self._taken, []
        for proc in taken:
            if proc in self._rings.mapped:
                self._rings.forget(proc)
            self.nodes.forget(proc)

    def _take_rest(
        self, proc: str, rescued: Rescued, dead_ns: int, code: int | None, outlives: bool = False
    ) -> None:
        now = time.monotonic_ns()
        for payload in self._definitions.missing(proc, rescued.definitions):
            self._collector.accept(Key.DEFINITION.value + proc.encode("ascii"), payload)
        for first, raw in rescued.batches:
            count = len(raw) // wire.RECORD_BYTES
            head = wire.FRAME.pack(
                wire.PROTOCOL_VERSION, wire.FRAME_SALVAGED, count, first, rescued.dropped, now
            )
            self._collector.records(proc, head + raw, first, count)
        left = proc in self._byes or self._definitions.process(proc).leaving
        if code is not None:
            left = code >= 0  # os._exit sends no Bye and is not a kill
        reason = "exit" if left else "killed"
        self._machine.take(machine.Departed(proc, now, Gone.GONE))
        reason = "alive" if outlives else reason
        self._end(proc, reason, rescued.last_index, rescued.dropped, dead_ns, code)

    def _end(
        self, proc: str, reason: str, last_index: int, dropped: int, t_ns: int,
        code: int | None = None,
    ) -> None:  # fmt: skip
        self.ended[proc] = reason
        self._definitions.ended(proc)
        self._collector.define(
            k=DefKind.END.value, proc=proc, t_ns=t_ns, reason=reason, last_index=last_index,
            dropped=dropped, code=code,
        )  # fmt: skip

    def make_room(self) -> None:
        """Forget the older half of the ended processes: no more of their messages are expected."""
        if not self.ended:
            return
        here = self._rings.mapped.keys() | self.nodes.rows.keys() | {*self._taken}
        old = older_half([proc for proc in self.ended if proc not in here])
        for proc in old:
            for table in (self.ended, self._byes, self._heard, self._left, self._clocks):
                table.pop(proc, None)
        self._hello.difference_update(old)
        self._launchers.difference_update(old)
        self._collector.forget(old)
        self._definitions.forget(old)
        self._router.forget(old)

    def _find_lost(self, now: int) -> None:
        elsewhere = self.nodes.rows.keys()
        for proc in self._hello - self.ended.keys() - self._rings.mapped.keys() - elsewhere:
            if now - self._heard.get(proc, now) >= LOST_NS:
                self._machine.take(machine.Departed(proc, now, Gone.LOST))
                self._end(proc, "lost", self._head(proc) - 1, 0, now)

    # -- small things

    def _welcome(self, proc: str, now: int) -> bool:
        return self._router.send(proc, messages.Welcome(self._hub_id, self._head(proc), now))

    def _head(self, proc: str) -> int:
        return self._collector.heads.next.get(proc.encode("ascii"), 0)

    def _ping_remote(self, now: int) -> None:
        if now - self._pinged_ns < PING_LOOK_NS:
            return
        self._pinged_ns = now
        for proc, clock in self._clocks.items():
            if proc not in self.ended and clock.due(now):  # once per node: then it is not due
                self._ping += 1
                clock.sent(self._ping, now)
                self._router.send(proc, messages.Ping(self._ping, now))

    def _define_clock(self, proc: str, offset: Offset, now: int) -> None:
        self._collector.define(
            k=DefKind.CLOCK.value, proc=proc, offset_ns=offset.offset_ns,
            error_ns=offset.error_ns, t_ns=now,
        )  # fmt: skip

    def _rank(self, proc: str) -> int:
        return self._definitions.process(proc).rank
