"""The first failure is told from what follows it: times in ms, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.base.asof import View
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.ends import brief
from pardbg.analysis.findings.finding import Finding
from pardbg_agent import wire
from tests.unit.analysis.test_waitgraph import WAITING, stall
from tests.unit.facts import facts
from tests.unit.trace_builder import Proc, Trace, ns

CLOSED = (
    "RuntimeError: [/__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection "
    "closed by peer [127.0.0.1]:6552. This is typically caused by a remote worker crashing."
)
FRAMES = [["/job/train.py", 40, "main"], ["/job/data.py", 7, "batch"]]
C10D = "/x/site-packages/torch/distributed/distributed_c10d.py"
IN_OP = [["/job/train.py", 41, "main"], [C10D, 3000, "all_reduce"]]


def raises(
    proc: Proc, t: float, text: str = "ValueError: no labels", frames: list[list[Any]] = FRAMES
) -> None:
    proc.define(wire.DefKind.EXCEPTION, t_ns=ns(t), type=text.partition(":")[0], text=text,
                thread="MainThread", frames=frames, step=5)  # fmt: skip


def ends(trace: Trace, proc: Proc, t: float, reason: str = "exit", code: int | None = None) -> None:
    trace.define(wire.DefKind.END, proc=proc.proc, t_ns=ns(t), reason=reason, code=code)


def three(waiting: tuple[int, ...] = (0, 1)) -> Trace:
    trace = Trace(3)
    for rank in waiting:
        trace.ranks[rank].collective("world", "all_reduce", 1, None)
    trace.flush()
    return trace


def said(trace: Trace) -> dict[str, Finding]:
    """Findings by kind, but for notes."""
    return {f.kind: f for f in snapshot(trace.store(), None).findings if f.severity != "info"}


def test_an_exception_is_named_with_its_place_and_those_it_cut_off_are_not() -> None:
    trace = three()
    raises(trace.ranks[2], 5)
    for rank in (0, 1):
        raises(trace.ranks[rank], 6, CLOSED, IN_OP)
    trace.end(9, code=1)
    found = said(trace)
    assert list(found) == ["exception"]
    one = found["exception"]
    assert (one.culprits, one.where) == ((2,), "data.py:7 in batch")
    assert facts(one, "error", "step") == ("ValueError: no labels", 5)


def test_lost_connections_before_the_kill_is_seen_are_no_error() -> None:
    """The hub sees a process's end some 25 ms late, and says it 150 ms later. Only after 1.5 s
    without that is nobody known to have gone first."""
    trace = three()
    raises(trace.ranks[0], 6, CLOSED, IN_OP)
    trace.ranks[1].phase("x", 1, 50)
    assert said(trace) == {}
    trace.ranks[1].phase("x", 50, 1550)
    found = said(trace)
    assert [(f.kind, f.severity) for f in found.values()] == [("cut-off", "warning")]
    ends(trace, trace.ranks[2], 30, "killed", -9)
    trace.ranks[1].phase("x", 1550, 1560)
    found = said(trace)
    assert list(found) == ["rank-lost"] and found["rank-lost"].culprits == (2,)
    assert facts(found["rank-lost"], "killed", "code") == (True, -9)


@pytest.mark.parametrize("code", [-11, -6, -7])
def test_a_crash_has_its_signal(code: int) -> None:
    trace = three()
    ends(trace, trace.ranks[2], 5, "killed", code)
    trace.end(9, code=1)
    assert facts(said(trace)["rank-lost"], "killed", "code") == (True, code)


def test_ranks_that_were_told_to_end_are_no_culprits() -> None:
    """torchelastic sends SIGTERM to the others 100 ms after the first failure."""
    trace = three(waiting=())
    ends(trace, trace.ranks[1], 50, "killed", -11)
    for rank in (0, 2):
        ends(trace, trace.ranks[rank], 150, "killed", -15)
    trace.end(200, code=1)
    found = said(trace)
    assert list(found) == ["rank-lost"] and found["rank-lost"].culprits == (1,)


def test_who_waits_for_a_lost_rank_is_named_while_it_does() -> None:
    trace = three()
    ends(trace, trace.ranks[2], 50, "killed", -9)
    trace.ranks[1].phase("x", 50, 60)
    assert facts(said(trace)["rank-lost"], "waiting") == (0, 1)
    ends(trace, trace.ranks[0], 150, "killed", -15)
    trace.ranks[1].phase("x", 150, 160)
    assert facts(said(trace)["rank-lost"], "waiting") == (1,)
    raises(trace.ranks[1], 170, CLOSED, IN_OP)
    trace.ranks[1].phase("y", 160, 180)
    assert facts(said(trace)["rank-lost"], "waiting") == ()


def test_ranks_killed_in_one_moment_were_told_by_nobody() -> None:
    """`kill -9` of everything while rank 0 waits for rank 1: nobody lived to tell rank 0."""
    trace = three(waiting=(0,))
    for proc in trace.ranks:
        ends(trace, proc, 50, "killed")
    assert [row.state for row in snapshot(trace.store(), ns(60)).ranks] == ["lost"] * 3


def test_a_job_that_somebody_ended_names_no_rank() -> None:
    trace = three(waiting=())
    for proc in trace.ranks:
        ends(trace, proc, 50, "killed", -15)
    trace.end(60, code=143)
    by, worse = ended_by(trace)
    assert (worse, by) == ([], "SIGTERM, as a scheduler or `kill` sends it")


def test_a_rank_that_does_not_mind_sigterm_is_no_failure() -> None:
    """A launcher sends SIGKILL 30 s later: what ended the others ended it."""
    trace = three(waiting=())
    for rank in (0, 2):
        ends(trace, trace.ranks[rank], 50, "killed", -15)
    ends(trace, trace.ranks[1], 30_050, "killed", -9)
    trace.output(40, "W agent.py] Received Signals.SIGTERM death signal, shutting down workers")
    trace.end(30_100, code=1)
    by, worse = ended_by(trace)
    assert worse == []
    assert by == "SIGTERM to the launcher"


def test_the_place_of_an_exception_names_what_of_a_library_it_was_in() -> None:
    """A program of a trainer stands in one line whatever it does; torch's own lines say less."""
    trace = three()
    within = ["/x/site-packages/trainer/loop.py", 9, "fit"]
    raises(trace.ranks[2], 5, frames=[*FRAMES, within, [C10D, 3000, "all_reduce"]])
    trace.end(9, code=1)
    assert said(trace)["exception"].where == "data.py:7 in batch, inside trainer/loop.py:9 in fit"


