"""The store: applies messages, hands out columns. One thread writes and reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from pardbg.events import control_facts, fields
from pardbg.events.control_events import event_of
from pardbg.events.decode import Full, Malformed, decode_map, frame_head, leading, split_key
from pardbg.events.fields import MAX_GROUPS, MAX_NAMES_PER_PROC, MAX_PROCS
from pardbg.nccl.debug_lines import DebugReader
from pardbg.store import definitions, lives
from pardbg.store.captured import add
from pardbg.store.clocks import Reading
from pardbg.store.history import Bookmark, Bookmarks, History, StateHistory
from pardbg.store.intake import take
from pardbg.store.places import Places
from pardbg.store.process import Process
from pardbg.store.source import Message
from pardbg.store.table import SHELF, Limits, Shelves
from pardbg_agent import wire

_MAX_PLANS: Final = 1024
DEFINITIONS: Final = "definitions"
_MAX_DEFINITION_BYTES: Final = 512 << 20
"""Bytes of memory for all kept definitions. Elements of tensors may take half of it."""
_MAX_FACTS: Final = 64
_NAME_BYTES, _OP_BYTES = 200, 400
_RANKED: Final = 64  # number of times whose ranks are kept, about
MAX_BEHIND_NS: Final = 3_000_000_000
"""Maximum age of a live run's horizon: a rank whose agent gets no GIL must not freeze the view."""
PART: Final = "part"
"""CONTROL event at the begin of a recording's later part files, and NOTE with the part's number."""
NEXT_PART: Final = "next_part"
"""Key of the NOTE at a part's end: the file in which the recording goes on."""
NOTE_TRUNCATED: Final = "session.truncated"
"""Key of the NOTE that a reader adds at the end of a file that ends early."""


