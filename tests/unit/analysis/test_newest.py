"""One group of many stands while the others go on, far beyond the collectives that are kept."""

from __future__ import annotations

import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.answers.timeline import lanes
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.finding import Label
from pardbg.analysis.findings.kinds.stall_kinds import Waiting
from pardbg.store.history import StateHistory
from pardbg_agent import wire
from tests.unit.analysis.test_waitgraph import at
from tests.unit.facts import facts
from tests.unit.trace_builder import Trace, ns


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize(("odd", "kind"), [("broadcast", "op-mismatch"), ("", "missing-rank")])
def test_one_group_of_many_stands_while_the_others_go_on(odd: str, kind: str, ends: bool) -> None:
    """The last 200 collectives are all of other groups by then. Live, and after all have died."""
    trace = Trace(8, {"left": (0, 1), "right": (2, 3, 4), "all": range(8)})
    for proc in trace.ranks[2:5]:
        if odd or proc.rank != 4:
            op = odd if odd and proc.rank == 4 else "all_reduce"
            proc.collective("right", op, 1, None, flags=0)
    for proc in trace.ranks[:2]:
        for n in range(300):
            proc.collective("left", "all_reduce", 2 + n, 2.5 + n, flags=0)
    for proc in (*trace.ranks[:2], *trace.ranks[5:]):
        proc.collective("all", "all_reduce", 310, None, flags=0)
    trace.flush()
    assert {row.group for row in collectives(at(trace, 3000))} == {"left", "all"}
    if ends:
        for proc in trace.ranks:
            first = proc.rank == 4
            trace.define_end(proc, 2800 if first else 2900, "killed" if first else "lost")
    said = findings(at(trace, 3000))
    if ends and not odd:
        assert said[0].culprits == (4,)
        assert said[0].ranks == (0, 1, 2, 3, 5, 6, 7)
    else:
        assert (said[0].kind, said[0].culprits) == (kind, (4,))


def chatter(trace: Trace) -> None:
    """300 messages between ranks 3 and 4, after all others."""
    for n in range(300):
        trace.ranks[3].p2p("world", 4, True, 20 + n, 20.5 + n)
        trace.ranks[4].p2p("world", 3, False, 20 + n, 20.5 + n)


def test_who_is_late_with_a_message_as_before_is_not_misaddressed() -> None:
    """1 sends to 0 as ever, which sleeps; 2 waits for 1. That they exchanged messages before is
    no longer among the last ones."""
    trace = Trace(5)
    for n in range(3):
        trace.ranks[1].p2p("world", 0, True, n, n + 0.5)
        trace.ranks[0].p2p("world", 1, False, n, n + 0.5)
    trace.ranks[1].p2p("world", 0, True, 10, None)
    trace.ranks[2].p2p("world", 1, False, 11, None)
    chatter(trace)
    (said,) = (f for f in findings(at(trace, 3000)) if f.severity != "info")
    assert (said.kind, said.culprits) == ("missing-rank", (0,))
    assert facts(said, "waits") == (Waiting(1, Label("send to r0"), ns(10)),)


def test_a_message_of_two_sizes_is_found_behind_others() -> None:
    trace = Trace(5)
    trace.ranks[0].p2p("world", 1, True, 10, None, 100)
    trace.ranks[1].p2p("world", 0, False, 10, None, 104)
    chatter(trace)
    (said,) = (f for f in findings(at(trace, 3000)) if f.severity != "info")
    assert (said.kind, said.ranks) == ("p2p-size-mismatch", (0, 1))
    assert [size for size, _ in facts(said, "sent", "received")] == [100, 104]


@pytest.mark.parametrize("over", [False, True])
def test_messages_that_say_shapes_are_nothing_usual(over: bool) -> None:
    """As a pipeline begins: 4 and 8 bytes of integers; then eight messages of 100, and one of 128
    where 100 are expected."""
    trace = Trace(2)
    sizes = [(4, "int32"), (8, "int64"), *[(100, "float32")] * 8]
    for n, (size, dtype) in enumerate(sizes):
        trace.ranks[0].p2p("world", 1, True, n, n + 0.5, size, dtype=dtype)
        trace.ranks[1].p2p("world", 0, False, n, n + 0.5, size, dtype=dtype)
    trace.ranks[0].p2p("world", 1, True, 20, None, 128)
    trace.ranks[1].p2p("world", 0, False, 20, None, 100)
    if over:
        trace.end(3000)
    (said,) = (f for f in findings(at(trace, 3000)) if f.kind == "p2p-size-mismatch")
    assert said.culprits == (0,)


