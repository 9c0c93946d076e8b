"""Recovery of a session after ranks, hub and launcher were all killed: the session file up to its
last complete chunk, and newer records from the rings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

from pardbg.events.control_events import ControlEvent
from pardbg.events.control_facts import Postmortem
from pardbg.events.decode import records_from
from pardbg.hub.backlog import Definitions
from pardbg.hub.ranks.processes import maps, start_time
from pardbg.hub.ranks.rings import Mapped, Rings
from pardbg.hub.removal import RING
from pardbg.hub.run import config as files
from pardbg.hub.run.config import RunConfig
from pardbg.hub.run.run_files import read_end
from pardbg.hub.run.runs import RunError, RunRings, find_run_rings
from pardbg.hub.serve.job_output import Tail
from pardbg.hub.serve.resume import NUMBER_SKIP, Resumed
from pardbg.render.reports.verdicts import RankEnd
from pardbg.session.reader import SessionError, open_session
from pardbg.session.writer import RunFacts, SessionWriter
from pardbg.store.source import Message
from pardbg_agent import wire
from pardbg_agent.ring import stable_fields
from pardbg_agent.wire import DefKind, Key


@dataclass(slots=True)
class Recovered:
    """Contents of the new session."""

    run: str
    from_file: int = 0
    """Number of messages taken from the session file."""
    file_problem: str = ""
    """Reason why the session file gave no messages, or not all."""
    ranks: list[RankEnd] = field(default_factory=list)


def recover(where: str, output: Path) -> Recovered:
    """Write the recovered session. ``where``: a run's id or directory, or a directory of rings.

    Raises UserError; OSError where ``output`` cannot be written."""
    return _Recovery(find_run_rings(where), output).run()


class _Recovery:
    def __init__(self, dead: RunRings, output: Path) -> None:
        self.dead = dead
        self.definitions = Definitions()
        self.resumed = Resumed()
        self.rings = Rings(dead.ring_dir, self.definitions)
        self.rings.scan()
        self.facts = _facts(dead.config, dead.path, self.rings)
        self.done = Recovered(self.facts.run)
        self.output = output

    def run(self) -> Recovered:
        try:
            if not self.rings.mapped:
                self._nothing_left()
            self.writer = SessionWriter(self.output, self.facts)
            for message in self._file():
                self.done.from_file += 1
                self.resumed.saw(message)
                if message.key[:1] == Key.DEFINITION.value:
                    self.definitions.add(message.key, message.payload)
                self._write(message.key, message.payload, message.received_ns)
            self._define(**self.facts.definition())
            rings = sorted(self.rings.mapped.items(), key=lambda item: item[1].reader.header.rank)
            last = max(_last_sign(ring) for _, ring in rings)
            for proc, ring in rings:
                self._take_ring(proc, ring, last)
            self._say_output(last)
            self._say_end(dict(rings), last)
            self.writer.close(None, self.resumed.restarts)
        finally:
            self.rings.close(remove=False)
        return self.done

    def _nothing_left(self) -> None:
        told = f"no ring in {self.dead.ring_dir}"
        session = self.dead.session
        if session is not None and session.exists():
            told += f": nothing beyond {session}; see `pardbg report {session}` or `pardbg repair`"
        elif self.rings.unreadable:
            told += f" that can be read ({next(iter(self.rings.unreadable.values()))})"
        raise RunError(told)

    # -- what the file has

    def _file(self) -> Iterator[Message]:
        session = self.dead.session
        if session is None:
            self.done.file_problem = "no session file is known"
            return
        try:
            source = open_session(session)
        except SessionError as error:
            self.done.file_problem = str(error)
            return
        try:
            while not source.finished:
                yield from (m for m in source.poll(0) if not _is_note(m))
        except OSError as error:
            self.done.file_problem = f"cannot read {session}: {error.strerror or error}"
        finally:
            source.close()

    # -- what the rings have

    def _take_ring(self, proc: str, ring: Mapped, last: int) -> None:
        key = proc.encode("ascii", "replace")
        before = self.resumed.heads.get(key, 0)
        rescued = self.rings.rescue(proc, before)
        for payload in self.definitions.missing(proc, rescued.definitions):
            self.definitions.add(Key.DEFINITION.value + key, payload)
            self._write(Key.DEFINITION.value + key, payload, last)
        self._define_clock(proc)
        count = 0
        for first, raw in rescued.batches:
            number = len(raw) // wire.RECORD_BYTES
            head = wire.FRAME.pack(
                wire.PROTOCOL_VERSION, wire.FRAME_SALVAGED, number, first, rescued.dropped, last
            )
            newest = min(int(records_from(raw)["t1_ns"].max()), last)
            self._write(Key.RECORDS.value + key, head + raw, max(newest, 0))
            count += number
        row = self.rings.row(ring)
        open_ns = max(0, _last_sign(ring) - row["open_since_ns"]) if row["open"] else 0
        found = rescued.batches[0][0] if rescued.batches else rescued.last_index + 1
        self.done.ranks.append(
            RankEnd(
                row["rank"], proc, _lives(ring), row["step"], row["what"], row["open_op"], open_ns,
                _last_sign(ring), count, max(0, found - before),
            )
        )  # fmt: skip

    def _define_clock(self, proc: str) -> None:
        """Define a process's clock: the hub's own, or unknown after another boot of the host."""
        boot = self.definitions.process(proc).fields.get("boot_id")
        same = self.dead.config is None or boot == self.dead.config.boot_id
        self._define(
            k=DefKind.CLOCK.value, proc=proc, offset_ns=0, error_ns=0 if same else None, t_ns=0
        )

    # -- what is said besides

    def _say_output(self, last: int) -> None:
        for name, stream in ((files.OUT_FILE, "stdout"), (files.ERR_FILE, "stderr")):
            tail = Tail(self.dead.path / name, stream, self.resumed.offsets.get(stream, 0))
            while lines := tail.read(last, final=True):
                for line in lines:
                    self._say(
                        Key.OUTPUT, last, rank=line.rank, stream=line.stream, text=line.text,
                        off=line.offset,
                    )  # fmt: skip
            tail.close()

    def _say_end(self, rings: dict[str, Mapped], last: int) -> None:
        """Write each rank's last state, the dead ranks, and what is known of the run's end."""
        self._say(Key.STATE, last, hub="postmortem", ranks=self.rings.rows(last))
        died = [proc for proc, ring in rings.items() if not _lives(ring)]
        for proc in died:
            if proc not in self.resumed.ended:
                left = self.definitions.process(proc).leaving
                self._define(
                    k=DefKind.END.value, proc=proc, t_ns=last + 1,
                    reason="exit" if left else "killed",
                )  # fmt: skip
        from_rings = sum(rank.from_ring for rank in self.done.ranks)
        fact = Postmortem(self.done.from_file, from_rings, len(rings))
        self._say(Key.CONTROL, **ControlEvent(fact, t_ns=last + 1).plain())
        end = read_end(self.dead.path)
        if len(died) == len(rings) and end is not None and end.code is not None:
            self._define(
                k=DefKind.END.value, proc=None, t_ns=last + 1, code=end.code, told=end.told
            )

    def _define(self, **fields: Any) -> None:
        self._write(
            Key.DEFINITION.value,
            msgpack.packb(fields, unicode_errors="backslashreplace"),
            int(fields.get("t_ns") or 0),
        )

    def _say(self, key: Key, t_ns: int, **fields: Any) -> None:
        self.resumed.number += 1
        said = {"n": self.resumed.number + NUMBER_SKIP, "t_ns": t_ns, **fields}
        self._write(
            key.value, msgpack.packb(said, default=str, unicode_errors="backslashreplace"), t_ns
        )

    def _write(self, key: bytes, payload: bytes, received_ns: int) -> None:
        try:
            self.writer.write(key, payload, received_ns)
        except (KeyError, UnicodeDecodeError):
            return  # a topic of a newer version, or none at all


def _is_note(message: Message) -> bool:
    """Return whether a message is the reader's note on a truncated file, not for the new file."""
    return message.received_ns == 0 and b"session.truncated" in message.payload


