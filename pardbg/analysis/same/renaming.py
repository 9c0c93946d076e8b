"""Rules that give a run's tensors the names of its reference: ``pardbg same --map``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pardbg.store.captured import TensorDef
from pardbg.store.process import Process
from pardbg.store.store import Store

ARROW: Final = "=>"
Rule = tuple[re.Pattern[str], str]
"""What is found in a name, and what stands there instead, as ``re.sub`` has it."""


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
    """Rename the tensors of a run, each by all rules in their order; return how many names change.
    Raises ValueError where two names would be one."""
    return len(set().union(*(_renamed(process, rules) for process in store.procs.values())))


def _renamed(process: Process, rules: Sequence[Rule]) -> set[str]:
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
