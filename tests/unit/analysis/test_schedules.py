"""Schedules as tables: read, checked, lowered and played on models of transports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pardbg.analysis.whatif.plans import NoPlan, plan
from pardbg.errors import UserError
from pardbg.lab.schedules.compare import Durations, predict
from pardbg.lab.schedules.lint import MAX_PROBLEMS, Verdict, lint
from pardbg.lab.schedules.schedule_table import (
    MAX_CELLS,
    Cell,
    Op,
    Table,
    dump,
    from_plan,
    parse,
)
from pardbg.lab.schedules.schedule_text import verdict
from pardbg.lab.schedules.transports import consumed, lower, peer

ONE = "0F0,0F1,0B0,0B1\n,1F0,1B0,1F1,1B1\n"
"""1F1B on two ranks with two microbatches."""


def said(text: str, **more: int) -> list[str]:
    return [problem.line() for problem in lint(parse(text), **more).problems]


def built_in(name: str, pp: int, mb: int) -> Table:
    return from_plan(plan(name, pp, 1 if name in ("GPipe", "1F1B") else 2, mb))


def test_a_table_reads_and_writes_torchs_grammar() -> None:
    table = parse("0F0, 0F1 ,,0B0,(0F2;1B2)OVERLAP_F_B\n1RECV_F0,1F0,1SEND_B0,1UNSHARD\n\n")
    assert dump(table) == "0F0,0F1,0B0,(0F2;1B2)OVERLAP_F_B\n1RECV_F0,1F0,1SEND_B0,1UNSHARD\n"
    assert (len(table.rows), table.num_stages, table.num_microbatches) == (2, 2, 3)
    assert table.has_messages and [cell.column for cell in table.rows[0]] == [0, 1, 3, 4]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no action in it"),
        (",,\n", "no action in it"),
        ("0F0,0G1", "row 1, column 2: '0G1' is no action"),
        ("0F0\n1F²", "row 2, column 1"),
        ("0F", "row 1, column 1"),
        ("0F0" + "," * MAX_CELLS, "more than"),
        ("0F9999999", "row 1, column 1"),
    ],
)
def test_what_is_no_table_is_said_with_its_place(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_a_good_one() -> None:
    found = lint(parse(ONE))
    assert found.good and found.in_flight == (2, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ONE.replace("0B1", "0B0"), "row 1, column 4: twice: 0B0 runs more than once"),
        (ONE.replace(",0B1", ""), "row 1: missing: no 0B1 (or 0I1 and 0W1)"),
        (ONE.replace("0B1", "0I1"), "row 1: missing: no 0W1"),
        (ONE.replace("0F1,0B0", "0F1,0B0,0I0,0W0"), "row 1: twice: 0B0 beside 0I0"),
        (ONE.replace("1B0,1F1,1B1", "1B0,1B1,1F1"), "row 2, column 4: order: 1B1 before 1F1"),
        (ONE.replace("0F1,", "").replace(",1F0", "0F1,1F0"), "row 2, column 1: place: 0F1 is on"),
        (ONE.replace("1F1", "3F1").replace("1B1", "3B1"), "table: missing: stage 2 is on no rank"),
        # the last stage's losses are kept in the order of its forwards, not by microbatch
        ("0F0,0F1,0B0,0B1\n1F1,1F0,1B0,1B1", "row 2, column 2: order: 1F0 after 1F1"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, says: str) -> None:
    assert any(line.startswith(says) for line in said(text)), said(text)
    assert lint(parse(text)).wrong


def test_one_microbatch_that_is_out_of_row_is_no_lack_of_all_below_it() -> None:
    assert said("0F0,0F1,0B0,0B1\n1F0,1F7,1B0,1B1\n") == [
        "row 2, column 2: place: 1F7: there are 2 microbatches, 0 to 1", "row 2: missing: no 1F1",
    ]  # fmt: skip


def test_the_number_of_microbatches_may_be_asked_for() -> None:
    assert said(ONE, num_microbatches=2) == []
    assert "row 1: missing: no 0F2" in said(ONE, num_microbatches=3)
    assert any("there are 1 microbatches" in line for line in said(ONE, num_microbatches=1))


def test_an_order_that_cannot_run_names_its_circle() -> None:
    """Rank 0 wants 1's backward of 0 before it gives forward 1; rank 1 wants that forward first."""
    (line,) = said("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1")
    assert line.startswith("row 1, column 2: deadlock: the order cannot run")
    assert "rank 0 needs 1B0 for 0B0" in line and "rank 1 needs 0F1 for 1F1" in line


