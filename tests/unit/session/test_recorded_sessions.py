"""What holds for every recorded session that is kept in sessions/."""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pardbg.analysis.answers.report import as_json, report
from pardbg.analysis.pipeline.play import compute_plan
from pardbg.session.reader import load
from pardbg.store.store import Store
from tests.report_schema import VALIDATOR
from tests.sessions.wanted import ALL, FAULTS, RECIPES, Wanted

SESSIONS = Path(__file__).parents[3] / "sessions"
MAX_BYTES, MAX_TOTAL_BYTES = 300 << 10, 6 << 20
each = pytest.mark.parametrize("wanted", ALL, ids=lambda wanted: wanted.recipe)
HEALTHY = [w for w in RECIPES if not w.ends_badly]
healthy = pytest.mark.parametrize("wanted", HEALTHY, ids=lambda wanted: wanted.recipe)


@cache
def store_of(wanted: Wanted) -> Store:
    return load(SESSIONS / wanted.file)


@cache
def report_of(wanted: Wanted) -> dict[str, Any]:
    return as_json(report(store_of(wanted)))


def test_the_folder_has_what_the_list_has_and_keeps_its_limits() -> None:
    sizes = {path.name: path.stat().st_size for path in SESSIONS.glob("*.mcap")}
    assert set(sizes) == {wanted.file for wanted in ALL}
    assert max(sizes.values()) <= MAX_BYTES
    assert sum(sizes.values()) <= MAX_TOTAL_BYTES
    readme = (SESSIONS / "README.md").read_text(encoding="utf-8")
    for wanted in ALL:
        assert f"`pardbg demo {wanted.demo}`" in readme


@each
def test_it_loads_whole_and_nothing_is_missing(wanted: Wanted) -> None:
    store, data = store_of(wanted), report_of(wanted)
    assert not store.truncated and not store.unknown and not store.over_limit
    assert len(data["ranks"]) == (8 if wanted.recipe == "3d" else 4)
    assert [rank["dropped_records"] for rank in data["ranks"]] == [0] * len(data["ranks"])
    VALIDATOR.validate(data)


@each
def test_it_says_nothing_of_where_it_was_made(wanted: Wanted) -> None:
    """One made-up host, and paths of the neutral place or the system alone."""
    store = store_of(wanted)
    assert {process.host for process in store.procs.values()} == {"node0"}
    paths = re.findall(r"(?<![\w./-])/(?:[\w.-]+/)+[\w.-]*", "\n".join(strings(wanted)))
    allowed = ("/tmp/pardbg-sessions", "/__w/pytorch/", "/dev/", "/proc/", "/usr/lib")
    assert [path for path in paths if not path.startswith(allowed)] == []


def strings(wanted: Wanted) -> list[str]:
    """All text in a session: definitions, states, control events and the job's output."""
    import msgpack

    from pardbg.session.reader import open_session

    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, dict):
            for key, part in value.items():
                walk(key)
                walk(part)
        elif isinstance(value, list):
            for part in value:
                walk(part)

    source = open_session(SESSIONS / wanted.file)
    try:
        while not source.finished:
            for message in source.poll(0):
                if not message.key.startswith(b"R"):
                    walk(msgpack.unpackb(message.payload, strict_map_key=False))
    finally:
        source.close()
    return found


@each
def test_busy_and_every_kind_of_idle_make_the_window(wanted: Wanted) -> None:
    pipeline = report_of(wanted)["pipeline"]
    if pipeline is None:
        return
    for step in pipeline["steps"]:
        for rank in step["ranks"]:
            assert rank["busy_ns"] + sum(rank["idle_ns"].values()) == step["window_ns"]


@healthy
def test_the_recorded_actions_are_the_plans(wanted: Wanted) -> None:
    """Each rank ran its schedule's compute actions, in the schedule's order, in every step."""
    pipeline = report_of(wanted)["pipeline"]
    if pipeline is None or not store_of(wanted).plans:
        return
    planned: dict[int, list[str]] = {}
    for plan in store_of(wanted).plans.values():
        planned.update(compute_plan(plan.order, plan.ranks))
    assert len(pipeline["steps"]) == steps(wanted)
    for step in pipeline["steps"]:
        for rank in step["ranks"]:
            computed = [a for a in rank["actions"] if not a.endswith("REDUCE_GRAD")]
            assert computed == planned[rank["rank"]]


def test_activations_follow_the_microbatches_in_flight() -> None:
    """1F1B keeps p - stage microbatches, GPipe all 8; the middle stages' are of one size."""
    rows = {
        name: report_of(next(w for w in RECIPES if w.recipe == name))["memory"]
        for name in ("1f1b", "gpipe")
    }
    second, third = (rows["1f1b"][rank]["activations_peak_bytes"] for rank in (1, 2))
    assert second * 2 == third * 3
    assert rows["gpipe"][1]["activations_peak_bytes"] * 3 == second * 8


def steps(wanted: Wanted) -> int:
    words = wanted.demo.split()
    return int(words[words.index("--steps") + 1])


@healthy
def test_every_message_has_both_ends_and_every_collective_all_ranks(wanted: Wanted) -> None:
    data = report_of(wanted)
    sizes = {group["name"]: len(group["ranks"]) for group in data["groups"]}
    assert {row["verdict"] for row in data["collectives"]} <= {"matched"}
    assert {row["verdict"] for row in data["p2p"]} <= {"matched"}
    assert data["collectives"] or data["p2p"]
    assert sizes


@healthy
def test_a_healthy_session_has_no_error_and_ends_well(wanted: Wanted) -> None:
    data = report_of(wanted)
    assert [f["text"] for f in data["findings"] if f["severity"] == "error"] == []
    assert data["run"]["exit_code"] == 0


@each
def test_losses_are_numbers_but_for_nan(wanted: Wanted) -> None:
    losses = [step["loss"] for step in report_of(wanted)["steps"] if step["loss"] is not None]
    assert losses or wanted.recipe == "tour"
    if wanted.recipe != "fault:nan":
        assert all(math.isfinite(loss) for loss in losses)
        assert report_of(wanted)["loss_not_finite"] is None


faulty = pytest.mark.parametrize("wanted", FAULTS, ids=lambda wanted: wanted.recipe)


@faulty
def test_the_fault_is_found_and_no_other_rank_is_blamed(wanted: Wanted) -> None:
    findings = report_of(wanted)["findings"]
    named = [set(f["culprits"]) for f in findings if f["kind"] == wanted.finds]
    assert set(wanted.culprits) in named, [f["text"] for f in findings]
    blamed = [set(f["culprits"]) for f in findings if f["severity"] == "error"]
    assert all(culprits <= set(wanted.culprits) for culprits in blamed), findings


@faulty
def test_a_faults_session_ended_as_the_list_says(wanted: Wanted) -> None:
    assert (report_of(wanted)["run"]["exit_code"] != 0) == wanted.ends_badly
