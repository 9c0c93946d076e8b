"""Relay of a node: hub to the agents of this node, one client of the run's hub.

Agents reach it over ipc and notice no difference. Their records stay in their rings while the hub
is away: only records that can be passed on are taken from them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import zmq

from pardbg.events.decode import Malformed
from pardbg.hub import MAX_CTRL_BYTES, MAX_MESSAGE_BYTES
from pardbg.hub import ctrl_messages as ctrl
from pardbg.hub.backlog import Definitions
from pardbg.hub.ranks.boards import TURN_MS, Boards
from pardbg.hub.ranks.rings import Rescued, Rings
from pardbg.hub.ranks.stack_requests import py_spy
from pardbg.hub.run import config as files
from pardbg.hub.run import jobs, run_files
from pardbg.hub.run.config import RunConfig
from pardbg.hub.run.jobs import Successor
from pardbg.hub.serve.job_output import JobOutput
from pardbg.hub.serve.sockets import listen, load_keys
from pardbg.hub.serve.state_feed import RowNews, longest_wait_ns
from pardbg.hub.uplink import BatchOrder, Uplink
from pardbg.plain_text import plain
from pardbg.words import duration
from pardbg_agent.ctrl.agent_messages import Bye, FromAgent, Hello, Ping, Pong, ToAgent, Welcome
from pardbg_agent.ctrl.codec import reader
from pardbg_agent.wire import Key

_from_agent: Final = reader(FromAgent)
_to_agent: Final = reader(ToAgent)
_to_relay: Final = reader(ctrl.ToRelay)

MS: Final = 1_000_000
SCAN_NS: Final = 250 * MS
OUTPUT_NS: Final = 100 * MS
COMPLAIN_NS: Final = 10_000 * MS
DRAIN_NS: Final = 5_000 * MS
"""Time for a hub that answers to take the rest after the job's end here."""
ABSENT_NS: Final = 3_000 * MS
"""Time for a hub that does not answer; the records then stay in the rings for `postmortem`."""
PULL_HWM: Final = 64
MAX_LINES: Final = 500
TOLD_FILE: Final = "relay.json"
"""File with the offsets of forwarded output, for a restarted relay."""


