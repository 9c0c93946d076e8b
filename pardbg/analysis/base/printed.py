"""The loss of each step, parsed from the job's output."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean, median
from typing import Final

from pardbg.analysis.base.asof import View
from pardbg.events import fields

MAX_LINES: Final = 20_000
"""Maximum number of newest lines with a loss that are kept, per source."""
MAX_LINE: Final = 2000
"""Maximum number of characters of a line that are searched."""
_KEPT: Final = 8
"""Number of cached results of losses by step; each has up to MAX_LINES."""
LATE_NS: Final = 200_000_000
"""Maximum delay of a line in ns; the time of a line does not tell shorter steps apart."""
GENERIC: Final = "a line"
GIVEN: Final = "--loss-pattern"
_NUMBER: Final = r"(?P<loss>-?\d+(?:\.\d*)?(?:e[-+]?\d+)?|-?inf|nan)\b"
_LOSS: Final = r"\b(?:(?:train|training|lm)[ _/]?)?loss\b\W{1,3}NUMBER"
_PATTERNS: Final = tuple(
    (name, re.compile(text.replace("LOSS", _LOSS).replace("NUMBER", _NUMBER), re.IGNORECASE))
    for name, text in (
        ("Megatron", r"\biteration\s+(?P<step>\d+)/\s*\d+ \|.*\blm loss: NUMBER"),
        ("nanotron", r"\biteration: (?P<step>\d+) / \d+ \|.*\blm_loss: NUMBER"),
        ("DeepSpeed", r"\bsteps: (?P<step>\d+) loss: NUMBER iter time"),
        # Ranks without a pipeline's last stage print -1, or such summed up: they know none.
        ("torchtitan", r"\bstep:\s+(?P<step>\d+)\s+loss:\s+(?:-\d+\.0+|NUMBER)\s.*\bmemory:"),
        ("torchtune", r"\b\d+\|(?P<step>\d+)\|Loss: NUMBER"),
        ("OLMo-core", r"^\s*train/CE loss=NUMBER"),
        ("picotron", r"\bStep: (?P<step>\d+)\s+\| Loss: NUMBER\s*\| Global batch"),
        ("Transformers", r"^\{'loss': '?NUMBER'?, .*'epoch': "),
        ("Lightning", r"^Epoch (?P<epoch>\d+): .* (?P<step>\d+)/(?P<of>\d+) \[.*"
                      r"\b(?:train_)?loss(?:_step)?=NUMBER"),
        # No letter of the prefix may match in two ways: else a line may take minutes.
        (GENERIC, r"^(?:[^\w\[]|\d|\[[^\]]*\])*\[?(?:INFO\b\W*)?(?:rank\W*\d+\b\W*)?"
                  r"(?:epoch\b\W*\d+\b(?:[^\w/]*/[^\w/]*\d+\b)?\W*)?"
                  r"(?:step|iter|iteration|batch)\b\W*(?P<step>\d+)\b[^a-z]*LOSS"),
        # torch's tutorials: [1,  2000] loss: 2.2; Train Epoch: 1 [640/60000 (1%)]  Loss: 2.3
        (GENERIC, r"^[^\w\[]*\[\s*(?:\d+\s*,\s*)?(?P<step>\d+)\s*(?:/\s*\d+\s*)?\]\W*LOSS"),
        (GENERIC, r"^(?:train epoch\W*\d+\W*\[[^\]]*\]\W*)?LOSS"),
    )
)  # fmt: skip
"""(source of such lines, its pattern); the first match counts"""
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Printed:
    """The losses that the job printed."""

    source: str
    """Source of the lines: a framework such as ``Megatron``, ``GENERIC``, or ``GIVEN``."""
    losses: Mapping[int, float]
    """step -> loss"""
    times: float = 0.0
    """Factor of the losses that hooks saw over the printed ones; 0: not the same quantity."""


@dataclass(slots=True)
class _Read:
    """Output lines of one store that have been read."""

    lines: dict[str, list[tuple[int, int | None, float]]]
    """source -> (time in ns, step number in the line, loss)"""
    end: int = 0
    """Index of the next line of output to read."""


def given_pattern(text: str) -> re.Pattern[str]:
    """Return the compiled expression that finds a loss in its group ``loss``, else in its first
    group; a group ``step`` gives the step. Raises ValueError."""
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ValueError(f"{error}") from None
    if not pattern.groups:
        raise ValueError("it has no group: write r'loss=([0-9.]+)'")
    return pattern


def printed_losses(view: View, ended: int, starts: Callable[[], dict[int, int]]) -> Printed | None:
    """Return the losses printed up to the cursor; None if their steps cannot be told.

    ``ended``: number of complete steps. ``starts``: begin of each step's first activity, called
    only if there are lines.
    """
    begin = min((p.started_ns or 0 for p in view.ranks.values()), default=0)
    live, cache = view.run_end is None, view.memo("printed by step", _KEPT)
    for source, lines in _read(view).lines.items():
        own = [line for line in lines if begin <= line[0] <= view.t_ns]
        if not own:
            continue
        key = source, view.epoch, own[-1][0], len(own), min(2, abs(ended - len(own))), live
        if key not in cache:
            begins = sorted((t_ns, step) for step, t_ns in starts().items())
            cache[key] = _numbered(own, begins) or _in_order(own, begins, ended, live)
        if cache[key]:
            return Printed(source, cache[key])
    return None


def _read(view: View) -> _Read:
    cache, output, own = view.memo("printed"), view.store.output, _own(view)
    patterns = (*own, *_PATTERNS)
    read: _Read = cache.setdefault("lines", _Read({name: [] for name, _ in patterns}))
    for index in range(max(0, read.end - output.evicted), len(output)):
        t_ns, (_, _, text) = output.at(index)
        if not own and "loss" not in text and "Loss" not in text:
            continue
        text = _COLOURS.sub("", text[:MAX_LINE])
        for source, pattern in patterns:
            found = pattern.search(text)
            if found is not None:
                lines = read.lines[source]
                if found.groupdict().get("loss", "") is not None:
                    lines.append((t_ns, *_values(found)))
                del lines[:-MAX_LINES]
                break
    read.end = output.evicted + len(output)
    return read


def _own(view: View) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return the pattern that the run was started with; empty if it is invalid or missing."""
    pattern = fields.text(view.store.run, "loss_pattern")
    try:
        return ((GIVEN, given_pattern(pattern)),) if pattern else ()
    except ValueError:
        return ()


