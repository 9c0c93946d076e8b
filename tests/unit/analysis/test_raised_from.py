"""An exception's cause: its words, and its place, that of the program's innermost frame."""

from __future__ import annotations

from typing import Any

import pytest

from pardbg.analysis.answers.report import as_json, report
from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.findings.kinds.end_kinds import Held
from pardbg.store.definitions import Cause
from pardbg_agent import wire
from tests.unit.analysis.test_ends import CLOSED, IN_OP, ends, said, three
from tests.unit.facts import facts
from tests.unit.trace_builder import Proc, Trace, ns

STAGE = "/x/site-packages/torch/distributed/pipelining/stage.py"
STEP = ["/job/train.py", 19, "<module>"]
OUTER = [STEP, [STAGE, 900, "forward_one_chunk"]]
INNER = [STEP, [STAGE, 890, "forward_one_chunk"], ["/job/model.py", 9, "forward"]]
MASK = {"type": "ValueError", "text": "ValueError: mask", "frames": INNER}


def wraps(proc: Proc, t: float, cause: dict[str, Any] | object = MASK, also: object = None) -> None:
    """torch's pipelining does so with all that a stage raises."""
    proc.define(
        wire.DefKind.EXCEPTION, t_ns=ns(t), type="RuntimeError", text="RuntimeError: [Stage 1]",
        thread="MainThread", frames=OUTER, step=5, cause=cause, also=also,
    )  # fmt: skip


def wrapped(cause: dict[str, Any] | object = MASK) -> Trace:
    trace = three()
    wraps(trace.ranks[2], 5, cause)
    trace.end(9, code=1)
    return trace


def test_the_cause_and_its_place_are_told() -> None:
    trace = wrapped()
    one = said(trace)["exception"]
    frames = tuple(tuple(frame) for frame in INNER)
    assert facts(one, "error", "cause") == (
        "RuntimeError: [Stage 1]", Cause("ValueError", "ValueError: mask", frames),
    )  # fmt: skip
    assert one.where == "model.py:9 in forward"
    (stack,) = snapshot(trace.store(), None).stacks
    assert stack.frames == frames


def test_the_cause_is_a_field_of_the_report() -> None:
    found = as_json(report(wrapped().store()))["findings"]
    (of,) = [one["facts"]["cause"] for one in found if one["kind"] == "exception"]
    assert of == MASK | {"implicit": False, "ranks": []}


@pytest.mark.parametrize("cause", [MASK | {"implicit": True}, MASK | {"frames": INNER[1:2]}])
def test_the_place_stays_where_the_cause_shows_none_of_the_program(cause: dict[str, Any]) -> None:
    """``implicit``: what was tried before may have failed anywhere."""
    one = said(wrapped(cause))["exception"]
    assert (one.where, facts(one, "cause").type) == ("train.py:19", "ValueError")


@pytest.mark.parametrize("cause", [None, 7, {}, []])
def test_what_is_no_cause_is_none(cause: object) -> None:
    assert facts(said(wrapped(cause))["exception"], "cause") is None


def test_ranks_that_failed_at_one_line_of_unlike_causes_are_two_findings() -> None:
    trace = three(())
    other = MASK | {"frames": [*INNER[:-1], ["/job/model.py", 12, "forward"]]}
    for proc, cause in zip(trace.ranks, (MASK, MASK, other), strict=True):
        wraps(proc, 5, cause)
    trace.end(9, code=1)
    found = [one for one in snapshot(trace.store(), None).findings if one.kind == "exception"]
    assert sorted(one.ranks for one in found) == [(0, 1), (2,)]


DISK = {"type": "OSError", "text": "OSError: no room", "frames": [["/job/store.py", 7, "write"]]}


def test_each_exception_that_a_group_holds_is_told_with_its_place() -> None:
    trace = three()
    wraps(trace.ranks[2], 5, MASK, [DISK, 7, {}])
    trace.end(9, code=1)
    one = said(trace)["exception"]
    assert facts(one, "also") == (Held("OSError: no room", "store.py:7 in write", ()),)


