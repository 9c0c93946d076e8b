"""Start of a recording, or its continuation where a killed hub stopped.

[Note: a hub's state] A hub's state follows from the messages of its recording. Reading all of them
takes longer the longer the run was, so at intervals a hub writes the first messages of a possible
next part (every definition, the progress of each process) into a file of the run's directory, with
the recording's offset at that time. The next hub reads on from there."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgpack

from pardbg.errors import NONSENSE
from pardbg.events.control_codes import Mode
from pardbg.events.control_events import ControlEvent, event_of
from pardbg.events.control_facts import Breakpoint, HubRestarted, Part
from pardbg.events.decode import decode_map, frame_head
from pardbg.hub.backlog import Definitions, Recent, Wire
from pardbg.hub.run import config as files
from pardbg.hub.run.config import RunConfig
from pardbg.hub.run.run_files import read_part
from pardbg.session.reader import StoredChunk
from pardbg.session.rotation import Rotation, part_path
from pardbg.session.writer import NOTHING_KNOWN, Known, SessionWriter, resume
from pardbg.store.source import Message
from pardbg_agent.wire import DefKind, Key

NUMBER_SKIP: Final = 1_000_000
"""Gap in ``n``: numbers that the killed hub may have published unrecorded are not used again."""
KEEP_BYTES: Final = 2 << 20
"""Growth of the recording (some 20 MiB as it came) after which the hub's state is kept again."""
_NUMBERED: Final = (Key.OUTPUT.value, Key.CONTROL.value, Key.STATE.value)


@dataclass(slots=True)
class Resumed:
    """State of a killed hub, according to its file."""

    restarted: bool = False
    restarts: int = 0
    """Number of hub restarts of this run, this one included."""
    number: int = 0
    heads: dict[bytes, int] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    hub: str = ""
    """Id of the hub that was lost."""
    num_bytes: int = 0
    """Bytes of the recording that it left."""
    num_messages: int = 0
    breaks: tuple[Breakpoint, ...] = ()
    """Breakpoints and watches that were set."""
    break_number: int = 0
    """Highest number that a breakpoint or watch ever had."""
    held: bool = False
    """Whether ranks were held, or about to be."""

    def saw(self, message: Message) -> None:
        """Note one kept message."""
        kind, proc = message.key[:1], message.key[1:]
        try:
            if kind == Key.RECORDS.value:
                head = frame_head(message.payload)
                self.heads[proc] = max(self.heads.get(proc, 0), head.first + head.count)
            elif kind in _NUMBERED:
                self._numbered(kind, message.payload)
            elif kind == Key.DEFINITION.value and not proc:
                fields = decode_map(message.payload)
                if fields.get("k") == DefKind.END and fields.get("proc"):
                    self.ended[str(fields["proc"])] = str(fields.get("reason"))
        except NONSENSE:
            return

    def _numbered(self, kind: bytes, payload: bytes) -> None:
        fields = decode_map(payload)
        self.number = max(self.number, int(fields.get("n", 0)))
        if kind == Key.OUTPUT.value and "off" in fields:
            self.offsets[str(fields.get("stream"))] = int(fields["off"])
        if kind == Key.CONTROL.value:
            self._control(event_of(fields))

    def _control(self, event: ControlEvent) -> None:
        if isinstance(event.fact, HubRestarted):
            self.restarts += 1
        if event.status is not None:
            self.breaks = event.status.breaks
            self.break_number = max([self.break_number, *(one.number for one in self.breaks)])
            self.held = event.status.mode is not Mode.RUNNING
        if isinstance(event.fact, Part):  # where the part before ended
            self.heads.update({p.encode("ascii"): n for p, n in event.fact.heads.items()})
            self.offsets.update(event.fact.offsets)
            self.ended.update(event.fact.ended)
            self.restarts = event.fact.hub_restarts


def open_writer(
    config: RunConfig, before: dict[str, Any] | None, definitions: Definitions, recent: Recent
) -> tuple[SessionWriter | None, Rotation | None, Resumed, str | None]:
    """Return (writer, its parts if the recording may continue in another file, the state before,
    the reason if nothing can be recorded). ``before``: the ``hub.pid`` of the previous hub."""
    resumed = Resumed()
    number = read_part(config.dir)
    first = Path(config.session)
    path, parts = part_path(first, number), None
    if config.limits:
        parts = Rotation(number, first, config.facts, config.limits, time.monotonic_ns())

    def known(message: Message) -> None:
        resumed.saw(message)
        if message.key[:1] == Key.DEFINITION.value:
            definitions.add(message.key, message.payload)

    resumed.restarted = before is not None
    try:
        if before is None or not path.exists():
            return SessionWriter(path, config.facts), parts, resumed, None
        size = os.stat(path).st_size
        before_it, state = read_state(config.dir, path)
        for key, payload in state:
            known(Message(key, payload, 0))

        def seen(chunk: StoredChunk, offset: int, messages: list[Message]) -> None:
            for message in messages:
                if offset >= before_it.offset:
                    known(message)
                if message.key[:1] != Key.DEFINITION.value:
                    recent.add(message.key, message.payload)
            recent.closed(chunk)

        writer = resume(path, config.facts, seen, before_it)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        return None, None, resumed, f"recording stopped: {path}: {why}"
    resumed.number += NUMBER_SKIP
    resumed.restarts += 1
    resumed.hub, resumed.num_bytes = str(before.get("hub")), size
    resumed.num_messages = writer.num_messages
    return writer, parts, resumed, None


def keep_state(folder: Path, writer: SessionWriter, messages: Sequence[Wire]) -> int:
    """Write the state of the recording so far, all of which is in complete chunks; return its size
    in bytes. If the write fails, the next hub only takes longer."""
    file = writer.known()
    value = {"file": writer.path.name, "at": file.offset, "index": file.index,
             "messages": messages}  # fmt: skip
    raw: bytes = msgpack.packb(value)
    with contextlib.suppress(OSError):
        files.write_whole(folder / files.STATE_FILE, raw)
    return len(raw)


def read_state(folder: Path, session: Path) -> tuple[Known, list[Wire]]:
    """Return (recording's state, messages before it); (NOTHING_KNOWN, none) if unknown."""
    try:
        value = msgpack.unpackb((folder / files.STATE_FILE).read_bytes())
        at, messages = int(value["at"]), [(bytes(k), bytes(p)) for k, p in value["messages"]]
        if value["file"] == session.name and at <= os.stat(session).st_size:
            return Known(at, bytes(value["index"])), messages
    except (OSError, *NONSENSE):
        pass
    return NOTHING_KNOWN, []
