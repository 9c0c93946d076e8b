"""What ranks said, as of a time."""

from __future__ import annotations

import random

import msgpack
import pytest

from pardbg.store import history
from pardbg.store.history import StateHistory


def said(*rows: dict[str, int]) -> StateHistory:
    """One message at each of the times 0, 10, 20 …; process -> its step."""
    made = StateHistory(1000)
    for number, row in enumerate(rows):
        ranks = {proc: {"step": step} for proc, step in row.items()}
        made.add(10 * number, msgpack.packb({"ranks": ranks}))
    return made


def steps(of: StateHistory, t_ns: int | None) -> tuple[int | None, dict[str, int]]:
    newest_ns, found = of.ranks(t_ns)
    return newest_ns, {proc: row["step"] for proc, row in found.items()}


def test_a_process_that_a_message_leaves_out_is_as_an_earlier_one_said() -> None:
    states = said({"a": 1, "b": 1}, {"a": 2}, {"b": 3})
    assert steps(states, None) == (20, {"a": 2, "b": 3})
    assert steps(states, 15) == (10, {"a": 2, "b": 1})
    assert steps(states, -1) == (None, {})


def test_a_message_that_comes_later_is_seen_at_once() -> None:
    states = said({"a": 1})
    assert steps(states, None) == (0, {"a": 1})
    states.add(10, msgpack.packb({"ranks": {"a": {"step": 2}}}))
    assert steps(states, None) == (10, {"a": 2})
    assert steps(states, 5) == (0, {"a": 1})


def test_states_are_read_once_however_often_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states, real, read = said(*({"a": n} for n in range(40))), history.decode_map, []
    monkeypatch.setattr(history, "decode_map", lambda raw: read.append(raw) or real(raw))
    for _ in range(5):
        assert steps(states, 300) == (300, {"a": 30})
    assert len(read) == 16


def test_who_is_named_is_known_without_reading_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand ranks few messages are kept decoded, and a look back names sixteen."""
    monkeypatch.setattr(StateHistory, "_MOST_DECODED", 4)
    monkeypatch.setattr(StateHistory, "_MOST_NAMED", 24)
    states, real, read = said(*({"a": n} for n in range(100))), history.decode_map, []
    monkeypatch.setattr(history, "decode_map", lambda raw: read.append(raw) or real(raw))
    for t in range(300, 390, 10):
        assert steps(states, t)[1] == {"a": t // 10}
    assert len(read) == 16 + 8
    for t in (900, 300, 890, 310, 880, 320, 300, 900):
        assert steps(states, t)[1] == {"a": t // 10}


def test_few_states_are_kept_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateHistory, "_MOST_DECODED", 64)
    states = said(*({"a": n, "b": n} for n in range(200)))
    for t in range(0, 2000, 10):
        assert steps(states, t)[1]["a"] == t // 10
    assert states._num_decoded <= 64 and len(states._decoded) <= 21


def test_states_of_very_many_are_kept_packed() -> None:
    states = StateHistory(100)
    of = {f"0.h.{rank}": {"step": rank, "phase": "forward"} for rank in range(2000)}
    payload = msgpack.packb({"ranks": of})
    states.add(10, payload, len(payload))
    assert states.num_bytes < len(payload) // 3
    assert states.ranks(None) == (10, of)


@pytest.mark.parametrize("seed", range(8))
def test_states_joined_with_known_ones_are_as_joined_anew(seed: int) -> None:
    """Whatever was asked before, and whoever a message leaves out, for 16 messages or for ever."""
    draw = random.Random(seed)
    rows = [
        {proc: n for proc in "abc" if proc not in left_out}
        for n in range(60)
        for left_out in [draw.choice(["", "", "", "b", "bc"]) if n < 40 else draw.choice(["", "c"])]
    ]
    states = said(*rows)
    for t in sorted(draw.sample(range(600), 40)) + draw.sample(range(600), 20):
        anew = said(*rows)
        assert steps(states, t) == steps(anew, t)
