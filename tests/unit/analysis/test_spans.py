"""Spans around messages: what a message was for, and where a ring is."""

from __future__ import annotations

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.spans import enclosing, open_span
from pardbg.analysis.comm.p2p import p2p_rows
from pardbg.analysis.comm.traffic import traffic_view
from pardbg_agent import wire
from pardbg_agent.wire import Flag, Kind, Lane
from tests.unit.trace_builder import MS, Proc, Trace, ns


def span(
    proc: Proc, name: str, t0: float, t1: float | None, part: int = 0, parts: int = 0,
    chunk: int = -1,
) -> None:  # fmt: skip
    """As the agent writes it: a beginning, and an end if there is one."""
    place = {"a": part, "b": parts, "mb": chunk}
    proc.record(Kind.SPAN_BEGIN, t0, t0, proc.name(name), **place)
    if t1 is not None:
        proc.record(Kind.SPAN, t0, t1, proc.name(name), **place)


def view(trace: Trace, t: float | None = None) -> View:
    return View(trace.store(), None if t is None else ns(t))


def test_the_innermost_span_around_a_time() -> None:
    """outer 0-10, inner 2-4, next 6-8 (not ended as of 7)."""
    trace = Trace(1)
    span(trace.ranks[0], "inner", 2, 4)
    span(trace.ranks[0], "next", 6, 8)
    span(trace.ranks[0], "outer", 0, 10)
    seen = view(trace)
    found = enclosing(seen, 0, [ns(t) for t in (1, 3, 5, 7, 11)])
    assert [s.name if s else None for s in found] == ["outer", "inner", "outer", "next", None]
    assert open_span(seen, 0) is None
    assert enclosing(seen, 9, [ns(1)]) == [None]


def test_a_span_that_has_not_ended_is_known_from_its_beginning() -> None:
    trace = Trace(1)
    span(trace.ranks[0], "push", 1, 2)
    span(trace.ranks[0], "pull", 3, None, part=2, parts=6, chunk=1)
    now = open_span(view(trace, 5), 0)
    assert now is not None and (now.text, now.t1_ns) == ("pull 2/6 c1", None)
    assert open_span(view(trace, 2.5), 0) is None


def test_a_message_has_the_name_of_its_senders_span() -> None:
    """Rank 0 pulls and rank 1 serves; what the receiver says counts where the sender is silent."""
    trace = Trace(2)
    server, worker = trace.ranks
    span(server, "pull", 1, 3)
    server.p2p("world", 1, True, 2, 3)
    worker.p2p("world", 0, False, 1, 3)
    span(worker, "push", 4, 6)
    worker.p2p("world", 0, True, 5, 6)
    server.p2p("world", 1, False, 5, 6)
    span(server, "take", 7, 9)
    worker.p2p("world", 0, True, 8, 9)
    server.p2p("world", 1, False, 8, 9)
    assert [row.label for row in p2p_rows(view(trace))] == ["pull", "push", "take"]


def from_any(proc: Proc, source: int, t0: float, done: float) -> None:
    """A receive that names no sender; the completion does."""
    common = {
        "lane": Lane.COMM, "seq": proc.next_seq("world", True), "group_id": proc.group("world"),
        "a": 100, "b": 100,
    }  # fmt: skip
    recv = proc.op("recv")
    proc.record(Kind.OP_ISSUE, t0, t0, recv, flags=Flag.P2P, peer=wire.NONE, **common)
    flags = Flag.P2P | Flag.DONE_WAITED
    proc.record(Kind.OP_DONE, t0, done, recv, flags=flags, peer=source, **common)


def test_a_receive_from_anybody_finds_its_send() -> None:
    """Rank 0 takes from 2, then 1, then 2; and 2's second message is its order 1."""
    trace = Trace(3)
    for rank, t in ((2, 1), (1, 2), (2, 5)):
        trace.ranks[rank].p2p("world", 0, True, t, t + 1)
    for source, t0, done in ((2, 0, 2), (1, 2, 3), (2, 3, 6)):
        from_any(trace.ranks[0], source, t0, done)
    rows = p2p_rows(view(trace))
    assert [(r.src, r.dst, r.order, r.verdict) for r in rows] == [
        (2, 0, 0, "matched"), (1, 0, 0, "matched"), (2, 0, 1, "matched"),
    ]  # fmt: skip
    # While nobody has sent, nothing is known of the pair, and nothing is wrong.
    assert [r.verdict for r in p2p_rows(view(trace, 0.5))] == []


def test_receives_from_anybody_keep_their_numbers_in_the_tail() -> None:
    trace = Trace(3)
    for i in range(300):  # the tail holds 200
        source = 1 + i % 2
        trace.ranks[source].p2p("world", 0, True, 10 * i, 10 * i + 2)
        from_any(trace.ranks[0], source, 10 * i - 5, 10 * i + 2)
    rows = p2p_rows(view(trace))
    assert len(rows) == 200
    assert {row.verdict for row in rows} == {"matched"}
    assert [(r.src, r.order) for r in rows[-2:]] == [(1, 149), (2, 149)]


