"""Losses from the job's output: which step a line is of, and when none is shown."""

from __future__ import annotations

from math import isnan, nan
from statistics import fmean

import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.base import losses, printed
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.printed import given_pattern
from pardbg.store import Store
from pardbg_agent import wire
from tests.unit.trace_builder import Trace

Shown = tuple[str, tuple[tuple[int, float], ...]]


def shown(
    lines: list[tuple[float, str]],
    loss: float | list[float] | None = None,
    pattern: str = "",
    ms: float = 10,
    steps: int = 4,
) -> Shown:
    """(source, (step, loss)s) of ``steps`` steps of ``ms``; each begins with a backward at + 1 that
    began from ``loss``, of each step or of all, and ends at + 9."""
    trace = Trace(1)
    trace.define(wire.DefKind.RUN, run="r", name="n", argv=[], loss_pattern=pattern)
    proc = trace.ranks[0]
    for step in range(steps):
        t = ms * step
        proc.phase("backward", t + 1, t + 3, step)
        if loss is not None:
            proc.seen_loss(t + 2, loss if isinstance(loss, float) else loss[step], step)
        proc.step(step, t, t + 9)
    for t, text in lines:
        trace.output(t, text)
    trace.end(steps * ms + 10)
    made = snapshot(trace.store(), None)
    return made.loss_source, made.loss_history


MEGATRON = " [2026-01-01] iteration {:8}/      10 | consumed samples: 8 | lm loss: {}E+00 | x |"


@pytest.mark.parametrize("late", [0, 7, 28])
def test_a_number_counts_from_where_the_first_steps_line_says(late: float) -> None:
    """Printed after the optimizer, some ms late: 28 ms is almost three steps."""
    lines = [(10 * s + 9 + late, MEGATRON.format(s + 1, 4 - s)) for s in range(4)]
    assert shown(lines) == ("printed by Megatron", ((0, 4.0), (1, 3.0), (2, 2.0), (3, 1.0)))


def test_a_resumed_job_counts_from_there_and_may_log_every_other_step() -> None:
    lines = [(19.5, MEGATRON.format(5002, 3)), (39.5, MEGATRON.format(5004, 1))]
    assert shown(lines) == ("printed by Megatron", ((1, 3.0), (3, 1.0)))


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("steps: {} loss: {} iter time (s): 0.147 samples/sec: 218.259", "printed by DeepSpeed"),
        ("\x1b[31mstep:  {}  \x1b[32mloss:  {}  \x1b[33mmemory:  1.2GiB(3%)",
         "printed by torchtitan"),
        ("[rank 1] Step: {}     | Loss: {} | Global batch size: 8 |", "printed by picotron"),
        ("01/01/2026 iteration: {} / 6 | consumed_tokens: 1 | lm_loss: {} | lr: 1",
         "printed by nanotron"),
        ("step {} loss {}", "printed"),
        ("2026-01-01 10:00:00,123 INFO step {}/40 | lm loss: {} | lr: 1", "printed"),
        ("[10:00:00] [rank0] INFO: step {} train_loss={}", "printed"),
        ("iter {}: loss {}, time 5.00ms", "printed"),
        ("epoch 0 step {} loss {}", "printed"),
        ("Epoch [1/5], Step [{}/100], Loss: {}", "printed"),
        ("Rank 0, Epoch 3 | Batch {}/40 | Loss: {}", "printed"),
        ("[{}/40] loss={}", "printed"),
        ("[1, {:5}] loss: {}", "printed"),
        ("Train Epoch: 1 [{}00/60000 (1%)]\tLoss: {}", "printed"),
        ("rank 1 step {} loss {}", "printed"),
    ],
)  # fmt: skip
def test_lines_of_frameworks(text: str, source: str) -> None:
    lines = [(10 * s + 9.5, text.format(s + 1, 4 - s)) for s in range(4)]
    assert shown(lines) == (source, ((0, 4.0), (1, 3.0), (2, 2.0), (3, 1.0)))


def test_what_a_rank_without_the_last_stage_prints_is_no_loss() -> None:
    """torchtitan's pipelines: -1 from each rank that has no loss."""
    text = "step:  {}  loss: {:.5f}  memory:  1.2GiB(3%)"
    lines = [(10 * s + 9.5, text.format(s + 1, x)) for s in range(4) for x in (-1.0, 7.0 - s)]
    assert shown(lines)[1] == ((0, 7.0), (1, 6.0), (2, 5.0), (3, 4.0))
    assert shown(lines[::2]) == ("", ())


