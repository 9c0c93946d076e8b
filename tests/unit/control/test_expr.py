"""Conditions: what is understood, what it means, and what is refused in one line."""

from __future__ import annotations

import random
import string
from typing import Any

import pytest

from pardbg.control.language.arguments import at_module
from pardbg.control.language.expr import gates, parse
from pardbg.errors import UserError
from pardbg_agent.control.breaks import BadTree, Breaks, breaks_of, compile_tree
from pardbg_agent.ctrl.agent_messages import BreakAt
from pardbg_agent.wire import EXPR_MAX_NODES, MAX_BREAKS, Gate

B3 = {"action": "B", "stage": 2, "mb": 3, "step": 7, "rank": 2, "host": "n1", "loss": 2.5}
REDUCE = {
    "op": "all_reduce", "axis": "dp", "pg": "dp", "bytes": 1 << 20, "dtype": "float32", "seq": 4,
    "step": 7, "rank": 0, "peer": None, "stage": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "facts", "expected"),
    [
        ("action==B and mb==3 and stage==2", B3, True),
        ("action==2B3", B3, True),
        ("action==2B4", B3, False),
        ("action = B", B3, True),
        ("microbatch >= 3 && !(stage == 1)", B3, True),
        ("op==all_reduce and bytes>1e6 and axis==dp", REDUCE, True),
        ("bytes > 1MiB", REDUCE, False),
        ("bytes >= 1MiB", REDUCE, True),
        ("bytes / 1024 == 1KiB", REDUCE, True),
        ("op in (send, recv)", REDUCE, False),
        ("rank in (0, 2)", REDUCE, True),
        ("step % 7 == 0 and 1 + 2 * 3 == step", B3, True),  # 1 + (2*3) = 7
        ("-step < -6", B3, True),
        ("host == 'n1' or rank==0", B3, True),
        ("loss > 2", B3, True),
        # unknown is no match, and stays unknown under not
        ("stage == 2", REDUCE, None),
        ("not stage == 2", REDUCE, None),
        ("not (stage == 2 and op == send)", REDUCE, True),  # op==send is False: False is certain
        ("stage == 2 or rank == 0", REDUCE, True),
        ("bytes / peer > 1", REDUCE, None),
        ("bytes % (rank) == 1", REDUCE, None),  # by zero
    ],
)
def test_meaning(text: str, facts: dict[str, Any], expected: bool | None) -> None:
    assert compile_tree(parse(text))(facts) is expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rnak==2", "did you mean 'rank'"),
        ("op==3", "one is text, the other a number"),
        ("op<send", "compare it with == or !="),
        ("step", "a condition compares something"),
        ("1==1", "compare a field"),
        ("seq-1==host", "one is text"),
        ("step==", "column 7"),
        ("step==1 step==2", "does not belong there"),
        ("(step==1", "')' is missing"),
        ("not", "column 4"),
        ("step==5parsecs", "no unit 'parsecs'"),
        ("action<2B5", "2B5 goes after action=="),
        ("op==2B5", "2B5 goes after action=="),
        ("step in (1, send)", "takes number, not send"),
        ("__import__('os').system('id')", "cannot read"),
        ("loss.__class__ == 1", "no field 'loss.__class__'"),
        ("rank==0 and open('x')", "and"),
        ("lambda: 1", "cannot read ': 1'"),
        ("[x for x in y]", "cannot read '[x for"),
        ("step==1; import os", "cannot read ';"),
        ("step=={}", "cannot read '{}'"),
        ("step==" + "9" * 500, "longer than 400"),
        ("(" * 60 + "step==1" + ")" * 60, "inside one another"),
        ("-" * 100 + "1==step", "inside one another"),
        ("not " * 60 + "step==1", "inside one another"),
        ("||".join(["1<seq"] * 44), "several breakpoints"),
        ("op==" + "a" * 100, "too long"),
        ("loss.real == 1", "no field 'loss.real'"),
        ("rank.__class__.__mro__ == 1", "no field 'rank.__class__.__mro__'"),
        ("(rank).real == 1", "cannot read"),
        ("step(1) == 1", "does not belong there"),
        ("step[0] == 1", "cannot read '[0]"),
        ("import os", "does not belong there"),
        ("exec == 1", "no field 'exec'"),
        ("9**9**9**9 == step", "a field or a value goes there"),
        ("step == 0x" + "f" * 40, "no unit"),
        ("step == 1_000", "'_000' at column 10"),
        ("f'{rank}' == host", "does not belong there"),
        ("(step := 1) == 1", "cannot read ':"),
        ("step == \u0661", "cannot read"),  # a digit, but not one of ours
        ("host == 'a\nb' or 1", "joins conditions"),
        ("step == 1 if True else 2", "does not belong there"),
        ("not" * 300, "longer than 400"),
        ("(" * 300, "inside one another"),
        ("\x00step==1", "cannot read"),
    ],
)
def test_what_is_refused_is_said_in_one_line(text: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_noise_is_refused_or_understood_never_worse() -> None:
    words = ["step", "op", "==", "and", "not", "(", ")", "in", ",", "1e9", "2B5", "'x'", "-", "*"]
    chance = random.Random(5)
    for _ in range(3000):
        parts = chance.choices(words, k=chance.randrange(12))
        if chance.random() < 0.5:
            parts += ["".join(chance.choices(string.printable, k=chance.randrange(9)))]
        try:
            compile_tree(parse(" ".join(parts)))(B3)
        except UserError:
            pass


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("action==F", Gate.ACTION),
        ("op==send and mb==3", Gate.COLLECTIVE | Gate.SEND | Gate.RECV),
        ("op==send and action==B", Gate.COLLECTIVE | Gate.SEND | Gate.RECV),
        ("mb==3", Gate.ACTION | Gate.COLLECTIVE | Gate.SEND | Gate.RECV),
        ("name==odd", Gate.BREAK),
    ],
)
def test_the_gates_at_which_it_can_be_true(text: str, expected: int) -> None:
    assert gates(parse(text)) == expected


