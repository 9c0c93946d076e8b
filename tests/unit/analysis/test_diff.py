"""Comparing runs: real changes are found, noise is not taken for one."""

from __future__ import annotations

import json
import random

import numpy as np

from pardbg.analysis.answers.diff import as_dict, diff, interval
from pardbg.render.reports.verdicts import diff_text
from pardbg.store.store import Store
from pardbg_agent import wire
from tests.unit.trace_builder import Trace


def noisy_run(seed: int, mean: float = 20, steps: int = 60, ranks: int = 2, rss: int = 1 << 30,
              late: float = 0.5) -> Store:  # fmt: skip
    """Steps of ``mean`` ms ± 5 %, drifting slowly as machines do; a slow first one."""
    rng, trace, begin, drift = random.Random(seed), Trace(ranks), 0.0, 0.0
    lengths = []
    for step in range(steps):
        drift = 0.7 * drift + rng.gauss(0, 0.02)
        lengths.append(mean * (1 + drift + rng.gauss(0, 0.03)) * (5 if step == 0 else 1))
    for step, length in enumerate(lengths):
        for proc in trace.ranks:
            arrive = begin + 5 + late * (proc.rank or 0) * (1 + rng.gauss(0, 0.1))
            proc.collective("world", "all_reduce", arrive, begin + 7, 1 << 20, step=step)
            proc.phase("forward", begin, begin + length / 2, step)
            proc.step(step, begin, begin + length)
        begin += length
    for proc in trace.ranks:
        proc.memory("rss", begin, rss)
    return trace.store()


def outcomes(a: Store, b: Store) -> dict[str, str]:
    return {row.name: row.outcome for row in diff(a, b).rows}


def test_a_slower_run_is_slower_and_by_how_much() -> None:
    found = diff(noisy_run(1), noisy_run(2, mean=24))
    row = next(row for row in found.rows if row.name == "step time")
    assert row.outcome == "more" and found.rows[0] is row  # it weighs most
    assert row.low is not None and row.high is not None
    # 20 to 24 ms: the truth lies within the interval
    assert row.low < 4e6 < row.high
    assert (row.num_a, row.num_b) == (59, 59)  # without the first step


def test_noise_is_no_difference() -> None:
    """100 pairs of runs that differ by nothing but noise: a 99 % interval that holds 0 in less
    than 95 % of them would cry wolf."""
    called = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        walks = []
        for _ in range(2):
            drift, walk = 0.0, []
            for _ in range(60):
                drift = 0.7 * drift + rng.normal(0, 0.02)
                walk.append(20 * (1 + drift + rng.normal(0, 0.03)))
            walks.append(np.array(walk))
        low, high = interval(*walks)
        called += not low <= 0 <= high
    assert called <= 5


def test_the_same_run_twice_has_no_difference() -> None:
    store = noisy_run(3)
    assert set(outcomes(store, store).values()) <= {"same", "few"}
    assert "changed" not in diff_text(diff(store, store))


def test_sizes_have_no_noise_and_few_values_say_nothing() -> None:
    found = outcomes(noisy_run(1, steps=4), noisy_run(2, steps=4, rss=2 << 30))
    assert found["memory rss"] == "more"
    assert found["step time"] == "few"


def test_what_only_one_run_has_and_what_makes_it_lame() -> None:
    other = Trace(3)
    for proc in other.ranks:
        for step in range(9):
            proc.step(step, step * 20, step * 20 + 20)
    found = diff(noisy_run(1), other.store())
    assert {r.name: r.outcome for r in found.rows}["world/all_reduce skew"] == "only a"
    assert found.notes == ("2 ranks beside 3: figures per rank are not the same work",)


def test_two_clocks_are_told() -> None:
    """The hosts of the second run only launch."""
    runs = []
    for device in ("cpu", "cuda"):
        trace = Trace(1)
        for proc in trace.ranks:
            proc.define(wire.DefKind.PROCESS, proc=proc.proc, rank=proc.rank, device=device)
            for step in range(9):
                proc.step(step, step * 20, step * 20 + 20)
        runs.append(trace.store())
    assert [len(diff(runs[0], other).notes) for other in runs] == [0, 1]


def test_words_and_json() -> None:
    found = diff(noisy_run(1), noisy_run(2, mean=30, late=3))
    shown = diff_text(found)
    assert shown.splitlines()[2].startswith("changed beyond noise")
    assert "▲ step time" in shown and "%" in shown
    assert all(len(line) <= 100 for line in shown.splitlines())
    rows = json.loads(json.dumps(as_dict(found)))["rows"]
    step = next(row for row in rows if row["name"] == "step time")
    assert step["outcome"] == "more" and step["difference_interval"][0] > 0
