"""A report and a snapshot are trees of frozen values: whoever draws them cannot change them."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator

import pytest

from pardbg.analysis.answers.report import Report
from pardbg.analysis.answers.snapshot import Snapshot


def mutable(kind: typing.Any, where: str, seen: set[typing.Any]) -> Iterator[str]:
    """Fields at or below ``kind`` whose values could be changed."""
    for part in typing.get_args(kind):
        yield from mutable(part, where, seen)
    if typing.get_origin(kind) in (list, dict, set):
        yield where
    if isinstance(kind, type) and kind not in seen:
        seen.add(kind)
        if dataclasses.is_dataclass(kind) and not kind.__dataclass_params__.frozen:
            yield f"{where}: {kind.__name__}"
        if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
            for name, field in typing.get_type_hints(kind).items():
                yield from mutable(field, f"{where}.{name}", seen)


@pytest.mark.parametrize("tree", [Report, Snapshot])
def test_values_are_frozen_all_the_way(tree: type) -> None:
    seen: set[typing.Any] = set()
    assert list(mutable(tree, tree.__name__, seen)) == []
    assert len([kind for kind in seen if dataclasses.is_dataclass(kind)]) >= 15
