"""The words after a verb, and answers of several ranks beside each other."""

from __future__ import annotations

from typing import Any

import pytest

from pardbg.control.language.arguments import inspect_words, parse_watch, verb_words
from pardbg.errors import UserError
from pardbg.events.commands import Answers
from pardbg.events.control_codes import Verb
from pardbg.hub.serve.questions import WAIT_NS, Questions
from pardbg.render.reports.replies import answer_rows, answers
from pardbg_agent.ctrl.agent_messages import Evaluated, NoAnswer


@pytest.mark.parametrize(
    ("verb", "text", "expected"),
    [
        (Verb.STEP, "0-1", ("0-1", {})),
        (Verb.PAUSE, "", (None, {})),
        (Verb.PAUSE, "2 hold", ("2", {"hold": True})),
        (Verb.BREAK, "op==send and step>3 on 0-1",
         ("0-1", {"expr": "op==send and step>3"})),
        (Verb.BREAK, "2b3 on 2", ("2", {"expr": "action==2B3"})),
        (Verb.CONDITION, "3 0F1", (None, {"number": 3, "expr": "action==0F1"})),
        (Verb.UNTIL, "step == 100", (None, {"expr": "step == 100"})),
        (Verb.CONDITION, "3 mb==2", (None, {"number": 3, "expr": "mb==2"})),
        (Verb.IGNORE, "3 10", (None, {"number": 3, "count": 10})),
        (Verb.DELETE, "1 2", (None, {"numbers": [1, 2]})),
        (Verb.DELETE, "", (None, {"numbers": []})),
        (Verb.DELAY, "2 50ms", ("2", {"ns": 50_000_000})),
        (Verb.DELAY, "stage=1 0.5s", ("stage=1", {"ns": 500_000_000})),
        (Verb.WATCH, "nan", (None, {"expr": "nan"})),
        (Verb.WATCH, "slow > 5×median on 0-1", ("0-1", {"expr": "slow > 5×median"})),
        (Verb.CONDITION, "3 memory>2GiB", (None, {"number": 3, "expr": "memory>2GiB"})),
    ],
)  # fmt: skip
def test_words(verb: Verb, text: str, expected: Any) -> None:
    assert verb_words(verb, text.split()) == expected


