"""Recordings with holes: what is not known is said, and nothing is made of it. Real sessions with
parts cut out; rank 1 is the one that is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
import pytest

from pardbg.analysis.answers.report import as_json, report
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.control import control_view
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.finding import Finding
from pardbg.render.reports.text import text
from pardbg.session.reader import open_session
from pardbg.store.source import Message
from pardbg.store.store import Store
from pardbg_agent import wire
from pardbg_agent.wire import Key
from tests.unit.trace_builder import Trace

SESSIONS = Path(__file__).parents[3] / "sessions"
Cut = Callable[[Sequence[Message], str], list[Message]]


@cache
def whole(name: str) -> tuple[Message, ...]:
    source = open_session(SESSIONS / f"{name}.mcap")
    found: list[Message] = []
    while messages := source.poll(0):
        found += messages
    source.close()
    return tuple(found)


def fields(message: Message) -> dict[str, Any]:
    """Of a definition; nothing of other messages."""
    if message.key[:1] != Key.DEFINITION.value:
        return {}
    found: dict[str, Any] = msgpack.unpackb(message.payload, strict_map_key=False)
    return found


def of(proc: str, message: Message) -> bool:
    return message.key[1:].decode() == proc or fields(message).get("proc") == proc


def without_rank(messages: Sequence[Message], proc: str) -> list[Message]:
    return [m for m in messages if not of(proc, m)]


def without_records(first: float, last: float) -> Cut:
    """Cuts that part of the rank's records out."""

    def cut(messages: Sequence[Message], proc: str) -> list[Message]:
        records = [m for m in messages if m.key == Key.RECORDS.value + proc.encode()]
        part = records[round(first * len(records)) : round(last * len(records))]
        gone = {id(m) for m in part}
        return [m for m in messages if id(m) not in gone]

    return cut


def without_groups(messages: Sequence[Message], proc: str) -> list[Message]:
    return [m for m in messages if fields(m).get("k") != "group" or not of(proc, m)]


def store_of(name: str, cut: Cut) -> Store:
    messages = whole(name)
    facts = [fields(m) for m in messages]
    proc = next(f["proc"] for f in facts if f.get("k") == "process" and f.get("rank") == 1)
    store = Store()
    store.apply_all(cut(messages, proc))
    store.settle()
    return store


HOLES: dict[str, tuple[Cut, str]] = {
    "a rank is missing": (without_rank, "unseen-rank"),
    "a rank joined late": (without_records(0, 0.5), "records-missing"),
    "records were dropped": (without_records(0.3, 0.6), "records-dropped"),
    "groups never seen": (without_groups, "unknown-group"),
}


