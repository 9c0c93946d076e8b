"""Who is named when ranks end: the first cause, not those that a launcher ended after it."""

from __future__ import annotations

import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.findings.finding import Finding, Label
from pardbg.analysis.findings.kinds.absence import Absence
from pardbg.analysis.findings.kinds.mismatch_kinds import Mismatch
from pardbg.analysis.findings.kinds.stall_kinds import Waiting
from pardbg.analysis.findings.wording import word
from pardbg_agent import wire
from tests.unit.facts import facts
from tests.unit.trace_builder import Trace, ns


def found(trace: Trace) -> dict[tuple[str, tuple[int, ...]], Finding]:
    return {(f.kind, f.ranks): f for f in snapshot(trace.store(), None).findings}


def both_killed(rank_1_at: float, rank_0_at: float) -> Trace:
    """Rank 0 is in an all_reduce from 1 ms on that rank 1 never issues; both are killed."""
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, None)
    trace.ranks[1].phase("data", 0, 1)
    trace.flush()
    trace.define_end(trace.ranks[1], rank_1_at, "killed")
    trace.define_end(trace.ranks[0], rank_0_at, "killed")
    return trace


def test_a_rank_that_a_launcher_ended_is_no_culprit() -> None:
    trace = both_killed(5, 6)
    trace.end(7, code=1)
    said = found(trace)
    assert said["rank-lost", (1,)].severity == "error"
    assert said["rank-lost", (0,)].severity == "info"
    assert said["rank-lost", (0,)].culprits == ()
    assert ("exit-code", ()) not in said, "the lost rank says it"
    assert facts(said["rank-lost", (1,)], "waiting") == (), "it ended, too"
    assert facts(said["rank-lost", (0,)], "waited_for") == (1,)


@pytest.mark.parametrize("pair", [(0, 2), (0, 1)])
def test_ranks_that_wait_one_for_the_other_end_after_whom_all_wait_for(
    pair: tuple[int, int],
) -> None:
    """Rank 0 waits in the pair's op and rank 1 in the world's; all are gone within 51 ms."""
    trace = Trace(3, {"world": (0, 1, 2), "pair": pair})
    trace.ranks[0].collective("pair", "all_reduce", 1, None)
    trace.ranks[1].collective("world", "all_reduce", 1, None)
    trace.ranks[2].phase("data", 0, 1)
    trace.flush()
    for rank, t in ((2, 100), (0, 151), (1, 151)):
        trace.define_end(trace.ranks[rank], t, "killed")
    trace.end(160, code=1)
    said = found(trace)
    assert [f.culprits for f in said.values() if f.kind == "rank-lost" and f.culprits] == [(2,)]
    assert facts(said["rank-lost", (0, 1)], "waited_for") == (2,)


def test_a_hang_that_somebody_ended_says_how_long_it_was() -> None:
    trace = both_killed(20_001, 20_001)  # waited from 1 ms on
    trace.end(20_002, code=1)
    finding = found(trace)["missing-rank", (0,)]
    assert finding.culprits == (1,)
    assert facts(finding, "over", "until_ns", "waits") == (
        True, ns(20_001), (Waiting(0, Label("all_reduce world #0"), ns(1)),)
    )  # fmt: skip


def test_a_rank_in_its_exit_has_left() -> None:
    """Its agent is silent by then (the interpreter ends), which is no lock that it holds."""
    trace = Trace(2)
    trace.ranks[0].collective("world", "all_reduce", 1, None)
    trace.ranks[1].phase("data", 0, 1)
    trace.ranks[1].define(
        wire.DefKind.NOTE, key=wire.NOTE_LEAVING, value=trace.ranks[1].proc, t_ns=ns(2)
    )
    trace.flush()
    waits = {"rank": 0, "alive": True, "open": 1, "open_since_ns": ns(1), "heartbeat_ns": ns(3000)}
    ends = {"rank": 1, "alive": True, "open": 0, "heartbeat_ns": ns(10)}
    trace.state(3_000, **{trace.ranks[0].proc: waits, trace.ranks[1].proc: ends})
    (((kind, _), finding),) = found(trace).items()
    assert (kind, finding.culprits, finding.severity) == ("missing-rank", (1,), "error")
    assert facts(finding, "absences") == (Absence("left"),)


