"""Finds parameters whose gradients all ranks leave out of what they average."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.steps import last_step_end
from pardbg.analysis.findings.finding import Candidate
from pardbg.analysis.findings.kinds.value_kinds import NotAveraged
from pardbg.analysis.findings.values.checksums import OWN, Key, Sums, checksums
from pardbg.analysis.findings.values.exchanged import (
    SHARE_OF_MODEL,
    SMALL_BYTES,
    summed,
    syncs,
)

_LOOKS: Final = 3
"""Number of newest looks in which the same parameters must differ."""

_Look = dict[tuple[int, str], int | None]
"""(record, part of the model) -> its checksum, None where ranks differ; in order"""


def left_out(view: View) -> Iterable[Candidate]:
    """Find ranks that began with equal parameters and sum most of their gradients, each time
    without the same parameters, which drift apart while all others stay equal. Not found where
    ranks exchange anything else between two steps: parts of a model that belong to one rank
    (experts, tensor parallel layers) need that, and it shows averages made at times."""
    alike: dict[int, list[int]] = defaultdict(list)
    for rank, process in view.ranks.items():
        model = process.model
        if model and model.start is not None and not model.rpc and model.shards <= 1:
            alike[model.start].append(rank)
    for ranks in alike.values():
        looks = _looks(view, ranks) if len(ranks) > 1 else {}
        newest = [*looks.values()][-_LOOKS:]
        apart = _apart(newest) if len(newest) == _LOOKS else []
        if apart and all(_sums_a_part(view, rank) for rank in ranks):
            first = next(step for step, look in looks.items() if _apart([look]) == apart)
            names = tuple(name for _, name in apart)
            yield Candidate(
                kind="replica-divergence", ranks=tuple(ranks), where=names[0],
                t_ns=last_step_end(view),
                facts=NotAveraged(names, first, apart == [*newest[-1]][-len(apart) :]),
            )  # fmt: skip


def _looks(view: View, ranks: Sequence[int]) -> dict[int, _Look]:
    """Return step -> look, of looks that all ranks have, in order; empty if ranks have a DDP."""
    told: dict[Key, list[Sums]] = defaultdict(list)
    for rank in ranks:
        for group, key, sums in checksums(view, view.ranks[rank]):
            if not group.startswith(OWN):
                return {}
            told[key].append(sums)
    looks: dict[int, _Look] = defaultdict(dict)
    for (step, which), of in sorted(told.items()):
        parts = zip(*(sums.by_part() for sums in of), strict=False) if len(of) == len(ranks) else ()
        for part in parts:
            (name, byte), alike = part[0], len({*part}) == 1
            looks[step][which, name] = byte if alike else None
    return looks


def _apart(looks: Sequence[_Look]) -> list[tuple[int, str]]:
    """Return the parts that differ in each look, if they are the same ones each time and other
    parts are trained and equal."""
    unlike = [[part for part, byte in look.items() if byte is None] for look in looks]
    if not unlike or any(of != unlike[0] for of in unlike):
        return []
    trained = any(looks[0].get(part) != byte for part, byte in looks[-1].items())
    return unlike[0] if trained or len(looks) == 1 else []


def _sums_a_part(view: View, rank: int) -> bool:
    process = view.ranks[rank]
    if process.model is None or view.visible(process, "issue_p2p"):
        return False
    size, of = process.model.parameters_bytes, summed(view, process)
    a_part = bool(len(of)) and bool(((of >= size * SHARE_OF_MODEL) & (of < size)).all())
    return a_part and not len(syncs(view, process, SMALL_BYTES + 1))
