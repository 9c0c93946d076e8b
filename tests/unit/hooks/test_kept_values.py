"""Elements that a rank keeps: of the tensors that are named, and no more than there is room for."""

from __future__ import annotations

import pytest
import torch

from pardbg.hub.backlog import Definitions
from pardbg_agent.hooks.watch import kept_values
from pardbg_agent.hooks.watch.kept_values import Kept, pieces
from pardbg_agent.wire import ENV_FULL, DefKind, Key

PART = torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(("names", "kept"), [
    ("", set()), ("a.weight", {("grad", "a.weight"), ("param", "a.weight")}),
    ("grad:a.*", {("grad", "a.weight")}), ("out:a, param:*", {("out", "a"), ("param", "a.weight")}),
    ("out:", {("out", "")}), ("weight", set()),
])  # fmt: skip
def test_tensors_are_named_by_kind_and_pattern(
    names: str, kept: set[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_FULL, names)
    made = Kept()
    every = [("grad", "a.weight"), ("param", "a.weight"), ("out", "a"), ("out", "")]
    assert {one for one in every if made.of(*one, PART)} == kept


def test_elements_are_those_of_the_part_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_FULL, "*")
    values = Kept().of("grad", "a", PART.T)  # not contiguous
    assert torch.frombuffer(bytearray(values), dtype=torch.float32).tolist() == [0, 3, 1, 4, 2, 5]
    assert Kept().of("grad", "a", torch.tensor(2.0, dtype=torch.bfloat16)) == b"\x00\x40"
    assert Kept().of("grad", "a", torch.zeros(0)) == b""


def test_a_process_keeps_so_many_bytes_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_FULL, "*")
    monkeypatch.setattr(kept_values, "MAX_BYTES", 40)
    made = Kept()
    assert [len(made.of("grad", "a", PART)) for _ in range(3)] == [24, 16, 0]


def test_messages_have_room_for_a_piece() -> None:
    data = bytes(kept_values.PIECE + 1)
    assert [(at, len(some)) for at, some in pieces(data)] == [
        (0, len(data) - 1),
        (len(data) - 1, 1),
    ]


def test_late_viewers_do_not_get_them() -> None:
    """Nor what fits beside them: the hub keeps definitions up to a number of bytes."""
    import msgpack

    known, key = Definitions(), Key.DEFINITION.value + b"1.host.7"
    payload = msgpack.packb({"k": DefKind.VALUES.value, "values": b"1"})
    assert known.add(key, payload) is not None
    assert not known.messages() and not known.left_out
    assert not known.missing("1.host.7", [payload])
