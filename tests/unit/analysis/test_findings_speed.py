"""Findings about speed, memory and numbers on traces typed in by hand, steps of 100 ms."""

from __future__ import annotations

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.finding import Finding
from pardbg_agent.wire import Flag, Kind
from tests.unit.facts import facts
from tests.unit.trace_builder import MS, Proc, Trace

STEPS = 17
MIB = 1 << 20


def found(trace: Trace) -> list[Finding]:
    return list(findings(View(trace.store(), None)))


def without_load(trace: Trace) -> list[Finding]:
    return [finding for finding in found(trace) if finding.kind != "host-overloaded"]


def one(trace: Trace, kind: str) -> Finding:
    """The only finding, of this kind, but for the host's load."""
    (finding,) = without_load(trace)
    assert finding.kind == kind, finding
    return finding


def sync(
    proc: Proc, at: float, done: float, step: int, num_bytes: int = 1000, op: str = "all_reduce"
) -> None:
    """A collective that the host waits in."""
    proc.collective("world", op, at, done, num_bytes, step=step, flags=0)
    proc.wait(at + 0.01, done, step, p2p=False)


def data_parallel(trace: Trace, late: dict[int, dict[str, float]]) -> Trace:
    """Each step: data 0-10, forward 10-30, backward 30-50, 5 ms of host code, then an all_reduce
    at 55 that is done 2 ms after the last has come, optimizer up to the step's end at 90.
    ``late``: rank -> phase -> ms more."""
    for step in range(STEPS):
        begin = 100.0 * step
        last = 0.0
        for proc in trace.ranks:
            at, more = begin, late.get(proc.rank or 0, {})
            for name, ms in (("data", 10), ("forward", 20), ("backward", 20)):
                end = at + ms + more.get(name, 0)
                proc.phase(name, at, end, step)
                at = end
            last = max(last, at + 5 + more.get("host", 0))
        for proc in trace.ranks:
            more = late.get(proc.rank or 0, {})
            arrives = begin + 55 + sum(more.values())
            sync(proc, arrives, last + 2, step)
            proc.phase("optimizer", last + 2, last + 5, step)
            proc.step(step, begin, begin + 100)
    return trace


def test_ranks_that_are_alike_give_nothing() -> None:
    assert found(data_parallel(Trace(4), {})) == []