@pytest.mark.parametrize(
    ("verb", "text", "says"),
    [
        (Verb.STEP, "0 1", "one rank set after step"),
        (Verb.BREAK, "", "break EXPR"),
        (Verb.BREAK, "rnak==1", "did you mean 'rank'"),
        (Verb.CONDITION, "x mb==2", "a number of a breakpoint, not 'x'"),
        (Verb.IGNORE, "3", "ignore N COUNT: got 3"),
        (Verb.DELAY, "2 soon", "a delay is 50ms"),
        (Verb.DELAY, "2 5000s", "at most 60s"),
        (Verb.WATCH, "", "watch nan|mismatch|diverge|slow>K"),
        (Verb.WATCH, "loss", "cannot watch 'loss': nan, mismatch, diverge, slow>5"),
        (Verb.WATCH, "memory>20ms", "no unit 'ms' in 'memory>20ms': B, kB, MB, GB, TB, KiB"),
    ],
)
def test_mistakes_get_one_line(verb: Verb, text: str, says: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        verb_words(verb, text.split())
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nan", ("nan", 0)), (" mismatch ", ("mismatch", 0)), ("diverge", ("diverge", 0)),
        ("slow>5", ("slow", 5)), ("slow>2.5x", ("slow", 2.5)), ("slow > 5 ×median", ("slow", 5)),
        ("slow>5xmedian", ("slow", 5)), ("skew>20ms", ("skew", 20_000_000)),
        ("skew > 1.5 s", ("skew", 1_500_000_000)), ("memory>2GiB", ("memory", 2 << 30)),
        ("memory>500MB", ("memory", 500_000_000)),
    ],
)  # fmt: skip
def test_what_to_watch_for(text: str, expected: tuple[str, float]) -> None:
    assert parse_watch(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "watch what? nan"), ("nan nan", "cannot watch 'nan nan'"),
        ("nan>1", "nan has no limit: watch nan"), ("slow", "as in `watch slow>5`"),
        ("slow<5", "as in `watch slow>5`"), ("slow>-1", "as in `watch slow>5`"),
        ("skew>20", "a unit is missing in 'skew>20': ns, us"),
        ("skew>2GiB", "no unit 'GiB'"), ("memory>" + 30 * "9" + "GiB", "out of range"),
        ("__import__('os')", "cannot watch"), ("slow>1e9", "no unit 'e9'"),
    ],
)  # fmt: skip
def test_what_cannot_be_watched_gets_one_line(text: str, says: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        parse_watch(text)
    assert says in str(caught.value)


def test_what_is_asked_of_whom() -> None:
    assert inspect_words("p", "x if on else y") == (None, {"kind": "p", "expr": "x if on else y"})
    assert inspect_words("p", "loss on 0-1") == ("0-1", {"kind": "p", "expr": "loss"})
    assert inspect_words("list", "") == (None, {"kind": "list", "expr": ""})
    assert inspect_words("compare", "w.norm()") == ("held", {"kind": "p", "expr": "w.norm()"})
    assert inspect_words("compare", "--hash grads on 0,2") == (
        "0,2", {"kind": "hash", "expr": "grads"},
    )  # fmt: skip
    with pytest.raises(UserError, match="p EXPR"):
        inspect_words("p", "")


def _said(**by_rank: dict[str, Any]) -> Answers:
    return Answers({int(name[1:]): Evaluated(**said) for name, said in by_rank.items()})


def test_a_column_per_rank_with_the_first_that_differs() -> None:
    data = _said(
        r0={"text": "tensor(2.)", "number": 2.0, "hash": "a"},
        r1={"text": "tensor(2.)", "number": 2.0, "hash": "a"},
        r2={"text": "tensor(2.5)", "number": 2.5, "hash": "b"},
    )
    assert answers(data, compare=True) == [
        "    0 = tensor(2.)", "    1 = tensor(2.)", "    2 ≠ tensor(2.5)   +0.5",
        "rank 2 differs; the first is rank 2",
    ]  # fmt: skip
    assert answers(data) == ["ranks 0,1: tensor(2.)", "rank 2: tensor(2.5)"]


def test_the_first_tensor_whose_replicas_differ() -> None:
    same, other = {"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "9", "c": "8"}
    data = _said(r0={"hashes": same}, r1={"hashes": other}, r2={"hashes": same})
    assert answers(data, compare=True) == [
        "2 of 3 tensors differ; the first:", "  b: rank 1 differs", "  c: rank 1 differs",
    ]  # fmt: skip
    data = _said(r0={"hashes": same}, r1={"hashes": same})
    assert answers(data, compare=True) == ["3 tensors, equal on 2 ranks"]


def test_who_does_not_answer_is_named_and_the_others_are_not_lost() -> None:
    got: list[Answers] = []
    inquiries = Questions()
    inquiries.ask(1, {"a": 0, "b": 1, "c": 2}, got.append, now=0)
    inquiries.answered("a", Evaluated(1, text="5"))
    inquiries.answered("a", Evaluated(1, text="again"))
    inquiries.gone("b")
    inquiries.tick(WAIT_NS - 1)
    assert got == []
    inquiries.tick(WAIT_NS)
    inquiries.answered("c", Evaluated(1, text="too late"))
    ((zero, one, two),) = [found.answers.values() for found in got]
    assert (zero.text, zero.refusal) == ("5", None)
    assert (one.refusal, two.refusal) == (NoAnswer.ENDED, NoAnswer.SILENT)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", (None, {})), ("x5", (None, {"count": 5})), ("5x", (None, {"count": 5})),
        ("×12", (None, {"count": 12})), ("0-1 x3", ("0-1", {"count": 3})), ("2", ("2", {})),
    ],
)  # fmt: skip
def test_verbs_that_move_ranks_take_a_count(text: str, expected: object) -> None:
    for verb in (Verb.STEP, Verb.TICK, Verb.NEXT, Verb.OP):
        assert verb_words(verb, text.split()) == expected


@pytest.mark.parametrize("text", ["x0", "x99999", "x2 x3", "x3 0 1"])
def test_a_wrong_count_is_said_in_one_line(text: str) -> None:
    with pytest.raises(UserError):
        verb_words(Verb.TICK, text.split())


def test_the_console_says_who_answered_and_what_is_an_error() -> None:
    one = _said(r2={"text": "tensor(2.5)\nof two rows"})
    assert answer_rows(one, compare=False) == [
        ("rank 2: tensor(2.5)", False), ("        of two rows", False),
    ]  # fmt: skip
    two = _said(r1={"text": "NameError: no x", "raised": True}, r0={"text": "3"})
    assert answer_rows(two, compare=False) == [
        ("rank 0: 3", False), ("rank 1: NameError: no x", True),
    ]  # fmt: skip
    assert [row for row, wrong in answer_rows(two, compare=True) if wrong] == [
        "    1 ✗ NameError: no x"
    ]
    assert answer_rows(_said(), compare=False)[0][1]