def test_a_rank_that_a_backend_aborts_over_another_dtype_is_no_cause() -> None:
    """Rank 2 gathers float64, the others float32: rank 0 aborts in that op, rank 1 loses it."""
    trace = Trace(3)
    for proc in trace.ranks:
        dtype = "float64" if proc.rank == 2 else "float32"
        proc.collective("world", "all_gather", 1, None, dtype=dtype)
    ends(trace, trace.ranks[0], 3, "killed", -6)
    raises(trace.ranks[1], 4, CLOSED, IN_OP)
    trace.end(9, code=1)
    found = said(trace)
    assert list(found) == ["dtype-mismatch"] and found["dtype-mismatch"].culprits == (2,)


def test_what_deprecated_functions_are_wrapped_in_is_no_library_of_the_program() -> None:
    trace = three()
    within = ["/x/site-packages/typing_extensions.py", 3140, "wrapper"]
    raises(trace.ranks[2], 5, frames=[*FRAMES, within, [C10D, 3000, "all_gather"]])
    trace.end(9, code=1)
    assert said(trace)["exception"].where == "data.py:7 in batch"


def leaves(proc: Proc, t: float) -> None:
    proc.define(wire.DefKind.NOTE, key=wire.NOTE_LEAVING, value=proc.proc, t_ns=ns(t))