def test_a_long_line_of_figures_is_read_to_its_end() -> None:
    """TRL's trainers print some thirty of them."""
    text = "{{'loss': '{}', " + "'reward': '0.25', " * 40 + "'epoch': '0.1'}}"
    lines = [(41 + s, text.format(4 - s)) for s in range(4)]
    assert shown(lines) == ("printed by Transformers", ((0, 4.0), (1, 3.0), (2, 2.0), (3, 1.0)))


def test_a_worker_without_steps_of_its_own_has_no_loss_in_another_workers_step() -> None:
    """Two batches, while the parameter server steps: both are in the worker's step 0."""
    trace = Trace(2)
    server, worker = trace.ranks
    for step in range(2):
        server.phase("optimizer", 10 * step + 5, 10 * step + 9, step)
        server.step(step, 10 * step, 10 * step + 9)
        worker.seen_loss(10 * step + 2, 3.0 - step, 0)
    trace.end(30)
    made = snapshot(trace.store(), None)
    assert (made.loss_source, made.loss_history) == ("", ())


def test_lines_without_a_number_are_taken_one_for_a_step_or_not_at_all() -> None:
    text = "{{'loss': '{}', 'grad_norm': '1.0', 'epoch': '0.1'}}"
    lines = [(41 + s, text.format(4 - s)) for s in range(4)]
    assert shown(lines) == ("printed by Transformers", ((0, 4.0), (1, 3.0), (2, 2.0), (3, 1.0)))
    assert shown(lines[:2]) == ("", ())  # two lines, four short steps: whose is not known


def test_a_loss_that_is_not_finite_is_not_hidden_by_what_is_printed() -> None:
    """Transformers' Trainer leaves such losses out of what it prints (logging_nan_inf_filter)."""
    text = "{{'loss': '{}', 'grad_norm': 'nan', 'epoch': '0.1'}}"
    lines = [(41 + s, text.format(loss)) for s, loss in enumerate((4.0, 3.0, 0, 0))]
    source, history = shown(lines, loss=[4.5, 3.5, nan, nan])
    assert (source, history[:2]) == ("printed by Transformers", ((0, 4.0), (1, 3.0)))
    assert [(step, isnan(loss)) for step, loss in history[2:]] == [(2, True), (3, True)]


def test_lines_that_each_node_prints_count_once() -> None:
    text = "{{'loss': '{}', 'grad_norm': '1.0', 'epoch': '0.1'}}"
    losses = (4.0, 3.0, 3.0, 1.0)
    lines = [(41 + s + node / 4, text.format(losses[s])) for s in range(4) for node in range(2)]
    assert shown(lines) == ("printed by Transformers", tuple(enumerate(losses)))


def test_of_long_steps_the_time_says_whose_a_line_is() -> None:
    text = "{{'loss': '{}', 'grad_norm': '1.0', 'epoch': '0.1'}}"
    lines = [(550.0, text.format(3.5)), (1150.0, text.format(2.5))]  # steps of 300 ms
    assert shown(lines, ms=300) == ("printed by Transformers", ((1, 3.5), (3, 2.5)))


