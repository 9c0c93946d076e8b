"""What an exception came from: links that a program, Python or torch makes."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import pytest

from pardbg_agent.life import causes
from pardbg_agent.life.causes import MAX_LINKS, Root, root_of

Raises = Callable[[], None]


def caught(raises: Raises) -> Root | None:
    try:
        raises()
    except (KeyError, RuntimeError, ValueError) as error:
        return root_of(error, error.__traceback__)
    raise AssertionError


def forward() -> None:
    raise ValueError("mask")


def stage() -> None:
    try:
        forward()
    except ValueError as error:
        raise RuntimeError("stage") from error


def while_handling() -> None:
    try:
        forward()
    except ValueError:
        {}["batch"]


def of_no_cause() -> None:
    try:
        forward()
    except ValueError:
        raise KeyError from None


def of_what_was_tried_before() -> None:
    """ValueError was handled as KeyError was raised, which is the cause that the program names."""
    try:
        while_handling()
    except KeyError as error:
        raise RuntimeError from error


def wrapped_in_cleanup() -> None:
    try:
        stage()
    finally:
        {}["group"]


def of_a_pool_of_processes() -> None:
    """As multiprocessing.pool does: the cause is the text of a traceback."""
    raise KeyError from type("RemoteTraceback", (Exception,), {})("Traceback …")


@pytest.mark.parametrize(
    ("raises", "cause"),
    [
        (forward, None), (of_no_cause, None), (of_a_pool_of_processes, None),
        (stage, (ValueError, False)), (while_handling, (ValueError, True)),
        (of_what_was_tried_before, (KeyError, False)), (wrapped_in_cleanup, (ValueError, True)),
    ],
)  # fmt: skip
def test_an_exception_comes_from_the_end_of_its_chain(
    raises: Raises, cause: tuple[type[Exception], bool] | None
) -> None:
    root = caught(raises)
    assert cause == (root and (type(root.value), root.implicit))


def test_the_stack_of_a_cause_begins_with_that_of_what_it_caused() -> None:
    root = caught(stage)
    assert root is not None
    assert [name for _, _, name in root.frames] == ["caught", "stage", "forward"]


def test_a_cause_that_was_never_raised_has_the_stack_of_what_it_caused() -> None:
    def raises() -> None:
        raise KeyError from ValueError()

    root = caught(raises)
    assert root is not None and [name for _, _, name in root.frames] == ["caught", "raises"]


def test_a_chain_is_followed_so_far_and_not_in_circles() -> None:
    chain = [ValueError(at) for at in range(MAX_LINKS + 5)]
    for one, other in pairwise(chain):
        one.__cause__ = other
    root = root_of(chain[0], None)
    assert root is not None and root.value is chain[MAX_LINKS]
    chain[1].__cause__ = chain[0]
    root = root_of(chain[0], None)
    assert root is not None and root.value is chain[1]


def test_no_code_of_the_programs_class_runs() -> None:
    class Odd(Exception):
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(name)

    odd = Odd()
    BaseException.__setattr__(odd, "__cause__", ValueError())
    root = root_of(odd, None)
    assert root is not None and type(root.value) is ValueError


class CheckpointException(BaseException):
    """As torch has it; copies come from other ranks, without their traceback."""

    def __init__(self, failures: dict[int, object]) -> None:
        self._failures = failures


def test_of_a_checkpoint_what_a_rank_raised_is_told_and_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    try:
        forward()
    except ValueError as error:
        summary = traceback.extract_tb(error.__traceback__)
        part = ValueError("mask"), summary
    failed = CheckpointException({1: part})
    assert root_of(failed, None) is None  # some class of this name
    monkeypatch.setattr(causes, "_CHECKPOINT", (__name__, "CheckpointException"))
    root = root_of(failed, None)
    assert root is not None and (type(root.value), root.implicit) == (ValueError, False)
    assert [name for _, _, name in root.frames][-1] == "forward"


def test_the_name_of_torchs_own_class_is_still_that() -> None:
    api = pytest.importorskip("torch.distributed.checkpoint.api")
    error = api.CheckpointException("", {1: (OSError("disk"), [])})
    root = root_of(error, None)
    assert root is not None and type(root.value) is OSError


def test_neither_exception_nor_frames_are_kept_alive() -> None:
    class Batch(SimpleNamespace):
        pass

    def raises() -> None:
        batch = Batch()
        seen.append(weakref.ref(batch))
        stage()

    seen: list[weakref.ref[Batch]] = []
    gc.disable()
    try:
        assert caught(raises) is not None
        assert seen[0]() is None
    finally:
        gc.enable()