@pytest.mark.parametrize(
    ("cause", "also", "what"),
    [
        (MASK, None, "RuntimeError from ValueError"), (MASK, [DISK], "RuntimeError"),
        (MASK, [MASK], "RuntimeError from ValueError"),
        (MASK | {"implicit": True}, None, "RuntimeError"),
        (MASK | {"type": "RuntimeError"}, None, "RuntimeError"),
    ],
)  # fmt: skip
def test_a_ranks_state_names_the_cause_where_there_is_one(
    cause: object, also: object, what: str
) -> None:
    trace = three()
    wraps(trace.ranks[2], 5, cause, also)
    ends(trace, trace.ranks[2], 6)
    trace.end(9, code=1)
    assert snapshot(trace.store(), None).ranks[2].now.what == what


@pytest.mark.parametrize(
    ("of", "also", "culprits"),
    [([2], [], (2,)), ([1], [2], (1, 2)), ([0, 1, 2], [], (0, 1, 2)), ([9], [], (0, 1, 2)),
     ([2**60, "1"], [], (0, 1, 2))],
)  # fmt: skip
def test_of_a_checkpoint_that_all_refuse_the_ranks_that_raised_are_named(
    of: list[object], also: list[int], culprits: tuple[int, ...]
) -> None:
    trace = three(())
    for proc in trace.ranks:
        wraps(proc, 5, MASK | {"ranks": of}, [DISK | {"ranks": also}] if also else None)
    trace.end(9, code=1)
    one = said(trace)["exception"]
    assert (one.ranks, one.culprits) == ((0, 1, 2), culprits)


def test_a_group_of_which_one_part_alone_is_a_lost_connection_is_a_first_failure() -> None:
    trace = three(())
    lost = {"type": "RuntimeError", "text": CLOSED, "frames": IN_OP}
    wraps(trace.ranks[2], 5, lost, [DISK])
    ends(trace, trace.ranks[1], 300, "killed", -9)
    trace.end(900, code=1)
    assert said(trace)["exception"].culprits == (2,)


def test_a_thread_is_told_with_its_cause() -> None:
    trace = three(())
    trace.ranks[0].define(
        wire.DefKind.EXCEPTION, t_ns=ns(5), type="RuntimeError", text="RuntimeError", step=1,
        thread="writer", frames=OUTER, cause=MASK,
    )  # fmt: skip
    trace.ranks[0].phase("forward", 5, 9)
    one = said(trace)["thread-exception"]
    assert (one.where, facts(one, "cause").text) == ("model.py:9 in forward", "ValueError: mask")


def test_a_lost_connection_that_is_a_cause_is_no_first_failure() -> None:
    """Rank 2's stage lost the connection to rank 1, which was killed; the hub saw it later."""
    trace = three(())
    lost = {"type": "RuntimeError", "text": CLOSED, "frames": IN_OP}
    wraps(trace.ranks[2], 5, lost)
    ends(trace, trace.ranks[1], 300, "killed", -9)
    trace.end(900, code=1)
    assert {kind: one.culprits for kind, one in said(trace).items()} == {"rank-lost": (1,)}


def test_a_connection_of_the_programs_own_is_a_cause_like_others() -> None:
    trace = three(())
    text = "TimeoutError: Read timed out"
    wraps(trace.ranks[2], 5, {"type": "TimeoutError", "text": text, "frames": INNER})
    ends(trace, trace.ranks[1], 300, "killed", -9)
    trace.end(900, code=1)
    assert said(trace)["exception"].culprits == (2,)


def test_a_lack_of_memory_that_a_stage_wraps_is_what_ended_the_rank() -> None:
    trace = three(())
    text = "torch.OutOfMemoryError: CUDA out of memory."
    wraps(trace.ranks[2], 6, {"type": "OutOfMemoryError", "text": text, "frames": INNER})
    trace.ranks[2].define(
        wire.DefKind.OUT_OF_MEMORY, t_ns=ns(5), device="cuda:0", asked=900, limit=1000,
        allocated=500, frames=[],
    )  # fmt: skip
    trace.end(9, code=1)
    found = said(trace)
    assert list(found) == ["out-of-memory"]
    assert facts(found["out-of-memory"], "fatal") is True
    assert found["out-of-memory"].where == "model.py:9 in forward"
