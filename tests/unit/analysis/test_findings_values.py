"""Findings about memory and numbers on traces typed in by hand, steps of 100 ms."""

from __future__ import annotations

import numpy as np
import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.finding import STEP
from pardbg.analysis.findings.kinds.value_kinds import NotFinite
from pardbg.analysis.findings.memory import growth
from pardbg.analysis.findings.values.replicas import updates
from pardbg.analysis.findings.wording import word
from pardbg_agent import wire
from pardbg_agent.wire import Kind, Lane
from tests.unit.analysis.test_findings_speed import MIB, found, one, sync
from tests.unit.facts import facts
from tests.unit.trace_builder import Proc, Trace, ns

# -- memory


def with_memory(sizes: dict[int, tuple[float, float]], num_steps: int = 40) -> Trace:
    """rank -> (MiB at first, MiB more each step)"""
    trace = Trace(len(sizes))
    for step in range(num_steps):
        for proc in trace.ranks:
            base, more = sizes[proc.rank or 0]
            size = round((base + more * step) * MIB)
            proc.record(Kind.MEMORY, 100 * step + 90, 100 * step + 90, proc.name("rss"),
                        lane=Lane.COUNTER, step=step, a=size, b=size)  # fmt: skip
            proc.step(step, 100 * step, 100 * step + 100)
    return trace


def test_memory_creeps() -> None:
    """4 MiB a step; at the end of the last window, in step 36, 300 + 36 * 4 = 444 MiB."""
    finding = next(f for f in found(with_memory({0: (300, 0), 1: (300, 4)}))
                   if f.kind == "memory-creep")  # fmt: skip
    assert finding.culprits == (1,)
    assert facts(finding, "per_step_bytes", "step", "bytes") == (4 * MIB, 36, 444 * MIB)


def test_what_memory_is_said_to_be_does_not_depend_on_where_the_cursor_was_first() -> None:
    """Of the window that ends with step 36 (at 3.7 s): 300 + 36 * 4 = 444 MiB, also where a
    cursor in step 39 was first to look."""
    store = with_memory({0: (300, 0), 1: (300, 4)}).store()
    late, early = (
        next(f for f in findings(View(store, ns(t))) if f.kind == "memory-creep")
        for t in (3995, 3705)
    )
    assert facts(late, "step", "bytes") == facts(early, "step", "bytes") == (36, 444 * MIB)


def test_memory_that_fills_up_does_not_creep() -> None:
    """A warm-up: 400 (1 - e^(-step/20)) MiB, still growing at step 40, by ever less."""
    steps = np.arange(10, 40)
    assert growth(steps, 4e8 * (1 - np.exp(-steps / 20))) is None
    assert growth(steps, 1e8 + 4e6 * steps) == (pytest.approx(4e6), 29, 10)


def test_memory_that_was_taken_once_or_grows_little_for_a_while_does_not_creep() -> None:
    """1.5 MiB a step over 29 steps are 43 MiB of a process's memory: an allocator may do that."""
    assert found(with_memory({0: (300, 0), 1: (300, 0)})) == []
    assert found(with_memory({0: (300, 1.5), 1: (300, 1.5)})) == []
    assert found(with_memory({0: (300, 0.15), 1: (300, 0.15)}, 200)) == []  # 29 MiB over 190


def test_a_device_that_is_nearly_full() -> None:
    """Rank 1 has 950 of 1000 MiB allocated; rank 0 300."""
    trace = with_memory({0: (300, 0), 1: (950, 0)})
    for proc in trace.ranks:
        proc.memory("limit", 1, 1000 * MIB)
    finding = next(f for f in found(trace) if f.kind == "memory-near-limit")
    assert (finding.culprits, finding.severity) == ((1,), "warning")
    known = facts(finding, "used_bytes", "limit_bytes", "cgroup_of")
    assert known == (950 * MIB, 1000 * MIB, "")


