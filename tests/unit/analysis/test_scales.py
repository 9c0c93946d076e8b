"""Losses that ranks multiply by unlike numbers, over steps of 10 ms: a backward or more at 1-3, the
gradients' average at 4, the optimizer 6-7; every tenth step tells the number. Worked out by
hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.values.scales import (
    clipped_parts,
    only_zeros,
    unequal_computations,
    unequal_scales,
)
from pardbg_agent import wire
from pardbg_agent.wire import Flag, Kind, Lane
from tests.unit.facts import facts
from tests.unit.trace_builder import Trace

BYTES = 4096
STEPS = 24
"""With looks in steps 0, 10 and 20."""
Scales = Sequence[Sequence[float]]


def job(
    scales: Scales, losses: Sequence[float] = (), backwards: Sequence[int] = (), op: str = "",
    sharded: bool = False, told: int = 1, words: Sequence[Sequence[str]] = (),
    zeros: Sequence[Sequence[int]] = (), least: int = 64, experts: int = 0, staged: bool = False,
) -> View:  # fmt: skip
    """A rank for each list of numbers, one a look; of losses of 2, unless they are given, before
    that. ``told``: records of each look (two optimizers take turns). ``words``: names of records
    and ``zeros``: bytes, likewise; ``staged``: each rank is a stage of a pipeline. Besides the
    gradients 32 bytes are summed, and all ranks but the first sum those of ``experts`` among
    themselves."""
    trace = Trace(len(scales), {"world": range(len(scales)), "few": range(1, len(scales))})
    for rank, proc in enumerate(trace.ranks):
        proc.define(wire.DefKind.MODEL, zero=3 if sharded else 0, shards=3 if sharded else 1,
                    parameters_bytes=BYTES, optimizer="SGD", start=3, dtype="float32",
                    parameters_sharded=sharded)  # fmt: skip
        number = backwards[rank] if backwards else 1
        for step in range(STEPS):
            t = 10 * step
            if step % 10 == 0:
                scale = scales[rank][step // 10]
                value = scale * (losses[rank] if losses else 2.0)
                (bits,) = struct.unpack("<q", struct.pack("<d", value))
                if words and words[rank][step // 10]:
                    name = proc.name(words[rank][step // 10])
                    proc.record(Kind.PROBE, t + 0.4, t + 0.4, name, lane=Lane.COUNTER, step=step,
                                flags=Flag.FLOAT, a=scale)  # fmt: skip
                if zeros and zeros[rank][step // 10]:
                    proc.record(Kind.PROBE, t + 6.5, t + 6.5, proc.name("zeros"), step=step,
                                lane=Lane.COUNTER, a=zeros[rank][step // 10], b=least)  # fmt: skip
                for nth in range(told):
                    at, name = t + 0.5 + nth / 10, proc.name("loss scale")
                    proc.record(Kind.PROBE, at, at, name, lane=Lane.COUNTER, flags=Flag.FLOAT,
                                step=step, a=scale, b=bits)  # fmt: skip
            if staged:
                proc.action(f"{rank}F0", t + 0.6, t + 0.8, step)
            for part in range(number):
                begin = t + 1 + 2 * part / number
                proc.phase("backward", begin, begin + 1 / number, step)
            proc.collective("world", op or "all_reduce", t + 4, t + 5, BYTES, BYTES, step=step)
            proc.collective("world", "all_reduce", t + 5.2, t + 5.4, 32, 32, step=step)
            if experts and rank:
                proc.collective("few", "reduce_scatter", t + 5.5, t + 5.8, experts, 8, step=step)
            proc.phase("optimizer", t + 6, t + 7, step)
            proc.step(step, t, t + 9)
    trace.flush()
    return View(trace.store(), None)


def said(view: View) -> list[tuple[object, ...]]:
    return [(one.culprits, *facts(one, "step", "number")) for one in unequal_scales(view)]


FOURTH, WHOLE = (0.25,) * 3, (1.0,) * 3


@pytest.mark.parametrize(
    ("view", "found"),
    [
        (job([WHOLE, (2.0,) * 3, WHOLE]), [((1,), 0, 3)]),
        (job([FOURTH, WHOLE, FOURTH], backwards=[4, 4, 4]), [((1,), 0, 3)]),
        (job([FOURTH, WHOLE, FOURTH], op="reduce_scatter", sharded=True), [((1,), 0, 3)]),
        (job([WHOLE, (2.0,) * 3], told=2), [((), 0, 6)]),  # no majority; two losses a step
        # a weight that changes in the same way on all
        (job([(1.0, 0.5, 0.2), (2.0, 1.0, 0.4), (1.0, 0.5, 0.2)]), [((1,), 0, 3)]),
        # without the number 1.3 times the loss of the others: other data
        (job([WHOLE, (2.0,) * 3, WHOLE], losses=[2.0, 2.6, 2.0]), [((1,), 0, 3)]),
    ],
)
def test_a_rank_that_multiplies_its_loss_by_another_number(
    view: View, found: list[tuple[object, ...]]
) -> None:
    assert said(view) == found


@pytest.mark.parametrize(
    "view",
    [
        job([FOURTH, FOURTH, FOURTH]),
        job([WHOLE, (1.1,) * 3, WHOLE]),  # about the same
        job([WHOLE, (1.0, 2.0, 2.0), WHOLE]),  # two looks
        job([WHOLE, (2.0, 2.0, 1.0), WHOLE]),  # it is over
        job([WHOLE, (2.0, 3.0, 2.0), WHOLE]),  # weights of batches of unlike sizes
        job([WHOLE, (0.0,) * 3, WHOLE]),  # a rank without data takes part
        job([(2.0,) * 3, (0.5,) * 3, (0.5,) * 3]),  # 32, 8 and 8 samples: 3 for three ranks
        job([(0.5,) * 3, (0.25,) * 3, (0.25,) * 3]),  # the same, of the whole batch
        job([(0.25,) * 3, (0.125,) * 3, (0.125,) * 3], backwards=[2, 2, 2]),  # in two halves
        # sums over 16, 4 and 4 samples, divided by as many
        job([(1 / 16,) * 3, (1 / 4,) * 3, (1 / 4,) * 3], losses=[32.0, 8.0, 8.0]),
        # 4 and 2 microbatches, divided by as many
        job([FOURTH, (0.5,) * 3, FOURTH], backwards=[4, 2, 4]),
        job([WHOLE, (2.0,) * 3, WHOLE], op="broadcast"),  # nothing is averaged
    ],
)
def test_numbers_that_are_alike_or_meant(view: View) -> None:
    assert said(view) == []


def by(*ops: str) -> list[str]:
    """Names of the records of three looks."""
    return [op and f"loss by Mean {op} Relu" for op in (ops * 3)[:3]]


def of(*classes: str) -> list[str]:
    return [f"modules Linear() {each}" for each in (classes * 3)[:3]]


ONES = [WHOLE, WHOLE, WHOLE]


@pytest.mark.parametrize(
    ("words", "what", "sides", "culprits"),
    [
        ([by("Pow"), by("Cast"), by("Pow")], "loss", ((0, "Pow"), (1, "Cast"), (2, "Pow")), (1,)),
        # one has an op less; and all are unlike
        ([by("Pow"), by("Pow"), ["loss by Mean"] * 3], "loss",
         ((0, "Pow"), (1, "Pow"), (2, "")), (2,)),
        ([by("Pow"), by("Abs"), by("Cast")], "loss", ((0, "Pow"), (1, "Abs"), (2, "Cast")), ()),
        ([of("ReLU()"), of("ReLU()"), of("GELU()")], "modules",
         ((0, "ReLU()"), (1, "ReLU()"), (2, "GELU()")), (2,)),
    ],
)  # fmt: skip
def test_ranks_that_compute_their_gradients_by_other_means(
    words: Sequence[Sequence[str]], what: str, sides: object, culprits: object
) -> None:
    (found,) = unequal_computations(job(ONES, words=words))
    assert (found.culprits, *facts(found, "what", "of", "step")) == (culprits, what, sides, 0)


@pytest.mark.parametrize(
    "words",
    [
        [by("Pow"), by("Pow"), by("Pow")],
        [by("Pow", "Abs", "Pow"), by("Abs", "Pow", "Abs"), by("Pow", "Abs", "Pow")],  # by chance
        [by("Pow"), by("Pow", "Abs", "Abs"), by("Pow")],  # two looks
        [by("Pow"), by("Abs", "Abs", "Pow"), by("Pow")],  # it is over
        [by("Pow"), by("Abs", "", "Abs"), by("Pow")],  # no time for a look
        [of("Dropout(p=0.1)"), of("Dropout(p=0.1)"), of("Dropout(p=0.1)")],
    ],
)
def test_computations_that_are_alike_or_vary(words: Sequence[Sequence[str]]) -> None:
    assert list(unequal_computations(job(ONES, words=words))) == []


NONE, ALL = (0, 0, 0), (BYTES,) * 3


def with_experts(num_zeros: int) -> View:
    """Two thirds of what is summed is of experts; so many bytes of rank 1's are zeros."""
    zeros = [NONE, (num_zeros,) * 3, NONE]
    return job(ONES, zeros=zeros, op="reduce_scatter", sharded=True, experts=2 * BYTES)


