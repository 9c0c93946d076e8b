"""What an exception came from: links that a program, Python or torch makes."""

from __future__ import annotations

import builtins
import gc
import sys
import traceback
import weakref
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from pardbg_agent.life import causes
from pardbg_agent.life.causes import MAX_ENDS, MAX_LINKS, Root, group_text, root_of

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


def test_ranks_of_a_checkpoint_in_a_group_are_those_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The group has ranks 2 and 3; its rank 1, the job's rank 3, fails."""
    utils = pytest.importorskip("torch.distributed.checkpoint.utils")
    c10d = pytest.importorskip("torch.distributed.distributed_c10d")
    exchange = utils._DistWrapper(None, use_dist=False, coordinator_rank=0)
    exchange.group = object()
    monkeypatch.setitem(c10d._world.pg_group_ranks, exchange.group, {2: 0, 3: 1})
    failed = utils._wrap_exception(OSError("disk"))
    monkeypatch.setattr(exchange, "all_gather_object", lambda mine: [None, failed])
    with pytest.raises(BaseException, match="ranks") as raised:
        exchange.all_gather("save", lambda: None)
    root = root_of(raised.value, raised.value.__traceback__)
    assert root is not None and (type(root.value), root.ranks) == (OSError, (3,))


@pytest.mark.parametrize(
    ("raised", "ends"),
    [
        ({1: OSError("disk"), 2: ValueError("name")}, [(OSError, (1,)), (ValueError, (2,))]),
        ({0: OSError("disk"), 2: OSError("disk")}, [(OSError, (0, 2))]),
        ({0: OSError("disk"), 2: OSError("quota")}, [(OSError, (0,)), (OSError, (2,))]),
    ],
)
def test_of_ranks_that_fail_a_checkpoint_unlike_each_is_told(
    monkeypatch: pytest.MonkeyPatch, raised: dict[int, Exception], ends: list[object]
) -> None:
    monkeypatch.setattr(causes, "_CHECKPOINT", (__name__, "CheckpointException"))
    root = root_of(CheckpointException({rank: (of, None) for rank, of in raised.items()}), None)
    assert root is not None
    assert [(type(one.value), one.ranks) for one in (root, *root.others)] == ends


class Group(Exception):
    """As the package exceptiongroup has it, where Python has none."""

    def __init__(self, text: str, members: list[Exception]) -> None:
        super().__init__(text, members)
        self._held = tuple(members)

    @property
    def exceptions(self) -> tuple[Exception, ...]:
        return self._held

    def __str__(self) -> str:
        return f"{self.args[0]} ({len(self._held)} sub-exceptions)"


@pytest.fixture(params=["Python's", "a package's"])
def group(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "Python's":
        return getattr(builtins, "ExceptionGroup", None) or pytest.skip("Python has none")
    monkeypatch.delattr(builtins, "BaseExceptionGroup", raising=False)
    monkeypatch.setitem(sys.modules, "exceptiongroup", SimpleNamespace(BaseExceptionGroup=Group))
    return Group


def raised(raises: Raises) -> Exception:
    try:
        raises()
    except Exception as error:  # noqa: BLE001 - of any class, that is what is looked at
        return error
    raise AssertionError


def told(value: BaseException) -> list[tuple[type[BaseException], list[str]]]:
    root = root_of(value, value.__traceback__)
    found = () if root is None else (root, *root.others)
    return [(type(one.value), [name for _, _, name in one.frames]) for one in found]


def test_of_a_group_what_each_of_its_members_came_from_is_told(group: Any) -> None:
    """Of one that was raised while another was handled: itself."""
    inner = group("inner", [raised(stage), raised(while_handling)])
    value = raised(lambda: exec("raise of", {"of": group("outer", [raised(forward), inner])}))
    assert told(value) == [
        (ValueError, ["raised", "forward"]), (ValueError, ["raised", "stage", "forward"]),
        (KeyError, ["raised", "while_handling"]),
    ]  # fmt: skip
    assert group_text(value) == "outer (2 sub-exceptions)" and group_text(KeyError()) is None


def test_a_group_of_many_is_told_so_far_and_not_in_circles(group: Any) -> None:
    many = group("many", [ValueError(at) for at in range(MAX_ENDS + 5)])
    assert len(told(many)) == MAX_ENDS
    part = ValueError()
    of = group("circle", [part])
    part.__cause__ = of
    assert [kind for kind, _ in told(of)] == [ValueError]
    for _ in range(30):  # 2 ** 30 ways down
        many = group("deep", [many, many])
    assert 0 < len(told(many)) <= MAX_ENDS


def test_no_code_of_a_groups_class_runs() -> None:
    kind = getattr(builtins, "ExceptionGroup", None) or pytest.skip("Python has none")

    class Odd(kind):  # type: ignore[valid-type, misc]
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(name)

        def __str__(self) -> str:
            raise AssertionError

    odd = Odd("odd", [ValueError()])
    root = root_of(odd, None)
    assert root is not None and type(root.value) is ValueError
    assert group_text(odd) == "odd (1 sub-exception)"


def load(at: int) -> None:
    raise ValueError(f"no sample {at}\nof 7")


def reload(at: int) -> None:
    try:
        load(at)
    except ValueError as error:
        raise OSError("gave up") from error


@pytest.mark.parametrize(("loads", "said"), [(load, "ValueError: no sample 9"),
                                             (reload, "OSError: gave up")])  # fmt: skip
def test_what_a_worker_raised_is_told_of_the_text_that_it_passed_on(
    loads: Callable[[int], None], said: str
) -> None:
    utils = pytest.importorskip("torch._utils")
    try:
        loads(9)
    except (ValueError, OSError):
        wrapper = utils.ExceptionWrapper(where="in DataLoader worker process 1")
    value = raised(wrapper.reraise)
    root = root_of(value, value.__traceback__)
    assert root is not None and root.passed_on == said
    assert root.frames[-1][0] == __file__ and root.frames[-1][2] == loads.__name__


@pytest.mark.parametrize("text", ["\nOriginal Traceback (most recent call last):\n", "x", 7])
def test_a_text_that_passes_nothing_on_is_no_cause(text: object) -> None:
    assert root_of(ValueError(text), None) is None


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