def test_numbers_that_begin_anew_in_each_epoch_are_no_steps_of_the_run() -> None:
    """Two epochs of six steps, a line each; then one every second step of 300 ms."""
    text = "Epoch [{}/2], Step [{}/6], Loss: {}"
    lines = [(10 * s + 9.5, text.format(s // 6, s % 6 + 1, 12.0 - s)) for s in range(12)]
    assert shown(lines, steps=12)[1] == tuple((s, 12.0 - s) for s in range(12))
    lines = [(300 * s + 299, text.format(s // 6, s % 6 + 1, 12.0 - s)) for s in range(1, 12, 2)]
    assert shown(lines, steps=12, ms=300)[1] == tuple((s, 12.0 - s) for s in range(1, 12, 2))


def test_microbatches_are_no_steps() -> None:
    """Eight lines, four steps: their numbers go further than the steps."""
    assert shown([(5 * n + 5, f"step {n} loss {n}") for n in range(8)]) == ("", ())


@pytest.mark.parametrize("text", ["iter {} loss_D 0.7 loss_G 0.6", "step {} val loss {}",
                                  "step {}: loss scale: {}", "step {} aux loss {}",
                                  "[]" * 900 + "x step {} loss {}"])  # fmt: skip
def test_what_is_no_loss_of_training(text: str) -> None:
    assert shown([(10 * s + 9.5, text.format(s, 1.5)) for s in range(4)]) == ("", ())


def test_what_backward_began_from_comes_before_a_line_of_any_kind() -> None:
    lines = [(10 * s + 9.5, f"step {s} loss {s}.5") for s in range(4)]
    assert shown(lines, loss=7.0) == ("backward", tuple((s, 7.0) for s in range(4)))


def test_a_pattern_that_was_asked_for_comes_before_it() -> None:
    lines = [(10 * s + 9.5, f"L={s}.5 at {s}") for s in range(4)]
    said = shown(lines, loss=7.0, pattern=r"L=(?P<loss>\S+) at (?P<step>\d+)")
    assert said == ("printed", tuple((s, s + 0.5) for s in range(4)))


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="no group"):
        given_pattern("loss=")
    with pytest.raises(ValueError, match="unterminated"):
        given_pattern("loss=(")


def test_of_a_live_jobs_lines_few_moments_are_kept_by_step() -> None:
    """A line a step, a look after each: each look's losses were kept, all of the run's."""
    trace, store = Trace(1), Store(live=True)
    for step in range(40):
        trace.ranks[0].step(step, 10 * step, 10 * step + 9)
        trace.output(10 * step + 9, f"step {step} loss {step}.5")
        trace.flush()
        store.apply_all(trace.messages)
        trace.messages.clear()
        snapshot(store, None)
    assert 0 < len(store.memo["printed by step"]) <= printed._KEPT + 1


@pytest.mark.parametrize(
    ("text", "of"),
    [
        ("step:  {}  loss:  {}  memory:  1.2GiB(3%)", " by torchtitan"),
        ("1|{}|Loss: {}: 10%|#", " by torchtune"),
        ("step {} loss {}", ""),
        ("[step={}/4,epoch=1]", ""),  # its own line has no loss
    ],
)
def test_what_differs_by_one_factor_is_in_the_programs_unit(text: str, of: str) -> None:
    """Backward begins from the sum over 256 tokens; every step but the first is printed."""
    values = [8.0, 6.5, 5.25, 4.0]
    lines = [(10 * s + 9.5, text.format(s + 1, values[s])) for s in (1, 2, 3)]
    if "loss" not in text.lower():
        lines = [(10 * s + 9.6, f"    train/CE loss={values[s]}") for s in range(4)]
        of = " by OLMo-core"
    found = shown(lines, [256 * value for value in values])
    assert found == (f"printed{of}; hooks saw 256 times that", tuple(enumerate(values)))


@pytest.mark.parametrize(
    "seen",
    [
        [8.1, 6.4, 5.3, 4.0],  # one rank's own, about the same
        [16.0, 26.0, 5.25, 4.0],  # another quantity
    ],
)
def test_what_differs_by_chance_is_not(seen: list[float]) -> None:
    lines = [(10 * s + 9.5, f"step {s + 1} loss {[8.0, 6.5, 5.25, 4.0][s]}") for s in range(4)]
    assert shown(lines, seen) == ("backward", tuple(enumerate(seen)))


@pytest.mark.parametrize("own", [1.0, 2.0])
def test_a_rank_that_prints_its_own_loss_tells_no_other_unit(own: float) -> None:
    """Rank 1's is three times rank 0's, which is what is printed, or half of it."""
    trace = Trace(2)
    trace.define(wire.DefKind.RUN, run="r", name="n", argv=[], loss_pattern="")
    for step in range(6):
        for proc, times in zip(trace.ranks, (own, 3 * own), strict=True):
            proc.phase("backward", 10 * step + 1, 10 * step + 3, step)
            proc.seen_loss(10 * step + 2, times * (8.0 - step), step)
            proc.step(step, 10 * step, 10 * step + 9)
        trace.output(10 * step + 9.5, f"step {step} loss {8.0 - step}")
    trace.end(70)
    source = "backward" if own == 1 else "printed; hooks saw 4 times that"
    made = snapshot(trace.store(), None)
    assert (made.loss_source, made.loss_history[0]) == (source, (0, 16.0 if own == 1 else 8.0))


@pytest.mark.parametrize(("least", "source"), [(8, "printed"), (1, "backward")])
def test_sums_over_unlike_numbers_of_tokens_are_not_the_loss(least: int, source: str) -> None:
    """A running mean may be as far from a step's loss in some steps, but not in all."""
    said = [4.0 - step / 16 for step in range(17)]
    seen = [loss * (least + 7 * step % 5) for step, loss in enumerate(said)]
    lines = [(10 * s + 9.5, f"step {s + 1} loss {loss}") for s, loss in enumerate(said)]
    found = shown(lines, seen, steps=17)
    assert found == (source, tuple(enumerate(said if least > 1 else seen)))


def test_two_losses_that_hardly_move_are_not_one_in_two_units() -> None:
    """A mean over the last steps, say, beside one batch's: any two of these are proportional."""
    lines = [(10 * s + 9.5, f"step {s + 1} loss {2.31 - s / 40}") for s in range(4)]
    seen = [2.01, 1.98, 1.98, 1.945]
    assert shown(lines, seen) == ("backward", tuple(enumerate(seen)))


def test_a_loss_that_hardly_moves_may_be_in_another_unit() -> None:
    """Near its end a run's lines differ little, but by far more than the factor."""
    lines = [(10 * s + 9.5, f"step {s + 1} loss {2.31 - s / 1000:.4f}") for s in range(4)]
    seen = [4.62 - s / 500 for s in range(4)]
    assert shown(lines, seen)[0] == "printed; hooks saw 2 times that"


def test_a_loss_that_is_not_finite_leaves_the_unit() -> None:
    lines = [(10 * s + 9.5, f"step {s + 1} loss {8.0 - s}") for s in range(3)]
    source, history = shown(lines, [16.0, 14.0, 12.0, float("nan")])
    assert source == "printed; hooks saw 2 times that"
    assert history[:3] == ((0, 8), (1, 7), (2, 6))


def test_of_lines_far_apart_each_frame_looks_at_their_steps_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps that are read again for the second frame of 9,000 steps, every 600th is printed."""
    trace, each = Trace(1), 600
    trace.define(wire.DefKind.RUN, run="r", name="n", argv=[], loss_pattern="")
    for step in range(15 * each):
        trace.ranks[0].phase("backward", 10 * step + 1, 10 * step + 3, step)
        trace.ranks[0].seen_loss(10 * step + 2, 2.0 * step, step)
        trace.ranks[0].step(step, 10 * step, 10 * step + 9)
        if step % each == each - 1:
            trace.output(10 * step + 9.5, f"step {step + 1} loss {step}")
    trace.flush()
    store = trace.store()
    assert losses.loss_source(View(store, None)) == "printed; hooks saw 2 times that"
    read: list[int] = []
    original = losses._of_steps
    monkeypatch.setattr(losses, "_of_steps", lambda view, by_step: (
        read.append(len(by_step)), original(view, by_step))[1])  # fmt: skip
    losses.loss_source(View(store, None))
    assert sum(read) <= 16


@pytest.mark.parametrize("times", [1 / 2, 1, 96])
@pytest.mark.parametrize(("every", "ms"), [(2, 400), (4, 400), (10, 400), (10, 50)])
def test_a_line_every_few_steps_may_say_the_mean_since_the_one_before(
    every: int, ms: int, times: float
) -> None:
    """Transformers' Trainer with logging_steps: hooks see a sum over 96 tokens, or half a batch.
    Each step's own loss swings by a tenth, so no line is near that of its step."""
    own = [8.0 - step / 8 + (step % 7 - 3) / 10 for step in range(40)]
    ends = range(every - 1, 40, every)
    text = "{{'loss': '{:.4f}', 'grad_norm': '1.0', 'epoch': '0.1'}}"
    said = {end: fmean(own[end - every + 1 : end + 1]) for end in ends}
    lines = [(ms * end + 0.98 * ms, text.format(loss)) for end, loss in said.items()]
    source, history = shown(lines, [times * loss for loss in own], ms=ms, steps=40)
    if times == 1:
        assert (source, history) == ("backward", tuple(enumerate(own)))
        return
    assert source == f"printed by Transformers; hooks saw {times:g} times that"
    assert [step for step, _ in history] == [*range(40)]
    assert [loss for _, loss in history] == pytest.approx(
        [said.get(step, loss) for step, loss in enumerate(own)], rel=1e-3
    )