@pytest.mark.parametrize(
    ("text", "load"),
    [
        (ONE, "loads"),
        (ONE.replace("0B1", "0B1,0B1"), "loads"),  # torch counts different microbatches
        (ONE.replace(",0B1", ""), "refused"),
        ("0F0,0B0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1", "no order"),
    ],
)
def test_whether_torch_loads_a_table_is_said(text: str, load: str) -> None:
    assert lint(parse(text)).load == load


HEAD_ON = (
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
    "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"
)
"""Between the ranks, one end has F1 before B0 and the other B0 before F1."""


def test_two_sends_head_on_wait_for_ever_only_without_buffers() -> None:
    found = lint(parse(HEAD_ON))
    assert not found.wrong and not found.deadlocks("buffered")
    assert found.deadlocks("pair") and found.deadlocks("rank")
    assert "0RECV_B0 of rank 0 stands behind 0SEND_F1" in found.problems[0].text
    # received before it is sent on the one end: the same order on both
    mended = HEAD_ON.replace("0F1,0SEND_F1,0RECV_B0", "0RECV_B0,0F1,0SEND_F1")
    assert lint(parse(mended)).good


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("1SEND_B0,", "", "deadlock: 0RECV_B0 has no 1SEND_B0"),
        ("0RECV_B0,", "", "order: 0B0 before 0RECV_B0"),
        ("0F0,0SEND_F0", "0SEND_F0,0F0", "order: 0SEND_F0 before what it sends has run"),
        ("1RECV_F0,1F0", "1RECV_F0,1RECV_F0,1F0", "twice: 1RECV_F0"),
        ("0SEND_F0", "0SEND_B0", "message: 0SEND_B0 does not belong on rank 0"),
        ("0RECV_B0,0B0,0RECV_B1", "0RECV_B1,0RECV_B0,0B0", "message: 0RECV_B1 takes what rank 1"),
    ],
)
def test_messages_that_do_not_fit(old: str, new: str, says: str) -> None:
    assert any(says in line for line in said(HEAD_ON.replace(old, new)))


SHAPES = [(pp, mb) for pp in (2, 4, 8) for mb in (pp, 2 * pp, 4 * pp)]
ALL = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble",
       "DualPipeV")  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_torchs_own_schedules_are_good(name: str) -> None:
    pytest.importorskip("torch")
    for pp, mb in SHAPES:
        try:
            table = built_in(name, pp, mb)
        except NoPlan:
            continue  # DualPipeV wants twice as many microbatches as ranks
        assert lint(table).good, (pp, mb)
        assert lint(Table(lower(table).rows)).good, (pp, mb)


def kinds_apart(row: list[str]) -> dict[str, list[str]]:
    """What a rank computes, sends and receives, each in its order. (torch puts REDUCE_GRAD into the
    rows first, which moves a receive at a step's end by a place or two.)"""
    found: dict[str, list[str]] = {"SEND": [], "RECV": [], "": []}
    for text in row:
        if "SHARD" not in text and "GRAD" not in text:
            found[next((way for way in ("SEND", "RECV") if way in text), "")].append(text)
    return found


def test_lowered_as_torch_does_it() -> None:
    pytest.importorskip("torch")
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    for name, pp, mb in (("Interleaved1F1B", 4, 8), ("ZBVZeroBubble", 4, 8), ("LoopedBFS", 2, 4)):
        rows = get_schedule_ops(name, pp, mb, 2, with_comms=True)
        wanted = [kinds_apart([str(a) for a in row if a is not None]) for row in rows]
        made = lower(built_in(name, pp, mb)).rows
        assert [kinds_apart([cell.text for cell in row]) for row in made] == wanted


