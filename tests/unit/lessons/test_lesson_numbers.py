"""Every number of every lesson is that of its run: computed here another way, out of the records,
or literally in the lesson's text."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import pytest

import pardbg
from pardbg import words
from pardbg.analysis.answers.report import report
from pardbg.lab.lessons.lesson_table import Idea, Lesson, lessons
from pardbg.lab.lessons.worked import holds, pages
from pardbg.render.draw.cells import plain
from pardbg.render.draw.signs import ascii_of
from pardbg.render.frame.lesson import LessonPage, idea_picture, question_lines
from pardbg.session.navigation.travel import beside, step_end
from pardbg.session.reader import load
from pardbg.ui.commands.actions import GLOSSARY

SESSIONS = Path(__file__).parents[3] / "sessions"
COMPUTE = ("F", "B", "I", "W")
UNITS: dict[str, Callable[[float], str]] = {
    "MB": words.size, "kB": words.size, "MiB": words.binary_size, "KiB": words.binary_size,
    "ms": words.duration, "%": words.percent, "x": lambda value: f"{value:.2f}×",
    "": lambda value: f"{value:,.0f}",
}  # fmt: skip


@cache
def opened(name: str) -> Any:
    return pardbg.open(SESSIONS / f"{name}.mcap")


@cache
def as_json(name: str) -> Any:
    """The report's stable form, of a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "pardbg", "report", "--json", str(SESSIONS / f"{name}.mcap")],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


@cache
def records(name: str, kind: str) -> list[dict[str, Any]]:
    """Every record of a kind, of all ranks."""
    found = opened(name).records(kind)
    return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]


@cache
def worked(lesson: int) -> tuple[LessonPage, ...]:
    one = lessons()[lesson]
    return pages(one, {n: report(load(SESSIONS / f"{n}.mcap")) for n in one.recordings})


# ------------------------------------------------------------------ figures, out of the records


@cache
def traffic(name: str) -> dict[tuple[str, str], tuple[float, float, float]]:
    """(axis, op) -> (ops a step, bytes of them, bytes that a rank sends for them by a ring), the
    mean of the last eight steps that all ranks ended."""
    ended = [{r["step"] for r in records(name, "step") if r["rank"] == rank}
             for rank in {r["rank"] for r in records(name, "step")}]  # fmt: skip
    steps = sorted(set.intersection(*ended))
    last = steps[1:][-8:] if len(steps) < 10 else steps[-8:]
    kinds: dict[tuple[str, str], dict[int, list[int]]] = {}
    sizes: dict[str, set[int]] = {}
    for op in records(name, "op_issue"):
        sizes.setdefault(op["group"], set()).add(op["rank"])
    of_group = {op["group_name"]: len(sizes[op["group"]]) for op in records(name, "op_issue")}
    for op in records(name, "op_issue"):
        if op["step"] in last and (not op["p2p"] or op["send"]):
            here = kinds.setdefault((op["group_name"], op["op"]), {})
            here.setdefault(op["rank"], []).append(max(op["bytes_in"], op["bytes_out"]))
    found = {}
    for (axis, op_name), by_rank in kinds.items():
        n = of_group[axis]
        ranks = (
            len({r["rank"] for r in records(name, "step")}) if op_name == "send" else len(by_rank)
        )
        number = sum(map(len, by_rank.values())) / ranks / len(last)
        payload = sum(map(sum, by_rank.values())) / ranks / len(last)
        ring = {"all_reduce": 2 * (n - 1) / n, "send": 1.0}.get(op_name, (n - 1) / n)
        found[axis, op_name] = number, payload, payload * ring
    return found


def added(name: str, of: str, which: int) -> float:
    return sum(row[which] for key, row in traffic(name).items() if of in key)


@cache
def sent(name: str) -> list[float]:
    """Bytes that each rank sends in a step."""
    if name == "moe":  # records of an all_to_all do not say to whom how much goes
        step = opened(name).report().traffic.step
        return [sum(e[3] for e in step.edges if e[:1] == (rank,) and e[2] == "observed")
                for rank in range(4)]  # fmt: skip
    if any(op == "send" for _, op in traffic(name)):
        sends = [o for o in records(name, "op_issue") if o["send"] and 1 <= o["step"] <= 8]
        return [sum(o["bytes_in"] for o in sends if o["rank"] == rank) / 8 for rank in range(4)]
    return [sum(row[2] for row in traffic(name).values())]


