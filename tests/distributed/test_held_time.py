"""Time that ranks were held is in no figure: steps that were stepped compare with those that ran
freely, in the same run of four real ranks."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from pardbg.analysis.answers.report import as_json, report
from pardbg.recipes import catalogue
from pardbg.session.reader import load
from tests.distributed.runs import started
from tests.distributed.test_ctl_verbs import Script
from tests.forked import forked
from tests.processes import rank_env, wait_until

FREE = 6
"""Steps that run before and after."""


def run_to(ctl: Script, step: int) -> None:
    ctl(f"until step=={step}")


@pytest.mark.timeout(180)
def test_a_stepped_step_is_as_long_as_one_that_ran(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.mcap"
    with started(forked(catalogue.command("1f1b", 4, 100_000)), file, env=rank_env()) as handle:
        ctl = Script(handle.run, capsys)
        wait_until(lambda: len(ctl("ranks")["ranks"]) == 4, 60, "all ranks")
        run_to(ctl, FREE)
        said = [ctl("tick")["text"] for _ in range(30)]  # a step has 22 ticks
        ctl("step 0")
        ctl("continue")
        ctl(f"until step=={2 * FREE + 3}")
        ctl("kill yes")
        handle.wait()
    assert sum(text.startswith("tick ") and " ran r" in text for text in said) >= 28, said
    told = as_json(report(load(file)))
    steps = {s["step"]: s for s in told["pipeline"]["steps"]}
    lasted = {s["step"]: s["duration_ns"] for s in told["steps"]}
    held = [n for n, s in steps.items() if s["held_ns"] and n in lasted]
    free = [n for n, s in steps.items() if not s["held_ns"] and n in lasted and n > 1]
    assert held and len(free) >= 6, (held, free)
    window = median(steps[n]["window_ns"] for n in free)
    bubble = median(_bubble(steps[n]) for n in free)
    length = median(lasted[n] for n in free)
    busy = median(sum(r["busy_ns"] for r in steps[n]["ranks"]) for n in free)
    assert any(steps[n]["held_ns"] > window for n in held)  # the one that was stepped
    for n in held:
        step = steps[n]
        # Without the holds within noise of those that ran: ratios in one run, and a tick lets
        # four ranks compute at once on the cores that there are. With the holds it would be > 5,
        # the bubble near 1 and host time most of the window.
        assert 0.3 < step["window_ns"] / window < 3, (n, step["window_ns"], window)
        assert 0.3 < lasted[n] / length < 3, (n, lasted[n], length)
        assert abs(_bubble(step) - bubble) < 0.3
        assert 0.3 < sum(r["busy_ns"] for r in step["ranks"]) / busy < 3
        for row in step["ranks"]:
            assert row["busy_ns"] + sum(row["idle_ns"].values()) == step["window_ns"]
            assert row["idle_ns"]["host"] < 0.4 * step["window_ns"]


def _bubble(step: dict[str, object]) -> float:
    rows: list[dict[str, int]] = step["ranks"]  # type: ignore[assignment]
    window: int = step["window_ns"]  # type: ignore[assignment]
    return 1 - sum(row["busy_ns"] for row in rows) / (len(rows) * window)