def ring(trace: Trace, size: int, reached: dict[int, int]) -> None:
    """A ring all_reduce, a step each 10 ms; rank r has begun ``reached[r]`` steps."""
    steps = 2 * (size - 1)
    for proc in trace.ranks:
        assert proc.rank is not None
        right, left = (proc.rank + 1) % size, (proc.rank - 1) % size
        for step in range(reached[proc.rank]):
            last = step == reached[proc.rank] - 1
            t0, t1 = 10.0 * step, None if last else 10.0 * step + 9
            name = "reduce-scatter" if step < size - 1 else "all-gather"
            span(proc, name, t0, t1, step + 1, steps, (proc.rank - step) % size)
            proc.p2p("world", left, False, t0 + 1, t1, 1000)
            # The link from 2 to 0 takes 8 ms, all others 4.
            done = t0 + 1 + (8 if proc.rank == 2 else 4)
            proc.p2p("world", right, True, t0 + 1, done, 1000)


def test_where_a_ring_is() -> None:
    """Three ranks; 0 and 1 have begun step 3 of 4 (the first all-gather), 2 is still in step 2.

    step 2 (reduce-scatter): rank r sends chunk r - 1: c2, c0, c1 from ranks 0, 1, 2.
    """
    trace = Trace(3)
    ring(trace, 3, {0: 3, 1: 3, 2: 2})
    found = traffic_view(view(trace, 22)).ring
    assert found is not None
    assert (found.phase, found.part, found.parts) == ("reduce-scatter", 2, 4)
    assert [(m.src, m.dst, m.chunk, m.bytes) for m in found.moves] == [
        (0, 1, 2, 1000), (1, 2, 0, 1000), (2, 0, 1, 1000),
    ]  # fmt: skip


def test_the_last_step_of_a_ring_stays_until_the_next_begins() -> None:
    trace = Trace(3)
    ring(trace, 3, {0: 4, 1: 4, 2: 4})
    found = traffic_view(view(trace, 100)).ring
    assert found is not None
    assert (found.phase, found.part) == ("all-gather", 4)
    # Step 4: rank r sends chunk r - 3 = r.
    assert [(m.src, m.chunk) for m in found.moves] == [(0, 0), (1, 1), (2, 2)]


def test_plain_messages_are_no_ring() -> None:
    trace = Trace(2)
    span(trace.ranks[0], "pull", 0, 3)
    trace.ranks[0].p2p("world", 1, True, 1, 2)
    trace.ranks[1].p2p("world", 0, False, 1, 2)
    assert traffic_view(view(trace)).ring is None


def test_a_closures_backward_is_not_the_optimizers_time_too() -> None:
    """optimizer.step(closure) from 2 to 9 ms with a forward of 2 and a backward of 3 ms in it."""
    trace = Trace(1)
    proc = trace.ranks[0]
    proc.phase("forward", 3, 5)
    proc.phase("backward", 5, 8)
    proc.phase("optimizer", 2, 9)
    proc.step(0, 0, 10)
    (row,) = snapshot(trace.store(), None).steps
    assert row.phases == {"forward": 2 * MS, "backward": 3 * MS, "optimizer": 2 * MS}


def test_what_lies_inside_a_phase_is_counted_once() -> None:
    """A forward of 4 ms that loads its batch for 1 (as Megatron's does), backward from 4 to 8 with
    a forward again for 1; then a schedule's run from 12 to 18 with a batch loaded for 1, and a
    forward again that is the run's."""
    trace = Trace(1)
    proc = trace.ranks[0]
    proc.phase("forward", 0, 4)
    proc.phase("data", 1, 2)
    proc.phase("backward", 4, 8)
    proc.phase("recompute", 5, 6)
    proc.step(0, 0, 10)
    proc.phase("pipeline", 12, 18, 1)
    proc.phase("data", 12, 13, 1)
    proc.phase("recompute", 15, 17, 1)
    proc.phase("optimizer", 18, 19, 1)
    proc.step(1, 10, 20)
    first, second = snapshot(trace.store(), None).steps
    assert first.phases == {
        "forward": 3 * MS, "data": 1 * MS, "backward": 3 * MS, "recompute": 1 * MS
    }  # fmt: skip
    assert second.phases == {"pipeline": 5 * MS, "data": 1 * MS, "optimizer": 1 * MS}


def test_a_clock_that_is_told_anew_makes_no_phase_lie_inside_another() -> None:
    """Known to ±1 ms, and told 1 ms less when the backward is over: the optimizer's 2 ms seem to
    begin inside it."""
    trace = Trace(1)
    proc = trace.ranks[0]
    told = {"proc": proc.proc, "error_ns": MS}
    trace.define(wire.DefKind.CLOCK, **told, offset_ns=0, t_ns=ns(0))
    proc.phase("forward", 1, 4)
    proc.phase("backward", 4, 8)
    trace.flush()
    trace.define(wire.DefKind.CLOCK, **told, offset_ns=-MS, t_ns=ns(8))
    proc.phase("optimizer", 8, 10)
    proc.step(0, 1, 11)
    (row,) = snapshot(trace.store(), None).steps
    assert row.phases == {"forward": 3 * MS, "backward": 4 * MS, "optimizer": 2 * MS}