@cache
def memory(name: str, what: str, newest: bool = True) -> list[int]:
    """The newest bytes of a category on each rank, or all there ever were."""
    rows = [r for r in records(name, "memory") if r["name"] == what]
    if not newest:
        return [r["bytes"] for r in rows]
    return list({r["rank"]: int(r["bytes"]) for r in rows}.values())


def pieces(name: str) -> Iterator[dict[str, Any]]:
    """Computations of a pipeline without a schedule object: of each phase the longest piece between
    two waits for others, less the time in which a message is handed over."""
    kinds = {"forward": "F", "backward": "B"}
    for row in records(name, "phase"):
        if row["phase"] in kinds:
            begin, end = row["t0_ns"], row["t1_ns"]
            waits = sorted((w["t0_ns"], w["t1_ns"]) for w in records(name, "wait")
                           if w["rank"] == row["rank"] and begin <= w["t0_ns"] < end)  # fmt: skip
            edges = [begin, *(t for wait in waits for t in wait), end]
            t0_ns, t1_ns = max(
                zip(edges[::2], edges[1::2], strict=True), key=lambda piece: piece[1] - piece[0]
            )
            handed = sum(o["t1_ns"] - o["t0_ns"] for o in records(name, "op_issue")
                         if o["rank"] == row["rank"] and t0_ns <= o["t0_ns"] < t1_ns)  # fmt: skip
            more = {"action": kinds[row["phase"]], "stage": row["rank"], "microbatch": 0}
            more["less_ns"] = handed
            yield row | more | {"t0_ns": t0_ns, "t1_ns": t1_ns}


@cache
def actions(name: str) -> dict[int, dict[int, list[dict[str, Any]]]]:
    """step -> rank -> its computations in order."""
    found: dict[int, dict[int, list[dict[str, Any]]]] = {}
    for row in sorted(records(name, "action") or pieces(name), key=lambda r: r["t0_ns"]):
        if row["action"] in COMPUTE:
            found.setdefault(row["step"], {}).setdefault(row["rank"], []).append(row)
    return found


def distinct(name: str, field: str) -> set[int]:
    return {row[field] for rows in actions(name)[4].values() for row in rows}


def bubble(name: str) -> float:
    shares = []
    for step in as_json(name)["pipeline"]["steps"]:
        ranks = actions(name)[step["step"]]
        rows = [row for rank in ranks.values() for row in rank]
        window = max(r["t1_ns"] for r in rows) - min(r["t0_ns"] for r in rows)
        busy = sum(int(r["t1_ns"] - r["t0_ns"]) - r.get("less_ns", 0) for r in rows)
        shares.append(1 - busy / (len(ranks) * window))
    return median(shares)


def held(name: str) -> list[int]:
    """The most microbatches in flight on each rank."""
    tops = []
    for rows in actions(name)[4].values():
        now = np.cumsum([1 if row["action"] == "F" else -1 for row in rows])
        tops.append(int(now.max()))
    return tops


def times(name: str, kind: str) -> float:
    by_stage: dict[int, list[int]] = {}
    for ranks in actions(name).values():
        for row in (row for rows in ranks.values() for row in rows if row["action"] == kind):
            by_stage.setdefault(row["stage"], []).append(int(row["t1_ns"] - row["t0_ns"]))
    return median(median(found) for found in by_stage.values())


def activations0(name: str) -> float:
    """What rank 0 keeps at the top: what a microbatch keeps, times those in flight."""
    return float(as_json(name)["memory"][0]["activations_peak_bytes"])


def durations(name: str, with_: bool) -> list[int]:
    steps = as_json(name)["steps"][1:]
    return [s["duration_ns"] for s in steps if ("recompute" in s["phases"]) is with_]


def missing(name: str) -> dict[str, Any]:
    return next(f for f in as_json(name)["findings"] if f["kind"] == "missing-rank")


def waited(name: str) -> int:
    """From when the first rank issued the op that never completed, to its failure."""
    finding = missing(name)
    since = min(op["t0_ns"] for op in records(name, "op_issue") if op["seq"] == finding["seq"])
    return int(finding["facts"]["until_ns"] - since)