@pytest.mark.parametrize(("used", "said"), [(1100, 0), (1150, 1)])
def test_a_cgroup_that_is_nearly_full_is_nobodys_alone(used: int, said: int) -> None:
    """Two ranks of 500 and 400 MiB in a cgroup of 1200; with what else is in it, 1100 (91.7 %) or
    1150 (95.8 %) are used. Neither rank is near the limit by itself."""
    trace = with_memory({0: (500, 0), 1: (400, 0)})
    for proc in trace.ranks:
        proc.memory("limit", 1, 1200 * MIB, used * MIB)
    near = [f for f in found(trace) if f.kind == "memory-near-limit"]
    assert len(near) == said
    for finding in near:
        assert (finding.ranks, finding.culprits) == ((0, 1), ())
        assert facts(finding, "used_bytes", "limit_bytes") == (used * MIB, 1200 * MIB)
        assert facts(finding, "fullest", "fullest_bytes") == (0, 500 * MIB)


@pytest.mark.parametrize("unknown", [0, 1, 2])
def test_one_rank_has_more_memory(unknown: int) -> None:
    """Ranks of unknown memory are not compared; of three known ones, rank 2 has twice as much."""
    sizes = {0: (300.0, 0.0), 1: (300.0, 0.0), 2: (600.0, 0.0)}
    finding = one(with_memory(sizes | {3 + i: (0, 0) for i in range(unknown)}), "memory-imbalance")
    assert (finding.culprits, finding.ranks) == ((2,), (0, 1, 2))
    known = facts(finding, "rank", "bytes", "usual_bytes", "total", "part")
    assert known == (2, 600 * MIB, 300 * MIB, "rss", "")


def test_one_of_two_ranks_is_compared_with_the_other() -> None:
    finding = one(with_memory({0: (400, 0), 1: (300, 0)}), "memory-imbalance")
    assert facts(finding, "rank", "bytes", "usual_bytes") == (0, 400 * MIB, 300 * MIB)


@pytest.mark.parametrize(("much", "says"), [(594, False), (640, True)])
def test_a_process_is_compared_with_the_most_that_others_had(much: int, says: bool) -> None:
    """Freed memory stays with an allocator or does not: rank 0 had 508 of 453 MiB once, and 594 is
    31 % above 453 but 17 % above 508."""
    trace = with_memory({0: (453, 0), 1: (much, 0)})
    trace.ranks[0].memory("rss", 0.5, 508 * MIB)
    assert [f.culprits for f in found(trace)] == [(1,)] * says


def test_of_half_of_the_ranks_it_is_not_known_who_has_more_memory() -> None:
    assert found(with_memory({0: (300, 0), 1: (600, 0), 2: (0, 0), 3: (0, 0)})) == []


# -- numbers


def probe(proc: Proc, name: str, t: float, step: int, **fields: int) -> None:
    proc.record(Kind.PROBE, t, t, proc.name(name), lane=Lane.COUNTER, step=step, **fields)


def test_nan_begins_in_a_ranks_own_loss() -> None:
    """Rank 2's loss in step 5; the mean that all log then, and all losses from step 6 on."""
    trace = Trace(3)
    for step in range(9):
        for proc in trace.ranks:
            own = float("nan") if step > 5 or (step == 5 and proc.rank == 2) else 1.0
            proc.metric("loss", 100 * step + 30, own, step)
            proc.metric("loss", 100 * step + 90, float("nan") if step >= 5 else 1.0, step)
            proc.step(step, 100 * step, 100 * step + 100)
    finding = one(trace, "nan")
    assert (finding.culprits, finding.severity) == ((2,), "error")
    assert facts(finding, "what", "step") == ("loss", 5)


@pytest.mark.parametrize("op", ["all_gather", "broadcast", ""])
def test_losses_that_ranks_share_do_not_tell_whose_is_wrong(op: str) -> None:
    """Tensor parallel: parts are gathered in forward, or a batch is broadcast. Losses are NaN from
    step 5 on, on both ranks at once."""
    trace = Trace(2)
    for step in range(9):
        t = 100 * step
        for proc in trace.ranks:
            proc.phase("forward", t + 5, t + 30, step)
            if op:
                proc.collective("world", op, t + 10, t + 20, step=step)
            proc.seen_loss(t + 30, float("nan") if step >= 5 else 1.0, step)
            proc.phase("backward", t + 30, t + 50, step)
            proc.step(step, t, t + 100)
    finding = one(trace, "nan")
    assert finding.culprits == ()
    assert facts(finding, "everywhere", "mixed") == (True, op == "all_gather")