def test_who_waits_for_one_rank_in_several_ops_is_told_apart() -> None:
    trace = Trace(6, {"left": (0, 1, 2), "Right": (2, 3, 4, 5)})
    for rank in (0, 1):
        trace.ranks[rank].collective("left", "all_reduce", 1, None)
    for rank in (3, 4, 5):
        trace.ranks[rank].collective("Right", "broadcast", 5, None, reduce="")
    trace.ranks[2].phase("forward", 0, 1)
    (said,) = (f for f in findings(at(trace, 3005)) if f.severity != "info")
    ops = {wait.rank: wait.op for wait in facts(said, "waits")}
    assert ops == {
        **dict.fromkeys((0, 1), "all_reduce left #0"),
        **dict.fromkeys((3, 4, 5), "broadcast Right #0"),
    }


def test_the_timeline_draws_what_does_not_end() -> None:
    """Nothing is recorded of a hang but that its ops began."""
    trace = Trace(3)
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 0, 1)
    for proc in trace.ranks[:2]:
        proc.collective("world", "all_reduce", 10, None)
    trace.ranks[2].phase("forward", 0, 9)
    store = trace.store()
    assert lanes(store, ns(1500), ns(1900), 100) == {0: {}, 1: {}, 2: {}}  # no news yet
    drawn = lanes(store, ns(3000), ns(4000), 100)
    (box,) = drawn[1]["comm"]
    assert (box.t0_ns, box.t1_ns) == (ns(10), ns(4000))
    assert (box.label, box.style) == ("all_reduce world #1 …", "comm.all_reduce")
    assert drawn[0].keys() == {"comm"} and drawn[2] == {}
    assert [box.label for box in lanes(store, ns(0), ns(4000), 100)[0]["comm"]] == [
        "all_reduce world #0", "all_reduce world #1 …",
    ]  # fmt: skip
    early = lanes(store, ns(0), ns(20), 100, now_ns=ns(4000))  # a hang's beginning, looked at later
    assert [(box.t0_ns, box.t1_ns, box.is_open) for box in early[1]["comm"]] == [
        (ns(0), ns(1), False), (ns(10), ns(4000), True),
    ]  # fmt: skip
    before = lanes(store, ns(0), ns(9), 100, now_ns=ns(4000))[1]["comm"]
    assert [box.is_open for box in before] == [False]


def test_an_op_that_a_recording_ends_later_is_open_at_the_cursor() -> None:
    trace = Trace(2)
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 10, 8010)
    store = trace.store()
    (box,) = lanes(store, ns(0), ns(3000), 100)[0]["comm"]
    assert box.is_open and box.t1_ns == ns(3000)
    (box,) = lanes(store, ns(0), ns(9000), 100)[0]["comm"]
    assert not box.is_open and box.t1_ns == ns(8010)


def test_in_a_hang_of_a_recording_those_that_came_later_are_in_their_ops_too() -> None:
    """At 2,030 ms ranks 0 and 1 have waited for 2,020 and 1,980 ms, and rank 2 has run 2F3 since
    20 ms. Of a live run the records of rank 1's end may be on their way."""
    trace = Trace(3)
    trace.ranks[0].collective("world", "all_reduce", 10, 15_010)
    trace.ranks[1].collective("world", "all_reduce", 50, 15_010)
    trace.ranks[2].action("2F2", 2, 5)
    trace.flush()
    runs = {"action": "F", "stage": 2, "mb": 3, "since_ns": ns(20)}
    said = ({"open_since_ns": ns(10)}, {"open_since_ns": ns(50)}, {"open": 0, **runs})
    trace.state(2000, **{
        proc.proc: {"rank": proc.rank, "open": 1, **one}
        for proc, one in zip(trace.ranks, said, strict=True)
    })  # fmt: skip
    for live, second in ((False, (True, ns(2030))), (True, (False, ns(15_010)))):
        drawn = lanes(trace.store(live=live), ns(0), ns(2030), 100)
        (first,), (late,) = drawn[0]["comm"], drawn[1]["comm"]
        assert (first.is_open, first.t1_ns) == (True, ns(2030))
        assert (late.is_open, late.t1_ns) == second
        assert [(box.label, box.t0_ns, box.is_open) for box in drawn[2]["compute"]] == [
            ("2F2", ns(2), False), ("2F3", ns(20), True),
        ]  # fmt: skip