NAMED: dict[str, Callable[[str], float]] = {
    "count ranks": lambda n: len({r["rank"] for r in records(n, "step")}),
    "max sent": lambda n: max(sent(n)), "min sent": lambda n: min(sent(n)),
    "mean sent": lambda n: mean(sent(n)),
    "max memory.parameters_bytes": lambda n: max(memory(n, "parameters")),
    "max memory.gradients_bytes": lambda n: max(memory(n, "gradients")),
    "max memory.optimizer_bytes": lambda n: max(memory(n, "optimizer")),
    "max memory.activations_bytes": lambda n: max(memory(n, "activations")),
    "max memory.activations_peak_bytes": lambda n: max(memory(n, "activations", False)),
    "max memory.activations_least_bytes": lambda n: min(memory(n, "activations", False)),
    "max memory.gathered_peak_bytes":
        lambda n: max(row.gathered_peak_bytes for row in opened(n).report().memory),
    "first memory.activations_peak_bytes": activations0,
    "mean overlap.hidden_ns": lambda n: mean(r["hidden_ns"] for r in as_json(n)["overlap"]),
    "mean overlap.exposed_ns": lambda n: mean(r["exposed_ns"] for r in as_json(n)["overlap"]),
    "only pipeline.num_stages": lambda n: len(distinct(n, "stage")),
    "only pipeline.num_microbatches": lambda n: len(distinct(n, "microbatch")),
    "count pipeline.use": lambda n: len(actions(n)[4]),
    "only pipeline.bubble_fraction": bubble,
    "only pipeline.implied_fraction": lambda n: as_json(n)["pipeline"]["implied_fraction"],
    "max pipeline.use.max_in_flight": lambda n: max(held(n)),
    "min pipeline.use.max_in_flight": lambda n: min(held(n)),
    "median steps-without/recompute": lambda n: median(durations(n, False)),
    "median steps-with/recompute": lambda n: median(durations(n, True)),
    "count missing.victims": lambda n: len(missing(n)["ranks"]),
    "only missing.culprit": lambda n: missing(n)["culprits"][0],
    "only missing.waited_ns": waited, "only missing.timeout_ns": lambda n: 8e9,
}  # fmt: skip
FAMILIES: dict[str, Callable[[str, str], float]] = {
    "number": lambda n, of: added(n, of, 0), "payload": lambda n, of: added(n, of, 1),
    "sent": lambda n, of: mean(sent(n)) if of == "all_to_all" else added(n, of, 2),
    "axis": lambda n, of: 2, "groups": lambda n, of: 4,  # the recipe's mesh: 2 x 2 x 2
    "phase": lambda n, of: median(s["phases"][of] for s in as_json(n)["steps"]
                                  if of in s["phases"]),
    "time": times,
}  # fmt: skip


def independent(idea: Idea) -> dict[str, float]:
    """The idea's named numbers, computed here."""
    found: dict[str, float] = {}
    for let in idea.lets:
        recording = let.recording or idea.recording
        if let.kind is not None:
            found[let.symbol] = eval(let.of, {}, dict(found))
        elif let.of in NAMED:
            found[let.symbol] = NAMED[let.of](recording)
        else:
            family, _, of = let.of.partition(" ")[2].partition("/")
            found[let.symbol] = FAMILIES[family](recording, of)
    return found


# ------------------------------------------------------------------------------ what is shown

_NUMBER = re.compile(
    r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?: ?(?:[kKMG]i?B|B|µs|ms|s|%|×))?(?![\w])"
)
_PLACE = re.compile(r"\{([^}:]+)(?::([^}]*))?\}")


def numbers_in(text: str) -> set[str]:
    return {found.replace(" ", "") for found in _NUMBER.findall(text)}


def literal(idea: Idea, lesson: Lesson) -> set[str]:
    """Numbers that the text itself has: of what could be, not of the run."""
    texts = [lesson.title, idea.title, idea.question, idea.answer, *idea.text]
    texts += [one.label for one in idea.formulas] + [one.note for one in idea.formulas]
    texts += [text for text, _ in idea.choices]
    return numbers_in(_PLACE.sub(" ", " \n ".join(texts)))