class Relay:
    """Relay of one node and run: call ``open``, then ``run``."""

    def __init__(self, config: RunConfig, sources: Sequence[int] = ()) -> None:
        self.config = config
        self.stopping = False
        self._successor = Successor(config, list(sources))
        self._definitions = Definitions()
        self._rings = Rings(config.ring_dir, self._definitions, config.run)
        self._boards = Boards(config.ring_dir, config.run)
        self._gone: dict[str, tuple[int, int | None]] = {}
        self._pending: deque[tuple[bytes, bytes]] = deque()
        """Messages taken from an agent and not yet by the hub."""
        self._hellos: dict[bytes, bytes] = {}
        """Hello of each process here: an agent sends it once, perhaps before there is a hub."""
        self._due_hellos: set[bytes] = set()
        """Processes whose Hello is to be forwarded over this connection."""
        self._at: dict[bytes, bytes] = {}
        """Process -> identity that it sent Hello with."""
        self._found: deque[ctrl.Looked] = deque()
        """Stacks read from outside, by other threads."""
        self._news = RowNews()
        self._scan_ns = self._output_ns = self._exit_ns = 0
        self._complained_ns, self._down_since = 0, time.monotonic_ns()
        self._why = ""
        """Reason of the last complaint; another reason is reported at once."""
        self._done = False
        self._order, self._link = BatchOrder(), 0
        told = files.read_json(config.dir / TOLD_FILE) or {}
        self._output = JobOutput(config.dir, {k: int(v) for k, v in told.items()})

    @property
    def over(self) -> bool:
        """Return whether the job has ended here."""
        return self._exit_ns > 0

    def open(self) -> None:
        """Bind the sockets, then write ``hub.pid``. Raises ConfigError."""
        keys = load_keys(self.config.dir)
        if keys is None:
            raise files.ConfigError("no key for the hub: give --key FILE")
        self._context: zmq.Context[Any] = zmq.Context()
        self._pull = self._bind(zmq.PULL, self.config.data, MAX_MESSAGE_BYTES)
        self._agents = self._bind(zmq.ROUTER, self.config.ctrl, MAX_CTRL_BYTES)
        self._up = Uplink(self._context, self.config.upstream, keys, self.config.node)
        self._poller, self._without_data = zmq.Poller(), zmq.Poller()
        self._poller.register(self._pull, zmq.POLLIN)
        for socket in (self._agents, *self._up.sockets()):
            self._poller.register(socket, zmq.POLLIN)
            self._without_data.register(socket, zmq.POLLIN)
        run_files.write_hub(self.config.dir, "relay")

    def _bind(self, kind: int, endpoint: str, limit: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, limit)
        if kind == zmq.PULL:
            socket.setsockopt(zmq.RCVHWM, PULL_HWM)
        else:
            socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        listen(socket, endpoint)
        return socket

    def run(self) -> None:
        """Work until the job has ended here and the hub has its records, or until ``stopping``."""
        while not self.stopping and not self._turn():
            pass
        taken = not self._rings.mapped
        missed = self._up.problem
        if not missed and not self._up.num_links:
            missed = f"no hub was reached at {self.config.hub}"
        with contextlib.suppress(OSError):
            run_files.write_recorded(self.config.dir, run_files.Recorded(missed))
        self._up.close(linger_ms=1_000 if taken else 0)
        self._boards.close()
        self._rings.close(remove=taken)
        self._output.close()
        for socket in (self._pull, self._agents):
            socket.close()
        self._context.term()

    # -- one turn

    def _turn(self) -> bool:
        self._wait()
        self._up.refresh()
        now = time.monotonic_ns()
        if self._up.up:
            for changes in self._boards.changes(now):
                self._up.send(ctrl.BoardNews(tuple(changes)))
        self._pass_data()
        self._pass_up()
        for sender, said in self._up.receive():
            self._from_hub(sender, said)
        self._watch_rings(now)
        self._say_rows(now)
        self._say_output(now)
        self._complain(now)
        while self._found and self._up.up:
            self._up.send(self._found.popleft())
        self._successor.tick()
        return self._is_over(now)

    def _wait(self) -> None:
        if self._pending or self._order.full or not self._up.up:
            # Agents keep their records while the hub takes nothing.
            self._without_data.poll(5 if self._up.up else 50)
        else:
            self._poller.poll(TURN_MS if self._boards.active else 25)

    def _pass_data(self) -> None:
        if self._up.num_links != self._link:
            self._link = self._up.num_links
            self._pending.clear()  # it comes again
            self._order.new_link()
            self._due_hellos.update(self._hellos)
        if not self._up.up:
            return
        while self._pending:
            if not self._up.put(*self._pending[0]):
                return
            self._pending.popleft()
        with contextlib.suppress(zmq.Again):
            for _ in range(256):
                if self._order.full:
                    return
                frames = self._pull.recv_multipart(zmq.NOBLOCK)
                if len(frames) == 2 and not self._pass(frames[0], frames[1]):
                    return

    def _pass(self, key: bytes, payload: bytes) -> bool:
        if key[:1] == Key.DEFINITION.value:
            self._definitions.add(key, payload)
        elif not self._order.may_forward(key[1:], payload):
            return True
        if self._up.put(key, payload):
            return True
        self._pending.append((key, payload))
        return False

    def _pass_up(self) -> None:
        with contextlib.suppress(zmq.Again, Malformed):
            for _ in range(256):
                frames = self._agents.recv_multipart(zmq.NOBLOCK)
                if len(frames) == 2:
                    self._pass_message(frames[0], frames[1])
        for proc in tuple(self._due_hellos) if self._up.up else ():
            if self._up.forward(proc, self._hellos[proc]):
                self._due_hellos.discard(proc)

    def _pass_message(self, identity: bytes, payload: bytes) -> None:
        message, proc = ctrl.unpack(payload, _from_agent), ctrl.process_of(identity)
        if isinstance(message, Hello):
            self._at[proc] = identity
            self._hellos[proc] = payload
            self._due_hellos.add(proc)
            return
        if isinstance(message, Bye):
            self._left(proc)
        self._up.forward(proc, payload)

    def _left(self, proc: bytes) -> None:
        self._hellos.pop(proc, None)
        self._at.pop(proc, None)
        self._due_hellos.discard(proc)

    # -- what the hub says

    def _from_hub(self, proc: bytes, payload: bytes) -> None:
        if not proc:
            with contextlib.suppress(Malformed):
                self._take_own(ctrl.unpack(payload, _to_relay))
            return
        try:
            message = ctrl.unpack(payload, _to_agent)
        except Malformed:
            return
        if isinstance(message, Ping):  # one clock for all of this node
            self._up.forward(proc, ctrl.pack(Pong(message.id, time.monotonic_ns())))
        else:
            if isinstance(message, Welcome):
                # Over a new link, or with a new relay, agents begin as with a new hub.
                hub = f"{message.hub}/{os.getpid()}.{self._up.num_links}"
                payload = ctrl.pack(replace(message, hub=hub))
                key = Key.RECORDS.value + proc
                kept = self._order.welcome(proc, message.next)
                self._pending.extend((key, batch) for batch in kept)
            with contextlib.suppress(zmq.ZMQError):
                self._agents.send_multipart((self._at.get(proc, proc), payload), zmq.NOBLOCK)

    def _take_own(self, message: ctrl.ToRelay) -> None:
        if isinstance(message, ctrl.Known):
            self._news.force = True
        elif isinstance(message, ctrl.TurnedAway):
            self._up.problem = plain(message.why)
        elif isinstance(message, ctrl.Salvage):
            self._rescue(message.proc, message.start)
        elif isinstance(message, ctrl.Forget):
            self._forget(message.proc)
        elif isinstance(message, ctrl.BoardNews):
            self._boards.take(message.changes, message.by_ns)
        elif isinstance(message, ctrl.Look):
            threading.Thread(target=self._look, args=(message,), daemon=True).start()
        elif isinstance(message, ctrl.Kill):
            jobs.ask_to_kill(self.config.dir)
        elif isinstance(message, ctrl.Notice):
            files.add_notice(self.config.dir, plain(message.text))
        else:
            self._done = True

    def _forget(self, proc: str) -> None:
        if proc in self._rings.mapped:
            self._rings.forget(proc)
            self._gone.pop(proc, None)
            self._definitions.ended(proc)
            self._order.forget(proc.encode("ascii"))

    def _rescue(self, proc: str, start: int) -> None:
        """Send an ended process's remains, in pieces: a ring may exceed one message."""
        if proc not in self._rings.mapped:
            return
        rescued = self._rings.rescue(proc, start)
        pieces = _pieces(rescued)
        for at, batches in enumerate(pieces):
            self._up.send(ctrl.Salvaged(
                proc, tuple(rescued.definitions) if not at else (), tuple(batches),
                rescued.last_index, rescued.dropped, first=not at, more=at + 1 < len(pieces),
            ))  # fmt: skip

    def _look(self, asked: ctrl.Look) -> None:
        try:
            self._found.append(ctrl.Looked(asked.id, asked.proc, py_spy(asked.pid)))
        except Exception as error:  # noqa: BLE001 - said instead of the stack
            problem = f"no answer, and py-spy: {error}"
            self._found.append(ctrl.Looked(asked.id, asked.proc, problem=problem))

    # -- what is here

    def _watch_rings(self, now: int) -> None:
        found = self._rings.left(now)
        if now - self._scan_ns >= SCAN_NS:
            self._scan_ns = now
            self._rings.scan()
            found += self._rings.died(now)
        for proc in found:
            ring = self._rings.mapped[proc]
            self._gone[proc] = (ring.dead_ns, ring.code)
            self._left(proc.encode("ascii"))
            self._news.force = True

    def _say_rows(self, now: int) -> None:
        config = self.config
        if not self._up.up or not self._news.due(now, 1 if self._boards.active else config.nnodes):
            return
        rows = self._rings.rows(now)
        if self._news.take(rows, now, longest_wait_ns(rows, now)):
            for proc in [one for one, (_, code) in self._gone.items() if code is None]:
                code = run_files.first_code(
                    config.dir, self._rings.mapped[proc].pid
                )  # reaped at once
                self._gone[proc] = (self._gone[proc][0], code)
            self._news.force = not self._up.send(ctrl.Rows(
                ctrl.VERSION, config.node, config.host, config.run, self._up.num_links, rows,
                self._gone, self.over,
            ))  # fmt: skip

    def _say_output(self, now: int) -> None:
        if now - self._output_ns < OUTPUT_NS or not self._up.up:
            return
        self._output_ns = now
        lines = self._output.lines(now, final=self.over)
        for at in range(0, len(lines), MAX_LINES):
            part = lines[at : at + MAX_LINES]
            self._up.send(ctrl.Lines(tuple((x.stream, x.rank, x.text) for x in part)))
        if lines:
            with contextlib.suppress(OSError):
                files.write_json(self.config.dir / TOLD_FILE, self._output.offsets)

    def _complain(self, now: int) -> None:
        """Report a missing hub to the terminal here, at once and every 10 s."""
        if self._up.up and not self._up.problem:
            if self._complained_ns:
                files.add_notice(self.config.dir, "connected to the hub")
            self._complained_ns, self._why, self._down_since = 0, "", now
            return
        why = self._up.problem or "it does not answer"
        if now - self._down_since < 1_000 * MS or (
            why == self._why and now - self._complained_ns < COMPLAIN_NS
        ):
            return
        self._complained_ns, self._why = now, why
        files.add_notice(
            self.config.dir,
            f"no hub at {self.config.upstream.text} for {duration(now - self._down_since)}: {why}; "
            "the job runs on, its records wait in the rings",
        )

    def _is_over(self, now: int) -> bool:
        if not self._exit_ns:
            if not run_files.has_ended(self.config.dir):
                return False
            self._successor.finish()
            self._exit_ns, self._scan_ns, self._news.force = now, 0, True
            return False
        if self._done:
            return True
        if (
            not self._rings.mapped
            and self._up.up
            and not self._news.force
            and (self._news.told_ns > self._exit_ns)
        ):
            return self._output.at_end
        return now - self._exit_ns >= (DRAIN_NS if self._up.up else ABSENT_NS)


def _pieces(rescued: Rescued) -> list[list[tuple[int, bytes]]]:
    """Return the batches in messages of about ``PIECE_BYTES``; one message at least."""
    out: list[list[tuple[int, bytes]]] = [[]]
    size = 0
    for first, raw in rescued.batches:
        if size and size + len(raw) > ctrl.PIECE_BYTES:
            out.append([])
            size = 0
        out[-1].append((first, raw))
        size += len(raw)
    return out