def _facts(config: RunConfig | None, path: Path, rings: Rings) -> RunFacts:
    """Return the run's facts for the new file: from the rings if there is no run.json."""
    if config is not None:
        return config.facts
    headers = [ring.reader.header for ring in rings.mapped.values()]
    first = min(headers, key=lambda h: h.start_wall_ns, default=None)
    hosts = sorted({proc.partition(".")[2].rpartition(".")[0] for proc in rings.mapped})
    return RunFacts(
        path.name, path.name, hosts[0] if hosts else "", (), "", "",
        first.start_ns if first is not None else 0,
        first.start_wall_ns if first is not None else 0,
    )  # fmt: skip


def _lives(ring: Mapped) -> bool:
    lives = bool(ring.started) and start_time(ring.pid) == ring.started
    return lives and maps(ring.pid, f"{ring.proc}{RING}")


def _last_sign(ring: Mapped) -> int:
    buffer = ring.buffer
    now = stable_fields(buffer, wire.STATUS_NOW, wire.STATUS_NOW_OFFSET)[6]
    op = stable_fields(buffer, wire.STATUS_OP, wire.STATUS_OP_OFFSET)[5]
    gate = stable_fields(buffer, wire.STATUS_GATE, wire.STATUS_GATE_OFFSET)[2]
    heartbeat = stable_fields(buffer, wire.STATUS_HEALTH, wire.STATUS_HEALTH_OFFSET)[0]
    return max(int(t) for t in (now, op, gate, heartbeat, ring.reader.header.start_ns))
