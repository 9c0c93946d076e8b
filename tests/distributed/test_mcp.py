"""``pardbg mcp`` and its skill, with the protocol's own client: no model, the skill's steps."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pardbg.cli import main
from pardbg.events.control_facts import Asked
from pardbg.lab.recipes import catalogue
from pardbg.session.reader import load
from tests.diagnosis.cases import program, quick
from tests.distributed.runs import started
from tests.forked import forked
from tests.mcp_client import Client, asking
from tests.processes import rank_env, wait_until
from tests.sessions.wanted import FAULTS

ROOT = Path(__file__).parents[2]
READING = {
    "report", "findings", "where", "ranks", "steps", "collectives", "pipeline", "explain", "same",
}  # fmt: skip
MOST_CALLS = 6
STEP = re.compile(r"^\d\. `(?P<tool>\w+)\((?P<arguments>[^)]*)\)`", re.MULTILINE)
PLANTED = [one for one in FAULTS if one.culprits]
"""Those that one rank or a few cause: the other recorded faults are of all ranks alike."""


def skill_steps() -> list[tuple[str, dict[str, str]]]:
    """The steps of the skill that is printed: (tool, its arguments as written)."""
    done = subprocess.run(
        [sys.executable, "-m", "pardbg", "skill"], capture_output=True, text=True, check=True
    )
    front, _, body = done.stdout.removeprefix("---\n").partition("\n---\n")
    assert {line.partition(": ")[0] for line in front.splitlines()} == {"name", "description"}
    return [
        (found["tool"], dict(part.split("=") for part in found["arguments"].split(",") if part))
        for found in STEP.finditer(body)
    ]


async def follow(ask: Client, steps: list[tuple[str, dict[str, str]]], target: str) -> list[int]:
    """Take the skill's steps, as it says; the culprits that it leads to."""
    culprits: list[int] = []
    for tool, written in steps:
        values = {"CULPRITS": ",".join(map(str, culprits)) or "all"}
        arguments = {
            name: values[text] if text in values else json.loads(text)
            for name, text in written.items()
        }
        answer = await ask(tool, target=target, **arguments)
        if tool == "findings":
            culprits = next((row["culprits"] for row in answer["rows"] if row["culprits"]), [])
    return culprits


@pytest.mark.timeout(120)
async def test_the_skill_names_the_culprits_of_twenty_faults() -> None:
    steps = skill_steps()
    assert {tool for tool, _ in steps} <= READING and len(PLANTED) == 20
    wrong = {}
    async with asking() as ask:
        for one in PLANTED:
            ask.calls = 0
            named = await follow(ask, steps, str(ROOT / "sessions" / one.file))
            if (tuple(sorted(named)), ask.calls <= MOST_CALLS) != (one.culprits, True):
                wrong[one.file] = named, ask.calls
        healthy = await follow(ask, steps, str(ROOT / "sessions" / "ddp.mcap"))
    assert not wrong and healthy == []


