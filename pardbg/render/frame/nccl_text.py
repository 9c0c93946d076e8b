"""Lines of text for NCCL's report about its communicators and ops."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from pardbg import words
from pardbg.analysis.comm.nccl_view import Communicator, NcclView
from pardbg.words import plural, ranks_text

MOST: Final = 4
"""Maximum number of communicators, choices and inspected ops that are listed."""
_RING: Final = 16


def nccl_lines(nccl: NcclView) -> Iterator[str]:
    """Yield a line for each communicator, each op with its algorithms, each inspected op."""
    for one in nccl.communicators[:MOST]:
        yield _communicator(one)
    if (more := len(nccl.communicators) - MOST) > 0:
        yield f"… and {plural(more, 'more communicator')}"
    yield from _choices(nccl)
    for op in nccl.inspected[:MOST]:
        clock = "on the device" if op.on_device else "by the host"
        yield (
            f"{op.op} of {words.size(op.bytes)}: {words.duration(op.duration_ns)} "
            f"{words.busbw(op.busbw_gbps)} {clock} (medians of {op.num_ops}, Inspector)"
        )


def _communicator(one: Communicator) -> str:
    parts = [ranks_text(one.ranks) if one.global_ranks else f"a communicator of {len(one.ranks)}"]
    if one.rings:
        ring = "→".join(map(str, one.rings[0][:_RING])) + ("…" if len(one.rings[0]) > _RING else "")
        parts.append(f"ring {ring}" + (f" +{len(one.rings) - 1}" if len(one.rings) > 1 else ""))
    if one.num_trees:
        parts.append(plural(one.num_trees, "tree"))
    if one.channels:
        parts.append(plural(one.channels, "channel"))
    parts += [f"{kind} ×{number}" for kind, number in one.transports]
    return ", ".join(parts) + ("" if one.complete else " (not all ranks printed theirs)")


def _choices(nccl: NcclView) -> Iterator[str]:
    """Yield a line per op: algorithm and protocol, with the sizes for which they are used."""
    ops: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for choice, _ in nccl.choices:
        how = f"{choice.algorithm}/{choice.protocol}"
        ops[choice.op or "ops"][how].append(choice.bytes)
    for op, ways in list(ops.items())[:MOST]:
        ordered = sorted(ways.items(), key=lambda way: min(way[1]))
        yield f"{op}: " + ", ".join(f"{how} {_sizes(sizes)}" for how, sizes in ordered)


def _sizes(sizes: list[int]) -> str:
    low, high = words.size(min(sizes)), words.size(max(sizes))
    return low if low == high else f"{low} – {high}"
