"""Flight Recorder dumps (``torch.distributed``'s ring of collectives) as a session.

A dump is a pickle of plain values or, from ``_dump_*_trace_json``, JSON. On gloo it has neither
start nor completion times and no p2p; on NCCL what its watchdog saw, an upper bound.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pardbg.analysis.hangs.stacks import is_user
from pardbg.events import fields
from pardbg.events.rank_dumps import DumpedOp, GroupDump, Place, RankDump
from pardbg.session.importers.build import Imported, RankBuild
from pardbg_agent.tables.c10d_ops import kind_named
from pardbg_agent.wire import NONE, Flag, Kind

ITEM_BYTES: Final = {
    "Double": 8, "Long": 8, "ComplexFloat": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2,
    "Short": 2, "Byte": 1, "Char": 1, "Bool": 1,
}  # fmt: skip
DTYPES: Final = {
    "Double": "float64", "Long": "int64", "Float": "float32", "Int": "int32", "Half": "float16",
    "BFloat16": "bfloat16", "Short": "int16", "Byte": "uint8", "Char": "int8", "Bool": "bool",
}  # fmt: skip
MAX_FRAMES: Final = 200
_P2P: Final = re.compile(r"(send|recv)(?: (\d{1,6})(?:->|<-)(\d{1,6}))?$")


def is_dump(content: Any) -> bool:
    """Return whether the content looks like a dump: entries and the state of groups."""
    return isinstance(content, dict) and isinstance(content.get("entries"), list)


def build(dumps: Mapping[int, tuple[Path, Mapping[str, Any]]]) -> tuple[Imported, list[RankBuild]]:
    """Convert rank -> (file, content) to records. Raises UserError."""
    world = max(dumps) + 1
    made = Imported("Flight Recorder dumps", sorted(dumps))
    timed = False
    builds = []
    for rank, (path, content) in sorted(dumps.items()):
        entries = [e for e in content["entries"] if isinstance(e, dict)]
        groups = _groups(content, world)
        backend = next((_words(e)[0] for e in entries if _words(e)[0]), "")
        built = RankBuild(rank, world, "", rank + 1, backend)
        for entry in entries:
            timed |= _add(built, entry, groups)
        if not entries:
            made.lacks.append(f"{path.name} has no entries")
        builds.append(built)
    made.lacks += _lacking(dumps, timed)
    return made, builds


def _lacking(dumps: Mapping[int, tuple[Path, Mapping[str, Any]]], timed: bool) -> list[str]:
    lacks = ["steps, phases, memory and loss: a dump has none"]
    if not timed:
        lacks.append("completion times: transfer and bandwidth are not known")
    named = any(_text(e, "is_p2p") or e.get("is_p2p") for _, c in dumps.values()
                for e in c["entries"] if isinstance(e, dict))  # fmt: skip
    if not named:
        lacks.append("sends and receives: these dumps have none")
    absent = sorted(set(range(max(dumps) + 1)) - set(dumps))
    if absent:
        lacks.append(f"dumps of ranks {', '.join(map(str, absent[:20]))}")
    return lacks


def _groups(content: Mapping[str, Any], world: int) -> dict[str, list[int]]:
    """Return group name -> ranks, if the dump has them; the default group has every rank."""
    found: dict[str, list[int]] = {}
    config = content.get("pg_config")
    for name, said in config.items() if isinstance(config, dict) else ():
        ranks = said.get("ranks") if isinstance(said, dict) else None
        numbers = [int(n) for n in re.findall(r"\d{1,6}", str(ranks)[:1_000_000])]
        if numbers:
            found[str(name)] = numbers
    found.setdefault("0", list(range(world)))
    return found


def _group_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and the description of an entry's group."""
    group = entry.get("process_group")
    name, words = (*group, "", "")[:2] if isinstance(group, (list, tuple)) else (group, "")
    return str(name)[:200], str(words or "")[:200]