# ------------------------------------------------------------------ what the agent takes


@pytest.mark.parametrize(
    "tree",
    [
        None, "step", [], ["exec", "x"], ["field", "__class__"], ["==", ["field", "step"]],
        ["num", "1"], ["text", 5], ["and", ["field", "step"], 3], [["field", "step"]],
        ["in", ["field", "op"], "send"], ["num", 10**400], ["field", ["text", "x"]],
        ["field", {}], ["==", ["text", "x"], ["num", 1], ["num", 2]], {"field": "step"},
    ],
)  # fmt: skip
def test_a_tree_it_does_not_know_is_refused(tree: Any) -> None:
    with pytest.raises(BadTree):
        compile_tree(tree)


def test_size_and_number_are_bounded() -> None:
    wide: Any = ["==", ["field", "step"], ["num", 1]]
    for _ in range(EXPR_MAX_NODES):
        wide = ["not", wide]
    with pytest.raises(BadTree):
        compile_tree(wide)
    with pytest.raises(BadTree):
        breaks_of([_break("step==1")] * (MAX_BREAKS + 1))


def _break(text: str, number: int = 1, **more: Any) -> BreakAt:
    tree = parse(text)
    return BreakAt(number, gates(tree), tree, **more)


def _hits(breaks: Breaks, gate: Gate, facts: list[dict[str, Any]]) -> list[bool]:
    return [breaks.first_hit(gate, lambda known=known: known) is not None for known in facts]


def test_a_step_alone_matches_once_per_step_and_an_event_each_time() -> None:
    gate_facts = [{"step": s, "action": a} for s in (1, 2, 2, 2, 3) for a in ("F",)]
    assert _hits(breaks_of([_break("step==2")]), Gate.ACTION, gate_facts) == [
        False, True, False, False, False,
    ]  # fmt: skip
    assert _hits(breaks_of([_break("action==F and step==2")]), Gate.ACTION, gate_facts) == [
        False, True, True, True, False,
    ]  # fmt: skip


def test_ignore_once_and_counts() -> None:
    facts = [{"action": "F"}] * 4
    ignoring = breaks_of([_break("action==F", 7, ignore=2)])
    assert _hits(ignoring, Gate.ACTION, facts) == [False, False, True, True]
    assert ignoring.hits() == {7: 4}
    assert _hits(breaks_of([_break("action==F", once=True)]), Gate.ACTION, facts) == [
        True, False, False, False,
    ]  # fmt: skip
    again = breaks_of([_break("action==F", 7), _break("action==B", 8)])
    again.keep_counts(ignoring)
    assert again.hits() == {7: 4}


def test_what_parses_is_what_a_rank_takes() -> None:
    """``action==2B3`` is eleven nodes: nine of them are 107 with what joins them."""
    joined = " or ".join(f"action==2B{mb}" for mb in range(9))
    with pytest.raises(UserError):
        parse(joined)
    compile_tree(parse(joined.rpartition(" or ")[0]))


def test_a_condition_names_a_field() -> None:
    with pytest.raises(UserError):
        parse("0-3 in (1, 2)")


def test_an_action_is_in_no_list() -> None:
    with pytest.raises(UserError):
        parse("2B3 in (dp, all_reduce)")


@pytest.mark.parametrize(("own", "there", "elsewhere"), [
    ((), {"module": "1.mlp", "rank": 0}, {"module": "1", "rank": 0}),
    (((1, "0.mlp"), (2, "1.mlp")), {"module": "0.mlp", "rank": 1}, {"module": "0.mlp", "rank": 2}),
])  # fmt: skip
def test_a_module_may_have_another_name_on_some_ranks(own: Any, there: Any, elsewhere: Any) -> None:
    tree = parse(at_module("1.mlp", True, own))
    assert gates(tree) == Gate.BREAK
    for facts, action, hit in (there, "F", True), (there, "B", False), (elsewhere, "F", False):
        assert compile_tree(tree)({**facts, "action": action}) is hit