def test_the_mean_that_a_rank_logs_of_the_step_before_is_not_its_own_loss() -> None:
    """Rank 0 logs the mean once its optimizer has stepped. Its own loss is NaN in step 5, after the
    mean of step 4; from step 6 on all are."""
    trace = Trace(3)
    for step in range(9):
        for proc in trace.ranks:
            if proc.rank == 0 and step > 0:
                proc.metric("loss", 100 * step + 5, float("nan") if step > 5 else 1.0, step)
            odd = step > 5 or (step == 5 and proc.rank == 0)
            proc.seen_loss(100 * step + 30, float("nan") if odd else 1.0, step)
            proc.step(step, 100 * step, 100 * step + 100)
    finding = one(trace, "nan")
    assert finding.culprits == (0,) and facts(finding, "step") == 5


@pytest.mark.parametrize(
    ("bad", "culprits", "op"),
    [
        ([(1, 5, 0)], (1,), 10),
        ([(1, 5, 1)], (1,), 11),
        ([(1, 5, 0), (2, 5, 1)], (1,), 10),  # it may have it from rank 1
        ([(1, 5, 0), (2, 5, 0)], (1, 2), 10),
        ([(0, 5, 0), (1, 5, 0), (2, 5, 0)], (), 0),  # all at once
        ([(1, 2, 0), (1, 5, 0)], (), 0),  # meant, two steps before
        ([(1, 6, 0)], (), 0),
        ([], (), 0),
    ],
)
def test_nan_that_ranks_gather_is_the_first_ones(
    bad: list[tuple[int, int, int]], culprits: tuple[int, ...], op: int
) -> None:
    """Three ranks gather twice in forward; losses are NaN from step 5 on, on all at once. ``bad``:
    (rank, step, which of the two) of inputs that were not finite."""
    trace = Trace(3)
    for step in range(9):
        t = 100 * step
        for proc in trace.ranks:
            proc.phase("forward", t + 5, t + 30, step)
            for which in (0, 1):
                at = t + 10 + 8 * which
                seq = proc.collective("world", "all_gather", at, at + 5, step=step)
                if (proc.rank, step, which) in bad:
                    probe(proc, "nan gathered", at, step, group_id=proc.group("world"), seq=seq,
                          a=3, b=0)  # fmt: skip
            proc.seen_loss(t + 30, float("nan") if step >= 5 else 1.0, step)
            proc.phase("backward", t + 30, t + 50, step)
            proc.step(step, t, t + 100)
    finding = one(trace, "nan")
    assert finding.culprits == culprits
    what = f"input to a collective of world, #{op}" if culprits else "loss"
    assert facts(finding, "what", "step", "everywhere") == (what, 5, not culprits)


def test_nan_begins_in_what_a_rank_brings_to_a_collective() -> None:
    """Losses are finite in step 5; rank 1's gradients are not, in the parameter head.weight."""
    trace = Trace(3)
    for step in range(9):
        for proc in trace.ranks:
            proc.metric("loss", 100 * step + 30, float("nan") if step > 5 else 1.0, step)
            seq = proc.collective("world", "all_reduce", 100 * step + 40, 100 * step + 50,
                                  step=step)  # fmt: skip
            if step == 5 and proc.rank == 1:
                probe(proc, "nan", 540, step, group_id=proc.group("world"), seq=seq, a=7, b=3)
                probe(proc, "nan grad head.weight", 560, step, seq=1, a=7, b=9)
            proc.step(step, 100 * step, 100 * step + 100)
    finding = one(trace, "nan")
    assert (finding.culprits, finding.where) == ((1,), "head.weight")
    what = "input to a collective of world, #5"
    assert facts(finding, "what", "step", "parameter") == (what, 5, "head.weight")