def _add(built: RankBuild, entry: Mapping[str, Any], groups: Mapping[str, Sequence[int]]) -> bool:
    """Add an entry as an op; return True if its completion has a time."""
    created = fields.integer_or_none(entry, "time_created_ns")
    if created is None or created <= 0:
        return False
    name, words = _group_of(entry)
    ranks = groups.get(name, ())
    group_id = built.group(name, words or name, ranks)
    _, op, src, dst = _words(entry)
    p2p = bool(entry.get("is_p2p"))
    seq = fields.integer(entry, "p2p_seq_id" if p2p else "collective_seq_id", 0)
    flags, peer = 0, NONE
    if p2p:
        flags = int(Flag.P2P | (Flag.SEND if op == "send" else Flag(0)))
        other = dst if op == "send" else src
        peer = NONE if other is None else other
        if ranks and 0 <= peer < len(ranks):
            peer = ranks[peer]  # a dump counts ranks within the group
    dtype = next(iter(fields.texts(entry, "input_dtypes")), "")
    sizes = (_bytes(entry, "input"), _bytes(entry, "output"))
    op_id = built.op(op, DTYPES.get(dtype, dtype.lower()))
    common: dict[str, Any] = {"peer": peer, "sizes": sizes}
    built.op_at(Kind.OP_ISSUE, op_id, group_id, seq, created, created, flags=flags, **common)
    ended = fields.integer(entry, "time_discovered_completed_ns", 0)
    timed = ended >= created
    if timed or entry.get("state") == "completed" or entry.get("retired") is True:
        ended, flags = (ended, flags | Flag.DONE_POLLED) if timed else (created, flags)
        built.op_at(Kind.OP_DONE, op_id, group_id, seq, created, ended, flags=flags, **common)
    return timed


def dumped(rank: int, path: Path, content: Mapping[str, Any]) -> RankDump:
    """Return a dump's collectives by group and number."""
    members = _groups(content, 0)
    ops: dict[tuple[str, str], dict[int, DumpedOp]] = defaultdict(dict)
    for entry in content["entries"]:
        if isinstance(entry, dict) and not entry.get("is_p2p"):
            seq = fields.integer(entry, "collective_seq_id", 0)
            ops[_group_of(entry)][seq] = _dumped_op(entry)
    groups = (
        GroupDump(name, words, tuple(members.get(name, ())), max(of), of)
        for (name, words), of in ops.items()
    )
    return RankDump(rank, path.name, tuple(groups))


def _dumped_op(entry: Mapping[str, Any]) -> DumpedOp:
    op = _text(entry, "profiling_name").partition(":")[2]
    complete = entry.get("state") == "completed" or entry.get("retired") is True
    num_in, num_out = (sum(_numels(entry, side)) for side in ("input", "output"))
    return DumpedOp(op, num_in, num_out, complete, next(_places(entry), None))


def _places(entry: Mapping[str, Any]) -> Iterator[Place]:
    """Return frames outside of libraries, innermost first."""
    frames = entry.get("frames")
    for frame in frames[:MAX_FRAMES] if isinstance(frames, list) else ():
        if isinstance(frame, dict):
            file, name = fields.text(frame, "filename"), fields.text(frame, "name")
            found = (file[:500], fields.integer(frame, "line", 0), name[:200])
            if is_user(found):
                yield found


def _words(entry: Mapping[str, Any]) -> tuple[str, str, int | None, int | None]:
    """Parse ``nccl:send 0->1`` into (nccl, send, 0, 1)."""
    backend, _, rest = _text(entry, "profiling_name").partition(":")
    found = _P2P.match(rest)
    if found is not None:
        src, dst = (int(n) if n else None for n in found.groups()[1:])
        if "<-" in rest:
            src, dst = dst, src
        return backend, found[1], src, dst
    return backend, kind_named(rest) or "op", None, None


def _bytes(entry: Mapping[str, Any], side: str) -> int:
    dtypes = fields.texts(entry, f"{side}_dtypes")
    numbers = zip(_numels(entry, side), dtypes, strict=False)
    return min(sum(number * ITEM_BYTES.get(dtype, 0) for number, dtype in numbers), 1 << 60)


def _numels(entry: Mapping[str, Any], side: str) -> Iterator[int]:
    """Yield the number of elements of each of an entry's tensors."""
    sizes = entry.get(f"{side}_sizes")
    for shape in sizes[:10_000] if isinstance(sizes, (list, tuple)) else ():
        plain = isinstance(shape, (list, tuple)) and all(isinstance(n, int) for n in shape[:16])
        yield math.prod(min(max(n, 0), 1 << 40) for n in shape[:16]) if plain else 0


def _text(entry: Mapping[str, Any], key: str) -> str:
    return fields.text(entry, key)[:200]
