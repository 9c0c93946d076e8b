"""Ranks' ops played against each other: who gets where, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pardbg.cli.rehearse import script_of
from pardbg.errors import UserError
from pardbg.events.decode import RECORD_DTYPE
from pardbg.lab.rehearse.order import TICK_NS, Transport, play
from pardbg.lab.rehearse.rank_trace import Trace
from pardbg_agent.wire import Flag, Kind

ALL, SOME = 0, 1
OPS = {1: "all_reduce", 2: "broadcast", 3: "send", 4: "recv"}
P2P, SEND = Flag.P2P, Flag.P2P | Flag.SEND


def rank_of(
    rank: int, *calls: tuple[Any, ...], world: int = 3, some: Sequence[int] = (0, 1)
) -> Trace:
    """Calls: ("all_reduce", group), ("send", peer), ("recv", peer): waited for at once; with a
    third word they are not, and ("wait", n) waits for the call of that number."""
    rows, seqs = [], {ALL: 0, SOME: 0, "p2p": 0}
    made: list[tuple[int, int, int, int, int, int]] = []
    clock = 1_000 * (rank + 1)  # each rank's own, which must not matter
    for call in calls:
        clock += 10
        if call[0] == "wait":
            rows.append((Kind.WAIT, clock, clock + 1, *made[call[1]]))
            continue
        op = next(number for number, name in OPS.items() if name == call[0])
        message = call[0] in ("send", "recv")
        group, peer = (ALL, call[1]) if message else (call[1], -1)
        flags = int(SEND if call[0] == "send" else P2P) if message else 0
        key: Any = "p2p" if message else group
        made.append((op, group, seqs[key], flags, peer, 64 if call[0] != "broadcast" else 8))
        seqs[key] += 1
        rows.append((Kind.OP_ISSUE, clock, clock + 1, *made[-1]))
        if len(call) < 3:
            rows.append((Kind.WAIT, clock + 2, clock + 3, *made[-1]))
            rows.append((Kind.OP_DONE, clock, clock + 3, *made[-1]))
    records = np.zeros(len(rows), RECORD_DTYPE)
    for at, (kind, t0, t1, name, group, seq, flags, peer, size) in enumerate(rows):
        for field, value in {
            "kind": int(kind), "t0_ns": t0, "t1_ns": t1, "name_id": name, "group_id": group,
            "seq": seq, "flags": flags, "peer": peer, "a": size, "b": size,
        }.items():  # fmt: skip
            records[field][at] = value
    definitions = [{"k": "op", "id": n, "op": name, "dtype": "float32"} for n, name in OPS.items()]
    for number, name, ranks in ((ALL, "all", range(world)), (SOME, "some", some)):
        said = {"k": "group", "id": number, "key": name, "ranks": list(ranks)}
        definitions.append({**said, "name": "default" if number == ALL else name})
    return Trace(rank, records, definitions, b"", 0, 0)


def stuck(traces: Sequence[Trace], transport: Transport = "rendezvous") -> dict[int, int]:
    """rank -> the number of the op it stands in"""
    return {
        rank: one.stuck for rank, one in play(traces, transport).items() if one.stuck is not None
    }


def test_what_holds_nobody_up_is_kept_with_its_moment() -> None:
    """The same bytes of another dtype: both ends of a message, all members of a collective."""
    calls = [(("send", 1), SUM), (("recv", 0), SUM), (SUM,)]
    traces = [rank_of(rank, *of_rank) for rank, of_rank in enumerate(calls)]
    traces[1].ops = {n: replace(op, dtype="int32") for n, op in traces[1].ops.items()}
    played = play(traces)
    assert [one.stuck for one in played.values()] == [None] * 3
    assert [[number for number, _ in one.odd] for one in played.values()] == [[0, 1], [0, 1], [0]]
    for one in played.values():
        issued = one.records[one.records["kind"] == int(Kind.OP_ISSUE)]
        assert [when for _, when in one.odd] == issued["t0_ns"].tolist()


SUM, SUM_SOME = ("all_reduce", ALL), ("all_reduce", SOME)


def test_ranks_that_do_the_same_come_to_their_ends() -> None:
    traces = [rank_of(0, SUM, SUM_SOME), rank_of(1, SUM, SUM_SOME), rank_of(2, SUM)]
    played = play(traces)
    assert [one.stuck for one in played.values()] == [None] * 3
    for one in played.values():
        done = one.records[one.records["kind"] == int(Kind.OP_DONE)]
        # each rank issued its first op at its own first moment, so it ended one tick later
        assert int(done["t1_ns"][0]) == TICK_NS


def test_who_leaves_an_op_out_holds_the_others_up() -> None:
    traces = [rank_of(0, SUM, SUM), rank_of(1, SUM, SUM), rank_of(2, SUM)]
    assert stuck(traces) == {0: 1, 1: 1}


def test_another_op_goes_no_further_and_nothing_behind_it_is_there() -> None:
    traces = [rank_of(0, SUM, SUM), rank_of(1, ("broadcast", ALL), SUM), rank_of(2, SUM, SUM)]
    assert stuck(traces) == {0: 0, 1: 0, 2: 0}
    assert [len(one.records) for one in play(traces).values()] == [1, 1, 1]


def test_two_groups_the_other_way_round() -> None:
    traces = [rank_of(0, SUM, SUM_SOME), rank_of(1, SUM_SOME, SUM), rank_of(2, SUM)]
    assert stuck(traces) == {0: 0, 1: 0, 2: 0}


def test_both_send_before_they_receive() -> None:
    """A send that waits for its receive never ends here; one into a buffer does."""
    traces = [rank_of(0, ("send", 1), ("recv", 1)), rank_of(1, ("send", 0), ("recv", 0))]
    assert stuck(traces) == {0: 0, 1: 0}
    assert stuck(traces, "buffered") == {}


def test_one_stream_for_both_ways() -> None:
    """Both post their send first and then receive: the receives stand behind the sends."""
    first = rank_of(0, ("send", 1, "later"), ("recv", 1, "later"), ("wait", 0), ("wait", 1))
    other = rank_of(1, ("send", 0, "later"), ("recv", 0, "later"), ("wait", 0), ("wait", 1))
    assert stuck([first, other]) == {}
    assert set(stuck([first, other], "pair")) == {0, 1}


def test_ranks_that_were_not_run_are_taken_to_come() -> None:
    assert stuck([rank_of(0, SUM, ("recv", 2), SUM)]) == {}


def test_a_rank_that_waits_for_one_ended_by_its_steps_is_not_stuck() -> None:
    traces = [rank_of(0, SUM, SUM), rank_of(1, SUM), rank_of(2, SUM)]
    assert [one.cut for one in play(traces, ended_early=True).values()] == [True, False, False]


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("python {} --tp 8", "{} --tp 8"),
        ("python3 -u -m json.tool x", "-m json.tool x"),
        ("torchrun --standalone --nproc-per-node 8 {} -m", "{} -m"),
        ("python -m torch.distributed.run --nnodes=2 -m json.tool", "-m json.tool"),
        ("{}", "{}"),
    ],
)
def test_the_program_in_a_line_that_starts_a_job(line: str, program: str) -> None:
    assert script_of(line.format(__file__).split()) == program.format(__file__).split()


@pytest.mark.parametrize("line", ["", "python", "torchrun --nproc-per-node 8", "python nowhere.py"])
def test_a_line_without_a_program_is_refused(line: str) -> None:
    with pytest.raises(UserError):
        script_of(line.split())
