"""Pipeline recipes as pardbg sees them, against what torch's schedules and arithmetic say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.base.asof import View
from pardbg.analysis.pipeline.outlines import newest_step
from pardbg.analysis.pipeline.pipeline_steps import pipeline_step
from pardbg.analysis.pipeline.pipelines import layouts
from pardbg.lab.recipes.catalogue.tables import zb_h1
from pardbg.lab.recipes.pipeline import loop, one_each, v_shape
from pardbg_agent.hooks.training.pipeline import texts
from pardbg_agent.schedule_orders import one_by_one, one_f_one_b
from tests.distributed.recorded import Recorded, recorded

pytestmark = pytest.mark.timeout(150)
RANKS, MICROBATCHES, STEPS = 4, 8, 3
KIB = 1024
ACTIVATION = 2 * 64 * 64 * 4
"""2 sequences × 64 positions × 64 numbers × 4 bytes = 32 KiB."""
SCHEDULES = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "looped-bfs": "LoopedBFS",
    "zb": "InterleavedZeroBubble", "zbv": "ZBVZeroBubble", "dualpipev": "DualPipeV",
}  # fmt: skip
SOME = [
    name if name in ("1f1b", "interleaved", "zbv") else pytest.param(name, marks=pytest.mark.long)
    for name in SCHEDULES
]
"""A schedule of each kind of placement; the others in `make test-long`."""
PLACES = dict.fromkeys(SCHEDULES, loop) | {
    "gpipe": one_each, "1f1b": one_each, "zbv": v_shape, "dualpipev": v_shape
}  # fmt: skip
IN_FLIGHT = {
    "gpipe": [8, 8, 8, 8],  # m
    "1f1b": [4, 3, 2, 1],  # p - rank
    "interleaved": [11, 9, 7, 5],  # 2 (p - rank - 1) + (v - 1) p + 1
    "looped-bfs": [16, 16, 16, 16],  # v m
    "zb": [8, 8, 8, 8],
    "zbv": [8, 8, 8, 8],  # 2 p
    "dualpipev": [9, 9, 9, 9],  # 2 p + 1
}


def run(name: str) -> Recorded:
    made = recorded(name, steps=STEPS)
    assert made.exit_code == 0, made.err
    return made


def torchs_order(name: str, rank: int) -> list[str]:
    """What torch's schedule class says, but for the known error of 1F1B's own table."""
    if name == "1f1b":
        return one_f_one_b(rank, RANKS, MICROBATCHES)
    return one_by_one(texts(get_schedule_ops(SCHEDULES[name], RANKS, MICROBATCHES)[rank]))


@pytest.mark.parametrize("name", SOME)
def test_each_rank_is_seen_to_run_torchs_schedule(name: str) -> None:
    pipeline = run(name).report["pipeline"]
    stages = RANKS * len(PLACES[name](0, RANKS))
    assert (pipeline["num_stages"], pipeline["num_microbatches"]) == (stages, MICROBATCHES)
    assert [step["step"] for step in pipeline["steps"]] == list(range(STEPS))
    for step in pipeline["steps"]:
        for row in step["ranks"]:
            seen = [text for text in row["actions"] if not text.endswith("REDUCE_GRAD")]
            assert seen == torchs_order(name, row["rank"])
            assert row["busy_ns"] + sum(row["idle_ns"].values()) == step["window_ns"]
        assert [row["max_in_flight"] for row in step["ranks"]] == IN_FLIGHT[name]
        assert [row["in_flight_bound"] for row in step["ranks"]] == IN_FLIGHT[name]


@pytest.mark.parametrize("name", SOME)
def test_activations_and_gradients_have_the_bytes_of_the_formula(name: str) -> None:
    """Per border between stages on different ranks: m activations up and m gradients down."""
    place = PLACES[name]
    owner = {stage: rank for rank in range(RANKS) for stage in place(rank, RANKS)}
    expected: Counter[tuple[int, int, str]] = Counter()
    for stage in range(len(owner) - 1):
        here, there = owner[stage], owner[stage + 1]
        if here != there:
            expected[here, there, "F"] += MICROBATCHES * ACTIVATION * STEPS
            expected[there, here, "B"] += MICROBATCHES * ACTIVATION * STEPS
    seen: Counter[tuple[int, int, str]] = Counter()
    for row in run(name).report["p2p"]:
        assert row["verdict"] == "matched"
        if row["label"]:  # the first step sends shapes, too, and they have none
            seen[row["src"], row["dst"], row["label"][0]] += row["bytes"]
    assert seen == expected


@pytest.mark.parametrize("name", SOME)
def test_the_loss_on_screen_is_the_one_the_program_prints(name: str) -> None:
    made = run(name)
    last = PLACES[name](0, RANKS)[-1] == 2 * RANKS - 1  # on a V rank 0 has the last stage
    assert len(made.losses) == STEPS and len(made.lines(0 if last else 3)) >= STEPS
    assert [step["loss"] for step in made.report["steps"]] == pytest.approx(made.losses)


def test_dualpipevs_pairs_stay_pairs() -> None:
    """Rank 0 (stages 0 and 7): F7 with 7B3, then five forwards of stage 7 with backwards of 0."""
    shown = snapshot(run("dualpipev").store, None).pipeline
    assert shown is not None and shown.step is not None
    assert shown.step.ranks[0].pairs == (
        ("0F7", "7B3"), ("7F4", "0B0"), ("7F5", "0B1"), ("7F6", "0B2"), ("7F7", "0B3"),
    )  # fmt: skip


def test_naive_model_parallelism_is_seen_as_ranks_that_take_turns() -> None:
    made = run("mp")
    shown = snapshot(made.store, None).pipeline
    assert shown is not None and shown.step is not None
    assert (shown.source, shown.schedule, shown.num_stages) == ("chain", "", 4)
    assert [[a.text for a in row.actions] for row in shown.step.ranks] == [
        ["0F0", "0B0"], ["1F0", "1B0"], ["2F0", "2B0"], ["3F0", "3B0"]
    ]  # fmt: skip
    # One rank at a time: its own 1/4 and no more.
    turns = [row.actions for row in shown.step.ranks]
    forwards = [(row[0].t0_ns, row[0].t1_ns) for row in turns]
    backwards = [(row[1].t0_ns, row[1].t1_ns) for row in reversed(turns)]
    ends = [time for span in (*forwards, *backwards) for time in span]
    assert ends == sorted(ends)
    assert shown.step.bound_fraction == 0.75 and shown.step.bubble_fraction >= 0.75
    assert shown.step.implied_fraction is None
    # 16 sequences at once: 256 KiB on each of six edges, once a step.
    edges = {(e["src"], e["dst"]): e["bytes"] for e in made.report["traffic"]}
    assert edges == {edge: STEPS * 256 * KIB for a in range(3) for edge in ((a, a + 1), (a + 1, a))}


def test_dp_pp_has_two_pipelines_and_averages_each_stage() -> None:
    made = run("dp-pp")
    view = View(made.store, None)
    assert axes(made) == {("dp", (0, 2)), ("dp", (1, 3)), ("pp", (0, 1)), ("pp", (2, 3))}
    names = snapshot(made.store, None).pipelines
    assert [(name.label, name.ranks) for name in names] == [("dp=0", (0, 1)), ("dp=1", (2, 3))]
    check_pipelines(view, num_stages=2, microbatches=4)
    # A stage's gradients, once a step: 8 blocks of 49,984 numbers in halves, the embeddings'
    # 20,480 on the first stage, norm and scores 128 + 16,384 on the second.
    first = sum(bytes_issued(view, 0, 2, "dp", "all_reduce"))
    assert first == 4 * (4 * 49_984 + 20_480)
    second = sum(bytes_issued(view, 1, 2, "dp", "all_reduce"))
    assert second == 4 * (4 * 49_984 + 16_512) + 4  # and the loss, for people


@pytest.mark.long  # eight ranks; two dimensions are above
def test_three_dimensions_keep_their_names_and_their_bytes() -> None:
    made = recorded("3d", steps=STEPS)
    assert made.exit_code == 0, made.err
    assert axes(made) == {
        *(("tp", (r, r + 1)) for r in (0, 2, 4, 6)),
        *(("pp", (r, r + 2)) for r in (0, 1, 4, 5)),
        *(("dp", (r, r + 4)) for r in range(4)),
    }
    names = snapshot(made.store, None).pipelines
    assert [(name.label, name.ranks) for name in names] == [
        ("dp=0 tp=0", (0, 2)), ("dp=0 tp=1", (1, 3)),
        ("dp=1 tp=0", (4, 6)), ("dp=1 tp=1", (5, 7)),
    ]  # fmt: skip
    assert snapshot(made.store, None, rank=7).pipeline.index == 3
    view = View(made.store, None)
    check_pipelines(view, num_stages=2, microbatches=4)
    # tp: 4 blocks × 4 microbatches × 4 all_reduces of an activation, on every rank.
    for rank in range(8):
        assert bytes_issued(view, rank, 2, "tp", "all_reduce") == [ACTIVATION] * 64
    # dp: a block cut in two has 25,184 numbers on a rank (biases of the row-cut matrices and norms
    # are whole), the first stage 20,480 of embeddings beside them: gathered once, reduced once.
    numbers = 4 * 25_184 + 20_480
    assert bytes_issued(view, 0, 2, "dp", "reduce_scatter") == [4 * numbers]
    assert bytes_issued(view, 0, 2, "dp", "all_gather") == [4 * numbers // 2]  # its own half in
    # Parameters, gradients and AdamW's two states, half of each on a rank, and tp has cut before.
    for row in made.report["memory"][:2]:
        assert row["expected_bytes"] == 4 * (4 * numbers // 2)
    # pp: 4 microbatches up, 4 down.
    p2p = [row for row in made.report["p2p"] if row["label"]]
    edges = Counter((row["src"], row["dst"]) for row in p2p if row["bytes"] == ACTIVATION)
    assert len(p2p) == sum(edges.values()) and len(edges) == 8
    assert set(edges.values()) == {STEPS * 4}


def axes(made: Recorded) -> set[tuple[str, tuple[int, ...]]]:
    return {(g["axis"], tuple(g["ranks"])) for g in made.report["groups"] if g["axis"]}


def check_pipelines(view: View, num_stages: int, microbatches: int) -> None:
    """Every pipeline of the run was seen to run 1F1B."""
    for layout in layouts(view):
        step = pipeline_step(view, layout, newest_step(view, layout) or 0)
        assert step is not None and step.complete
        for stage, row in enumerate(step.ranks):
            seen = [a.text for a in row.actions if a.kind in "FB"]
            assert seen == one_f_one_b(stage, num_stages, microbatches)
            assert row.in_flight_bound == row.max_in_flight == num_stages - stage


def bytes_issued(view: View, rank: int, step: int, axis: str, op: str) -> Sequence[Any]:
    """Bytes of a rank's collectives of a step, one each."""
    process = view.ranks[rank]
    table, visible = view.rows(process, "issue")
    rows = table.step_rows(step, step, visible)
    columns = (table.col(c)[rows].tolist() for c in ("name_id", "group_id", "a"))
    return [
        size
        for name, group, size in zip(*columns, strict=True)
        if process.ops[name].op == op and process.groups[group].axis == axis
    ]


def test_a_schedule_from_a_csv_runs_as_it_is_written() -> None:
    """ZB-H1, which torch has no class for: no rank has more than p microbatches in flight."""
    pipeline = run("csv").report["pipeline"]
    assert (pipeline["schedule"], pipeline["num_microbatches"]) == ("FromCsv", MICROBATCHES)
    for step in pipeline["steps"]:
        for row, wanted in zip(step["ranks"], zb_h1(RANKS).rows, strict=True):
            seen = [text for text in row["actions"] if not text.endswith("REDUCE_GRAD")]
            assert seen == list(wanted)
            assert row["max_in_flight"] == RANKS