def allowed(idea: Idea, names: dict[str, float]) -> Iterator[str]:
    """All that an expression of the idea comes to."""
    texts = [idea.question, idea.answer, *idea.text, *(text for text, _ in idea.choices)]
    texts += [text for one in idea.formulas for text in (one.label, one.note)]
    for expression, unit in _PLACE.findall(" ".join(texts)):
        for one in UNITS.values() if not unit else [UNITS[unit]]:
            yield one(eval(expression, {}, names))
    for formula in idea.formulas:
        yield UNITS[formula.unit](eval(formula.expression, {}, names))
        if formula.seen:
            yield UNITS[formula.unit](eval(formula.seen, {}, names))
        yield from re.findall(r"\d+", formula.expression)
        for symbol in set(re.findall(r"[^\W\d]\w*", formula.expression)):
            yield from (one(names[symbol]) for one in UNITS.values())


PLACES = [(at, idea) for at, lesson in enumerate(lessons()) for idea in range(len(lesson.ideas))]


def test_there_are_twelve_lessons_with_a_question_on_every_page() -> None:
    assert len(lessons()) == 12 and len({lesson.name for lesson in lessons()}) == 12
    for lesson in lessons():
        for idea in lesson.ideas:
            assert idea.text and idea.formulas and idea.question and len(idea.choices) == 3


@pytest.mark.parametrize(("lesson", "idea"), PLACES)
def test_every_number_is_the_runs(lesson: int, idea: int) -> None:
    one = lessons()[lesson]
    page, source = worked(lesson)[idea], one.ideas[idea]
    names = independent(source)
    drawn = [*idea_picture(page, 400).body, *question_lines(page, 0, 400)]
    drawn += question_lines(page, next(at for at, (_, ok) in enumerate(page.choices) if ok), 400)
    shown = numbers_in("\n".join(plain(line) for line in drawn).replace("⋅", " "))
    known = {text.replace(" ", "") for text in allowed(source, names)} | literal(source, one)
    known |= {str(idea + 1), str(len(one.ideas))}
    assert shown - known == set(), names
    assert shown, "a page without numbers"


@pytest.mark.parametrize(("lesson", "idea"), PLACES)
def test_one_choice_is_right_and_the_run_says_which(lesson: int, idea: int) -> None:
    source, page = lessons()[lesson].ideas[idea], worked(lesson)[idea]
    right = [bool(eval(of, {}, independent(source))) for _, of in source.choices]
    assert [ok for _, ok in page.choices] == right and sum(right) == 1


@pytest.mark.parametrize(("lesson", "idea"), PLACES)
def test_what_was_seen_is_as_the_formula_says(lesson: int, idea: int) -> None:
    assert all(worked_.holds is not False for worked_ in worked(lesson)[idea].worked)


def test_stepping_by_op_says_the_bytes_that_questions_are_about() -> None:
    """DDP: four buckets and a loss of 4 bytes. MoE: what the router keeps of 65.5 kB."""

    def stepped(name: str, times: int) -> list[str]:
        store, found = load(SESSIONS / f"{name}.mcap"), []
        t_ns = step_end(store, 4)
        assert t_ns is not None
        for _ in range(times):
            there = beside(store, t_ns, "op", 1, 0, ())
            found.append(there.text.rpartition(", ")[2])
            t_ns = there.t_ns
        return found

    buckets = stepped("ddp", 5)
    assert buckets[4] == "4 B" and all(text.endswith(" kB") for text in buckets[:4])
    to, back = stepped("moe", 4)[2:]
    assert to.startswith("65.5 kB → ") and back == " → ".join(reversed(to.split(" → ")))


def test_a_relation_that_does_not_hold_is_seen() -> None:
    assert holds("= 1%", 100, 100.9) and not holds("= 1%", 100, 101.1)
    assert holds(">=", 3, 3) and not holds(">=", 3, 2.9)
    assert holds("<=", 3, 2.9) and not holds("<=", 3, 3.1)


def test_no_sign_of_a_lesson_or_of_the_glossary_is_lost_in_ascii() -> None:
    texts = [line for lesson in range(12) for page in worked(lesson)
             for line in (*idea_picture(page, 80).body, *question_lines(page, 0, 80))]  # fmt: skip
    for text in [*map(plain, texts), *(meaning for _, meaning in GLOSSARY)]:
        assert ascii_of(text).count("?") == text.count("?"), text
    assert ascii_of("16⋅Φ ≥ 3") == "16*F > 3"