def test_ranks_that_wait_for_each_other_are_both_culprits() -> None:
    trace = Trace(2, {"a": (0, 1), "b": (0, 1)})
    for proc, group in zip(trace.ranks, ("a", "b"), strict=True):
        proc.collective(group, "all_reduce", 1, None)
    trace.flush()
    for proc in trace.ranks:
        trace.define_end(proc, 5, "killed")
    trace.end(7, code=1)
    said = found(trace)
    assert said["rank-lost", (0, 1)].severity == "error"


def test_a_rank_without_farewell_in_a_job_that_ended_well_is_no_error() -> None:
    trace = Trace(1)
    trace.ranks[0].step(0, 0, 1)
    trace.flush()
    trace.define_end(trace.ranks[0], 2, "killed")  # it left by os._exit
    trace.end(3)
    assert found(trace)["rank-lost", (0,)].severity == "info"


def test_two_jobs_at_a_time_are_told() -> None:
    trace = Trace(1)
    other = trace.process(0, pid=200, start=1)  # a second rank 0, while the first one goes on
    for proc in (trace.ranks[0], other):
        for t in (2, 4, 6):
            proc.collective("world", "all_reduce", t, t + 1)
        proc.flush()
    trace.flush()
    trace.end(9)
    assert found(trace)["several-jobs", (0,)].severity == "warning"


def test_one_after_another_is_not_two_jobs() -> None:
    trace = Trace(1)
    trace.ranks[0].collective("world", "all_reduce", 2, 3)
    second = trace.process(0, pid=200, start=4)
    second.collective("world", "all_reduce", 6, 7)
    second.flush()
    trace.flush()
    trace.end(9)
    assert found(trace) == {}


def test_a_job_without_ranks_says_so() -> None:
    trace = Trace(0)
    trace.end(3)
    assert list(found(trace)) == [("no-ranks", ())]


def test_a_job_that_failed_before_its_first_group_failed_for_one_reason() -> None:
    trace = Trace(0)
    trace.end(3, code=1)
    severities = {kind: one.severity for (kind, _), one in found(trace).items()}
    assert severities == {"exit-code": "error", "no-ranks": "info"}


def two_that_disagree(*roots: int, **of_rank_1: object) -> Trace:
    """In each step an all_reduce of 1 kB and a broadcast from ``roots[step]``; in the newest step,
    4, rank 1 does something else in place of the broadcast."""
    trace = Trace(2)
    for step in range(5):
        for proc in trace.ranks:
            t = 10.0 * step
            proc.collective("world", "all_reduce", t, t + 1, step=step)
            said: dict[str, object] = {"op": "broadcast", "reduce": "", "root": roots[step]}
            done: float | None = t + 3
            if step == 4:
                done, said = None, said | (of_rank_1 if proc.rank == 1 else {})
            op = str(said.pop("op"))
            proc.collective("world", op, t + 2, done, step=step, **said)  # type: ignore[arg-type]
            if step < 4:
                proc.step(step, t, t + 5)
    return trace


def error(trace: Trace) -> Finding:
    (finding,) = (f for f in snapshot(trace.store(), None).findings if f.severity == "error")
    return finding


@pytest.mark.parametrize(("like_it_before", "where"), [(False, "train.py:7 in step"), (True, None)])
def test_the_place_of_an_op_that_is_the_ranks_first_of_its_kind(
    like_it_before: bool, where: str | None
) -> None:
    """Nothing was seen of the rank in its op: its backend ended it there. Where it had issued one
    like it before, the definition's line may be another's."""
    trace = Trace(3)
    for proc in trace.ranks:
        odd = proc.rank == 1
        if odd:
            proc.op("broadcast", root=0, at=["/home/me/train.py", 7, "step"])
        if like_it_before:
            proc.collective("world", "broadcast", 1, 2, reduce="", root=0)
        what = ("broadcast", "", 0) if odd else ("all_reduce", "sum", -1)
        proc.collective("world", what[0], 10, None, reduce=what[1], root=what[2])
    finding = error(trace)
    assert (finding.kind, finding.culprits, finding.where) == ("op-mismatch", (1,), where)
    first = ((1, "train.py:7 in step"),) if like_it_before else ()
    assert facts(finding, "first_places") == first