@pytest.mark.parametrize("hole", HOLES)
@pytest.mark.parametrize("name", ["ddp", "1f1b", "zero3"])
def test_a_hole_is_said_and_nobody_is_blamed_for_it(name: str, hole: str) -> None:
    """At the end and on the way, as it would have been live."""
    cut, kind = HOLES[hole]
    store = store_of(name, cut)
    view = View(store, None)
    found = {f.kind: f for f in findings(view)}[kind]
    assert found.ranks == (1,)
    length = view.end_ns - view.begin_ns
    for i in range(12):
        then = View(store, view.begin_ns + length * i // 11)
        assert [f for f in findings(then) if f.severity == "error" or f.culprits] == []
        assert "missing rank" not in {row.verdict for row in collectives(then)}
    shown = text(report(store))
    assert found.text in " ".join(shown.split())


def test_a_groups_members_in_other_jobs_are_no_ranks_of_this_one() -> None:
    """torchft's replicas: each a torchrun of one rank, with a group made by hand of them all."""
    for size, said in ((1, []), (2, ["unseen-rank"])):
        trace = Trace(1, {"replicas": (0, 1)})
        proc = trace.ranks[0]
        proc.collective("replicas", "all_reduce", 1, 2)
        proc.define(
            wire.DefKind.PROCESS, proc=proc.proc, rank=0, world_size=size, host="h", pid=1,
            epoch=0, start_ns=0, wall_ns=0,
        )  # fmt: skip
        trace.end(10)
        found = [f.kind for f in findings(View(trace.store(), None))]
        assert [kind for kind in found if kind == "unseen-rank"] == said


def busy(store: Store) -> list[dict[int, int]]:
    """rank -> busy ns, of each whole step of the pipeline"""
    steps = as_json(report(store))["pipeline"]["steps"]
    return [{row["rank"]: row["busy_ns"] for row in step["ranks"]} for step in steps]


@pytest.mark.parametrize(
    ("cut", "number"),
    [(without_rank, 0), (without_records(0, 0.5), 4), (without_records(0.3, 0.6), 5)],
    ids=["missing", "joined late", "gap"],
)
def test_a_rank_without_records_is_left_out_of_the_bubble(cut: Cut, number: int) -> None:
    """It would be taken for idle: of four ranks three are left, in the steps that lack records."""
    want, got = (
        busy(store_of("1f1b", lambda messages, _: list(messages))),
        busy(store_of("1f1b", cut)),
    )
    assert len(got) == len(want)
    assert sum(1 in step for step in got) >= number
    assert any(1 not in step for step in got)
    for whole_step, step in zip(want, got, strict=True):
        assert step == {rank: whole_step[rank] for rank in step}


def test_a_step_of_which_no_rank_has_whole_records_is_no_step() -> None:
    """As a later part of a recording begins: in the middle of a step, for all ranks."""
    messages: Sequence[Message] = whole("1f1b")
    begin = without_records(0, 0.45)
    for proc in {m.key[1:].decode() for m in messages if m.key[:1] == Key.RECORDS.value}:
        messages = begin(messages, proc)
    store = Store()
    store.apply_all(list(messages))
    store.settle()
    rest = busy(store)
    assert 0 < len(rest) < 9 and all(rest)
    assert "9 steps" not in text(report(store))


def waits_for_rank_1(*, defined: bool) -> list[Finding]:
    """Rank 0 waits in its second all_reduce; rank 1 goes on in a group that is not defined, and
    nobody knows whether that is the same one."""
    trace = Trace(2)
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 1, 2)
    trace.ranks[0].collective("world", "all_reduce", 3, None)
    trace.ranks[1].phase("forward", 3, 2500)
    trace.ranks[0].metric("loss", 4000, 1.0)
    trace.flush()
    if not defined:
        proc = trace.ranks[1].proc
        trace.messages = [m for m in trace.messages
                          if not (fields(m).get("k") == "group" and of(proc, m))]  # fmt: skip
    return list(findings(View(trace.store(), None)))


def test_nobody_is_called_missing_from_a_group_that_may_be_another() -> None:
    assert [f.culprits for f in waits_for_rank_1(defined=True)] == [(1,)]
    assert [(f.kind, f.culprits) for f in waits_for_rank_1(defined=False)] == [
        ("unknown-group", ())
    ]


def test_digits_that_are_no_numbers_are_left_out() -> None:
    """``"²".isdigit()`` holds and ``int("²")`` raises: as a rank, a pid, an epoch, in a plan, in
    what is held and in the stacks of a stall."""
    messages = list(whole("1f1b"))
    t_ns = messages[len(messages) // 2].received_ns

    def said(key: bytes, fields_: dict[str, Any]) -> None:
        messages.append(Message(key, msgpack.packb(fields_), t_ns))

    plan = next(fields(m) for m in messages if fields(m).get("k") == "plan")
    said(b"D", {**plan, "order": {**plan["order"], "²": ["0F0"], "9" * 5000: ["0F0"]}})
    said("D².h.²".encode(), {"k": "process", "proc": "².h.²", "rank": "²"})
    said(b"C", {"n": 1 << 40, "t_ns": t_ns, "event": "", "mode": "held", "held": {"1": "0F0"}})
    said(b"C", {"n": (1 << 40) + 2, "t_ns": t_ns, "event": "", "mode": "held",
                "held": {"²": "0F0"}})  # fmt: skip
    said(b"C", {"n": (1 << 40) + 1, "t_ns": t_ns, "event": "stall", "source": {"²": "ring"},
                "stacks": [{"ranks": ["²"], "inside": {"²": "x"}, "frames": []}]})  # fmt: skip
    store = Store()
    store.apply_all(messages)
    store.settle()
    view = View(store, t_ns)
    assert "1f1b" in text(report(store)).lower() and list(findings(view)) is not None
    assert list(control_view(view).held) == [1]
