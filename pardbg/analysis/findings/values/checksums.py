"""Checksums of parameters after an optimizer's step, as ranks recorded them; for detectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.values.exchanged import PROBES_BACK
from pardbg.store.process import Process

_LOOKS: Final = 2
"""Minimum number of looks in which parameters are equal."""
OWN: Final = "checksum-own "
"""Prefix of the names of checksums of parameters that an optimizer steps and no DDP wraps."""


class Sums(NamedTuple):
    """A checksum of parameters on one rank."""

    whole: int
    parts: int
    """Checksums of the parts, a byte for each."""
    names: str
    t_ns: int

    def by_part(self) -> Iterable[tuple[str, int]]:
        """Yield (name, checksum byte) of each part."""
        bytes_ = self.parts.to_bytes(8, "little", signed=True)
        return zip(self.names.split(" ")[1:], bytes_, strict=False)


Key = tuple[int, int]
"""(step, number of the checksum in the step)"""
ByKey = Mapping[Key, Mapping[int, Sums]]
"""key -> rank -> its checksum"""


def differs(of: Mapping[int, Sums]) -> bool:
    """Return whether ranks have different checksums."""
    return len({(one.whole, one.parts) for one in of.values()}) > 1


def parts_apart(of: Mapping[int, Sums]) -> list[str]:
    """Return the names of the parts whose checksum bytes differ."""
    columns = zip(*(one.by_part() for one in of.values()), strict=False)
    return [column[0][0] for column in columns if len({byte for _, byte in column}) > 1]


def checksums(view: View, process: Process) -> Iterable[tuple[str, Key, Sums]]:
    """Yield (group, (step, number), checksum) of the recent records; a group that starts with OWN
    has parameters that no DDP wraps."""
    table, visible = view.rows(process, "probe")
    wanted = process.names_with("checksum ", OWN)
    if not wanted or not visible:
        return
    part = slice(max(0, visible - PROBES_BACK), visible)
    columns = ("name_id", "group_id", "step", "seq", "a", "b", "t1_ns")
    for name_id, gid, step, seq, a, b, t in table.tuples(part, *columns):
        group = process.groups.get(gid)
        if name_id in wanted and group is not None:
            own = OWN if wanted[name_id].startswith(OWN) else ""
            yield own + group.key, (step, seq), Sums(a, b, wanted[name_id], t)


def equal(view: View, ranks: Sequence[int]) -> bool:
    """Return whether all parameters of these ranks are bit-identical in all common looks and change
    between them, and no rank broadcasts its own: then each rank's optimizer steps a part and
    gathers the others' (Muon)."""
    found = [{key: of for _, key, of in checksums(view, view.ranks[rank])} for rank in ranks]
    common = sorted(set.intersection(*map(set, found)))
    sums = [dict(enumerate(of[key] for of in found)) for key in common]
    changed = len({(look, one[0].whole) for (_, look), one in zip(common, sums, strict=True)})
    ops = (op.op for rank in ranks for op in view.ranks[rank].ops.values())
    return (
        len(common) >= _LOOKS and changed > len({look for _, look in common})
        and not any(map(differs, sums)) and "broadcast" not in ops
    )  # fmt: skip


def scattering(view: View) -> list[tuple[int, ...]]:
    """Return all ranks if each scatters sums and gathers: within its optimizer's step, perhaps."""
    own = [{op.op for op in process.ops.values()} for process in view.ranks.values()]
    whole = len(own) > 1 and all({"reduce_scatter", "all_gather"} <= ops for ops in own)
    return [tuple(sorted(view.ranks))] if whole else []


def averaging_in_step(view: View) -> list[tuple[int, ...]]:
    """Return the ranks that average within their optimizer's step: their parameters stay equal."""
    return [ranks for ranks in scattering(view) if equal(view, ranks)]