@pytest.mark.parametrize(("whose", "shared"), [((1,), False), ((), False), ((1,), True)])
def test_a_loss_that_is_not_finite_names_what_was_so_before(
    whose: tuple[int, ...], shared: bool
) -> None:
    """And no parameter by its gradient: after such a loss no gradient is finite. ``shared``: both
    ranks compute with rank 1's shard, rank 0 first."""
    trace = Trace(2)
    for step in range(8):
        for proc in trace.ranks:
            bad = (proc.rank == 1 or shared) and step > 4
            proc.seen_loss(100 * step + 30 + (proc.rank or 0), float("nan") if bad else 1.0, step)
            if bad and step == 5:
                probe(proc, "nan grad head.bias", 560, step, seq=1, a=7, b=9)
                if proc.rank in whose:
                    probe(proc, "nan parameter up.weight", 531, step, seq=1, a=1, b=0)
            proc.step(step, 100 * step, 100 * step + 100)
    finding = one(trace, "nan")
    assert finding.culprits == (() if shared else (1,)) and facts(finding, "spoilt") == whose
    assert finding.where == ("up.weight" if whose else None)


@pytest.mark.parametrize(("bad", "before"), [(25, ()), (3, (0,))])
def test_what_a_stage_sends_may_be_not_finite_by_few_values_of_the_one_before(
    bad: int, before: tuple[int, ...]
) -> None:
    """Rank 0 sends to 1 and 1 to 2, 100 bytes each, 25 float32. In step 5 ``bad`` of those of rank
    1 are not finite; 3 may come from one that rank 0 sent and nobody looked at."""
    trace = Trace(3)
    for step in range(8):
        t = 100 * step
        for proc in trace.ranks:
            rank = proc.rank or 0
            if rank:
                proc.p2p("world", rank - 1, False, t + 10 * rank, t + 10 * rank + 1, step=step)
            if rank < 2:
                proc.p2p("world", rank + 1, True, t + 10 * rank + 5, t + 10 * rank + 6, step=step)
            proc.step(step, t, t + 90)
        trace.ranks[2].seen_loss(t + 60, float("nan") if step > 4 else 1.0, step)
    proc = trace.ranks[1]  # two messages a step: its send of step 5 is #11
    probe(proc, "nan", 515, 5, group_id=proc.group("world"), seq=11, peer=2, a=bad,
          flags=wire.Flag.P2P | wire.Flag.SEND)  # fmt: skip
    finding = one(trace, "nan")
    assert finding.culprits == (1,) and facts(finding, "before") == before


@pytest.mark.parametrize(("op", "before"), [("all_to_all", (0, 2)), ("all_gather", ())])
def test_an_expert_may_have_made_the_nan_of_another_ranks_loss(
    op: str, before: tuple[int, ...]
) -> None:
    """Rank 1's loss is NaN since step 5, in which tokens came back from all ranks' experts."""
    trace = Trace(3)
    for step in range(8):
        t = 100 * step
        for proc in trace.ranks:
            proc.collective("world", op, t + 10, t + 20, step=step)
            bad = step > 4 and proc.rank == 1
            proc.seen_loss(t + 30, float("nan") if bad else 1.0, step)
            proc.step(step, t, t + 90)
    finding = one(trace, "nan")
    assert (finding.culprits, facts(finding, "before")) == ((1,), before)


@pytest.mark.parametrize(("since", "tries"), [(4, "try everywhere"), (0, "try first")])
def test_nan_everywhere_at_once_names_nobody(since: int, tries: str) -> None:
    """In the first step no learning rate was too high: parameters begin so."""
    trace = Trace(2)
    for step in range(8):
        for proc in trace.ranks:
            proc.metric("loss", 100 * step + 30, float("inf") if step >= since else 1.0, step)
            proc.step(step, 100 * step, 100 * step + 100)
    finding = one(trace, "nan")
    assert finding.culprits == () and facts(finding, "everywhere")
    assert STEP.join(finding.steps) == word(NotFinite, tries)


