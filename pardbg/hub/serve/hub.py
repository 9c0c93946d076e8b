"""Hub of one run: sockets, session, rings, output and control in one loop."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import msgpack

from pardbg.control.machine.delivery import Send
from pardbg.control.machine.machine import Learned, Machine, Ticked
from pardbg.control.machine.state import Event
from pardbg.events import control_facts as facts
from pardbg.events.commands import Reply
from pardbg.events.control_events import ControlEvent
from pardbg.hub.backlog import DEFINITION_BYTES, Definitions, Recent, Wire
from pardbg.hub.ctrl_messages import End, Kill, Notice
from pardbg.hub.ranks.boards import TURN_MS, Boards
from pardbg.hub.ranks.device_meters import DeviceMeters
from pardbg.hub.ranks.processes import start_time
from pardbg.hub.ranks.rings import Rings
from pardbg.hub.ranks.stack_requests import StackRequests
from pardbg.hub.run import config as files
from pardbg.hub.run import jobs
from pardbg.hub.run.config import RunConfig
from pardbg.hub.run.jobs import Successor
from pardbg.hub.run.run_files import Recorded, first_code, read_end, write_recorded
from pardbg.hub.serve.agents import Agents
from pardbg.hub.serve.collector import EARLY_NS, MAX_PROCESSES, Collector
from pardbg.hub.serve.job_output import JobOutput, Line
from pardbg.hub.serve.nccl_reports import NcclFiles
from pardbg.hub.serve.nodes import Notices
from pardbg.hub.serve.resume import KEEP_BYTES, Resumed, keep_state, open_writer
from pardbg.hub.serve.router import Router
from pardbg.hub.serve.sockets import Listening, Sockets, begin_to_listen
from pardbg.hub.serve.state_feed import HangWatch, StateFeed
from pardbg.hub.serve.viewers import Viewers
from pardbg.plain_text import plain
from pardbg.render.frame.control_words import nodes_text, notice
from pardbg.version import __version__
from pardbg.words import ranks_text
from pardbg_agent.wire import DefKind, Key

US: Final = 1_000
MS: Final = 1_000_000
OUTPUT_NS: Final = 50 * MS
QUIET_NS: Final = 200 * MS
DRAIN_NS: Final = 5_000 * MS
"""Maximum time, in ns, for processes and their last messages after the job's end."""
ORPHANS_NS: Final = 500 * MS
"""Maximum time for ranks that outlive the job's first process: a plain job has ended by then."""
NODES_NS: Final = 60_000 * MS
"""Maximum time while the job continues on other nodes: torchrun's agents end one by one."""
GRACE_NS: Final = 2_000 * MS
"""Time, in ns, for a late viewer's history after everything is written."""
TELL_NS: Final = 20_000 * MS
"""Additional time, in ns, for ``--notify``."""
GAP_NS: Final = 1_000 * MS
LIMITS_NS: Final = 10_000 * MS