def _values(found: re.Match[str]) -> tuple[int | None, float]:
    named = found.groupdict()
    try:
        loss = float(named.get("loss") or found[1])
        step = int(named["step"]) if named.get("step") else None
    except ValueError:
        return None, float("nan")
    if step is not None and named.get("of"):
        step += int(named["epoch"]) * int(named["of"])
    return step, loss


Lines = Sequence[tuple[int, int | None, float]]
Begins = Sequence[tuple[int, int]]
"""(time in ns, step), in order"""


def _numbered(lines: Lines, begins: Begins) -> dict[int, float]:
    """Return step -> loss for lines with a step number. Programs count from 0, from 1 or from where
    they resumed; a line comes after its step has begun, so the earliest line gives the offset."""
    numbers = [number for _, number, _ in lines if number is not None]
    if len(numbers) != len(lines) or not begins or _restarts(numbers):
        return {}
    steps = _at(begins, [t_ns for t_ns, _, _ in lines])
    first = begins[0][1]
    offset = max(n - max(step, first) for n, step in zip(numbers, steps, strict=True))
    offset = min(offset, min(numbers) - first)
    found: dict[int, list[float]] = {}
    for number, (_, _, loss) in zip(numbers, lines, strict=True):
        found.setdefault(number - offset, []).append(loss)
    if max(found) > begins[-1][1]:
        return {}  # the number counts something else, such as microbatches
    return {step: fmean(losses) for step, losses in found.items()}


def _restarts(numbers: Sequence[int]) -> bool:
    """Return whether numbers begin anew, as in each epoch; lines of several ranks may be mixed."""
    drops = zip(numbers, accumulate(numbers, max), strict=True)
    return any(most > max(2 * number, number + 2) for number, most in drops)


def _in_order(lines: Lines, begins: Begins, ended: int, live: bool) -> dict[int, float]:
    """Return step -> loss for lines without a step's number in the run: one line per step, or by
    time."""
    numbers = [number for _, number, _ in lines if number is not None]
    if not begins or (numbers and not _restarts(numbers)):
        return {}
    lines = _once(lines, ended)
    losses = [loss for _, _, loss in lines]
    if len(lines) == ended or (live and abs(len(lines) - ended) <= 1):
        return dict(zip((step for _, step in begins), losses, strict=False))
    gaps = [later - sooner for (sooner, _), (later, _) in pairwise(begins)]
    steps = _at(begins, [t_ns for t_ns, _, _ in lines])
    if not gaps or median(gaps) < LATE_NS or len(set(steps)) < len(steps):
        return _evenly(steps, losses, begins[0][1])
    return dict(zip(steps, losses, strict=True))


def _evenly(steps: Sequence[int], losses: Sequence[float], first: int) -> dict[int, float]:
    """Return step -> loss for lines every k-th step from the start, where single lines' times are
    too imprecise to tell the step."""
    each = round((steps[-1] - steps[0]) / max(1, len(steps) - 1))
    made = {first + each * (at + 1) - 1: loss for at, loss in enumerate(losses)}
    near = all(abs(a - b) < each for a, b in zip(made, steps, strict=False))
    return made if each > 1 and near else {}


def _once(lines: Lines, ended: int) -> Lines:
    """Return one line per step where several nodes print the same lines."""
    copies = round(len(lines) / max(1, ended))
    groups = [lines[at : at + copies] for at in range(0, len(lines), max(1, copies))]
    alike = all(len({loss for *_, loss in group}) == 1 for group in groups)
    return [group[0] for group in groups] if copies > 1 and alike else lines


def _at(begins: Begins, times: Sequence[int]) -> list[int]:
    """Return the step under way at each of the times."""
    since = [t_ns for t_ns, _ in begins]
    return [begins[max(bisect_right(since, t_ns) - 1, 0)][1] for t_ns in times]
