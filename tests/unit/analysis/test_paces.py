"""Ops of a group beside the steps of its ranks, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.values import paces
from pardbg.analysis.findings.values.paces import step_drift, unequal_averaging
from pardbg.analysis.findings.values.replicas import late_averages, unequal_modes
from pardbg_agent import wire
from tests.unit.facts import facts
from tests.unit.trace_builder import Trace

BYTES = 4096


def local_sgd(every: list[int], parts: int = 1, losses: bool = True, rounds: int = 6) -> View:
    """Optimizer steps of 10 ms; after each ``every`` of its own a rank sums all parameters, in so
    many parts, and waits for the others; ``losses``: with them a loss of 4 bytes."""
    trace, slowest = Trace(len(every)), max(every)
    for number in range(rounds):
        met = 10.0 * slowest * (number + 1)
        for proc, own in zip(trace.ranks, every, strict=True):
            if not number:
                proc.define(wire.DefKind.MODEL, zero=0, shards=1, parameters_bytes=BYTES,
                            optimizer="SGD", start=7, dtype="float32")  # fmt: skip
            for step in range(own * number, own * (number + 1)):
                t = 10.0 * (slowest * number + step - own * number)
                proc.phase("optimizer", t + 6, t + 7, step)
                proc.step(step, t, t + 8)
            at = met - 2 - 10 * (slowest - own)
            for part in range(parts):
                proc.collective("world", "all_reduce", at + part / 10, met, BYTES // parts,
                                step=own * (number + 1))  # fmt: skip
            if losses:
                proc.collective("world", "all_reduce", at + 0.9, met, 4, step=own * (number + 1))
    trace.flush()
    return View(trace.store(), None)


@pytest.mark.parametrize(
    ("every", "more", "found"),
    [
        ([4, 5, 4], {}, [((1,), ((0, 4), (1, 5), (2, 4)), 24, 30)]),
        ([5, 4, 4], {"parts": 4}, [((0,), ((0, 5), (1, 4), (2, 4)), 24, 30)]),
        ([1, 2], {"losses": False}, [((), ((0, 1), (1, 2)), 6, 12)]),  # no majority
        ([4, 4, 4], {}, []),
        ([4, 5, 4], {"rounds": 3}, []),
        ([4, 5, 4], {"parts": 3, "losses": False}, []),  # 4,095 bytes: not all of the model
    ],
)
def test_ranks_that_average_their_parameters_at_other_steps(
    every: list[int], more: dict[str, int], found: list[tuple[object, ...]]
) -> None:
    view = local_sgd(every, **more)  # type: ignore[arg-type]
    said = [(one.culprits, *facts(one, "every", "first", "last"))
            for one in unequal_averaging(view)]  # fmt: skip
    assert said == found


@pytest.mark.parametrize(("every", "says"), [([4, 5, 6], "info"), ([4, 5, 4], "warning")])
def test_a_federated_average_is_a_note(every: list[int], says: str) -> None:
    """Each rank as many steps as it has data for."""
    (one,) = unequal_averaging(local_sgd(every))
    assert one.facts.severity() == says


Steps = Sequence[tuple[int, int]]
"""(reductions, backwards) of each step"""
FOUR: Steps = [(4, 1)] * 20


def reducing(
    ranks: Sequence[Steps],
    of: int = BYTES,
    op: str = "all_reduce",
    lost: bool = False,
    apart: int = 1,
) -> View:
    """An op each ms, at which all ranks meet; a rank's steps are cut from them as it says.
    ``lost``: an op of rank 0 was not recorded; ``apart``: by how much step numbers differ."""
    trace = Trace(len(ranks))
    for proc, steps in zip(trace.ranks, ranks, strict=True):
        at = 0.0
        for number, (reductions, backwards) in enumerate(steps):
            step, begin = number * apart, at
            for part in range(backwards):
                proc.phase("backward", at + part / 10, at + part / 10 + 0.05, step)
            for _ in range(reductions):
                proc.collective("world", op, at + 0.5, at + 0.9, of, step=step)
                at += 1
            if lost and proc.rank == 0 and number == 9:
                proc.next_seq("world", False)
            proc.phase("optimizer", at - 0.09, at - 0.05, step)
            proc.step(step, begin, at - 0.02)
    trace.flush()
    return View(trace.store(), None)


def drifts(view: View) -> list[tuple[object, ...]]:
    return [(one.culprits, *facts(one, "how", "numbers", "step")) for one in step_drift(view)]


THREE: Steps = [(3, 1)] * 27
SKIPS: Steps = [(4, 1)] * 9 + [(8, 2)] + [(4, 1)] * 9
ONCE: Steps = [(4, 1)] * 8 + [(3, 1)] + [(4, 1)] * 11


@pytest.mark.parametrize(
    ("ranks", "more", "found"),
    [
        ([FOUR, THREE, FOUR], {}, [((1,), "rate", ((0, 4), (1, 3), (2, 4)), 2)]),
        ([FOUR, THREE], {"op": "reduce_scatter"}, [((), "rate", ((0, 4), (1, 3)), 2)]),
        ([FOUR, FOUR, SKIPS], {}, [((2,), "skips", ((0, 17), (1, 17), (2, 16)), 9)]),
        ([SKIPS, FOUR], {}, [((0,), "skips", ((0, 16), (1, 17)), 9)]),
        ([SKIPS, SKIPS, FOUR], {}, [((0, 1), "skips", ((0, 16), (1, 16), (2, 17)), 9)]),
        ([FOUR, ONCE, FOUR], {}, [((1,), "once", ((0, 4), (1, 3), (2, 4)), 8)]),
        ([FOUR, FOUR], {}, []),
        ([FOUR, FOUR, SKIPS], {"of": 64}, []),  # a loss
        ([FOUR, FOUR, SKIPS], {"op": "all_gather"}, []),  # what actors saw
        ([FOUR, THREE], {"lost": True}, []),
        ([FOUR, THREE], {"apart": 5}, []),  # steps without any: local SGD
        ([FOUR[:9], THREE[:8]], {}, []),  # too few
        # DDP's join: a rank without data takes part in what others reduce, and runs no backward.
        ([FOUR, FOUR, [(4, 1)] * 9 + [(20, 1)] + [(4, 1)] * 6], {}, []),
        # A varying number, as of parts that take turns.
        ([[(4, 1), (2, 1)] * 10, [(3, 1)] * 20], {}, []),
    ],
)
def test_ranks_whose_steps_drift_apart(
    ranks: Sequence[Steps], more: dict[str, int], found: list[tuple[object, ...]]
) -> None:
    assert drifts(reducing(ranks, **more)) == found  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("looks", "at", "of", "found"),
    [
        (([0, 10], [0, 10]), 8, BYTES, [((0, 1), ())]),
        (([0, 10], [0]), 8, BYTES, [((0,), (0,))]),  # a single look
        (([0, 10], [0, 10]), 4, BYTES, []),  # before the step
        (([0, 10], [0, 10]), 8, BYTES // 16, []),  # a loss, some counts
        (([], []), 8, BYTES, []),  # parameters
    ],
)
def test_gradients_that_are_averaged_after_the_step(
    looks: tuple[list[int], ...], at: float, of: int, found: list[object]
) -> None:
    """Steps of 10 ms: backward 1-3, optimizer 6-7, a sum ``at``; ``looks`` at which a gradient had
    changed after the step."""
    trace = Trace(2)
    for proc, own in zip(trace.ranks, looks, strict=True):
        proc.define(wire.DefKind.MODEL, zero=0, shards=1, parameters_bytes=BYTES, optimizer="SGD",
                    start=7, dtype="float32")  # fmt: skip
        for step in range(20):
            t = 10 * step
            if step - 1 in own:
                name = proc.name("gradients late")
                proc.record(wire.Kind.PROBE, t + 0.5, t + 0.5, name, step=step - 1, a=1)
            proc.phase("backward", t + 1, t + 3, step)
            proc.phase("optimizer", t + 6, t + 7, step)
            proc.collective("world", "all_reduce", t + at, t + at + 0.5, of, step=step)
            proc.step(step, t, t + 9)
    trace.flush()
    said = [(one.ranks, one.culprits) for one in late_averages(View(trace.store(), None))]
    assert said == found


@pytest.mark.parametrize(
    ("modes", "found"),
    [
        ([[7, 7, 7], [7, 0, 0], [7, 7, 7]], [((1,), ((0, 7), (1, 0), (2, 7)), 10)]),
        ([[7, 7], [0, 0]], [((), ((0, 7), (1, 0)), 0)]),  # no majority
        ([[7, 7, 7], [7, 7, 0], [7, 7, 7]], []),  # a single look
        ([[7, 7, 7], [0, 0, 7], [7, 7, 7]], []),  # it is over
        ([[0, 0, 0], [0, 0, 0]], []),  # batch norm is frozen on all
    ],
)
def test_a_replica_that_was_left_in_eval_mode(
    modes: list[list[int]], found: list[tuple[object, ...]]
) -> None:
    trace = Trace(len(modes))
    for proc, own in zip(trace.ranks, modes, strict=True):
        for look, training in enumerate(own):
            name = proc.name("modes")
            proc.record(wire.Kind.PROBE, look, look, name, step=10 * look, a=training, b=7)
    trace.flush()
    said = [
        (one.culprits, *facts(one, "training", "step"))
        for one in unequal_modes(View(trace.store(), None))
    ]
    assert said == found


@pytest.mark.parametrize(
    ("modes", "found"),
    [
        ([[0, 0, 0], [0, 7, 7], [0, 0, 0]], []),  # evaluated, and trains again
        ([[0, 0, 0], [0, 5, 5], [0, 0, 0]], []),  # which keeps a batch norm frozen
        ([[0, 0, 0], [0, -7, -7], [0, 0, 0]], [((1,), ((1, 0),), 10, (0, 2))]),
        ([[7, 7, 7], [0, -7, -7], [7, 7, 7]], [((1,), ((0, 7), (1, 0), (2, 7)), 10, ())]),
        ([[0, 0, 0], [0, 0, -7], [0, 0, 0]], []),  # a single look
        ([[0, -7, -7], [0, -7, -7], [0, -7, -7]], []),  # all alike
    ],
)
def test_a_model_that_nothing_wraps_left_in_eval_mode(
    modes: list[list[int]], found: list[tuple[object, ...]]
) -> None:
    """Of 7 modules in training mode; 0: never in eval mode, -7: all are in it now."""
    trace = Trace(len(modes))
    for proc, own in zip(trace.ranks, modes, strict=True):
        proc.define(wire.DefKind.MODEL, zero=0, shards=1, parameters_bytes=4096, optimizer="SGD",
                    start=3, dtype="float32")  # fmt: skip
        for step in range(10 * len(own) - 9):
            t = 10 * step
            proc.phase("backward", t + 1, t + 3, step)
            proc.collective("world", "all_reduce", t + 4, t + 5, 4096, 4096, step=step)
            proc.phase("optimizer", t + 6, t + 7, step)
            if step % 10 == 0:
                training = own[step // 10]
                proc.record(wire.Kind.PROBE, t + 7, t + 7, proc.name("modes-own"), step=step,
                            a=max(0, training), b=7 if training else 0)  # fmt: skip
            proc.step(step, t, t + 9)
    trace.flush()
    said = [
        (one.culprits, *facts(one, "training", "step", "never"))
        for one in unequal_modes(View(trace.store(), None))
    ]
    assert said == found


def test_many_live_ranks_are_looked_at_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """66 ranks, twice within 20 s, and once 20 s later."""
    view, looks = reducing([FOUR] * 65 + [THREE]), []
    monkeypatch.setattr(paces, "_drifts", lambda of: looks.append(of.t_ns) or [])
    begin = -(-view.t_ns // paces.SELDOM_NS) * paces.SELDOM_NS
    for later, live in ((0, True), (19, True), (20, True), (20, False), (20, False)):
        view.t_ns, view.live = begin + later * 1_000_000_000, live
        list(step_drift(view))
    assert [(t - begin) // 1_000_000_000 for t in looks] == [0, 20, 20, 20]


def passing(sent: Sequence[int], received: Sequence[int], peer: int = 0, lost: int = 0) -> View:
    """Rank 0 sends that many messages per step to rank 1, which receives that many from ``peer``.
    ``lost``: records of rank 1 that were lost."""
    trace = Trace(2)
    for proc, numbers in zip(trace.ranks, (sent, received), strict=True):
        t = 0.0
        for step, number in enumerate(numbers):
            for _ in range(number):
                to = peer if proc.rank else 1
                proc.p2p("world", to, not proc.rank, t + 0.5, t + 0.6, step=step)
                t += 1
            proc.step(step, t, t + 0.5)
            t += 1
    trace.ranks[1].flush(lost)
    trace.flush()
    return View(trace.store(), None)


TWICE = [2] * 24
LESS = [*[2] * 11, 1, *[2] * 12]


@pytest.mark.parametrize(("sent", "received", "found"), [
    (TWICE, LESS, [((1,), "messages", ((0, 2), (1, 1)), 11)]),
    (LESS, TWICE, [((0,), "messages", ((0, 1), (1, 2)), 11)]),
    (TWICE, TWICE, []),
    (LESS, LESS, []),  # one hop less on both sides
    (TWICE, [*[2] * 11, 1, 3, *[2] * 11], []),  # received in the step after
    (TWICE, [1, *[2] * 23], []),  # one step behind since the start, as an asynchronous pipeline
    ([*[2] * 20, 1, 2, 2], [2] * 23, []),  # too new
    ([1, 2] * 12, [*[1, 2] * 6, 1, 1, *[1, 2] * 5], []),  # no number of messages is usual
])  # fmt: skip
def test_a_message_that_one_side_leaves_out(
    sent: list[int], received: list[int], found: list[object]
) -> None:
    assert drifts(passing(sent, received)) == found


def test_a_hop_of_a_ring_that_one_rank_leaves_out_is_told_once() -> None:
    """Each sends to the next and receives from the one before, twice a step; rank 1 once does
    both once less."""
    trace, t = Trace(3), 0.0
    for step in range(24):
        for at, proc in enumerate(trace.ranks):
            for hop in range(1 if (at, step) == (1, 11) else 2):
                proc.p2p("world", (at + 1) % 3, True, t + hop, t + hop + 0.1, step=step)
                proc.p2p("world", (at - 1) % 3, False, t + hop, t + hop + 0.2, step=step)
            proc.step(step, t, t + 9)
        t += 10
    trace.flush()
    view = View(trace.store(), None)
    assert drifts(view) == [((1,), "messages", ((0, 2), (1, 1), (2, 2)), 11)]


def test_messages_that_may_be_missing_are_not_counted() -> None:
    """Records were lost, or the receives are from any rank."""
    assert not drifts(passing(TWICE, LESS, lost=1))
    assert not drifts(passing(TWICE, LESS, peer=-1))
