"""How much is recorded: switched live, raised for a while, and by whoever sees something wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from pardbg.analysis.base.asof import View
from pardbg.control.language.arguments import verb_words
from pardbg.errors import UserError
from pardbg.events.control_codes import Verb, Why
from pardbg.events.control_facts import Level
from pardbg.hub.auto_level import AGAIN_NS, AutoLevel
from pardbg.hub.serve.questions import Levels
from pardbg.session.reader import load
from tests.unit.hub.hub_rig import FakeAgent, Peer, Rig
from tests.unit.trace_builder import Trace

S = 1_000_000_000


def test_a_level_raised_for_a_while_goes_back_to_what_it_was() -> None:
    """Two ranks at summary (1), full (2) for 10 s; asked again at 5 s for 10 s more: until 15."""
    sent: list[tuple[str, int]] = []
    levels = Levels(lambda proc, message: sent.append((proc, message.level)) or True)  # type: ignore[func-returns-value]
    assert levels.ask({"a": 1, "b": 1}, 2, 10 * S, now=0) == ["a", "b"]
    assert levels.tick(9 * S) == []
    levels.ask({"a": 2, "b": 2}, 2, 10 * S, now=5 * S)
    assert levels.tick(12 * S) == []
    assert levels.tick(15 * S) == [("a", 1), ("b", 1)]
    assert sent == [("a", 2), ("b", 2), ("a", 2), ("b", 2), ("a", 1), ("b", 1)]
    levels.ask({"a": 1}, 2, 0, now=16 * S)
    assert levels.tick(10**6 * S) == [], "without a time it stays"


def test_a_level_set_for_good_ends_a_while() -> None:
    levels = Levels(lambda proc, message: True)
    levels.ask({"a": 1}, 2, 10 * S, now=0)
    levels.ask({"a": 2}, 0, 0, now=1 * S)
    assert levels.tick(20 * S) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("full", (None, {"level": "full"})),
        ("summary 0-3", ("0-3", {"level": "summary"})),
        ("full stage=2 30s", ("stage=2", {"level": "full", "for_s": 30.0})),
        ("full 2m", (None, {"level": "full", "for_s": 120.0})),
    ],
)
def test_words_of_a_level(text: str, expected: object) -> None:
    assert verb_words(Verb.LEVEL, text.split()) == expected


@pytest.mark.parametrize("text", ["", "loud", "full 0 1", "full 0 1 30s"])
def test_words_that_are_no_level(text: str) -> None:
    with pytest.raises(UserError, match="level"):
        verb_words(Verb.LEVEL, text.split())


def run(slow: int | None = None) -> Trace:
    """Forty steps of 100 ms on two ranks; one of them takes 500."""
    trace, t0 = Trace(2), 0.0
    for step in range(40):
        took = 500 if step == slow else 100
        for proc in trace.ranks:
            proc.step(step, t0, t0 + took)
        t0 += took
    return trace


def test_a_slow_step_is_worth_a_look_once() -> None:
    store = run(slow=39).store()
    auto_level = AutoLevel()
    assert auto_level.check(View(run().store(), None)) is None, "nothing is wrong"
    said = auto_level.check(View(store, None))
    assert said == "step 39 of rank 0 took 500 ms, usually 100 ms"
    assert auto_level.check(View(store, None)) is None, "said already"
    auto_level._seen = {key: t - AGAIN_NS for key, t in auto_level._seen.items()}
    assert auto_level.check(View(store, None)) is not None, "after a long while again"


def test_an_op_that_stays_open_is_worth_a_look() -> None:
    """Steps of 100 ms; rank 1 has been in recv for 3 s, longer than 2 s and than three steps."""
    trace = run()
    proc = trace.ranks[1]
    trace.state(7000, **{proc.proc: {
        "rank": 1, "step": 40, "open_op": "recv from 0", "open_since_ns": 1_000_000 * 10**6
        + 4000 * 10**6, "heartbeat_ns": 1_000_000 * 10**6 + 7000 * 10**6,
    }})  # fmt: skip
    said = AutoLevel().check(View(trace.store(), None))
    assert said is not None and "recv from 0" in said


def test_the_hub_switches_levels_and_keeps_bookmarks_for_any_viewer(tmp_path: Path) -> None:
    """Nobody is held by either, so the viewer needs no control."""
    rig = Rig(tmp_path)
    try:
        agents = [FakeAgent(rig, rank) for rank in range(2)]
        for agent in agents:
            agent.hello()
        viewer = Peer(rig, "view-1")
        viewer.ask("join")
        answer = viewer.command("level", "1", level="summary", for_s=0.3, reason="too much")
        assert (answer["data"]["level"], answer["data"]["asked"]) == ("summary", 1)
        assert agents[1].wait("level")["level"] == 1
        rig.until(lambda: agents[1].wait("level")["level"] == 2, "back to full")
        agents[0].take()
        assert [m for m in agents[0].messages if m["t"] == "level"] == []
        refused = viewer.command("level", None, level="loud")
        assert refused["why"] is Why.BAD_LEVEL
        assert viewer.command("mark", None, at_ns=123, text="here")["ok"]
        assert viewer.command("mark", None, at_ns=456, text="wrong")["ok"]
        assert viewer.command("mark", None, at_ns=456, text="")["ok"]
    finally:
        rig.close()
    store = load(tmp_path / "s.mcap")
    assert [(m.t_ns, m.text) for m in store.bookmarks.all()] == [(123, "here")]
    levels = [e.fact for _, e in store.controls.last(None, 99) if isinstance(e.fact, Level)]
    assert levels == [Level("summary", 1, 300_000_000, "too much"), Level("full", back=True)]