@pytest.mark.parametrize(
    ("view", "found"),
    [
        (job(ONES, zeros=[NONE, ALL, NONE]), [((1,), 0, 3)]),
        (job(ONES, zeros=[ALL, ALL, NONE]), [((0, 1), 0, 3)]),
        (job(ONES, zeros=[NONE, ALL, NONE], op="reduce_scatter", sharded=True), [((1,), 0, 3)]),
        (with_experts(3 * BYTES), [((1,), 0, 3)] * 2),
    ],
)
def test_a_rank_that_gives_nothing_but_zeros(view: View, found: list[tuple[object, ...]]) -> None:
    assert [(one.culprits, *facts(one, "step", "number")) for one in only_zeros(view)] == found


@pytest.mark.parametrize(
    "view",
    [
        job(ONES, zeros=[NONE, NONE, NONE]),
        job(ONES, zeros=[ALL, ALL, ALL]),  # the model learns nothing, or is frozen
        job(ONES, zeros=[NONE, (0, BYTES, BYTES), NONE]),  # two looks: a batch that is masked out
        job(ONES, zeros=[NONE, (BYTES, BYTES, 0), NONE]),  # it is over
        job(ONES, zeros=[NONE, (BYTES - 64,) * 3, NONE]),  # of some parameters: an unused branch
        job(ONES, zeros=[NONE, ALL, NONE], losses=[2.0, 0.0, 2.0]),  # a rank without data
        job(ONES, zeros=[NONE, ALL, NONE], op="broadcast"),  # nothing is averaged
        # experts that had no token
        with_experts(2 * BYTES),
        # the gradients are smaller than what is looked at
        job(ONES, zeros=[NONE, ALL, NONE], least=BYTES + 1),
    ],
)
def test_zeros_that_are_meant(view: View) -> None:
    assert list(only_zeros(view)) == []


SHARD, STAGE = ("clips shard",) * 3, ("clips stage",) * 3


@pytest.mark.parametrize(
    ("words", "of", "found"),
    [
        ([SHARD, SHARD], "shards", [((0, 1), 0, "shards")]),
        ([SHARD, ("", *SHARD[1:])], "shards", []),  # two looks that both have
        ([SHARD, SHARD], "", []),
        ([STAGE, STAGE], "stages", [((0, 1), 0, "stages")]),
        ([STAGE, ("",) * 3], "stages", []),  # one stage, as an embedding
        ([STAGE, STAGE], "shards", []),
    ],
)
def test_ranks_that_clip_their_part_of_the_model_alone(
    words: Sequence[Sequence[str]], of: str, found: list[tuple[object, ...]]
) -> None:
    view = job([[1.0] * 3] * 2, op="reduce_scatter", sharded=of == "shards", words=words,
               staged=of == "stages")  # fmt: skip
    assert [(one.ranks, *facts(one, "step", "of")) for one in clipped_parts(view)] == found


def test_limits_that_differ_may_come_from_the_norm_of_the_whole() -> None:
    view = job([[1.0] * 3, [0.5] * 3], words=[STAGE, STAGE], staged=True)
    assert list(clipped_parts(view)) == []