@pytest.mark.parametrize(("line", "tries"), [(9, "try two calls"), (7, "try op mismatch")])
def test_ops_of_two_lines_are_a_call_too_many_or_too_few(line: int, tries: str) -> None:
    trace = Trace(3)
    for proc in trace.ranks:
        op, at = ("broadcast", 7) if proc.rank == 1 else ("barrier", line)
        proc.op(op, root=0, at=["/home/me/train.py", at, "step"])
        proc.collective("world", op, 1, None, reduce="", root=0)
    assert error(trace).advice == word(Mismatch, tries)


@pytest.mark.parametrize(
    ("before", "others", "own", "known"),
    [
        ((512, 128), 128, 360, ()),  # of another line than the first, as far as sizes tell
        ((512, 128), 512, 400, (0,)),  # rank 0's is of the first one's size, rank 1's of neither
        ((512, 512), 512, 400, (1, 0)),  # one size: one line
    ],
)
def test_where_ops_differ_in_size_the_first_ones_line_is_told_of_its_size_alone(
    before: tuple[int, ...], others: int, own: int, known: tuple[int, ...]
) -> None:
    trace = Trace(3)
    for proc in trace.ranks:
        proc.op("all_reduce", reduce="sum", at=["/home/me/train.py", 10, "big"])
        for i, size in enumerate(before):
            proc.collective("world", "all_reduce", i, i + 0.5, size)
        proc.collective("world", "all_reduce", 10, None, own if proc.rank == 1 else others)
    finding = error(trace)
    assert (finding.kind, finding.culprits) == ("size-mismatch", (1,))
    assert facts(finding, "first_places") == tuple((r, "train.py:10 in big") for r in known)


@pytest.mark.parametrize(("every", "culprits"), [(10, ()), (20, (0,))])
def test_a_rank_that_does_what_it_did_now_and_then_is_not_named(
    every: int, culprits: tuple[int, ...]
) -> None:
    """A sum in some steps, before the average of each: in step 20 rank 0 alone sums."""
    trace = Trace(2)
    for step in range(21):
        for proc in trace.ranks:
            t = 10.0 * step
            if step and step % every == 0 and (step < 20 or proc.rank == 0):
                proc.collective("world", "all_reduce", t, None if step == 20 else t + 1, step=step)
                if step == 20:
                    continue
            last = step == 20
            proc.collective("world", "all_gather", t + 2, None if last else t + 3, step=step)
            if not last:
                proc.step(step, t, t + 5)
    assert error(trace).culprits == culprits


def test_with_two_ranks_the_one_that_differs_from_the_steps_before_is_named() -> None:
    """Steps 1 to 3 are whole ones to compare with; step 0 may be cut."""
    finding = error(two_that_disagree(0, 0, 0, 0, 0, op="all_reduce", reduce="sum", root=-1))
    assert (finding.kind, finding.culprits, finding.seq) == ("op-mismatch", (1,), 9)
    assert facts(finding, "steps_before") == 3
    finding = error(two_that_disagree(0, 0, 0, 0, 0, root=1))
    assert (finding.kind, finding.culprits) == ("root-mismatch", (1,))
    finding = error(two_that_disagree(0, 0, 0, 0, 1, root=0))  # rank 0 has another root than usual
    assert (finding.kind, finding.culprits) == ("root-mismatch", (0,))


def test_a_second_step_that_was_another_is_no_habit() -> None:
    """DDP orders its buckets anew in its second step: steps 2 and 3 are those to compare with."""
    finding = error(two_that_disagree(0, 1, 0, 0, 0, root=1))
    assert (finding.kind, finding.culprits) == ("root-mismatch", (1,))
    assert facts(finding, "steps_before") == 2