@pytest.mark.parametrize("by_itself", [False, True])
def test_a_rank_that_left_early_is_the_cause_of_lost_connections(by_itself: bool) -> None:
    """Python's own exit says that it begins, os._exit does not."""
    trace = three()
    if by_itself:
        leaves(trace.ranks[2], 14)
    ends(trace, trace.ranks[2], 20, "exit", 0)
    for rank in (0, 1):
        raises(trace.ranks[rank], 15, CLOSED, IN_OP)
    trace.end(200, code=1)
    found = said(trace)
    assert list(found) == ["missing-rank"]
    assert found["missing-rank"].culprits == (2,) and found["missing-rank"].severity == "error"
    assert facts(found["missing-rank"], "abrupt") is not by_itself


def test_an_exception_is_known_as_soon_as_the_exit_code_that_follows_it() -> None:
    """Live, rank 1's records are known up to 3 ms only, before either."""
    trace = three(waiting=())
    for rank, until in enumerate((7, 3, 4)):
        trace.ranks[rank].phase("forward", 1, until)
    raises(trace.ranks[2], 5)
    ends(trace, trace.ranks[2], 6, "exit", 1)
    store = trace.store(live=True)
    assert View(store, None).t_ns < ns(5) < View(store, None).now_ns
    found = [f for f in snapshot(store, None).findings if f.severity != "info"]
    assert [(f.kind, f.culprits) for f in found] == [("exception", (2,))]


def test_one_bug_on_all_ranks_is_one_finding() -> None:
    trace = three(waiting=())
    for proc, t in zip(trace.ranks, (7, 5, 300), strict=True):
        raises(proc, t)
    trace.end(400, code=1)
    found = said(trace)
    assert list(found) == ["exception"]
    assert found["exception"].culprits == (0, 1, 2)
    assert facts(found["exception"], "first") == 1


def test_an_abort_in_an_op_that_ranks_disagree_on_follows_from_that() -> None:
    trace = Trace(3)
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 1, None, 64 if proc.rank else 32)
    trace.flush()
    ends(trace, trace.ranks[0], 5, "killed", -6)
    for rank in (1, 2):
        raises(trace.ranks[rank], 6, CLOSED, IN_OP)
    trace.end(20, code=1)
    found = said(trace)
    assert list(found) == ["size-mismatch"] and found["size-mismatch"].culprits == (0,)


def test_ranks_that_an_op_of_several_sizes_ended_say_where_they_issued_it() -> None:
    """gloo fails it on some ranks at once: there is no standstill, and so no stack."""
    trace = Trace(3)
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 1, 2, 64 if proc.rank else 32)
    trace.flush()
    for rank in (0, 1):
        raises(trace.ranks[rank], 6, CLOSED, IN_OP)
    ends(trace, trace.ranks[2], 5, "killed", -6)
    trace.end(20, code=1)
    found = said(trace)["size-mismatch"]
    assert (found.culprits, found.where) == ((0,), "train.py:41 in main")
    assert facts(found, "places") == ((0, "train.py:41 in main"), (1, "train.py:41 in main"))


def test_a_hang_that_ended_in_timeouts_still_names_who_was_missing() -> None:
    """0 and 1 wait from 1 ms on for 2, which loads data; gloo gives up after 30 s."""
    trace = three()
    trace.ranks[2].phase("data", 0, 1)
    for rank in (0, 1):
        raises(trace.ranks[rank], 30_001, "RuntimeError: Timed out waiting 30000ms", IN_OP)
    ends(trace, trace.ranks[2], 30_200, "killed", -15)
    trace.end(30_300, code=1)
    found = said(trace)
    assert list(found) == ["missing-rank"]
    assert (found["missing-rank"].culprits, found["missing-rank"].severity) == ((2,), "error")
    known = facts(found["missing-rank"], "over", "gave_up", "until_ns")
    assert known == (True, True, ns(30_001))


