"""Definitions: interned once, kept in order, readable from the file."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgpack
import pytest

from pardbg_agent import defs as defs_module
from pardbg_agent.defs import Defs, read_file
from pardbg_agent.wire import NO_GROUP, DefKind


def said(defs: Defs) -> list[dict[str, Any]]:
    return [msgpack.unpackb(payload) for payload in defs.payloads]


def test_names_are_interned_from_one() -> None:
    defs = Defs()
    assert [defs.name(x) for x in ("F", "B", "F")] == [1, 2, 1]
    assert said(defs) == [{"k": "name", "id": 1, "s": "F"}, {"k": "name", "id": 2, "s": "B"}]


def test_ops_share_their_ids_with_names() -> None:
    defs = Defs()
    assert defs.name("forward") == 1
    assert defs.op("all_reduce", "float32", "sum") == 2
    assert defs.op("all_reduce", "float32", "sum") == 2
    assert defs.op("all_reduce", "float32", "max") == 3
    assert defs.name("loss") == 4
    assert said(defs)[1] == {
        "k": "op", "id": 2, "op": "all_reduce", "dtype": "float32", "reduce": "sum", "root": -1,
        "tag": 0, "coalesced": False, "meets": "",
    }  # fmt: skip


def test_groups_keep_their_id_and_are_sent_again_when_more_is_known() -> None:
    defs = Defs()
    assert defs.group("0", "default", None, [0, 1], "gloo") == 1
    assert defs.group("0", "default", None, (0, 1), "gloo") == 1
    assert len(defs.payloads) == 1
    assert defs.group("0", "default", "dp", [0, 1], "gloo") == 1
    assert [d["axis"] for d in said(defs)] == [None, "dp"]
    assert defs.group("1", "pp", "pp", [1, 3], "gloo") == 2
    assert defs.group("x" * 9, "n", None, [], "gloo") < NO_GROUP


def test_the_file_holds_what_was_sent(tmp_path: Path) -> None:
    path = str(tmp_path / "p.defs")
    defs = Defs(path)
    defs.name("F")
    defs.put(DefKind.NOTE, key="paced", value=True)
    assert read_file(path) == defs.payloads
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:-3])  # cut off in the last definition
    assert read_file(path) == defs.payloads[:1]


def test_what_msgpack_does_not_know_becomes_text() -> None:
    defs = Defs()
    defs.put(DefKind.NOTE, key="path", value=Path("x"))
    assert said(defs)[0]["value"] == "x"


def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defs_module, "MAX_NAMES", 3)
    defs = Defs()
    ids = [defs.name(f"n{i}") for i in range(6)]
    assert ids == [1, 2, 3, 4, 4, 4]
    assert said(defs)[-1]["s"] == defs_module.MORE
    assert defs.name("n1") == 2


def test_long_names_are_cut() -> None:
    defs = Defs()
    defs.name("x" * 5000)
    assert len(said(defs)[0]["s"]) == 1024


def test_identify_sends_process_again_only_for_news() -> None:
    defs = Defs()
    defs.process = {"proc": "0.h.1", "rank": -1}
    seen: list[dict[str, Any]] = []
    defs.on_identify = seen.append
    defs.identify(rank=3, world_size=4)
    defs.identify(rank=3)
    assert seen == [{"rank": 3, "world_size": 4}]
    assert said(defs) == [{"k": "process", "proc": "0.h.1", "rank": 3, "world_size": 4}]


def test_threads_get_one_id_per_name() -> None:
    defs = Defs()
    found: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: found.append([defs.name(f"n{i}") for i in range(300)]))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(defs.payloads) == 300
    assert all(ids == found[0] for ids in found)


def test_a_definition_is_there_before_its_id_is_given() -> None:
    """The sender reads records first and definitions after: no record may name what is not yet
    in the list."""
    defs = Defs()
    new = defs.name("late")
    assert any(d["id"] == new for d in said(defs))