class Store:
    """The state of one run: processes, definitions, histories."""

    _horizon_ns = 0
    """The newest horizon returned, ns: the horizon never goes back."""
    _ranked: tuple[int, dict[int | None, dict[int, Process]]] = (-1, {})
    """A revision and, by time, the ranks' processes as of it."""
    _may_forget = True
    _settled = -1  # the revision whose records are all taken in
    _newest: tuple[int, int] = (-1, 0)  # a revision, and the newest time known then, in ns
    truncated = False
    """Whether the session file ends without its summary."""
    reference: Store | None = None  # of the run that this one is to compute the same as

    def __init__(self, limits: Limits | None = None, *, live: bool = False) -> None:
        self.limits = limits or (Limits.live() if live else Limits.file())
        self.live = live
        self.revision = 0
        """Grows with each message that changed something."""
        self.procs: dict[str, Process] = {}
        self._shelves = Shelves(SHELF if self.limits.rows_per_kind is not None else 1)
        self.part: lives.Part | None = None
        """The life or role that is shown; None: the newest life."""
        self._parts: tuple[int, tuple[lives.Part, ...]] = (-1, ())
        """A revision, and the run's lives and roles as of it."""
        self._starts = lives.Starts()
        self.past = lives.Past()
        """Summary of lives that ended and whose detail is forgotten."""
        self.refused: Counter[str] = Counter()
        """Kind of data that was left out because a limit was reached -> how often."""
        self.groups: dict[tuple[int, str], definitions.GroupDef] = {}  # by (epoch, key)
        self._places = Places(self.groups)
        self.plans: dict[tuple[int, str], definitions.PlanDef] = {}
        """(epoch, group key) -> newest plan."""
        self.run: dict[str, Any] = {}
        self.notes: dict[str, Any] = {}
        self.run_ends: list[tuple[int, int | None]] = []  # (t_ns, exit code)
        self.told: list[tuple[int, int]] = []  # (t_ns, signal) that the launcher was to pass on
        self.states = StateHistory(self.limits.states, self.limits.keep_ns)
        self.controls = History(self.limits.controls, self.limits.keep_ns)
        self.output = History(self.limits.output_lines, self.limits.keep_ns)
        self.nccl = DebugReader()
        self.bookmarks = Bookmarks()
        self.malformed = self.unknown_messages = self.over_limit = 0
        self.memo: dict[Any, Any] = {}
        """Derived values that analysis keeps; never a source of truth."""
        self._num_records = self._definition_bytes = 0
        self._first_ns: int | None = None
        self._part_begin_ns: int | None = None
        self._output_offsets: dict[str, int] = {}
        self._apply: dict[bytes, Callable[[str, Message], bool]] = {
            wire.Key.RECORDS.value: self._records,
            wire.Key.DEFINITION.value: self._definition,
            wire.Key.OUTPUT.value: self._output,
            wire.Key.CONTROL.value: self._control,
            wire.Key.STATE.value: self._state,
        }
        self._define: dict[str, Callable[..., None]] = {
            wire.DefKind.PROCESS.value: self._define_process,
            wire.DefKind.NAME.value: self._define_name,
            wire.DefKind.OP.value: self._define_op,
            wire.DefKind.GROUP.value: self._define_group,
            wire.DefKind.PLAN.value: self._define_plan,
            wire.DefKind.STAGE.value: self._define_stage,
            wire.DefKind.MODEL.value: self._define_model,
            wire.DefKind.ERROR.value: self._define_error,
            wire.DefKind.TENSOR.value: self._define_tensor,
            wire.DefKind.VALUES.value: self._define_tensor,
        } | {kind.value: self._fact(*how) for kind, how in definitions.FACTS.items()}

    # ------------------------------------------------------------------ writing

    def apply(self, message: Message) -> None:
        """Take one message. Malformed ones are counted; they never raise."""
        try:
            kind, proc = split_key(message.key)
            if (handler := self._apply.get(kind)) is None:
                self.unknown_messages += 1
                return
            if handler(proc, message):
                self.revision += 1
        except Full as full:
            self.refused[str(full)] += 1
        except Malformed:
            self.malformed += 1

    def apply_all(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.apply(message)

    def settle(self) -> None:
        """Take in all received records; reading functions call this first."""
        before, self._settled = self._settled, self.revision
        for _ in range(2 if before != self.revision else 0):  # a frame asks a dozen times
            take(self.procs.values())  # secondly what devices of ended processes never reached

    # ------------------------------------------------------------------ reading

    @property
    def begin_ns(self) -> int:
        """Start of the run by the hub's clock: the RUN definition's, else the first time seen. For
        a later part of a recording, the begin of that part."""
        known = [p.started_ns for p in self.procs.values() if p.started_ns is not None]
        if (run := fields.integer_or_none(self.run, "t_ns")) is not None:
            known.append(run)
        known = known or [self._first_ns or 0]
        begin = min(known) if self.part is None else self.part.begin_ns
        return begin if self._part_begin_ns is None else max(begin, self._part_begin_ns)

    @property
    def end_ns(self) -> int:
        """Return the newest known time of the run; the end of the shown part if one was chosen."""
        self.settle()
        if self.part is not None:
            return lives.end_of(self.of_part())
        if self._newest[0] != self.revision:
            newest = [process.last_ns or 0 for process in self.procs.values()]
            newest += [of.newest_ns or 0 for of in (self.states, self.controls, self.output)]
            newest += [t for t, _ in self.run_ends]
            self._newest = self.revision, max(newest) or self.begin_ns
        return self._newest[1]

    @property
    def horizon_ns(self) -> int:
        """Return the time of a live run up to which the records of all ranks are complete here.

        Ranks that have ended are complete; a rank more than MAX_BEHIND_NS behind is ignored.
        """
        end = self.end_ns
        if not self.live or self.part is not None:
            return end
        states = self.states.ranks(None)[1]
        reached = (
            process.horizon_ns(states.get(process.proc))
            for process in self.rank_procs(None).values() if not process.ends
        )  # fmt: skip
        complete = min((t_ns for t_ns in reached if t_ns is not None), default=end)
        self._horizon_ns = max(self._horizon_ns, min(end, max(complete, end - MAX_BEHIND_NS)))
        return self._horizon_ns

    def rank_procs(self, t_ns: int | None) -> dict[int, Process]:
        """Return rank -> its process at ``t_ns`` (or its last one), of the shown life or role: the
        newest life started, with ranks of the life before for those that are still to start.

        A rank that had not started yet is shown as the process that will be it.
        """
        if self._ranked[0] != self.revision or len(self._ranked[1]) > _RANKED:
            self.settle()
            self._ranked = self.revision, {}
        if t_ns not in (known := self._ranked[1]):
            of = lives.shown(self.procs, t_ns) if self.part is None else self.of_part()
            known[t_ns] = lives.by_rank(of, t_ns)
        return dict(known[t_ns])

    def parts(self) -> tuple[lives.Part, ...]:
        """Return the lives and roles of the run; empty if the run is one life of one role."""
        if self._parts[0] != self.revision:
            self.settle()
            self._parts = self.revision, lives.parts(self.procs, self.past)
        return self._parts[1]

    def of_part(self) -> list[Process]:
        """Return the processes of the shown life or role; all processes if none was chosen."""
        return [p for p in self.procs.values() if self.part is None or p.proc in self.part.procs]

    def look_at(self, number: int | None) -> bool:
        """Show part ``number`` from here on; None: the newest life. False: no such part."""
        found = next((part for part in self.parts() if part.number == number), None)
        if number is not None and (found is None or not found.procs):
            return False  # or the detail of its life is forgotten
        if found != self.part:
            self.part = found
            self.memo.clear()
            self.revision += 1
        return True

    def lost(self, t_ns: int | None) -> int:
        """Return the number of records known lost up to ``t_ns``."""
        return sum(p.lost(t_ns) for p in self.procs.values()) + self.past.lost + self.over_limit

    @property
    def unknown(self) -> int:
        """Records and messages that this version does not know or could not read."""
        procs = sum(p.unknown + p.malformed for p in self.procs.values())
        return procs + self.past.unknown + self.unknown_messages + self.malformed

    # ------------------------------------------------------------------ messages

    def _process(self, proc: str) -> Process:
        process = self.procs.get(proc)
        if process is None:
            if not proc:
                raise Malformed("process")
            if len(self.procs) >= self.limits.processes:
                self._forget()
            if len(self.procs) >= MAX_PROCS:
                raise Full("processes")
            before, rows = (self.limits.rows(len(self.procs) + more) for more in (0, 1))
            if rows is not None and rows != before:
                for other in self.procs.values():
                    other.keep(rows)
            process = self.procs[proc] = Process(proc, rows, self.limits.keep_ns)
            process.shelves, process.put_by.most_bytes = self._shelves.of_next()
        return process

    def _forget(self) -> bool:
        """Forget the life that ended first, but for its end. False: there is none for now."""
        gone = lives.oldest_ended(self.procs) if self._may_forget else []
        self._may_forget = bool(gone)
        if not gone:
            return False
        self.settle()
        self.past.take(self.parts(), gone)
        for process in gone:
            del self.procs[process.proc]
            self._definition_bytes -= process.definition_bytes
        epochs = {p.epoch for p in gone} - {p.epoch for p in self.procs.values()}
        self._places.forget(epochs)
        for known in (self.groups, self.plans):
            for key in [key for key in known if key[0] in epochs]:
                del known[key]
        if self.part is not None and not self.part.procs & self.procs.keys():
            self.part = None
        self.memo.clear()
        self.revision += 1
        return True

    def _records(self, proc: str, message: Message) -> bool:
        head = frame_head(message.payload)
        process = self._process(proc)
        if self._num_records + head.count > self.limits.records:
            self.over_limit += head.count
            return True
        self._num_records += head.count
        return process.accept(head, message.payload, message.received_ns)

    def _hub_map(self, message: Message, history: History) -> tuple[int, dict[str, Any]] | None:
        """Return (time, map) of a hub's message; None if the message had come before. Of a STATE
        the map has only the fields before the ranks: its history decodes the rest."""
        of_states = history is self.states
        values = leading(message.payload, "hub") if of_states else decode_map(message.payload)
        t_ns = fields.integer(values, "t_ns", message.received_ns)
        if not history.is_new(fields.integer_or_none(values, "n"), t_ns):
            return None
        if t_ns > 0 and (self._first_ns is None or t_ns < self._first_ns):
            self._first_ns = t_ns
        return t_ns, values

    def _output(self, _proc: str, message: Message) -> bool:
        if (found := self._hub_map(message, self.output)) is None:
            return False
        t_ns, values = found
        text, stream = fields.text(values, "text"), fields.text(values, "stream", "stdout")
        if "NCCL" in text:
            self.nccl.add(text, t_ns)
        if stream not in ("stdout", "stderr"):  # of NCCL_DEBUG_FILE, not what the job printed
            return True
        offset = fields.integer_or_none(values, "off")
        if offset is not None:  # a hub that was started again reads the job's files again
            if offset <= self._output_offsets.get(stream, -1):
                return False
            self._output_offsets[stream] = offset
        self.output.add(t_ns, (fields.integer_or_none(values, "rank"), stream, text), len(text))
        return True

    def _control(self, _proc: str, message: Message) -> bool:
        if (found := self._hub_map(message, self.controls)) is None:
            return False
        t_ns, values = found
        event = replace(event_of(values), t_ns=t_ns)
        if isinstance(event.fact, control_facts.Bookmark):
            self.bookmarks.put(Bookmark(event.fact.at_ns, event.fact.text))
            return True
        if isinstance(event.fact, control_facts.Part):
            self._part_begin_ns = t_ns
            self.notes[PART] = event.fact.part
        self.controls.add(t_ns, event, fields.weight(event.plain()))  # what else it says is gone
        return True

    def _state(self, _proc: str, message: Message) -> bool:
        if (found := self._hub_map(message, self.states)) is None:
            return False
        self.states.add(found[0], message.payload, len(message.payload))
        self.states.stood_ns = fields.integer(found[1], "stood_ns", 0)
        return True

    # ------------------------------------------------------------------ definitions

    def _definition(self, proc: str, message: Message) -> bool:
        values = decode_map(message.payload)
        kind = fields.text(values, "k")
        if kind == wire.DefKind.RUN.value:
            self.run = values
        elif kind == wire.DefKind.CLOCK.value:
            named = self._process(fields.text(values, "proc", proc))
            error = fields.integer_or_none(values, "error_ns")
            offset, t_ns = fields.integer(values, "offset_ns", 0), fields.integer(values, "t_ns", 0)
            if named.set_clock(Reading(t_ns, offset, error)):
                self.memo.clear()
        elif kind == wire.DefKind.END.value:
            self._end(fields.text(values, "proc", proc), values, message.received_ns)
        elif kind == wire.DefKind.NOTE.value:
            key, at_ns = fields.text(values, "key"), fields.integer_or_none(values, "t_ns")
            if key == wire.NOTE_LEAVING and at_ns is not None:
                leaving = self._process(proc)
                leaving.leaving_ns = at_ns + leaving.offset_ns
            elif key == wire.NOTE_THREAD and len(self._process(proc).threads) < 64:
                self._process(proc).threads.append(fields.text(values, "value"))
            self._note(key, values.get("value"))
        elif kind in self._define:
            self._define[kind](self._process(proc), values)
        else:
            self.unknown_messages += 1
            return False
        return True

    def _note(self, key: str, value: Any) -> None:
        if key == NOTE_TRUNCATED:
            self.truncated = True
        elif len(self.notes) < MAX_GROUPS and self.notes.get(key) != value:
            self._keep(None, fields.weight(value))
            self.notes[key] = value

    def _keep(self, process: Process | None, num_bytes: int) -> None:
        """Count the bytes that a definition takes. Raises Full if there is no room."""
        while self._definition_bytes + num_bytes > _MAX_DEFINITION_BYTES:
            if not self._forget():
                raise Full(DEFINITIONS)
        self._definition_bytes += num_bytes
        if process is not None:
            process.definition_bytes += num_bytes

    def _end(self, proc: str, values: Mapping[str, Any], received_ns: int) -> None:
        t_ns = fields.integer(values, "t_ns", received_ns)
        if not proc:
            end = (t_ns, fields.integer_or_none(values, "code"))
            if end not in self.run_ends:
                self.run_ends.append(end)
            self.told = definitions.pairs(values.get("told"), _MAX_FACTS) or self.told
            return
        process = self._process(proc)
        said = (t_ns, fields.text(values, "reason", "exit"))
        if said not in process.ends and len(process.ends) < 64:
            self._keep(process, fields.weight(said))
            process.ends.append(said)
            process.exit_code = fields.integer_or_none(values, "code")
            self._may_forget = True

    def _define_process(self, process: Process, values: Mapping[str, Any]) -> None:
        for above in fields.within(values):
            self._launches(self._process(above), True)
        if (own := lives.met(self.procs, process, values, self._process)) is not process:
            self.memo.clear()
            process = own
        self._starts.leave(process)
        for more in process.learn(values):
            self._keep(process, more)
        if process.rank is not None and not process.in_life:
            self._enter_again(self._starts.parted(process, self.procs))
            lives.begin(process, self._starts.life_of(process), self.groups)
        self._starts.enter(process)

    def _launches(self, process: Process, launches: bool) -> None:
        """Note that a process without definitions started a rank, or acts as a rank itself."""
        if process.launches == launches or (launches and not process.is_bare):
            return
        rank, process.launches = process.rank, launches
        self._define_process(process, {})
        every = self.procs.values() if launches else ()  # it was no life before theirs
        self._enter_again([other for other in every if other.in_life and other.rank == rank])

    def _enter_again(self, processes: Iterable[Process]) -> None:
        for process in processes:
            self.memo.clear()
            self._starts.leave(process)
            process.by_port = self._starts.by_port
            lives.begin(process, self._starts.life_of(process), self.groups)
            self._starts.enter(process)

    def _define_name(self, process: Process, values: Mapping[str, Any]) -> None:
        number, name = fields.integer(values, "id", 0), fields.text(values, "s")
        if len(process.names) < MAX_NAMES_PER_PROC and process.names.get(number) != name:
            self._keep(process, _NAME_BYTES + len(name))
            process.define_name(number, name)
            self._launches(process, process.launches and process.is_bare)

    def _define_op(self, process: Process, values: Mapping[str, Any]) -> None:
        number, op = fields.integer(values, "id", 0), definitions.op_def(values)
        if len(process.ops) < MAX_NAMES_PER_PROC and process.ops.get(number) != op:
            self._keep(process, _OP_BYTES + op.length)
            process.ops[number] = op
            self._launches(process, False)

    def _define_group(self, process: Process, values: Mapping[str, Any]) -> None:
        process = lives.with_epoch(self.procs, process, values)
        group = definitions.group_def(values, process.epoch)
        if "place" in values:
            self._keep(process, fields.weight(values))
            group = self._places.take(process, group, values)
        known = self.groups.get((group.epoch, group.key))
        if known is None and len(self.groups) >= MAX_GROUPS and not self._forget():
            raise Full("groups")
        if group == known:
            group = known  # all its members define it: their ranks are kept once
        else:
            self._keep(process, fields.weight(values))
        news = known is None or (group.ranks and group != known)
        if group.backend != wire.CALLS and news and (group.ranks or "place" not in values):
            self.groups[group.epoch, group.key] = group
        if len(process.groups) < MAX_GROUPS:
            process.groups[fields.integer(values, "id", 0)] = group
            self._launches(process, False)

    def _define_plan(self, process: Process, values: Mapping[str, Any]) -> None:
        key = (lives.with_epoch(self.procs, process, values).epoch, fields.text(values, "group"))
        if key not in self.plans and len(self.plans) >= _MAX_PLANS and not self._forget():
            raise Full("plans")
        plan = definitions.plan_def(values, self.plans.get(key))
        if not plan.fits:
            raise Malformed("plan")
        if plan != self.plans.get(key):  # sent again: the same object, so caches stay good
            self._keep(process, fields.weight(values))
            self.plans[key] = plan

    def _define_stage(self, process: Process, values: Mapping[str, Any]) -> None:
        stage = fields.integer_or_none(values, "stage")
        if stage is not None and len(process.stages) < 4096:
            process.stages[stage] = fields.integer(values, "parameters", 0)

    def _define_model(self, process: Process, values: Mapping[str, Any]) -> None:
        model = definitions.model_def(values)
        if model != process.model:
            self._keep(process, fields.weight(model.optimizer))
            process.model = model

    def _define_error(self, process: Process, values: Mapping[str, Any]) -> None:
        t_ns = fields.integer(values, "t_ns", 0) + process.offset_ns
        said = t_ns, fields.text(values, "where"), fields.text(values, "text")
        self._add(process, process.errors, said, values, 1024)

    def _fact(self, known: str, read: Callable[..., Any]) -> Callable[..., None]:
        """Return the reader of definitions that each tell one fact of a process."""
        return lambda process, values: self._add(
            process, getattr(process, known), read(values, process.offset_ns), values, _MAX_FACTS
        )

    def _define_tensor(self, process: Process, values: Mapping[str, Any]) -> None:
        room = _MAX_DEFINITION_BYTES // 2 - self._definition_bytes
        add(process.tensors, process.kept, values, room, lambda size: self._keep(process, size))

    def _add(self, process: Process, known: list[Any], said: Any, values: Any, most: int) -> None:
        if said not in known and len(known) < most:
            self._keep(process, fields.weight(values))
            known.append(said)