class Hub:
    """Hub to be made, ``open``ed, ``run``, closed. One per run and process."""

    def __init__(
        self, config: RunConfig, sources: Sequence[int] = (), listening: Listening | None = None
    ) -> None:
        self.config = config
        self._successor = Successor(config, list(sources))
        self._node_notices = Notices()
        self._listening = listening
        self._hangs = HangWatch(config)
        self.stopping = False
        """Whether to flush, close the session and end."""
        self.code: int | None = None
        """Exit code of the job, once it has ended and if it is known."""
        self._told_limits: dict[str, int] = {}
        self._limits_ns = 0
        self._output_ns = self._gap_ns = self._exit_ns = self._heard_ns = 0

    # -- life

    def open(self) -> None:
        """Open the session, and the sockets unless they are open. Raises ConfigError."""
        found = self._listening or begin_to_listen(self.config)
        self.id, self._sockets = found.hub, found.sockets
        self._definitions, self._recent = Definitions(), Recent()
        opened = open_writer(self.config, found.before, self._definitions, self._recent)
        writer, parts, resumed, problem = opened
        self._resumed = resumed
        self._collector = Collector(
            found.sockets.pull, found.sockets.pub, writer, self._definitions, self._recent, parts
        )
        if parts is not None:
            parts.repeat = self._begin_part
        self._collector.write_error = problem
        self._collector.number = resumed.number
        self._collector.heads.next = resumed.heads
        if resumed.restarted:
            self._collector.heads.early_until_ns = time.monotonic_ns() + EARLY_NS
        self._make_control(found.sockets)
        self._output = JobOutput(self.config.dir, resumed.offsets)
        self._nccl = NcclFiles(os.environ, self.config.wall_ns, resumed.restarted)
        self._meters = DeviceMeters()
        self._meters.start()
        self._say_hello(resumed)

    def run(self) -> None:
        """Run until the job is over and everything is written, or until ``stopping``."""
        while not self.stopping and not self._turn():
            pass
        self._close_session()
        until = time.monotonic_ns() + GRACE_NS
        if self.over and self.config.on_hang.notify:
            self._hangs.start("end", time.monotonic_ns())
            until += TELL_NS
        while not self.stopping and time.monotonic_ns() < until:
            if not self._router.busy and not self._hangs.busy():
                break
            self._sockets.wait(20)
            if self._sockets.subscribed():  # send the state at once: nothing is missed
                self._state.news.force = True
            self._state.tick(time.monotonic_ns())
            self._router.receive()
            self._router.tick(time.monotonic_ns())
        self.close()

    def close(self) -> None:
        """Close sockets, mappings and the session."""
        self._close_session()
        self._agents.nodes.tell_all(End())
        self._agents.boards.close()
        self._rings.close(remove=self.over)
        self._output.close()
        self._nccl.close()
        self._meters.close()
        self._sockets.close()

    @property
    def over(self) -> bool:
        """Return whether the job has ended."""
        return self._exit_ns > 0

    # -- setting up

    def _make_control(self, sockets: Sockets) -> None:
        # Ids grow over hub restarts, too: an agent's answer to the old hub is not one to us.
        self._machine = Machine(first_id=time.monotonic_ns() // US)
        self._machine.control.raised.hold_ns = int(self.config.on_exception_s * 1e9)
        self._rings = Rings(self.config.ring_dir, self._definitions, self.config.run)
        self._router = Router(sockets.ctrl, sockets.security)
        self._where = StackRequests()
        self._agents = Agents(
            self.id, self.config.boot_id, self._router, self._collector, self._definitions,
            self._rings, self._machine, self._where,
            Boards(self.config.ring_dir, self.config.run),
        )  # fmt: skip
        self._agents.first_code = partial(first_code, self.config.dir)
        self._agents.ended = dict(self._resumed.ended)
        for proc in self._agents.ended:
            self._definitions.ended(proc)
        self._collector.make_room = self._agents.make_room
        self._state = StateFeed(self.id, self._agents, self._where, self._router, self._collector)
        nodes = self._agents.nodes
        nodes.on_event = self._node_event
        nodes.on_line = lambda stream, rank, text: self._collector.say(
            Key.OUTPUT, rank=rank, stream=stream, text=text
        )
        self._where.elsewhere = nodes.look
        nodes.on_looked = self._where.looked
        self._viewers = Viewers(
            self.config, self.id, self._router, self._collector, self._definitions,
            self._recent, self._agents, self._machine, self._where, self._kill_job,
        )  # fmt: skip
        known = self._definitions
        self._machine.take(Learned(known.groups, known.timeouts, known.pipelines))
        self._collector.on_definition = self._agents.defined
        self._router.on_agent = self._agents.message
        self._router.on_viewer = self._viewers.message
        self._router.on_relay = nodes.message
        self._router.on_left = lambda viewer: self._viewers.left(viewer, time.monotonic_ns())

    def _say_hello(self, resumed: Resumed) -> None:
        config = self.config
        self._collector.define(
            **config.facts.definition(), version=__version__, loss_pattern=config.loss_pattern
        )
        if resumed.restarted:
            now = time.monotonic_ns()
            known = self._viewers.restore(resumed.breaks, resumed.break_number, now)
            lost = {one.number for one in resumed.breaks} - {*known}
            restarted = facts.HubRestarted(
                resumed.hub, resumed.num_bytes, resumed.num_messages, resumed.held, known,
                tuple(sorted(lost)),
            )  # fmt: skip
            self._record(restarted)
            self._collector.flush(None)  # known even if this hub dies at once, too
        if self._collector.write_error:
            self._record(facts.Problem(self._collector.write_error))
            self._told_write_error = True

    # -- one turn

    def _turn(self) -> bool:
        active = self._machine.control.active or self._router.busy
        watching = self._agents.boards.active and self._agents.nodes
        quick = TURN_MS if watching else 3 if self._machine.control.settling else 10
        self._sockets.wait(quick if watching or active else 25)
        now = time.monotonic_ns()
        if self._collector.drain():
            self._heard_ns = now
        if self._sockets.subscribed():  # send the state at once, so that the viewer misses nothing
            self._state.news.force = True
        self._router.receive()
        now = time.monotonic_ns()
        self._agents.tick(now)
        computing = self._agents.computing() if self._machine.control.active else None
        self._machine.take(Ticked(now, computing))
        self._carry_out()
        for changes in self._node_notices.due(now):
            self._notice(partial(lambda text, _run: text, nodes_text(changes)))
        self._where.tick(now)
        self._viewers.tick(now)
        self._router.tick(now)
        self._say_output(now)
        self._say_gaps(now)
        self._say_limits(now)
        self._state.tick(now)
        self._look_into_hangs(now)
        self._collector.flush(now)
        self._keep_state()
        self._check_writer()
        for what in self._successor.tick():
            self._record(facts.ProcessLost(what))
        return self._is_over(now)

    def _carry_out(self) -> None:
        for effect in self._machine.drain():
            if isinstance(effect, Send):
                self._router.send(effect.proc, effect.message)
            elif isinstance(effect, Event):
                self._publish(effect)
            else:
                order = effect.order
                reply = Reply(order.re, effect.refusal, status=effect.status)
                self._router.reply(order.viewer, reply)

    def _publish(self, effect: Event) -> None:
        """Record an event; the same fact answers the orders that it ends."""
        event = ControlEvent(effect.fact, effect.status, effect.by)
        number, fact = self._collector.control(event), effect.fact
        refusal = fact.refusal if isinstance(fact, facts.Refused) else None
        for order in effect.answers:
            reply = Reply(
                order.re, refusal, fact if refusal is None else None, effect.status, number
            )
            self._router.reply(order.viewer, reply)
        self._notice(partial(notice, event))

    def _notice(self, words: Callable[[str], str]) -> None:
        """Tell a user without a screen that the job is held, and what to do. ``words`` returns the
        line for the run's name, which differs from node to node; empty: not of interest."""
        text = words(self.config.run)
        if text:
            files.add_notice(self.config.dir, plain(text))
            for node in self._agents.nodes.running:
                self._agents.nodes.tell(node, Notice(words(node.run)))

    def _node_event(self, fact: facts.Node) -> None:
        self._record(fact)
        self._node_notices.add(fact, time.monotonic_ns())

    # -- what the hub says

    def _say_output(self, now: int) -> None:
        if now - self._output_ns < OUTPUT_NS:
            return
        self._output_ns = now
        self._say_lines(self._output.lines(now, final=self._exit_ns > 0))
        self._say_nccl(now, final=False)

    def _say_nccl(self, now: int, final: bool) -> None:
        if self._meters.active:
            self._meters.ranks = self._agents.ranks_here()
            for reading in self._meters.took():
                self._record(reading)
        for line in self._nccl.lines(now, final=final):
            self._collector.say(Key.OUTPUT, rank=None, stream=line.stream, text=line.text)
        rows = self._nccl.inspected(now if not final else 1 << 62)
        if rows is not None:
            self._collector.define(k=DefKind.NOTE.value, key="nccl_inspector", value=rows)

    def _say_lines(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self._collector.say(
                Key.OUTPUT, rank=line.rank, stream=line.stream, text=line.text, off=line.offset
            )

    def _say_gaps(self, now: int) -> None:
        gaps = self._collector.heads.gaps
        if gaps and now - self._gap_ns >= GAP_NS:
            self._gap_ns = now
            for proc, num in gaps.items():
                rank = self._definitions.process(proc).rank
                self._record(facts.Gap(rank, num, proc))
            gaps.clear()

    def _say_limits(self, now: int) -> None:
        """Record, every LIMITS_NS while it goes on, the number of messages beyond a limit."""
        if now - self._limits_ns < LIMITS_NS:
            return
        self._limits_ns = now
        for what, limit, total in (
            ("processes", MAX_PROCESSES, self._collector.counters.refused),
            ("definitions", DEFINITION_BYTES, self._definitions.left_out),
        ):
            num = total - self._told_limits.get(what, 0)
            if num:
                self._told_limits[what] = total
                self._record(facts.Limit(what, limit, num))

    def _record(self, fact: facts.Fact) -> None:
        status = self._machine.control.status(time.monotonic_ns())
        self._collector.control(ControlEvent(fact, status))

    _told_write_error = False

    def _check_writer(self) -> None:
        if self._collector.write_error and not self._told_write_error:
            self._told_write_error = True
            print(self._collector.write_error, flush=True)
            self._record(facts.Problem(self._collector.write_error))

    def _begin_part(self, number: int) -> list[Wire]:
        """Return the first messages of the recording's part ``number``: all that is needed to read
        it alone, and to continue it if this hub dies."""
        files.write_json(self.config.dir / files.PART_FILE, {"part": number})
        self._keep_at = KEEP_BYTES
        self._state.news.force = True
        return self._all_known(number)

    def _all_known(self, part: int) -> list[Wire]:
        """Return every definition, and a message on the run's progress."""
        heads = {p.decode("ascii"): head for p, head in self._collector.heads.next.items()}
        self._collector.number += 1
        now = time.monotonic_ns()
        fact = facts.Part(
            part, heads, self._output.offsets, self._agents.ended, self._resumed.restarts
        )
        status = self._machine.control.status(now)
        event = ControlEvent(fact, status, n=self._collector.number, t_ns=now).plain()
        packed = msgpack.packb(event, unicode_errors="backslashreplace")
        return [*self._definitions.messages(), (Key.CONTROL.value, packed)]

    _keep_at = KEEP_BYTES
    """Size of the recording at which the state is kept next."""

    def _look_into_hangs(self, now: int) -> None:
        stood_ns = 0 if self._machine.control.active else self._state.standstill.stood_ns
        if self._hangs.due(stood_ns, now):
            self._collector.flush(None)  # the inquiry reads the recording
            self._hangs.start("hang", now)
        culprits, how = self._hangs.took(now), self.config.on_hang
        if culprits is not None and how.abort and self._hangs.stands:
            ranks = self._rings.abort(culprits) or self._rings.abort(self._rings.mapped)
            self._record(facts.Bookmark(now, f"--on-hang: SIGABRT to {ranks_text(ranks)}"))

    def _keep_state(self) -> None:
        """Keep the state, so that the next hub, if this one is killed, reads only what follows."""
        writer = self._collector.writer
        if writer is None or writer.num_bytes < self._keep_at:
            return
        self._collector.flush(None)
        if self._collector.writer is writer:
            size = keep_state(self.config.dir, writer, self._all_known(1))
            self._keep_at = writer.num_bytes + max(KEEP_BYTES, size)

    # -- the end

    def _is_over(self, now: int) -> bool:
        if not self._exit_ns:
            if now - self._looked_ns < 100 * MS:
                return False
            self._looked_ns = now
            end = read_end(self.config.dir)
            if end is None:
                return False
            self.code, self._told = end.code, end.told
            self._successor.finish()
            self._exit_ns = self._heard_ns = now
            return False
        if now - self._exit_ns >= (NODES_NS if self._agents.nodes.running else DRAIN_NS):
            return True
        if now - self._exit_ns >= ORPHANS_NS and self._only_orphans():
            return True
        quiet = now - self._heard_ns >= QUIET_NS and now - self._exit_ns >= QUIET_NS
        all_met = len(self._agents.nodes) + 1 >= self.config.nnodes
        return quiet and all_met and not self._agents.known() and self._output.at_end

    def _only_orphans(self) -> bool:
        """Return whether only processes are left that outlive the job's ended first process."""
        known = self._agents.known()
        alive = all(start_time(self._agents.pid(proc)) for proc in known)
        return bool(known) and alive and not self._agents.nodes.running

    _looked_ns = 0

    def _close_session(self) -> None:
        if self._closed:
            return
        self._closed = True
        now = time.monotonic_ns()
        self._collector.drain()
        if self.over:
            self._agents.finish(now)
        while lines := self._output.lines(now, final=True):
            self._say_lines(lines)
        self._say_nccl(now, final=True)
        self._gap_ns = self._limits_ns = 0
        self._say_gaps(now)
        self._say_limits(now)
        self._state.news.force = True
        self._state.tick(now)
        if self.over:
            self._collector.define(
                k=DefKind.END.value, proc=None, t_ns=now, code=self.code, told=self._told
            )
        collector = self._collector
        if collector.writer is not None:
            try:
                collector.writer.close(self.code, self._resumed.restarts)
            except OSError as error:
                collector.stop_recording(error)
            collector.writer = None
        self._say_recorded(now)

    def _say_recorded(self, now: int) -> None:
        collector = self._collector
        if collector.write_error:
            print(collector.write_error, flush=True)
        ours = collector.has_file or self._resumed.restarted  # else it is another run's
        since = collector.missing_since_ns or (self.config.t_ns if ours else now)
        with contextlib.suppress(OSError):
            missing_ns = now - since if collector.write_error else 0
            write_recorded(
                self.config.dir,
                Recorded(collector.write_error or "", collector.missing, missing_ns),
            )

    _closed = False
    _told: Sequence[Any] = ()
    """Signals that the job was given: see ``JobEnd``."""

    def _kill_job(self) -> bool:
        """End the job, on all nodes; return False if it has ended."""
        self._agents.nodes.tell_all(Kill())
        if jobs.job_pid(self.config.dir) is None:
            return bool(self._agents.nodes.running)
        jobs.ask_to_kill(self.config.dir)
        return True