@pytest.mark.parametrize(("held", "drawn"), [(False, [("forward", ns(5), True)]), (True, [])])
def test_a_phase_that_has_run_for_long_is_drawn_up_to_the_cursor(
    held: bool, drawn: list[tuple[str, int, bool]]
) -> None:
    trace = Trace(1)
    trace.ranks[0].collective("world", "all_reduce", 1, 2)
    trace.flush()
    status = {"rank": 0, "phase": "forward", "since_ns": ns(5), "open": 0, "held": held}
    trace.state(2500, **{trace.ranks[0].proc: status})
    boxes = lanes(trace.store(), ns(0), ns(2600), 100)[0].get("phase", ())
    assert [(box.label, box.t0_ns, box.is_open) for box in boxes] == drawn


def test_of_a_hang_of_many_ranks_their_states_are_gathered_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once per rank made it the square of them: of 1,024 a second and more for each frame."""
    trace = Trace(64)
    for proc in trace.ranks[1:]:
        proc.collective("world", "all_reduce", 1, None, flags=0)
    trace.flush()
    for t in range(500, 5000, 250):
        row = {"open": 1, "open_since_ns": ns(1), "os": "S", "cpu": 0.0, "scheduled": [0, 0]}
        trace.state(t, **{p.proc: {"rank": p.rank, **row} for p in trace.ranks[1:]})
    view, real, asked = at(trace, 5000), StateHistory.ranks, []
    monkeypatch.setattr(StateHistory, "ranks", lambda *args: asked.append(args) or real(*args))
    assert findings(view)[0].culprits == (0,)
    assert len(asked) < 8


@pytest.mark.parametrize("over", [False, True])
def test_what_a_backend_let_pass_is_told_when_the_run_is_over(over: bool) -> None:
    """An all_reduce and a message, the fourth of 300 each: rank 1 brings other dtypes and sends
    fewer bytes. Live they are told while they are among the last 200."""
    trace = Trace(3)
    for n in range(300):
        for proc in trace.ranks:
            odd = n == 3 and proc.rank == 1
            dtype = "bfloat16" if odd else "float32"
            proc.collective("world", "all_reduce", 10 * n, 10 * n + 1, dtype=dtype)
        trace.ranks[1].p2p("world", 2, True, 10 * n + 2, 10 * n + 3, 60 if n == 3 else 100)
        trace.ranks[2].p2p("world", 1, False, 10 * n + 2, 10 * n + 3, 100)
    if over:
        trace.end(3100)
    kinds = {"dtype-mismatch": (1,), "p2p-size-mismatch": (1,)} if over else {}
    said = {one.kind: one.culprits for one in findings(at(trace, 3200)) if one.severity == "error"}
    assert said == kinds


def test_a_pause_that_nobody_can_follow_does_not_withdraw_the_hang() -> None:
    """Ranks that wait in an op come to no gate; once one is held, others may wait for it."""
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, None)
    trace.flush()
    trace.hub(wire.Key.CONTROL, 4000, event="verb", verb="pause", mode="pausing", held={})
    said = snapshot(trace.store(), ns(9000))
    assert said.hang is not None and said.findings[0].kind == "missing-rank"
    trace.hub(wire.Key.CONTROL, 9100, event="cut", mode="pausing", held={"1": "step 1"})
    said = snapshot(trace.store(), ns(9500))
    assert said.hang is None and said.findings == ()
