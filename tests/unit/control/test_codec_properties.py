"""The codec of control messages under drawn values: each message survives its way, and anything
else is Malformed."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

import msgpack
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pardbg.events import commands, control_events, control_facts
from pardbg.hub import ctrl_messages
from pardbg_agent.ctrl import agent_messages
from pardbg_agent.ctrl.codec import MAX_NUMBER, MIN_NUMBER, Malformed, decode, encode

MODULES = (agent_messages, ctrl_messages, commands, control_events, control_facts)
MESSAGES = [
    found for module in MODULES for found in vars(module).values()
    if dataclasses.is_dataclass(found) and found.__module__ == module.__name__
]  # fmt: skip
numbers = st.integers(MIN_NUMBER, MAX_NUMBER)
floats = st.floats(allow_nan=False)
plain = st.recursive(
    st.none() | st.booleans() | numbers | floats | st.text(max_size=9) | st.binary(max_size=9),
    lambda below: st.lists(below, max_size=2)
    | st.dictionaries(st.text(max_size=9), below, max_size=2),
    max_leaves=4,
)  # fmt: skip
"""What msgpack carries."""
SCALARS: dict[Any, SearchStrategy[Any]] = {
    int: numbers, float: floats, bool: st.booleans(), str: st.text(max_size=9),
    bytes: st.binary(max_size=9), object: plain, types.NoneType: st.none(),
}  # fmt: skip


@cache
def drawn(hint: Any) -> SearchStrategy[Any]:
    """Values of an annotation."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        fields = {field.name: drawn(hints[field.name]) for field in dataclasses.fields(hint)}
        return st.builds(typing.cast(Any, hint), **fields)
    if origin is Annotated:
        return SCALARS[str]
    if origin in (typing.Union, types.UnionType):
        return st.one_of(map(drawn, args))
    if origin is tuple:
        return st.lists(drawn(args[0]), max_size=2).map(tuple) if args[-1] is ... else st.tuples(
            *map(drawn, args))  # fmt: skip
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(*map(drawn, args), max_size=2)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    return SCALARS[hint]


def packed(value: Any) -> Any:
    return msgpack.unpackb(msgpack.packb(value), strict_map_key=False)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@settings(max_examples=12, phases=(Phase.generate, Phase.shrink))
@given(data=st.data())
def test_a_message_survives_its_way(kind: type, data: st.DataObject) -> None:
    message = data.draw(drawn(kind))
    assert decode(kind, packed(encode(message))) == message
    assert decode(kind, packed(encode(message, whole=True))) == message


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@settings(max_examples=12, phases=(Phase.generate, Phase.shrink))
@given(data=st.data())
def test_anything_else_is_malformed(kind: type, data: st.DataObject) -> None:
    """One value of a message, at any depth, is replaced by any other."""
    value = encode(data.draw(drawn(kind)), whole=True)
    below, last = value, data.draw(st.integers(0, 3))
    for depth in range(4):
        keys = list(below) if isinstance(below, dict) else list(range(len(below)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if depth == last or not isinstance(below[key], (dict, list)):
            below[key] = data.draw(plain)
            break
        below = below[key]
    try:
        assert isinstance(decode(kind, packed(value)), kind)
    except Malformed as error:
        assert "\n" not in str(error)