def test_with_two_ranks_and_no_habit_nobody_is_named() -> None:
    """The root changes from step to step."""
    finding = error(two_that_disagree(0, 1, 0, 1, 0, root=1))
    assert finding.culprits == () and facts(finding, "steps_before") == 0


@pytest.mark.parametrize(("twice", "culprits", "steps"), [((), (1,), 3), ((2,), (), 0)])
def test_an_op_more_than_in_any_step_before_differs_from_these(
    twice: tuple[int, ...], culprits: tuple[int, ...], steps: int
) -> None:
    """One of 256 B in each step, two in those of ``twice``. Rank 1 has a second one in step 4, of
    32 kB, where rank 0 goes on to step 5. Its steps 1 to 3 are whole ones to compare with; of two
    ops there is one step, or none."""
    trace = Trace(2)
    for proc in trace.ranks:
        for step in range(5):
            for part in range(2 if step in twice else 1):
                t = 10.0 * step + 4 * part
                proc.collective("world", "all_reduce", t, t + 3, 256, step=step)
            proc.step(step, 10 * step, 10 * step + 9)
    trace.ranks[0].collective("world", "all_reduce", 50, None, 256, step=5)
    trace.ranks[1].collective("world", "all_reduce", 45, None, 32_768, step=4)
    finding = error(trace)
    assert (finding.kind, finding.culprits) == ("size-mismatch", culprits)
    assert facts(finding, "steps_before") == steps


@pytest.mark.parametrize(("left_out", "culprit", "steps"), [({1}, 1, 3), ({0, 1}, 0, 4)])
def test_who_left_an_op_out_of_the_step_before_differs_from_earlier_ones(
    left_out: set[int], culprit: int, steps: int
) -> None:
    """A reduce and a gather in each step, of which the oldest may be cut. Rank 1 leaves the gather
    of step 4 out; its next op begins step 5 as each step. If both do, rank 0 begins that otherwise.
    """
    trace = Trace(2)
    for proc in trace.ranks:
        for step in range(5):
            proc.collective("world", "all_reduce", 10.0 * step, 10.0 * step + 3, 256, step=step)
            if step < 4:
                proc.collective("world", "all_gather", 10 * step + 4, 10 * step + 7, 256, step=step)
            if step < 4 or proc.rank in left_out:
                proc.step(step, 10 * step, 10 * step + 9)
        if proc.rank not in left_out:
            proc.collective("world", "all_gather", 44, None, 256, step=4)
        else:
            op = "broadcast" if proc.rank == 0 else "all_reduce"
            proc.collective("world", op, 50, None, 256, step=5)
    finding = error(trace)
    assert (finding.kind, finding.culprits) == ("op-mismatch", (culprit,))
    assert facts(finding, "steps_before") == steps


@pytest.mark.parametrize(
    ("before", "sent", "culprits"),
    [([100] * 3, 80, (0,)), ([100, 80] * 3, 80, (0,)), ([80, 100, 60, 100, 100], 80, (0, 1))],
)
def test_a_message_whose_sides_differ_in_size(
    before: list[int], sent: int, culprits: tuple[int, ...]
) -> None:
    """After messages of 100 B, or of 100 and 80 in turn, rank 0 sends 80 B where rank 1 takes 100:
    rank 0 differs. Where sizes come in no order nobody can tell."""
    trace = Trace(2)
    for i, size in enumerate(before):
        trace.ranks[0].p2p("world", 1, True, 10 * i, 10 * i + 2, size)
        trace.ranks[1].p2p("world", 0, False, 10 * i, 10 * i + 2, size)
    trace.ranks[0].p2p("world", 1, True, 90, 92, sent)
    trace.ranks[1].p2p("world", 0, False, 90, 92, 100)
    one = found(trace)["p2p-size-mismatch", (0, 1)]
    assert one.culprits == culprits and facts(one, "differs") == (len(culprits) == 1)
    assert [size for size, _ in facts(one, "sent", "received")] == [80, 100]