@pytest.mark.parametrize(("after_ms", "expected"), [
    (30_001, ("missing-rank", (2,))),
    (2_000, ("rank-lost", (0,))),  # no backend gives up so soon: the program's own abort
])  # fmt: skip
def test_an_abort_long_after_it_began_to_wait_is_the_watchdogs(
    after_ms: int, expected: tuple[str, tuple[int, ...]]
) -> None:
    trace = three()
    trace.ranks[2].phase("data", 0, 1)
    ends(trace, trace.ranks[0], after_ms, "killed", -6)
    for rank in (1, 2):
        ends(trace, trace.ranks[rank], after_ms + 200, "killed", -15)
    trace.end(after_ms + 300, code=1)
    errors = [(f.kind, f.culprits) for f in findings_at_end(trace) if f.severity == "error"]
    assert errors == [expected]


def ended_by(trace: Trace) -> tuple[str, list[str]]:
    """(who ended the run, as the note has it; kinds of all that is worse than a note)"""
    found = findings_at_end(trace)
    notes = [facts(f, "by") for f in found if f.kind == "interrupted"]
    assert all(f.culprits == () for f in found if f.kind == "interrupted")
    return "".join(notes), [f.kind for f in found if f.severity != "info"]


def test_an_interrupt_of_one_rank_is_not_said_to_be_from_a_terminal() -> None:
    trace = three(waiting=())
    raises(trace.ranks[2], 5, "KeyboardInterrupt")
    for proc in trace.ranks[:2]:
        ends(trace, proc, 40, "killed", -15)
    trace.end(90, code=1)
    by, worse = ended_by(trace)
    assert worse == [] and by != "Ctrl-C (SIGINT)"


@pytest.mark.parametrize("how", ["exception", "signal", "exit code"])
def test_an_interrupted_job_is_not_called_wrong(how: str) -> None:
    """Ctrl-C in a healthy run: KeyboardInterrupt everywhere, or SIGINT where nothing catches it;
    one rank loses its connections 10 ms before the others' end is told."""
    trace = three(waiting=())
    raises(trace.ranks[2], 5, CLOSED, IN_OP)
    for proc, t in zip(trace.ranks, (15, 40), strict=False):
        if how == "exception":
            raises(proc, t, "KeyboardInterrupt", IN_OP)
        else:
            ends(trace, proc, t, "killed", -2 if how == "signal" else 130)
    trace.end(90, code=1)
    by, worse = ended_by(trace)
    assert worse == []
    assert by == "Ctrl-C (SIGINT)"


def test_a_failure_before_the_interrupt_is_still_the_failure() -> None:
    """Rank 1 raises; the user sees it and presses Ctrl-C a second later."""
    trace = three(waiting=())
    raises(trace.ranks[1], 5)
    for rank in (0, 2):
        raises(trace.ranks[rank], 1005, "KeyboardInterrupt", IN_OP)
    trace.end(1100, code=1)
    by, worse = ended_by(trace)
    assert worse == ["exception"] and by == ""


def test_what_ranks_raise_after_the_interrupt_follows_from_it() -> None:
    trace = three(waiting=())
    raises(trace.ranks[0], 5, "KeyboardInterrupt", IN_OP)
    raises(trace.ranks[1], 25, "RuntimeError: DataLoader worker (pid 7) exited unexpectedly")
    trace.end(90, code=1)
    assert ended_by(trace)[1] == []


def test_lost_connections_long_before_the_interrupt_are_said_beside_it() -> None:
    trace = three(waiting=())
    raises(trace.ranks[0], 5, CLOSED, IN_OP)
    raises(trace.ranks[1], 5005, "KeyboardInterrupt", IN_OP)
    trace.end(5100, code=1)
    by, worse = ended_by(trace)
    assert worse == ["cut-off"] and by


