"""The tools on recordings, asked in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pardbg.doors.tools import MAX_OPEN, Tools
from pardbg.errors import UserError

SESSIONS = Path(__file__).parents[3] / "sessions"


def at(name: str) -> Tools:
    return Tools(str(SESSIONS / name))


def rows(answer: str) -> list[Any]:
    found: list[Any] = json.loads(answer)["rows"]
    return found


def test_a_section_is_the_reports() -> None:
    tools = at("1f1b.mcap")
    overview = json.loads(tools.report())
    assert overview["sections"]["steps"] == 9 and overview["run"]["name"] == "1f1b"
    assert rows(tools.report("memory"))[0].keys() >= {"rank", "parameters_bytes"}
    assert rows(tools.report("memory", 3))[0]["rank"] == 3
    with pytest.raises(UserError):
        tools.report("pipeline.steps")


def test_a_pipeline_by_steps_and_by_ranks() -> None:
    tools = at("1f1b.mcap")
    steps = json.loads(tools.pipeline())
    assert steps["num_stages"] == 4 and [row["step"] for row in steps["rows"]][:2] == [8, 7]
    ranks = json.loads(tools.pipeline(step=5))
    assert [row["rank"] for row in ranks["rows"]] == [0, 1, 2, 3]
    assert ranks["rows"][3]["actions"][:2] == ["3F0", "3B0"]
    with pytest.raises(UserError):
        tools.pipeline(step=99)
    with pytest.raises(UserError):
        at("ddp.mcap").pipeline()


def test_collectives_and_steps_are_sorted_and_chosen() -> None:
    tools = at("fault-missing-rank.mcap")
    (odd,) = rows(tools.collectives(odd=True))
    assert (odd["verdict"], odd["missing"]) == ("missing rank", [2])
    waits = [row["wait_ns"] or 0 for row in rows(tools.collectives(sort="wait_ns"))]
    assert waits == sorted(waits, reverse=True)
    assert rows(tools.collectives(group="no such")) == []
    took = [row["duration_ns"] for row in rows(tools.steps("slowest"))]
    assert took == sorted(took, reverse=True)


def test_rank_sets_choose_rows() -> None:
    tools = at("fault-missing-rank.mcap")
    assert [row["rank"] for row in rows(tools.ranks("1-2"))] == [1, 2]
    (stack,) = rows(tools.where("2"))
    assert stack["ranks"] == [2] and stack["frames"][-1][2] == "wait_for"
    for ask in (tools.ranks, tools.where):
        with pytest.raises(UserError):
            ask("9")


def test_what_the_job_printed_is_explained() -> None:
    (found,) = rows(at("fault-missing-rank.mcap").explain())
    assert found["culprits"] == [2]
    with pytest.raises(UserError):
        at("ddp.mcap").explain(["-"])


def test_a_session_is_compared_with_itself_and_what_lacks_tensors_says_so() -> None:
    path = str(SESSIONS / "ddp.mcap")
    tools = Tools(path)
    assert json.loads(tools.same(path, path))["exit_code"] == 2
    assert json.loads(tools.same())["reason"] == "nothing-captured"
    with pytest.raises(UserError):
        tools.same(path, floor=path)


def test_few_recordings_stay_open() -> None:
    tools = at("ddp.mcap")
    for path in sorted(SESSIONS.glob("fault-*.mcap"))[: MAX_OPEN + 2]:
        tools.findings(target=str(path))
    assert len(tools._open) == MAX_OPEN and str(SESSIONS / "ddp.mcap") in tools._open
    tools.close()


def test_a_recording_is_not_controlled() -> None:
    with pytest.raises(UserError):
        at("ddp.mcap").control("pause")