def test_an_overflow_that_passes_is_worth_a_note() -> None:
    """As with a gradient scaler: one step, skipped, nothing later."""
    trace = Trace(2)
    for step in range(8):
        for proc in trace.ranks:
            seq = proc.collective("world", "all_reduce", 100 * step, 100 * step + 5, step=step)
            if step == 3:
                probe(proc, "nan", 300, 3, group_id=proc.group("world"), seq=seq, a=1, b=0)
            proc.step(step, 100 * step, 100 * step + 100)
    assert one(trace, "nan").severity == "info"


@pytest.mark.parametrize(
    ("odd", "severity", "steps"),
    [
        ((3, 7), "info", (3, 7)),
        ((3,), "info", ()),
        ((3, 10), "error", ()),  # one loss since
        (tuple(range(3, 12)), "error", ()),
    ],
)
def test_overflows_that_the_program_skips_each_time_are_worth_a_note(
    odd: tuple[int, ...], severity: str, steps: tuple[int, ...]
) -> None:
    """Rank 1's losses of 12 steps. Parameters that were spoilt would spoil all that follow."""
    trace = Trace(2)
    for step in range(12):
        for proc in trace.ranks:
            bad = proc.rank == 1 and step in odd
            proc.seen_loss(100 * step + 30, float("inf") if bad else 1.0, step)
            if bad:  # no optimizer's step: the next loss is added to that
                proc.seen_loss(100 * step + 60, float("inf"), step)
            proc.step(step, 100 * step, 100 * step + 100)
    finding = one(trace, "nan")
    assert (finding.culprits, finding.severity) == ((1,), severity)
    assert facts(finding, "step", "steps") == (3, steps)


def replicas(sums: dict[int, list[tuple[int, int]]], name: str = "checksum") -> Trace:
    """rank -> (sum, bytes) of the checksums of steps 0, 10, 20, …"""
    trace = Trace(len(sums))
    for proc in trace.ranks:
        for i, (whole, parts) in enumerate(sums[proc.rank or 0]):
            probe(proc, f"{name} a b c", 1000 * i + 90, 10 * i, group_id=proc.group("world"),
                  a=whole, b=parts)  # fmt: skip
    return trace


def test_a_replica_that_drifts() -> None:
    """Rank 1's second part differs from step 10 on."""
    same = [(5, 0x030201), (6, 0x030202), (7, 0x030203)]
    finding = one(replicas({0: same, 1: [same[0], (9, 0x030902), (8, 0x030903)], 2: same}),
                  "replica-divergence")  # fmt: skip
    assert (finding.culprits, finding.severity, finding.where) == ((1,), "error", "b")
    assert facts(finding, "equal_step", "step", "parts") == (0, 10, ("b",))


def test_replicas_that_agree_again_are_worth_a_note() -> None:
    """Local SGD: averaged now and then."""
    finding = one(replicas({0: [(5, 1), (6, 1), (7, 1)], 1: [(5, 1), (8, 2), (7, 1)]}),
                  "replica-divergence")  # fmt: skip
    assert finding.severity == "info" and facts(finding, "again_step") == 20
    assert finding.culprits == ()  # of two, neither side is larger


def test_replicas_do_not_agree_again_in_a_step_that_one_has_not_come_to() -> None:
    """Rank 1 steps less often: by now the others alone have come to step 20."""
    same = [(5, 1), (6, 1), (7, 1)]
    finding = one(replicas({0: same, 1: [(5, 1), (8, 2)], 2: same}), "replica-divergence")
    assert (finding.culprits, finding.severity) == ((1,), "error")
    assert facts(finding, "step", "again_step") == (10, None)