def defer_receives(rank: int, row: Sequence[Cell], owner: Mapping[int, int]) -> tuple[Cell, ...]:
    """Each receive as late as it may come, as torch's ``_defer_recv_ops`` has it."""
    made: list[Cell] = []
    waiting: dict[Op, Cell] = {}
    for cell in row:
        op = cell.ops[0]
        if op.kind.startswith("RECV"):
            waiting[op] = cell
            continue
        if op.kind.startswith("SEND"):
            to = peer(op, owner)
            if to is not None and rank < to:  # the lower rank receives before it sends
                made += [waiting.pop(r) for r in list(waiting) if peer(r, owner) == to]
        for part in cell.ops:
            needed = consumed(part)
            if needed is not None and needed in waiting:
                made.append(waiting.pop(needed))
        made.append(cell)
    return (*made, *waiting.values())


def deferred(name: str, pp: int, mb: int) -> Verdict:
    table = Table(lower(built_in(name, pp, mb)).rows)
    rows = enumerate(table.rows)
    return lint(Table(tuple(defer_receives(rank, row, table.owners) for rank, row in rows)))


def test_deferred_receives_deadlock_or_mix_up_data() -> None:
    """``defer_pp_recv=True`` on one stream a pair (pytorch#172668); where a pair of ranks sends
    forwards and backwards the same way, the two ends even order them differently."""
    pytest.importorskip("torch")
    found = deferred("Interleaved1F1B", 4, 8)
    assert not found.wrong and not found.deadlocks("buffered") and found.deadlocks("pair")
    mixed = deferred("InterleavedZeroBubble", 2, 4)
    assert mixed.wrong and "another order on the two ends" in mixed.problems[0].text


@pytest.mark.parametrize(("row", "hangs"), [
    # the first message is F1's, F0's goes behind rank 0's own backward, which needs rank 1's
    ("1RECV_F0,1RECV_F1,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1", True),
    # here rank 0 gets that backward, and fails at the send whose data is gone
    ("1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1", False),
])  # fmt: skip
def test_a_wrong_order_of_messages_may_wait_for_ever(row: str, hangs: bool) -> None:
    found = lint(parse(f"0F0,0F1,0SEND_F1,0RECV_B0,0B0,0SEND_F0,0RECV_B1,0B1\n{row}\n"))
    assert found.wrong and found.hangs is hangs is found.deadlocks("buffered")
    last = found.problems[-1].line()
    assert hangs == ("rank 0 cannot begin 0B0: rank 1 has not come to 1SEND_B0; rank 1 cannot begin"
                     " 1F1: 0SEND_F1 of rank 0 went to another receive" in last), last  # fmt: skip


def test_predicted_by_supposed_durations() -> None:
    """F 1, B 2: 1F1B takes m + p - 1 = 11 slots of 3, (p-1)/(m+p-1) of them idle; a table that
    cannot run has no time. Messages: 3 borders × 8 microbatches × 2 ways."""
    taken = Durations(1e6, 2e6, 1e6, 1e6)
    found = predict("1f1b", built_in("1F1B", 4, 8), taken)
    assert found.step_ns == pytest.approx(33e6) and found.num_messages == 48
    assert found.bubble_fraction == pytest.approx(3 / 11)
    stuck = predict("x", parse("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1"), taken)
    assert stuck.step_ns is None and not stuck.verdict.good


@pytest.mark.timeout(10)
def test_of_a_mistyped_tables_endless_problems_the_first_are_said() -> None:
    found = lint(parse(ONE + "999999F999999,999999B999999\n"))
    assert found.wrong and len(found.problems) == MAX_PROBLEMS
    assert verdict("S.csv", found).splitlines()[-1] == "  … these are the first"


def test_an_input_of_the_same_rank_must_be_made_before() -> None:
    """Nothing waits for it: torch takes what the buffer holds."""
    rows = "0F0,0SEND_F0,3RECV_F0,3F0,3B0,3SEND_B0,0RECV_B0,0B0\n"
    good = "1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2B0,1B0,1SEND_B0\n"
    assert lint(parse(rows + good)).good
    early = lint(parse(rows + good.replace("2B0,1B0", "1B0,2B0")))
    assert early.wrong
    assert early.problems[0].text == "1B0 before 2B0, whose output it takes"
