"""Names of a run's tensors in terms of the reference's names.

Stages of a pipeline often count their layers from 0 each, as experts of a rank do. Initial
parameters are equal in both runs, so a parameter with another name is found by its values: its
shape and sketch fit only one of the reference's. The common end of both names is dropped; the
beginning is the place of the stage, and so of all its modules. Other differences need the user's
rules (``--map``).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from pardbg.analysis.same.noise import equal
from pardbg.analysis.same.wholes import (
    Model,
    Prefixes,
    Whole,
    is_placed,
    told,
    whole_of,
)  # fmt: skip
from pardbg.store.captured import TensorDef
from pardbg.store.process import Process
from pardbg.store.store import Store

ARROW: Final = "=>"
Rule = tuple[re.Pattern[str], str]
"""(pattern found in a name, replacement), as for ``re.sub``"""
_SHARE: Final = 0.5
"""Maximum distance from 1 of a part's projection onto a whole."""
_NEAR: Final = 0.25
"""Share of a parameter's norm below which a difference may be rounding, whatever the dtype."""


def prefixes(reference: Mapping[str, Whole], store: Store) -> dict[Model, Prefixes]:
    """Return model -> prefixes from a run's names to those of ``reference``; without equal ones."""
    models: dict[Model, dict[str, TensorDef]] = defaultdict(dict)
    for rank, tensor in told(store):
        if tensor.what == "init":
            models[rank, tensor.model].setdefault(tensor.name, tensor)
    known = _Known(reference)
    return {
        model: found
        for model, tensors in models.items()
        if (found := _prefixes(known, tensors)) is not None
    }


def own_names(moved: Mapping[Model, Prefixes], name: str) -> list[tuple[int, str]]:
    """Return (rank, module's own name) for ranks that have one of the reference's modules under
    another name; ``moved``: result of ``prefixes``."""
    return sorted({
        (rank, f"{ours}{name[len(theirs) :]}".strip("."))
        for (rank, _), names in moved.items()
        for ours, theirs in names.items()
        if f"{name}.".startswith(f"{theirs}.")
    })  # fmt: skip


class _Known:
    """Parameters of the reference, searched by values."""

    def __init__(self, reference: Mapping[str, Whole]) -> None:
        self.reference = reference
        self._of_shape: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for name, whole in reference.items():
            self._of_shape[whole.shape].append(name)
        self._vectors = {
            shape: np.stack([reference[name].vector for name in names])
            for shape, names in self._of_shape.items()
        }

    def fitting(self, name: str, whole: Whole) -> list[str]:
        """Return the names of the parameters with a whole's values: its own, if that fits."""
        own = self.reference.get(name)
        if own is not None and equal(own, whole):
            return [name]
        names = self._of_shape.get(whole.shape, [])
        if not names:
            return []
        near = np.linalg.norm(self._vectors[whole.shape] - whole.vector, axis=1)
        likely = [names[at] for at in np.flatnonzero(near <= _NEAR * (whole.norm or 1.0))]
        return [other for other in likely if equal(self.reference[other], whole)]

    def holding(self, part: TensorDef) -> list[str]:
        """Return the names of the parameters that have a part's values at its place. Sketches of
        256 numbers give inner products to about 1/16 of the norms' product."""
        names = self._of_shape.get(part.shape, [])
        if not names or not part.most or not is_placed(part):
            return []
        own = np.frombuffer(part.sketch, dtype="<f8")
        shares = self._vectors[part.shape] @ own / max(float(own @ own), 1e-300)
        return [names[at] for at in np.flatnonzero(np.abs(shares - 1) <= _SHARE)]


def _prefixes(known: _Known, tensors: Mapping[str, TensorDef]) -> Prefixes | None:
    """Return a model's prefixes; None: its names are those of the whole reference."""
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for name, tensor in tensors.items():
        whole = whole_of([(0, tensor)])
        fits = known.fitting(name, whole) if isinstance(whole, Whole) else known.holding(tensor)
        if len(fits) == 1:
            ours, theirs = _heads(name, fits[0])
            votes[ours][theirs] += 1
    found = {ours: theirs.most_common(1)[0][0] for ours, theirs in votes.items()}
    partial = tensors.keys() != known.reference.keys()
    moved = {ours: theirs for ours, theirs in found.items() if ours != theirs}
    return moved if moved or partial else None


def _heads(ours: str, theirs: str) -> tuple[str, str]:
    """Return the parts of two names before their common end."""
    left, right = ours.split("."), theirs.split(".")
    while left and right and left[-1] == right[-1]:
        left.pop()
        right.pop()
    return ".".join(left), ".".join(right)


# -- by rules of the user


def parse(text: str) -> tuple[Rule, ...]:
    r"""Return the rules of a file, one a line: ``^h\.(\d+)\. => layers.\1.``; ``#`` begins a
    comment. Raises ValueError."""
    rules = []
    for number, said in enumerate(text.splitlines(), 1):
        if not (line := said.partition("#")[0].strip()):
            continue
        pattern, arrow, name = (part.strip() for part in line.partition(ARROW))
        try:
            rule = re.compile(pattern), name
            rule[0].sub(name, "")
            if not arrow or not pattern:
                raise ValueError(f"it is no PATTERN {ARROW} NAME")
        except (re.error, ValueError) as error:
            raise ValueError(f"line {number}: {error}") from None
        rules.append(rule)
    return tuple(rules)


def rename(store: Store, rules: Sequence[Rule]) -> int:
    """Rename the tensors of a run, each by all rules in order, and return the number of changed
    names. Raises ValueError if two names would become one."""
    return len(set().union(*(_moved(process, rules) for process in store.procs.values())))


def _moved(process: Process, rules: Sequence[Rule]) -> set[str]:
    before: dict[tuple[int, str], str] = {}
    made: dict[TensorDef, None] = {}
    changed = set()
    for tensor in process.tensors:
        name = tensor.name
        for pattern, instead in rules:
            name = pattern.sub(instead, name)
        other = before.setdefault((tensor.model, name), tensor.name)
        if other != tensor.name:
            raise ValueError(f"{other} and {tensor.name} would both be {name}")
        if name != tensor.name:
            changed.add(tensor.name)
        made[replace(tensor, name=name)] = None
    process.tensors = made
    names = {(model, old): new for (model, new), old in before.items()}
    process.kept = {
        (step, what, names.get((model, name), name), model): kept
        for (step, what, name, model), kept in process.kept.items()
    }
    return changed