@pytest.mark.parametrize(("every", "num_bytes", "in_backward", "severity"), [
    (4, 196, False, "info"), (4, 4, False, "error"), (4, 196, True, "error"),
    (1, 196, False, "error"), (24, 196, False, "error"),
])  # fmt: skip
def test_replicas_that_are_averaged_now_and_then_may_differ_in_between(
    every: int, num_bytes: int, in_backward: bool, severity: str
) -> None:
    """Local SGD under DDP over 24 steps: 196 bytes of parameters are averaged after each 4th
    optimizer, so checksums (before that) of steps 10 and 20 differ. A loss is not a model; what
    backward or each step reduces is none that is averaged now and then, nor is a single one."""
    trace = replicas({0: [(5, 1), (6, 1), (7, 1)], 1: [(5, 1), (8, 2), (9, 2)]})
    for proc in trace.ranks:
        proc.define(wire.DefKind.MODEL, zero=0, shards=1, parameters_bytes=196, optimizer="SGD")
        for step in range(24):
            proc.phase("backward", 100 * step + 30, 100 * step + 60, step)
            proc.phase("optimizer", 100 * step + 70, 100 * step + 80, step)
            if step % every == 0:
                at = 100 * step + (40 if in_backward else 95)
                proc.collective("world", "all_reduce", at, at + 1, num_bytes, step=step)
    finding = one(trace, "replica-divergence")
    assert finding.severity == severity
    assert facts(finding, "averaged") == (severity == "info")


def test_who_was_equal_after_a_step_is_a_replica_without_ddp() -> None:
    """Two stages of two replicas each: 0 and 2, 1 and 3. Rank 3 drifts by step 10; that stages
    differ from the first step on says nothing."""
    same = [(5, 1), (6, 1)]
    sums = {0: same, 1: [(7, 1), (8, 1)], 2: same, 3: [(7, 1), (9, 2)]}
    finding = one(replicas(sums, "checksum-own"), "replica-divergence")
    assert (finding.ranks, finding.severity) == ((1, 3), "warning")


def test_who_never_was_equal_is_no_replica() -> None:
    """Local SGD that averages after its optimizer's step; a parameter server's workers."""
    assert found(replicas({0: [(5, 1), (6, 1)], 1: [(7, 1), (8, 1)]}, "checksum-own")) == []


def test_equal_replicas_and_lone_ranks_give_nothing() -> None:
    same = [(5, 1), (6, 1)]
    assert found(replicas({0: same, 1: same})) == []
    assert found(replicas({0: same, 1: []})) == []
    assert wire.Kind.PROBE == 13


def test_optimizer_steps_are_counted_at_a_collective_that_all_passed() -> None:
    """Rank 1 skips its second step, and is one collective ahead when it is looked at: before the
    5th all_reduce (the newest that both issued) rank 0 has stepped 4 times, rank 1 3 times."""
    trace = Trace(2)
    for step in range(6):
        for proc in trace.ranks:
            if proc.rank == 0 and step == 5:
                continue
            sync(proc, 100 * step + 10, 100 * step + 12, step)
            if not (proc.rank == 1 and step == 1):
                proc.phase("optimizer", 100 * step + 20, 100 * step + 30, step)
    assert updates(View(trace.store(), None), (0, 1), "world") == {0: 4, 1: 3}


@pytest.mark.parametrize(
    ("backwards", "ops", "skipped"),
    [
        (1, 2, ()),  # rank 1 sums twice a step, so it is in an earlier one
        (2, 2, (1,)),  # every second backward has no step
    ],
)
def test_a_rank_that_lacks_updates_skipped_them_only_if_it_ran_their_backwards(
    backwards: int, ops: int, skipped: tuple[int, ...]
) -> None:
    """Ranks sum once a step of 100 ms, at its begin; rank 1 ``ops`` times, over as many ops."""
    trace = replicas({0: [(5, 1), (6, 1)], 1: [(5, 1), (8, 1)], 2: [(5, 1), (6, 1)]})
    for proc in trace.ranks:
        each = ops if proc.rank == 1 else 1
        for step in range(24 // each):
            for at in range(each):
                t = 100 * step * each + 20 * at
                proc.collective("world", "all_reduce", t, t + 5, step=step)
            for at in range(backwards if proc.rank == 1 else 1):
                t = 100 * step * each + 40 + 10 * at
                proc.phase("backward", t, t + 5, step)
            proc.phase("optimizer", 100 * step * each + 80, 100 * step * each + 90, step)
    finding = one(trace.flush(), "replica-divergence")
    assert facts(finding, "skipped") == skipped
