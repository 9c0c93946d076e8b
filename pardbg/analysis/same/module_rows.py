"""Modules in the order of execution, with their distance from the reference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from pardbg.analysis.base.losses import json_number
from pardbg.analysis.same.comparison import Sameness
from pardbg.analysis.same.elements import Elements
from pardbg.analysis.same.noise import RED
from pardbg.store.store import Store

WHATS: Final = ("out", "d_out", "grad")


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """A module and its distance from the reference."""

    name: str
    floors: Mapping[str, float]
    """Kind of tensor -> noise floors; kinds that were not judged are missing."""
    parts: frozenset[str] = frozenset()
    """Kinds of tensors of which ranks have a term of a sum that was never summed."""
    first: bool = False
    """Whether this is the module to look at first."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Answer of ``pardbg same``, by module."""

    found: Sameness
    modules: tuple[ModuleRow, ...]
    first: tuple[str, bool] = ("", True)
    """(module to look at, whether its output differs), as ``first_module`` returns it."""


def numbers_of(found: Sameness) -> Numbers:
    """Return an answer arranged by module."""
    return Numbers(found, tuple(module_rows(found)), first_module(found))


def is_captured(run: Store) -> bool:
    """Return whether all ranks of a live run have recorded all captured steps; parameters are
    last."""
    ranks = [rank.tensors for rank in run.rank_procs(None).values()]
    steps = {tensor.step for tensors in ranks for tensor in tensors}
    whole = [{tensor.step for tensor in tensors if tensor.what == "param"} for tensors in ranks]
    return bool(steps) and all(each == steps for each in whole)


def first_module(found: Sameness) -> tuple[str, bool]:
    """Return (module to look at, whether its output differs; else its backward does)."""
    place = found.place
    name = found.name.rpartition(".")[0] if place is None else place.name
    return name, place is not None and place.what == "out"


def module_rows(found: Sameness) -> list[ModuleRow]:
    """Return the modules of the first captured step in the order of execution; only modules with
    judged parameters, if outputs are not known."""
    floors: dict[str, dict[str, float]] = defaultdict(dict)
    parts: dict[str, set[str]] = defaultdict(set)
    first = found.rows[0].step if found.rows else 0
    for row in found.rows:
        if row.step == first and row.what in WHATS:
            of_grad = row.what == "grad"
            name = row.name.rpartition(".")[0] if of_grad else row.name
            floors[name][row.what] = max(floors[name].get(row.what, 0.0), row.floors)
            if row.level == "red" and row.floors <= RED and not of_grad:  # agrees as a sum
                parts[name].add(row.what)
    outs = [row.name for row in found.rows if row.what == "out" and row.step == first]
    names = outs or list(floors)[::-1]  # gradients come from the last parameter on
    of_parameter = found.what in ("grad", "param")
    owner = found.name.rpartition(".")[0] if of_parameter else found.name
    if found.hypothesis is not None and found.hypothesis.cause == "sum" and not of_parameter:
        parts[owner].add(found.what)
    return [
        ModuleRow(name, floors[name], frozenset(parts[name]), name == owner and bool(found.what))
        for name in names
    ]


def _elements_dict(one: Elements) -> dict[str, object]:
    shards = [
        {**asdict(shard), "reference": json_number(shard.reference), "run": json_number(shard.run)}
        for shard in one.shards
    ]
    return {**asdict(one), "shards": shards}


def as_dict(found: Sameness) -> dict[str, object]:
    """Return the answer in the form that ``pardbg same --json`` prints."""
    cause, loss = found.hypothesis, found.loss
    return {
        "exit_code": found.exit_code, "reason": found.reason,
        "step": found.step, "what": found.what, "name": found.name,
        "loss": None if loss is None else {
            key: json_number(value) if isinstance(value, float) else value
            for key, value in asdict(loss).items()
        },
        "hypothesis": None if cause is None else asdict(cause),
        "place": None if found.place is None else asdict(found.place),
        "tried": [{**asdict(one), "floors": json_number(one.floors)} for one in found.tried],
        "beside": [asdict(one) for one in found.beside],
        "rows": [
            {**asdict(row), "error": json_number(row.error), "floors": json_number(row.floors)}
            for row in found.rows
        ],
        "modules": [
            {"name": row.name, "first": row.first, "parts": sorted(row.parts),
             "floors": {what: json_number(value) for what, value in row.floors.items()}}
            for row in module_rows(found)
        ],
        "not_judged": [
            {"why": left.why, "what": list(left.whats), "names": list(left.names)}
            for left in found.left
        ],
        "blocks": list(found.blocks),
        "ranks": [
            {"rank": one.rank, "floors": [f if f is None else json_number(f) for f in one.floors]}
            for one in found.ranks
        ],
        "elements": [_elements_dict(one) for one in found.elements],
        "inputs_known": found.inputs_known, "initial_known": found.initial_known,
        "random": found.random, "floor_idle": found.floor_idle, "num_tensors": found.num_tensors,
    }  # fmt: skip