def test_who_waits_for_a_straggler_and_comes_late_elsewhere_is_its_victim() -> None:
    """Rank 1's forward takes 30 ms longer; 0 waits for it in a tp group and comes 30 ms late to its
    dp group. 2 waits for 0 there, 3 for 1."""
    trace = Trace(4, {"tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3)})
    for step in range(STEPS):
        begin = 100.0 * step
        for proc in trace.ranks:
            rank = proc.rank or 0
            late, met = 30 * (rank == 1), 30 * (rank < 2)
            proc.phase("forward", begin, begin + 20 + late, step)
            for group, at, done in (
                (f"tp{rank // 2}", 25 + late, 27 + met), (f"dp{rank % 2}", 30 + met, 62),
            ):  # fmt: skip
                proc.collective(group, "all_reduce", begin + at, begin + done, MIB, step=step)
                proc.wait(begin + at + 0.01, begin + done, step, p2p=False)
            proc.step(step, begin, begin + 100)
    finding = one(trace, "straggler")
    assert (finding.culprits, finding.ranks) == ((1,), (0, 2, 3))
    assert facts(finding, "phases", "in_turn") == (("forward",), (2, 3))


def test_a_straggler_among_very_many_collectives() -> None:
    """1,200 in each of 24 steps, 20 µs apart; rank 1 comes 30 ms late to the last. The window is of
    steps 9-20."""
    trace = Trace(2)
    for step in range(24):
        for proc in trace.ranks:
            for i in range(1199):
                at = 100 * step + i / 50
                proc.collective("world", "all_reduce", at, at, MIB, step=step)
            at = 100 * step + (60 if proc.rank == 1 else 30)
            sync(proc, at, 100 * step + 62, step, MIB)
            proc.step(step, 100 * step, 100 * step + 100)
    finding = one(trace, "straggler")
    assert finding.culprits == (1,)
    assert facts(finding, "num_late", "num_steps", "by_ns") == (12, 12, 30 * MS)


@pytest.mark.parametrize(("phase", "cause", "phases"), [
    ("data", "data", ()), ("forward", "compute", ("forward",)),
    ("backward", "compute", ("backward",)), ("host", "host", ()),
])  # fmt: skip
def test_a_straggler_and_what_makes_it_late(
    phase: str, cause: str, phases: tuple[str, ...]
) -> None:
    """30 ms after the others, 30 ms a step."""
    finding = one(data_parallel(Trace(3), {1: {phase: 30}}), "straggler")
    assert (finding.culprits, finding.ranks, finding.severity) == ((1,), (0, 2), "warning")
    assert facts(finding, "cause", "cause_ns", "phases") == (cause, 30 * MS, phases)
    assert facts(finding, "num_late", "num_steps", "by_ns") == (12, 12, 30 * MS)
    assert finding.cost_ns_per_step == 30 * MS
    assert finding.evidence is not None and finding.evidence.rank == 1


@pytest.mark.parametrize(("kind", "begin", "took_ms", "of_all", "call"), [
    (Kind.CALL, 51, 28, False, "torch.save"), (Kind.SPAN, 51, 28, False, "torch.save"),
    (Kind.CALL, 51, 14, False, ""), (Kind.SPAN, 1, 98, True, ""),
])  # fmt: skip
def test_the_call_that_takes_a_straggler_its_time_is_named(
    kind: Kind, begin: int, took_ms: int, of_all: bool, call: str
) -> None:
    """30 ms more of host code, most of it or less than half in one call; or a span of all ranks
    around the step."""
    trace = data_parallel(Trace(3), {1: {"host": 30}})
    for proc in trace.ranks if of_all else trace.ranks[1:2]:
        of = proc.op("torch.save") if kind == Kind.CALL else proc.name("torch.save")
        for at in range(begin, 100 * STEPS, 100):
            proc.record(kind, at, at + took_ms, of, step=at // 100)
    finding = one(trace, "straggler")
    assert (finding.culprits, *facts(finding, "cause", "call")) == ((1,), "host", call)


@pytest.mark.parametrize(
    ("ran", "stood", "others_stood", "severity", "culprits", "cause"),
    [
        (50, 31, 0, "warning", (1,), ("core", 31 * MS)),
        (50, 41, 10, "info", (), ("core", 31 * MS)),
        (80, 41, 10, "warning", (1,), ("host", 30 * MS)),
        (50, 20, 10, "warning", (1,), ("host", 30 * MS)),
        (50, 60, 60, "info", (1,), ("host", 30 * MS)),
        (56, 60, 10, "info", (), ("core", 24 * MS)),
    ],
)
def test_a_rank_that_gets_no_core_is_not_the_slow_one(
    ran: int, stood: int, others_stood: int, severity: str, culprits: tuple[int, ...],
    cause: tuple[str, int],
) -> None:  # fmt: skip
    """30 ms late in steps of 100 ms. All ran 50 ms of each; where it was ready without a core 31 ms
    longer, that is why: somebody on its cores, or all ranks' if the others stand so, too. Not where
    it runs for the 30 ms longer, nor where it stood only 10 ms longer: 20 are its own. A note where
    all stand for 60 ms: the others may do so elsewhere in the step."""
    finding = one(late_on_a_busy_host(30, ran, stood, others_stood), "straggler")
    assert (finding.severity, finding.culprits) == (severity, culprits)
    assert facts(finding, "cause", "cause_ns") == pytest.approx(cause)


def test_what_it_stood_without_a_core_is_not_its_own() -> None:
    """Of 17 ms late it stood 8 longer than the others: 9 ms of a step of 100 are a note."""
    finding = one(late_on_a_busy_host(17, 50, 18, 10), "straggler")
    assert (finding.severity, finding.culprits) == ("info", (1,))


@pytest.mark.parametrize(("late", "culprits"), [(0, []), (15, []), (45, [(0,)])])
def test_late_among_ranks_that_wait_for_cores(late: int, culprits: list[tuple[int, ...]]) -> None:
    """Steps of 200 ms; in each, one of ranks 1 to 3 stands for 60 ms without a core, 20 ms a step
    on average, so that single steps say nothing. Rank 0 does 45 ms more and never stands: 25 ms
    later than the others' means, and 45 ms less what they stood; 20 are asked for, and 17 for
    chance. 15 ms are nothing. A note: the host is overloaded, and no single step shows it."""
    trace = Trace(4)
    for step in range(STEPS):
        arrived = {0: late} | {r: 60 * ((step + r) % 3 == 0) for r in (1, 2, 3)}
        for proc in trace.ranks:
            at = 200 * step + 20 + arrived[proc.rank or 0]
            sync(proc, at, 200 * step + 120, step)
            proc.step(step, 200 * step, 200 * step + 200)
        rows = {p.proc: [50 * MS * step, 20 * MS * step if p.rank else 0] for p in trace.ranks}
        trace.state(200 * step, **{proc: {"scheduled": row} for proc, row in rows.items()})
    said = [f for f in found(trace) if f.kind == "straggler"]
    assert [f.culprits for f in said] == culprits
    assert all(f.severity == "info" and f.cost_ns_per_step == 25 * MS for f in said)


def late_on_a_busy_host(late: int, ran: int, stood: int, others_stood: int) -> Trace:
    """Rank 1 of three comes late; ms a step that it ran and stood; the others ran 50."""
    trace = data_parallel(Trace(3), {1: {"host": late}})
    for step in (0, STEPS):
        rows = {p.proc: [50 * MS * step, others_stood * MS * step] for p in trace.ranks}
        rows[trace.ranks[1].proc] = [ran * MS * step, stood * MS * step]
        said = {proc: {"scheduled": row} for proc, row in rows.items()}
        trace.state(100 * step, **said)
    return trace


def test_who_is_never_late_is_no_straggler_for_never_standing() -> None:
    """Rank 0 always comes with half of the ranks; the others stand for 60 ms a step, it never."""
    trace = Trace(3)
    for step in range(STEPS):
        for proc in trace.ranks:
            at = 200 * step + 20 + (0, -10, 10)[((proc.rank or 0) * (1 + step % 2)) % 3]
            sync(proc, at, 200 * step + 120, step)
            proc.step(step, 200 * step, 200 * step + 200)
        rows = {p.proc: [50 * MS * step, 60 * MS * step if p.rank else 0] for p in trace.ranks}
        trace.state(200 * step, **{proc: {"scheduled": row} for proc, row in rows.items()})
    assert [f for f in found(trace) if f.kind == "straggler"] == []


def test_two_stragglers_are_both_named() -> None:
    finding = one(data_parallel(Trace(4), {1: {"data": 30}, 3: {"data": 40}}), "straggler")
    assert finding.culprits == (1, 3) and finding.cost_ns_per_step == 40 * MS


def test_a_late_host_is_named_as_one() -> None:
    trace = Trace(0, groups={"world": range(4)})
    trace.ranks = [trace.process(rank, host=f"n{rank // 2}") for rank in range(4)]
    late = {rank: {"forward": 30.0} for rank in (2, 3)}
    said = {f.kind: f for f in found(data_parallel(trace, late))}
    finding = said["straggler"]  # besides, nobody told how the hosts' clocks differ
    assert finding.culprits == (2, 3) and facts(finding, "whole_host") == "n1"


def test_milliseconds_are_a_note_and_what_the_others_do_too_is_nothing() -> None:
    """11 ms of 100 are a warning. 14 ms are nothing where another rank comes 9 ms late, too: not
    twice the others' spread."""
    assert one(data_parallel(Trace(3), {1: {"data": 11}}), "straggler").severity == "warning"
    trace = Trace(4)
    for step in range(STEPS):
        for proc in trace.ranks:
            late = {1: 14.0, 2: 9.0}.get(proc.rank or 0, 0.0)
            sync(proc, 100 * step + 10 + late, 100 * step + 26, step)
            proc.step(step, 100 * step, 100 * step + 100)
    assert found(trace) == []


def test_late_now_and_then_is_no_straggler() -> None:
    trace = data_parallel(Trace(3), {})
    other = Trace(3)
    for step in range(STEPS):
        for proc in other.ranks:
            late = 30 if proc.rank == 1 and step % 2 else 0
            sync(proc, 100 * step + 10 + late, 100 * step + 42, step)
            proc.step(step, 100 * step, 100 * step + 100)
    assert found(trace) == found(other) == []


# -- pipelines


def pipeline(stage_ms: tuple[float, float], gap: float = 0.0, m: int = 4) -> Trace:
    """GPipe over two ranks, forward and backward alike; ``gap`` ms of host code before each of
    rank 1's backwards."""
    trace = Trace(2)
    order = {r: [f"{r}F{i}" for i in range(m)] + [f"{r}B{i}" for i in range(m)] for r in (0, 1)}
    trace.plan("ScheduleGPipe", order, m)
    a, b = stage_ms
    for step in range(STEPS):
        at = 200.0 * step
        free = [at, at]
        r0, r1 = trace.ranks
        done: dict[str, float] = {}
        for i in range(m):
            r0.action(f"0F{i}", free[0], free[0] + a, step)
            free[0] = done[f"F{i}"] = free[0] + a
            begin = max(free[1], done[f"F{i}"])
            r1.action(f"1F{i}", begin, begin + b, step)
            free[1] = begin + b
        for i in range(m):
            r1.action(f"1B{i}", free[1] + gap, free[1] + gap + b, step)
            free[1] = done[f"B{i}"] = free[1] + gap + b
            begin = max(free[0], done[f"B{i}"])
            r0.action(f"0B{i}", begin, begin + a, step)
            free[0] = begin + a
        for proc in trace.ranks:
            proc.step(step, at, at + 200)
    return trace


def test_a_pipeline_that_runs_as_planned_gives_nothing() -> None:
    assert found(pipeline((10, 10))) == []


def test_a_stage_that_is_too_large() -> None:
    """Stage 1 takes 15, stage 0 5: rank 1 is 50 % above the mean of 10. The step: 5 + 4*15 + 4*15
    + 5 = 130 pipeline, with even stages of 10: 10 + 4*10 + 4*10 + 10 = 100."""
    finding = one(pipeline((5, 15)), "stage-imbalance")
    assert finding.culprits == (1,)
    assert facts(finding, "stages", "more") == ((1,), pytest.approx(0.5))
    assert finding.cost_ns_per_step == 30 * MS


def test_an_even_cut_must_be_worth_it() -> None:
    """Stage 1 takes 15.5 to stage 0's 10: 22 % above the mean. 10 + 8 * 15.5 + 10 = 144 ms, with
    even stages of 12.75: 10 * 12.75 = 127.5; 16.5 ms are 11 % of it, no fifth: a note where four
    threads want two cores."""
    trace = pipeline((10, 15.5))
    assert one(trace, "stage-imbalance").severity == "warning"
    for step in range(STEPS):
        trace.state(200 * step + 199, **{p.proc: {"load": 200} for p in trace.ranks})
    assert one(trace, "stage-imbalance").severity == "info"


def test_too_few_microbatches() -> None:
    """(p-1)/(m+p-1) = 1/3 with m=2; 8 microbatches would leave 1/9."""
    finding = one(pipeline((10, 10), m=2), "too-few-microbatches")
    known = facts(finding, "bound", "measured", "wanted", "then")
    assert known == pytest.approx((1 / 3, 1 / 3, 8, 1 / 9))
    # of a window of 60: 60 * (1 - (2/3)/(8/9)) = 15
    assert finding.cost_ns_per_step == 15 * MS


def test_excess_names_its_cause() -> None:
    """Window 10 + 4*10 + 4*(10+10) + 10 = 140, busy 160 of 280 = 43 % idle; the plan implies
    100 ms, 20 %. The gaps: 40 of 280, on rank 1."""
    finding = one(pipeline((10, 10), gap=10), "schedule-excess")
    assert facts(finding, "cause", "rank") == ("host", 1)
    known = facts(finding, "excess", "implied", "share")
    assert known == pytest.approx((120 / 280 - 0.2, 0.2, 40 / 280))
    assert finding.cost_ns_per_step == pytest.approx(40 * MS)
    assert finding.severity == "warning"


@pytest.mark.parametrize(("took", "load"), [(2, 100), (10, 250)])
def test_excess_of_a_small_model_or_a_busy_host_is_a_note(took: float, load: int) -> None:
    """A fifth of 40 ms a step are 8; where 2.5 threads want each core, 40 ms are the host's."""
    trace = pipeline((took, took), gap=took)
    for step in range(STEPS):
        trace.state(200 * step + 199, **{p.proc: {"load": load} for p in trace.ranks})
    assert one(trace, "schedule-excess").severity == "info"


@pytest.mark.parametrize(("gap", "severity"), [(1.2, "info"), (4, "warning")])
def test_what_lies_between_actions_of_less_than_a_millisecond_is_a_note(
    gap: float, severity: str
) -> None:
    """16 microbatches of 0.5 ms. 1.2 ms before each of rank 1's 16 backwards are 19 of a step's
    ms, and 0.6 for each of its 32 actions; 4 ms are 2."""
    finding = one(pipeline((0.5, 0.5), gap=gap, m=16), "schedule-excess")
    assert finding.severity == severity
    known = facts(finding, "cause", "rank", "action_ns", "gap_ns", "short")
    assert known == ("host", 1, 0.5 * MS, gap / 2 * MS, severity == "info")


# -- communication


def test_exposed_communication() -> None:
    """60 of 100 ms in one synchronous all_gather. A note where the ranks stand ready without a core
    for 10 ms of each step: the host takes turns."""
    trace = Trace(2)
    for step in range(STEPS):
        for proc in trace.ranks:
            sync(proc, 100 * step + 20, 100 * step + 80, step, 1 << 20, op="all_gather")
            proc.step(step, 100 * step, 100 * step + 100)
    finding = one(trace, "exposed-communication")
    assert facts(finding, "op", "op_bytes") == ("all_gather", 1 << 20)
    known = facts(finding, "exposed_ns", "share", "could_hide_ns", "could_hide_share")
    assert known == pytest.approx((60 * MS, 0.6, 40 * MS, 0.4), rel=0.01)
    assert finding.severity == "warning"
    assert finding.cost_ns_per_step == pytest.approx(40 * MS, abs=0.1 * MS)
    for step in (0, STEPS):
        said = {p.proc: {"scheduled": [50 * MS * step, 10 * MS * step]} for p in trace.ranks}
        trace.state(100 * step, **said)
    assert one(trace, "exposed-communication").severity == "info"


@pytest.mark.parametrize(
    ("num_bytes", "took_ms", "severity"),
    [(64, 60, "info"), (64, 4, "warning"), (1 << 20, 60, "warning")],
)
def test_few_bytes_that_take_long_are_no_communication_to_hide(
    num_bytes: int, took_ms: int, severity: str
) -> None:
    """60 of 100 ms in all_reduces that follow each other at once."""
    trace = Trace(2)
    for step in range(STEPS):
        for proc in trace.ranks:
            for at in range(20, 80, took_ms):
                sync(proc, 100 * step + at, 100 * step + at + took_ms, step, num_bytes)
            proc.step(step, 100 * step, 100 * step + 100)
    said = {finding.kind: finding for finding in without_load(trace)}["exposed-communication"]
    assert said.severity == severity
    assert bool(said.cost_ns_per_step) == (severity == "warning")


def test_exposed_communication_with_nothing_to_hide_it_behind_is_a_note() -> None:
    """90 of 100 ms: 10 ms of compute could hide 10 of them."""
    trace = Trace(2)
    for step in range(STEPS):
        for proc in trace.ranks:
            sync(proc, 100 * step + 5, 100 * step + 95, step, 1 << 20, op="all_gather")
            proc.step(step, 100 * step, 100 * step + 100)
    finding = one(trace, "exposed-communication")
    assert finding.severity == "info"
    known = facts(finding, "could_hide_ns", "could_hide_share")
    assert known == pytest.approx((10 * MS, 0.1), rel=0.01)


def test_communication_behind_compute_is_not_exposed() -> None:
    """The same 60 ms, asynchronous; the host waits for the last 5."""
    trace = Trace(2)
    for step in range(STEPS):
        for proc in trace.ranks:
            proc.collective("world", "all_gather", 100 * step + 20, 100 * step + 80, 1 << 20,
                            step=step)  # fmt: skip
            proc.wait(100 * step + 75, 100 * step + 80, step, p2p=False)
            proc.step(step, 100 * step, 100 * step + 100)
    assert found(trace) == []


def test_small_messages() -> None:
    """16 all_reduces of 100 B a step, 1 ms each and 0.1 ms apart: 15 ms would be saved."""
    trace = Trace(2)
    for step in range(STEPS):
        for i in range(16):
            for proc in trace.ranks:
                at = 100 * step + 20 + 1.1 * i
                sync(proc, at, at + 1, step, 100)
        for proc in trace.ranks:
            proc.step(step, 100 * step, 100 * step + 100)
    finding = one(trace, "small-messages")
    assert facts(finding, "op", "number", "bytes") == ("all_reduce", 16, 1600)
    assert finding.cost_ns_per_step == pytest.approx(15 * MS)
    assert finding.severity == "info"  # a model of 16 tensors is all rounds


def test_a_slow_link() -> None:
    """A ring of three: 1 kB messages take 1 ms, from rank 1 to rank 2 10 ms. Two a step."""
    trace = Trace(3)
    for step in range(STEPS):
        for i in range(2):
            at = 100 * step + 20 + 20 * i
            for proc in trace.ranks:
                r = proc.rank or 0
                taken = {0: 1.0, 1: 10.0, 2: 1.0}
                proc.p2p("world", (r + 1) % 3, True, at, at + taken[r], 1000, step=step)
                proc.p2p("world", (r - 1) % 3, False, at, at + taken[(r - 1) % 3], 1000, step=step)
                proc.wait(at, at + taken[(r - 1) % 3], step)
        for proc in trace.ranks:
            proc.step(step, 100 * step, 100 * step + 100)
    finding = one(trace, "slow-link")
    assert finding.culprits == (1, 2)
    known = facts(finding, "src", "dst", "bytes", "own_ns", "usual_ns")
    assert known == pytest.approx((1, 2, 1000, 10 * MS, MS), rel=0.01)
    assert finding.cost_ns_per_step == pytest.approx(18 * MS, rel=0.1)


def dp_groups(pairs: int, size: int, slow_ms: float, source: int = Flag.DONE_COMPLETED) -> Trace:
    """Data-parallel groups of ``size`` ranks each; in each step of 100 ms two all_reduces of 1 MB
    that take 5 ms, but ``slow_ms`` in the group of rank 1."""
    groups = {f"dp{i}": tuple(range(i, pairs * size, pairs)) for i in range(pairs)}
    trace = Trace(pairs * size, groups)
    for step in range(STEPS):
        begin = 100.0 * step
        for proc in trace.ranks:
            of = (proc.rank or 0) % pairs
            takes = slow_ms if of == 1 else 5
            for at in (begin + 10, begin + 55):
                proc.collective(f"dp{of}", "all_reduce", at, at + takes, 1_000_000, step=step,
                                source=source)  # fmt: skip
            proc.step(step, begin, begin + 100)
    return trace


def test_a_group_that_is_slower_than_its_siblings() -> None:
    """4 pairs; (1, 5) takes 30 ms where the others take 5: 2 * 25 = 50 ms a step."""
    finding = next(f for f in found(dp_groups(4, 2, 30)) if f.kind == "slow-link")
    assert (finding.culprits, finding.group) == ((1, 5), "dp1")
    known = facts(finding, "bytes", "own_ns", "usual_ns", "siblings")
    assert known == pytest.approx((1_000_000, 30 * MS, 5 * MS, 3))
    assert finding.cost_ns_per_step == 50 * MS


def test_a_link_of_an_overloaded_host_is_a_note() -> None:
    """Ranks stand ready without a core for 10 ms of each step's 100."""
    trace = dp_groups(4, 2, 30)
    for step in range(STEPS):
        said = {p.proc: {"scheduled": [50 * MS * step, 10 * MS * step]} for p in trace.ranks}
        trace.state(100 * step, **said)
    finding = next(f for f in found(trace) if f.kind == "slow-link")
    assert (finding.culprits, finding.severity) == ((1, 5), "info")


def test_of_a_larger_group_no_link_is_named() -> None:
    finding = next(f for f in found(dp_groups(3, 3, 30)) if f.kind == "slow-link")
    assert finding.culprits == (1, 4, 7)


@pytest.mark.parametrize(
    "trace",
    [dp_groups(4, 2, 12), dp_groups(2, 2, 30), dp_groups(4, 2, 30, Flag.DONE_WAITED)],
    ids=["not slow enough", "one sibling", "ends known from waits only"],
)
def test_groups_that_say_nothing_of_links(trace: Trace) -> None:
    assert [f for f in found(trace) if f.kind == "slow-link"] == []
