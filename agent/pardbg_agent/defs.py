"""Definitions: strings, ops, groups, plans and other facts, interned and append-only.

Each is sent once to the hub (again to a new one) and written into ``<proc>.defs`` for post-mortems:
records of a little-endian uint32 length and that many bytes of msgpack."""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgpack

from pardbg_agent import wire
from pardbg_agent.wire import DefKind

MAX_NAMES: Final = 65_536
"""Maximum names of a process; later names become ``MORE``. Bounds memory."""
MAX_BYTES: Final = 64 << 20
"""Maximum bytes of a file that are read."""
MORE: Final = "(more names than pardbg keeps)"
_MAX_STRING: Final = 1024
_LENGTH: Final = struct.Struct("<I")
_OP_FIELDS: Final = ("op", "dtype", "reduce", "root", "tag", "coalesced", "meets")


class Defs:
    """Definitions of the process. Look-ups are one dict access; new ones take a lock."""

    def __init__(self, path: str | None = None) -> None:
        self.path = path
        self.payloads: list[bytes] = []
        """Every definition as sent, in order. The sender keeps its own position."""
        self.process: dict[str, Any] = {}
        self.life: dict[str, int] = {}
        """Fields that tell groups and plans of ranks that met again from those before."""
        self.on_identify: Callable[[dict[str, Any]], None] | None = None
        """Called with the fields that ``identify`` changed (the core updates the ring's header)."""
        self._lock = threading.RLock()
        self._names: dict[Any, int] = {}
        """Ids of strings, and of ops by the tuple of their fields."""
        self._groups: dict[str, tuple[int, tuple[Any, ...]]] = {}
        self._next_name = itertools.count(1).__next__
        self._next_group = itertools.count(1).__next__
        self._file = -1
        if path is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(path, flags, 0o600)

    def name(self, text: str) -> int:
        """Return the id of an interned string (from 1)."""
        return self._names.get(text) or self._new(text, text)

    def op(
        self,
        op: str,
        dtype: str = "",
        reduce: str = "",
        root: int = -1,
        tag: int = 0,
        coalesced: bool = False,
        at: Callable[[], Any] | None = None,
        meets: str = "",
    ) -> int:
        """Return the id of an op's signature; ids are shared with names. For a new one, ``at``
        returns its first place of use in the program: (file, line, function), or None."""
        key = (op, dtype, reduce, root, tag, coalesced, meets)
        return self._names.get(key) or self._new(key, op, at)

    def op_named(self, number: int) -> str:
        ops = [key for key, known in list(self._names.items()) if known == number]
        return next((key[0] for key in ops if isinstance(key, tuple)), "?")

    def group(
        self, key: str, name: str, axis: str | None, ranks: Sequence[int], backend: str,
        timeout_ns: int | None = None, place: int | None = None,
    ) -> int:  # fmt: skip
        """Return the id of a process group (from 1). ``key`` is equal on all members; the
        definition is sent again if the group's name or axis changed. ``place``: own rank in it,
        where only the number of its ``ranks`` is known."""
        facts = (name, axis, tuple(ranks), backend, timeout_ns)
        members = {"ranks": list(ranks)} if place is None else {
            "ranks": [], "place": place, "size": len(ranks)
        }  # fmt: skip
        with self._lock:
            known = self._groups.get(key)
            if known is not None and known[1] == facts:
                return known[0]
            group_id = known[0] if known else min(self._next_group(), wire.NO_GROUP)
            self._groups[key] = (group_id, facts)
            self.put(
                DefKind.GROUP, id=group_id, key=key, name=name, axis=axis, backend=backend,
                timeout_ns=timeout_ns, **members,
            )  # fmt: skip
        return group_id

    def put(self, kind: DefKind, **fields: Any) -> None:
        life = self.life if kind in (DefKind.GROUP, DefKind.PLAN) else {}
        payload = msgpack.packb(
            {"k": kind.value, **fields, **life}, default=str, unicode_errors="backslashreplace"
        )
        with self._lock:
            self.payloads.append(payload)
            self._write(payload)

    def identify(self, **fields: Any) -> None:
        """Send PROCESS (again) with new fields: rank=, world_size=, local_rank=, device=."""
        with self._lock:
            if self.process and all(self.process.get(k) == v for k, v in fields.items()):
                return
            self.process.update(fields)
            self.put(DefKind.PROCESS, **self.process)
        if self.on_identify is not None:
            self.on_identify(fields)

    def _new(self, key: Any, text: str, at: Callable[[], Any] | None = None) -> int:
        """Define a name, or an op with this name; past MAX_NAMES return another's id."""
        with self._lock:
            known = self._names.get(key)
            if known is not None:
                return known
            if len(self._names) >= MAX_NAMES and key != MORE:
                return self.name(MORE if key == text else text)
            new = self._names[key] = self._next_name()
            if key == text:
                self.put(DefKind.NAME, id=new, s=text[:_MAX_STRING])
            else:
                used = None if at is None else at()
                more = {} if used is None else {"at": used}
                self.put(DefKind.OP, id=new, **dict(zip(_OP_FIELDS, key, strict=True)), **more)
            return new

    def _write(self, payload: bytes) -> None:
        if self._file < 0:
            return
        try:
            os.write(self._file, _LENGTH.pack(len(payload)) + payload)
        except OSError:  # disk full: the file ends here, the hub still gets everything
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = -1


def read_file(path: str) -> list[bytes]:
    """Return the complete payloads of a ``.defs`` file, from its first MAX_BYTES."""
    with open(path, "rb") as file:
        data = file.read(MAX_BYTES)
    out, at = [], 0
    while at + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + length > len(data):
            break
        out.append(data[at : at + length])
        at += length
    return out
