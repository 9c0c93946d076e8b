"""Pipeline actions and their inputs. Text form ``2B5``: stage 2, backward, microbatch 5."""

from __future__ import annotations

import re
from collections.abc import Collection, Container
from functools import lru_cache
from typing import Final, NamedTuple

COMPUTE: Final = ("F", "B", "I", "W")
"""Kinds of actions that count as busy; UNSHARD, RESHARD and REDUCE_GRAD do not."""
_ONE = re.compile(r"(\d{1,6})([FBIW])(\d{1,6})")
_WHOLE = re.compile(r"(\d{1,6})(F|B|I|W|UNSHARD|RESHARD|REDUCE_GRAD)(\d{0,6})")


class Action(NamedTuple):
    stage: int
    kind: str
    microbatch: int
    """Number of the microbatch; -1 for kinds that have none."""

    @property
    def text(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch if self.microbatch >= 0 else ''}"


@lru_cache(maxsize=1 << 16)
def parse(text: str) -> Action | None:
    """Return the Action for a text such as ``2B5``; None for anything that is not one action."""
    found = _WHOLE.fullmatch(text)
    if found is None:
        return None
    stage, kind, microbatch = found.groups()
    return Action(int(stage), kind, int(microbatch) if microbatch else -1)


@lru_cache(maxsize=1 << 16)
def compute_actions(text: str) -> tuple[str, ...]:
    """Return the compute actions in one entry of a plan, in order.

    An entry may be a send or a receive (none), or an overlapped pair ``(0F3;1B2)OVERLAP_F_B``.
    """
    if text.startswith("("):
        return tuple("".join(parts) for parts in _ONE.findall(text))
    return (text,) if _ONE.fullmatch(text) else ()


def producer(action: str, num_stages: int) -> str | None:
    """Return the action whose output ``action`` needs; None: the first stage's F needs none.

    ``kF i`` needs ``(k-1)F i``; ``kB i`` and ``kI i`` need the same of stage k+1, on the last stage
    its own ``kF i``; ``kW i`` needs ``kI i``. A stage that splits its backward gives its gradient
    at the end of I: use ``satisfied`` to test, which takes I for B and B for I.
    """
    parsed = parse(action)
    found = None if parsed is None else needed(parsed, num_stages)
    return None if found is None else found.text


def needed(action: Action, num_stages: int) -> Action | None:
    """Return the action whose output a parsed action needs, as ``producer`` does for texts."""
    stage, kind, _ = action
    if kind not in COMPUTE or (kind == "F" and stage == 0):
        return None
    if kind == "W":
        return action._replace(kind="I")
    if kind != "F" and stage >= num_stages - 1:
        return action._replace(kind="F")
    return action._replace(stage=stage + (-1 if kind == "F" else 1))


def twin(action: str) -> str | None:
    """Return the other form of a backward: ``2I5`` for ``2B5`` and vice versa; else None."""
    parsed = parse(action)
    if parsed is None or parsed.kind not in ("B", "I"):
        return None
    return f"{parsed.stage}{'I' if parsed.kind == 'B' else 'B'}{parsed.microbatch}"


def source(action: str, num_stages: int, known: Container[str]) -> str | None:
    """Return the action whose output ``action`` needs, in its ``known`` form; or None."""
    needs = producer(action, num_stages)
    forms = (needs, twin(needs)) if needs is not None else ()
    return next((form for form in forms if form is not None and form in known), None)


def satisfied(action: str, num_stages: int, done: Collection[str]) -> bool:
    """Return whether the inputs of ``action`` are among the actions done by any rank."""
    needs = producer(action, num_stages)
    if needs is not None and needs not in done and twin(needs) not in done:
        return False
    parsed = parse(action)
    if parsed is None or parsed.kind not in ("B", "I"):
        return True
    return f"{parsed.stage}F{parsed.microbatch}" in done
