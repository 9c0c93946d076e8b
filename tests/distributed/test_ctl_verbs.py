"""Every verb of ``pardbg ctl`` against one live pipeline of two ranks: exit codes, ``--json``, and
what each does to the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pardbg.cli import main
from pardbg.control.language.arguments import COMPARE, INSPECT
from pardbg.events.control_codes import Verb
from pardbg.events.control_facts import Asked, Edited
from pardbg.hub.run.start import RunHandle
from pardbg.lab.recipes import catalogue
from pardbg.session.reader import load
from tests.distributed.runs import started
from tests.forked import served
from tests.processes import rank_env, wait_until

Ask = Callable[..., dict[str, Any]]


class Script:
    """``pardbg ctl RUN …`` in this process: a start of Python each would take longer than all."""

    def __init__(self, run: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._run, self._capsys = run, capsys
        self.said: set[str] = set()

    def __call__(self, line: str, code: int = 0) -> dict[str, Any]:
        """The answer to one line, with its exit code checked."""
        self.said.add(line.split()[0])
        out, err, got = self.run(f"{line} --json")
        assert got == code, (line, got, out, err)
        if got == 2:
            assert out == "" or json.loads(out)["ok"] is False
            assert len(err.splitlines()) == 1, err
            return {"error": err}
        answer: dict[str, Any] = json.loads(out)
        assert answer["ok"] is (answer["error"] is None)
        return answer

    def run(self, line: str) -> tuple[str, str, int]:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main(["ctl", self._run, *line.split()])
        done = self._capsys.readouterr()
        return done.out, done.err, int(left.value.code or 0)


@pytest.mark.timeout(120)
def test_every_verb_from_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = served(catalogue.command("1f1b", 2, 100_000))
    with started(argv, tmp_path / "s.mcap", env=rank_env(), allow_eval=True) as handle:
        ctl = Script(handle.run, capsys)
        wait_until(lambda: len(ctl("ranks")["ranks"]) == 2, 40, "both ranks")
        stepping(ctl)
        stopping(ctl)
        looking(ctl)
        recording(ctl)
        refusals(ctl)
        the_end(ctl, handle)
    words = {verb.value for verb in Verb if verb is not Verb.INSPECT} | {*INSPECT, COMPARE}
    assert words <= ctl.said, "a verb that this test does not know"
    facts = [event.fact for _, event in load(tmp_path / "s.mcap").controls.last(None, 500)]
    trail = [
        fact.verb.value if isinstance(fact, (Asked, Edited)) else fact.TAG
        for fact in facts if fact is not None
    ]  # fmt: skip
    assert {"pause", "step", "hit", "delay", "inspect", "refused", "kill"} <= set(trail)


def stepping(ctl: Ask) -> None:
    assert ctl("step", code=1)["error"] == "nothing is held: pause before step"
    assert set(ctl("pause")["held"]) == {"0", "1"}
    at_step = ctl("next")["held"]
    assert all(text.startswith("step ") for text in at_step.values()), at_step
    assert ctl("tick")["held"]["0"].endswith("0F1") or ctl("status")["held"]["0"] != at_step["0"]
    before = ctl("status")["held"]
    assert ctl("step 0")["held"]["0"] != before["0"]
    assert ctl("op")["mode"] == "held"
    frames = ctl("where")["stacks"]["0"][0]["frames"]
    assert any(frame[2] == "train_pipeline" for frame in frames)
    assert ctl("continue")["mode"] == "running"
    alone = ctl("pause 1 hold")
    assert list(alone["held"]) == ["1"] and alone["mode"] == "held"
    assert ctl("c")["mode"] == "running"


def stopping(ctl: Ask) -> None:
    """Breakpoints, watches, a straggler."""
    assert ctl("break action==B and mb==3 and stage==1")["text"].startswith("breakpoint 1:")
    wait_until(lambda: ctl("status")["mode"] == "held", 20, "the breakpoint")
    assert ctl("status")["held"]["1"] == "1B3"
    assert ctl("ignore 1 1000000")["text"] == "breakpoint 1: skips the next 1000000 matches"
    assert ctl("condition 1 step==999999")["text"] == "breakpoint 1: step==999999"
    assert ctl("watch nan")["text"] == "watch 2: nan"
    assert ctl("disable")["text"] == "breakpoint 1, watch 2 disabled"
    assert not any(one["enabled"] for one in ctl("breaks")["breaks"])
    assert ctl("enable 1 2")["text"] == "breakpoint 1, watch 2 enabled"
    (first, second) = ctl("breaks")["breaks"]
    assert (first["condition"], second["kind"]) == ("step==999999", "nan")
    until = ctl("until op==send and rank==0")
    assert until["held"]["0"].startswith("send F"), until
    until = ctl("until op==send and not action==F")
    assert until["held"]["1"].startswith("send B"), until
    assert ctl("tbreak op==send and rank==1")["text"].startswith("breakpoint 5:")
    assert ctl("continue")["mode"] == "running"
    wait_until(lambda: ctl("status")["mode"] == "held", 20, "the breakpoint that stops once")
    assert [one["number"] for one in ctl("b")["breaks"]] == [1, 2]
    assert ctl("delete 2")["text"] == "watch 2 deleted"
    assert ctl("delete")["text"] == "breakpoint 1 deleted"
    assert "delayed by 5 ms" in ctl("delay 1 5ms")["text"]
    assert ctl("delay 1 0ms")["text"] == "rank 1 not delayed"


def at_hand(ctl: Ask, rank: int) -> dict[str, str]:
    """Shape and sum of what the action at which a rank is held works on."""
    asked = {name: f"(*{name}.shape, {name}.double().sum().item())" for name in
             ("input", "output", "grad")}  # fmt: skip
    return {name: ctl(f"p {expr} on {rank}")["answers"][str(rank)]["text"]
            for name, expr in asked.items()}  # fmt: skip


def looking(ctl: Ask) -> None:
    """Into ranks that are held."""
    assert set(ctl("next")["held"]) == {"0", "1"}
    for line, text in (
        ("p 40+2 on 0", "42"), ("pp [1,2] on 0", "[1, 2]"), ("whatis 1.5 on 0", "builtins.float"),
        ("exec print(7) on 0", "7"), ("!print(8) on 0", "8"),
    ):  # fmt: skip
        assert ctl(line)["answers"]["0"]["text"] == text, line
    assert "->" in ctl("list 0")["answers"]["0"]["text"]
    whole = ctl("longlist 0")["answers"]["0"]["text"].splitlines()
    assert "def train_pipeline(" in whole[0] and len(whole) > 20
    assert sum("->" in one for one in whole) >= 1
    assert ctl("args on 0")["answers"]["0"]["text"].startswith("world = World(rank=0, size=2")
    assert "options = " in ctl("locals on 0 --frame 1")["answers"]["0"]["text"]
    shape = ctl("tensor __import__('torch').ones(2,3) on 0")["answers"]["0"]["text"]
    assert shape.startswith("(2, 3) float32")
    out, _, code = ctl.run("compare 1+1")  # type: ignore[attr-defined]
    assert (code, out.splitlines()[-1]) == (0, "equal on 2 ranks")
    assert ctl("compare --hash params")["answers"]["1"]["hashes"]
    assert ctl("dap 1")["answers"]["1"]["launch"]["connect"]["port"] > 0
    assert ctl("hash params on 1")["answers"]["1"]["ok"]
    wrong = ctl("p no_such_name on 0")["answers"]["0"]
    assert wrong["raised"] and wrong["text"].startswith("NameError")
    assert ctl("p 1 on 0 --frame 99", code=1)["answers"]["0"]["refusal"] == "no_frame"
    assert ctl("until action==B and mb==3 and stage==1")["held"]["1"] == "1B3"
    came = at_hand(ctl, 1)
    assert came["grad"].startswith("NameError")  # the last stage's comes from its loss
    assert came["output"] != came["input"]
    assert ctl("until action==B and mb==3 and stage==0")["held"]["0"] == "0B3"
    sent = at_hand(ctl, 0)
    assert sent["output"] == came["input"], "what one stage puts out is what the next one takes"
    assert len({sent["input"], sent["output"], sent["grad"]}) == 3
    assert ctl("until action==F and stage==1")["held"]["1"].startswith("1F")
    comes = at_hand(ctl, 1)
    assert comes["output"].startswith("NameError") and comes["input"].startswith("(")


def recording(ctl: Ask) -> None:
    assert ctl("level summary")["asked"] == 2
    assert ctl("level full 0 1s")["asked"] == 1
    assert ctl("mark here it is")["at_ns"] > 0


def refusals(ctl: Ask) -> None:
    """2: the words make no sense; 1: they do, and not now."""
    for line in ("step 9", "step 0 1", "break rnak==1", "ignore 1", "delay 1 soon", "level loud",
                 "watch gold", "p", "condition x mb==1"):  # fmt: skip
        ctl(line, code=2)
    assert "no breakpoint 77" in ctl("delete 77", code=1)["error"]
    assert ctl("continue")["mode"] == "running"
    assert ctl("list", code=1)["error"] == "nothing is held: pause first"
    late = ctl("until step>99999 --timeout 0.3", code=1)
    assert late["error"] == "step>99999 was not true yet; it goes on"
    out, _, code = ctl.run("status")  # type: ignore[attr-defined]
    assert (code, out) == (0, "running\n")


def the_end(ctl: Ask, handle: RunHandle) -> None:
    assert ctl("kill")["ok"]
    wait_until(handle.ended, 30, "the end")
    handle.wait(30)