def test_a_hang_that_the_user_interrupts_stays_a_hang() -> None:
    """0 and 1 wait from 1 ms on; Ctrl-C after 8 s."""
    trace = three()
    trace.ranks[2].phase("data", 0, 1)
    for proc in trace.ranks:
        raises(proc, 8000, "KeyboardInterrupt", IN_OP)
    trace.end(8100, code=1)
    by, worse = ended_by(trace)
    assert worse == ["missing-rank"] and by


def test_a_hang_that_the_user_interrupts_stays_one_though_ranks_clean_up_for_a_while() -> None:
    """As Composer does: 2 comes when Ctrl-C wakes it at 8 s, so the op ends; all leave later."""
    trace = Trace(3)
    for proc in trace.ranks:
        proc.phase("data", 0, 1)
        proc.collective("world", "all_reduce", 8005 if proc.rank == 2 else 1, 8010)
    trace.flush()
    for proc in trace.ranks:
        ends(trace, proc, 9500, "exit", 1)
    trace.define(wire.DefKind.END, proc=None, t_ns=ns(9600), code=1, told=[[ns(8000), 2]])
    by, worse = ended_by(trace)
    assert worse == ["missing-rank"] and by


def test_a_job_that_a_viewer_ended_is_a_note_that_says_who() -> None:
    trace = three(waiting=())
    trace.hub(wire.Key.CONTROL, 40, event="kill", by="view-1a2b", text="kill the job")
    for proc in trace.ranks:
        ends(trace, proc, 50, "killed", -15)
    trace.end(60, code=143)
    by, worse = ended_by(trace)
    assert (worse, by) == ([], "view-1a2b (kill)")


def test_the_launcher_knows_of_an_interrupt_that_ranks_handle() -> None:
    """They catch SIGINT and leave with exit code 3; `pardbg run` passed it on at 20 ms."""
    trace = three(waiting=())
    for proc in trace.ranks:
        ends(trace, proc, 50, "exit", 3)
    trace.define(wire.DefKind.END, proc=None, t_ns=ns(60), code=3, told=[[ns(20), 2]])
    by, worse = ended_by(trace)
    assert (worse, by) == ([], "Ctrl-C (SIGINT)")


def test_a_job_that_its_user_ended_before_its_first_group_is_not_called_wrong() -> None:
    """`pardbg run` passed SIGTERM on at 20 ms, before a rank was seen: it may have come later."""
    trace = Trace(0)
    trace.define(wire.DefKind.END, proc=None, t_ns=ns(60), code=143, told=[[ns(20), 15]])
    by, worse = ended_by(trace)
    assert worse == [] and by and "no-ranks" in {f.kind for f in findings_at_end(trace)}


def test_who_left_in_good_order_when_told_to_is_not_blamed() -> None:
    """SIGTERM to all: rank 2 handles it and leaves with 0, the others are ended by it."""
    trace = three(waiting=())
    ends(trace, trace.ranks[2], 40, "exit", 0)
    for rank in (0, 1):
        ends(trace, trace.ranks[rank], 50, "killed", -15)
    trace.end(60, code=143)
    assert all(f.severity != "error" for f in findings_at_end(trace))


def findings_at_end(trace: Trace) -> list[Finding]:
    return list(snapshot(trace.store(), None).findings)


def test_a_thread_that_fails_does_not_end_the_rank() -> None:
    """It is started again, and fails again: once is told."""
    trace = three(waiting=())
    for t in (5, 7):
        trace.ranks[0].define(
            wire.DefKind.EXCEPTION, t_ns=ns(t), type="OSError", text="OSError: disk",
            thread="writer", frames=FRAMES, step=1,
        )  # fmt: skip
    trace.ranks[0].phase("forward", 5, 9)
    (found,) = (f for f in findings_at_end(trace) if f.severity != "info")
    assert (found.kind, found.severity, found.t_ns) == ("thread-exception", "warning", ns(5))


