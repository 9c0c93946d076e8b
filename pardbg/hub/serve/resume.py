"""Starting to record, or going on where a killed hub stopped.

[Note: what a hub knows] A hub's state follows from the messages of its recording. To read all of
them takes the longer the longer the run was, so now and then a hub writes what its next part would
begin with (every definition, how far each process had come) into a file of the run's directory,
with the offset of the recording at which that was so. The next hub reads on from there.
"""

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
from pardbg.events.decode import decode_map, frame_head
from pardbg.hub.backlog import Definitions, Recent, Wire
from pardbg.hub.run import config as files
from pardbg.hub.run.config import RunConfig
from pardbg.hub.run.run_files import read_part
from pardbg.session.reader import StoredChunk
from pardbg.session.rotation import Rotation, part_path
from pardbg.session.writer import NOTHING_KNOWN, Known, SessionWriter, resume
from pardbg.store.source import Message
from pardbg.store.store import PART
from pardbg.words import binary_size, plural
from pardbg_agent.wire import DefKind, Key

NUMBER_SKIP: Final = 1_000_000
"""``n`` that the killed hub may have published and not recorded is never used again."""
KEEP_BYTES: Final = 2 << 20
"""Growth of the recording (some 20 MiB as it came) after which the hub's state is kept again."""
_NUMBERED: Final = (Key.OUTPUT.value, Key.CONTROL.value, Key.STATE.value)


@dataclass(slots=True)
class Resumed:
    """What the file of a killed hub says."""

    restarted: bool = False
    restarts: int = 0
    """Number of hub restarts of this run, this one included."""
    number: int = 0
    heads: dict[bytes, int] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    text: str = ""
    breaks: list[Any] = field(default_factory=list)
    """Breakpoints and watches that were set, as Breakpoint.as_dict has them."""
    break_number: int = 0
    """The highest that one of them ever had."""
    held: bool = False
    """Ranks were held, or about to be."""

    def saw(self, message: Message) -> None:
        """Note one message that was kept."""
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
        if kind == Key.CONTROL.value and fields.get("event") == "hub_restart":
            self.restarts += 1
        if kind == Key.CONTROL.value and isinstance(fields.get("breaks"), list):
            self.breaks = [one for one in fields["breaks"] if isinstance(one, dict)]
            self.break_number = max([self.break_number, *map(_number, self.breaks)])
            self.held = fields.get("mode") != "running"
        if kind == Key.CONTROL.value and fields.get("event") == PART:
            self._part(fields)

    def _part(self, fields: dict[str, Any]) -> None:
        """Find where the part before ended."""
        for proc, head in dict(fields.get("heads") or {}).items():
            self.heads[str(proc).encode("ascii")] = int(head)
        self.offsets.update({str(k): int(v) for k, v in dict(fields.get("offsets") or {}).items()})
        self.ended.update({str(k): str(v) for k, v in dict(fields.get("ended") or {}).items()})
        self.restarts = int(fields.get("hub_restarts") or 0)


def open_writer(
    config: RunConfig, before: dict[str, Any] | None, definitions: Definitions, recent: Recent
) -> tuple[SessionWriter | None, Rotation | None, Resumed, str | None]:
    """Return (writer, its parts where the recording is to go on in another file some day, what came
    before, why nothing can be recorded). ``before``: the ``hub.pid`` of the hub before this one."""
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
    except OSError as error:
        return None, None, resumed, f"recording stopped: {path}: {error.strerror or error}"
    resumed.number += NUMBER_SKIP
    resumed.restarts += 1
    resumed.text = (
        f"hub {before.get('hub')} was lost; its {binary_size(size)} gave "
        + plural(writer.num_messages, "message")
        + ("; the ranks that it held run on" if resumed.held else "")
    )
    return writer, parts, resumed, None


def keep_state(folder: Path, writer: SessionWriter, messages: Sequence[Wire]) -> int:
    """Write what the recording says up to here, all of which is in whole chunks; return how many
    bytes that took. What cannot be written costs the next hub time, nothing else."""
    file = writer.known()
    value = {"file": writer.path.name, "at": file.offset, "index": file.index,
             "messages": messages}  # fmt: skip
    raw: bytes = msgpack.packb(value)
    with contextlib.suppress(OSError):
        files.write_whole(folder / files.STATE_FILE, raw)
    return len(raw)


def read_state(folder: Path, session: Path) -> tuple[Known, list[Wire]]:
    """Return (state of the recording, messages that say what it says before): (NOTHING_KNOWN, none)
    where that is not known."""
    try:
        value = msgpack.unpackb((folder / files.STATE_FILE).read_bytes())
        at, messages = int(value["at"]), [(bytes(k), bytes(p)) for k, p in value["messages"]]
        if value["file"] == session.name and at <= os.stat(session).st_size:
            return Known(at, bytes(value["index"])), messages
    except (OSError, *NONSENSE):
        pass
    return NOTHING_KNOWN, []


def _number(said: dict[str, Any]) -> int:
    number = said.get("number")
    return number if isinstance(number, int) else 0