GENERATED = [
    program("lock", 4, 2, 3, ("missing-rank",)),
    program("skips-barrier", 4, 1, 3, ("op-mismatch",)),
]
ENDS = program("raises", 4, 0, 3, ("exception",), sort="end")
"""It may be over before anybody has asked."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", GENERATED, ids=lambda case: case.name.split()[0])
async def test_the_skill_names_the_culprit_of_a_fresh_live_run(case: Any, tmp_path: Path) -> None:
    argv, steps = list(quick(case).argv), skill_steps()
    with started(argv, tmp_path / "s.mcap", env=rank_env()) as handle:
        async with asking(handle.run) as ask:
            answer = await ask("findings")
            while not any(row["kind"] in case.kinds for row in answer["rows"]):
                assert answer["source"] == "live run"
                assert answer["complete_to_ns"] <= answer["now_ns"]
                await asyncio.sleep(0.2)
                answer = await ask("findings")
            ask.calls = 0
            named = await follow(ask, steps, "")
    assert tuple(named) in case.culprits and ask.calls <= MOST_CALLS


@pytest.mark.timeout(120)
async def test_the_skill_names_the_culprit_of_a_run_that_has_just_ended(tmp_path: Path) -> None:
    session = tmp_path / "s.mcap"
    with started(list(quick(ENDS).argv), session, env=rank_env()) as handle:
        assert handle.wait(60)
    async with asking(str(session)) as ask:
        named = await follow(ask, skill_steps(), "")
    assert tuple(named) in ENDS.culprits and ask.calls <= MOST_CALLS


@pytest.mark.timeout(120)
async def test_a_live_run_is_held_and_stepped_only_with_control(tmp_path: Path) -> None:
    argv = forked(catalogue.command("1f1b", 2, 100_000))
    with started(argv, tmp_path / "s.mcap", env=rank_env()) as handle:
        async with asking(handle.run) as ask:
            assert await ask.names() == READING
            good, _ = await ask.text("control", command="pause")
            assert not good
            while len((await ask("ranks"))["rows"]) < 2:
                await asyncio.sleep(0.1)
            viewers = status(handle.run)["viewers"]
            stacks = await ask("where", ranks="1")
            assert (stacks["taken"], stacks["source"]) == ("now", "live run")
            # Not one more: a viewer that stays keeps ranks held at their exceptions.
            wait_until(lambda: status(handle.run)["viewers"] == viewers, 20, "it to leave")
        async with asking(handle.run, "--control") as ask:
            assert await ask.names() == READING | {"control"}
            while (held := await ask("control", command="pause"))["mode"] != "held":
                await asyncio.sleep(0.1)
            assert set(held["held"]) == {"0", "1"}
            before = (await ask("control", command="next"))["held"]["0"]
            after = await ask("control", command="step 0")
            assert after["ok"] and after["held"]["0"] != before
            assert (await ask("control", command="status", lease_s=1.0))["mode"] == "held"
            wait_until(lambda: status(handle.run)["viewers"] == viewers, 20, "the agent's lease")
            wait_until(lambda: status(handle.run)["mode"] == "running", 20, "the ranks to run on")
            assert (await ask("control", command="pause"))["held"]
            stacks = (await ask("where", ranks="0"))["rows"]
            assert stacks[0]["ranks"] == [0] and stacks[0]["frames"]
            assert (await ask("control", command="p 1 on 0"))["answers"]["0"]["ok"] is False
            for line in ("kill", "no-such-verb", "", "other-run pause"):
                good, text = await ask.text("control", command=line)
                assert not good and len(text.splitlines()) == 1
        # The client left, and the server with it.
        wait_until(lambda: status(handle.run)["mode"] == "running", 20, "the ranks to run on")
    trail = [event for _, event in load(tmp_path / "s.mcap").controls.last(None, 500)]
    asked = {event.fact.verb.value: event.by for event in trail if isinstance(event.fact, Asked)}
    assert {"pause", "next", "step"} <= asked.keys()
    assert {by.rpartition("-")[0] for by in asked.values()} == {"view-mcp"}


def status(run: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "pardbg", "ctl", run, "status", "--json"], capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def test_a_log_is_explained_and_has_no_more(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        "[rank2]:[E ProcessGroupNCCL.cpp:1] [Rank 2] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=1000) ran for "
        "1001 milliseconds before timing out.\n"
    )
    async with asking(str(log)) as ask:
        found = await ask("explain")
        assert found["total"] >= 1 and found["rows"][0]["seq"] == 7
        good, text = await ask.text("findings")
        assert not good and len(text.splitlines()) == 1
        again = await ask("explain", logs=[str(log)])
        assert again["rows"] == found["rows"]


@pytest.mark.parametrize("words", [("no-such",), ("/no/such.mcap",), ("tcp://nowhere.invalid:1",)])
def test_wrong_targets_get_one_line(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["mcp", *words])
    said = capsys.readouterr()
    assert end.value.code == 2 and said.out == "" and len(said.err.splitlines()) == 1


def test_without_the_package_one_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['mcp'] = None; from pardbg.cli import main; main(['mcp'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "pardbg[mcp]" in done.stderr and not done.stdout