def test_what_a_backend_says_is_cut_to_what_matters() -> None:
    assert brief(CLOSED) == "RuntimeError: Connection closed by peer [127.0.0.1]:6552"
    assert len(brief("x" * 1000)) == 240


def test_it_is_as_of_the_cursor() -> None:
    trace = three()
    raises(trace.ranks[2], 5)
    trace.ranks[0].phase("x", 1, 50)
    store = trace.store()
    assert [f.kind for f in findings(View(store, ns(4)))] == []
    assert [f.kind for f in findings(View(store, ns(6)))] == ["exception"]


def states(trace: Trace) -> list[tuple[str, str, str]]:
    """(state, kind of activity, what of it) of each rank."""
    return [(row.state, row.now.kind, row.now.what) for row in snapshot(trace.store(), None).ranks]


def test_a_rank_that_its_launcher_killed_is_not_lost() -> None:
    """Rank 2 is killed by nobody knows whom; torchrun ends the others half a second later."""
    trace = three()
    trace.define(wire.DefKind.RUN, run="r", t_ns=ns(0), wall_ns=0, argv=["torchrun", "train.py"])
    ends(trace, trace.ranks[2], 100, "killed", -9)
    for rank in (0, 1):
        ends(trace, trace.ranks[rank], 600, "killed", -15)
    trace.end(700, code=1)
    assert states(trace) == [("ended", "terminated", "torchrun")] * 2 + [("lost", "lost", "killed")]


def test_nor_is_one_that_was_ended_after_another_aborted_over_a_mismatch() -> None:
    """Rank 0's all_reduce does not fit: gloo aborts rank 1, torchrun ends the others."""
    trace = Trace(3)
    trace.define(wire.DefKind.RUN, run="r", t_ns=ns(0), wall_ns=0, argv=["torchrun", "train.py"])
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 1, None, 64 if proc.rank else 32)
    trace.flush()
    ends(trace, trace.ranks[1], 20, "killed", -6)
    for rank in (0, 2):
        ends(trace, trace.ranks[rank], 320, "killed", -15)
    trace.end(400, code=1)
    assert "size-mismatch" in said(trace)
    assert states(trace) == [
        ("ended", "terminated", "torchrun"), ("lost", "lost", "killed"),
        ("ended", "terminated", "torchrun"),
    ]  # fmt: skip


def test_a_rank_that_raised_and_was_killed_at_its_exit_is_not_lost() -> None:
    trace = Trace(2)
    for proc, t in zip(trace.ranks, (5, 6), strict=True):
        raises(proc, t)
    ends(trace, trace.ranks[0], 20, "exit", 1)
    ends(trace, trace.ranks[1], 30, "killed", -15)
    trace.end(60, code=1)
    assert states(trace) == [
        ("ended", "ended", "ValueError"), ("ended", "terminated", "its launcher"),
    ]  # fmt: skip


def test_a_rank_of_which_nothing_is_known_is_lost() -> None:
    trace = three()
    ends(trace, trace.ranks[0], 100, "lost")
    trace.end(200, code=1)
    assert next(state for state, *_ in states(trace)) == "lost"


def test_ranks_that_were_killed_in_a_deadlock_are_notes_below_it() -> None:
    """Each waits in another group since 1 ms, by its stack; all are killed at 9 s."""
    trace = Trace(2, {"a": (0, 1), "b": (0, 1)})
    for proc, group in zip(trace.ranks, "ab", strict=True):
        proc.collective(group, "all_reduce", 1, None)
    trace.flush()
    stall(trace, 2100, r0=WAITING, r1=WAITING)
    for proc in trace.ranks:
        ends(trace, proc, 9000, "killed", -9)
    trace.end(9100, code=1)
    assert list(said(trace)) == ["deadlock"]
    noted = {f.kind for f in snapshot(trace.store(), None).findings if f.severity == "info"}
    assert "rank-lost" in noted
