"""The ways to see ops: put in place and taken off, which one is taken, and what a program sees."""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.testing._internal.distributed.fake_pg import FakeStore

from pardbg_agent import core, hooks
from pardbg_agent.hooks.ops import late_inputs
from pardbg_agent.settings import FULL
from pardbg_agent.wire import Kind
from tests.distributed.programs.watched import make_run
from tests.unit.hooks.recorded import SAYS_ASYNC, ops, options, rank

Work: Any = torch._C._distributed_c10d.Work
PG: Any = torch._C._distributed_c10d.ProcessGroup


def test_uninstall_restores_everything(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.optim.optimizer as optimizers
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    monkeypatch.setenv("PARDBG", make_run(tmp_path)["PARDBG"])
    owners: list[Any] = [
        PG, Work, torch.autograd, DistributedDataParallel, _BaseDataLoaderIter, torch._C._autograd,
        dist.distributed_c10d, dist.device_mesh.DeviceMesh,
    ]  # fmt: skip

    def state() -> list[Any]:
        tables = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
        kernels = [
            torch._C._dispatch_has_kernel_for_dispatch_key(name, "BackendSelect")
            for name in ("c10d::allreduce_", "c10d::send", "_c10d_functional::wait_tensor")
        ]
        return [dict(vars(owner)) for owner in owners] + [dict(t) for t in tables] + kernels

    before = state()
    assert before[-3:] == [False] * 3
    hooks.install()
    assert state() != before and state()[-3:] == [True] * 3
    hooks.uninstall()
    assert state() == before


def test_process_says_which_way_ops_are_seen(way: str, watched: Path) -> None:
    assert rank(watched).defined("process")[-1]["hooks"] == way


def test_ops_that_c_issues_are_seen_and_waited_for_by_tensor(watched: Path) -> None:
    """Functional collectives: C++ issues, and waits in wait_tensor. 4 ranks x 24 bytes are 96."""
    t, flat = torch.zeros(6), torch.zeros(24)
    group = dist.group.WORLD
    assert group is not None
    c10d, name = torch.ops._c10d_functional, group.group_name
    c10d.wait_tensor(c10d.all_reduce(t, "sum", name))
    c10d.wait_tensor(c10d.all_gather_into_tensor(t, 4, name))
    c10d.wait_tensor(c10d.reduce_scatter_tensor(flat, "sum", 4, name))
    for part in c10d.all_reduce_coalesced([t, flat], "sum", name):
        c10d.wait_tensor(part)
    assert ops(watched) == [
        ("all_reduce", 0, -1, 24, 24),
        ("all_gather", 1, -1, 24, 96),
        ("reduce_scatter", 2, -1, 96, 24),
        ("all_reduce", 3, -1, 120, 120),
    ]
    assert [r.seq for r in rank(watched).of(Kind.OP_DONE)] == [0, 1, 2, 3]
    defined = [d["coalesced"] for d in rank(watched).defined("op") if d["op"] == "all_reduce"]
    assert defined == [False, True]


def test_groups_built_by_hand_are_seen(watched: Path) -> None:
    """Some programs make ProcessGroup objects and no default group knows of them."""
    from torch._C._distributed_c10d import FakeProcessGroup

    store = FakeStore()
    try:
        made = PG(store, 1, 2)
    except TypeError:
        pytest.skip("torch's groups have options of their backend")  # before 2.6
    backend = getattr(FakeProcessGroup, "_create_internal", FakeProcessGroup)(1, 2)
    made._register_backend(torch.device("cpu"), PG.BackendType.CUSTOM, backend)
    made._set_default_backend(PG.BackendType.CUSTOM)
    made.allreduce([torch.zeros(2)], options("AllreduceOptions")).wait()
    assert ops(watched) == [("all_reduce", 0, -1, 8, 8)]


def test_after_uninstall_nothing_is_recorded_and_install_again_works(watched: Path) -> None:
    """Detach and attach in mid-program, with a group that lives on, and its name and numbers: the
    other ranks' may never have been detached."""
    dist.all_reduce(torch.zeros(2))
    hooks.uninstall()
    dist.all_reduce(torch.zeros(2))
    hooks.install()
    dist.all_reduce(torch.zeros(2))
    assert [seq for _, seq, *_ in ops(watched)] == [0, 1]
    assert len({d["key"] for d in rank(watched).defined("group")}) == 1


def test_what_is_noted_after_a_detach_is_for_the_core_that_comes_next(
    way: str, watched: Path
) -> None:
    """Ending the gate tells the table in C++, which must not take the next Core's context."""
    ended = core.ensure()
    hooks.uninstall()
    core.shutdown()
    assert ended.context is None


def test_without_the_native_way_the_dispatcher_is_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, where the native way or an unknown one was asked for."""
    from pardbg_agent.hooks import installed

    monkeypatch.setenv("PARDBG_NATIVE", "off")
    for wanted, lines in (("", 0), ("dispatcher", 0), ("native", 1), ("both", 1)):
        monkeypatch.setenv("PARDBG_HOOKS", wanted)
        assert installed.choose().name == "dispatcher"
        assert capsys.readouterr().err.count("\n") == lines


@pytest.mark.skipif(sys.version_info < (3, 11), reason="3.10 puts a wrapper's frame back")
def test_the_traceback_of_an_exception_is_the_programs_own(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the hooks of a group's method, of a kernel, of an optimizer, of a data loader, of
    backward and of calls that may block, also where these are not recorded: what the program
    catches has the frames that it has without the agent."""

    class Bad(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, at: int) -> int:
            raise LookupError(at)

    def refuse() -> None:
        PG.allreduce(dist.group.WORLD, [torch.zeros(2), torch.zeros(2, dtype=torch.int64)])

    mixed = [torch.zeros(2), torch.zeros(2, dtype=torch.int64)]
    calls: list[Callable[[], object]] = [
        refuse,
        lambda: torch.ops._c10d_functional.all_reduce_coalesced_(mixed, "sum", "0"),
        lambda: torch.optim.SGD([], lr=0.1),
        lambda: next(iter(torch.utils.data.DataLoader(Bad()))),
        lambda: torch.autograd.backward(torch.zeros(1)),
        lambda: dist.new_group([99]),
        lambda: torch.save(torch.zeros(1), str(tmp_path / "no" / "folder")),
    ]

    def without_a_rank() -> list[str]:
        for name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)
        return _frames(lambda: dist.init_process_group("gloo"))

    unranked = without_a_rank()
    monkeypatch.setenv("PARDBG", make_run(tmp_path)["PARDBG"])
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        plain = [_frames(call) for call in calls]
        hooks.install()
        assert core.ensure().level == FULL
        watched = [_frames(call) for call in calls]
        dist.destroy_process_group()
        assert without_a_rank() == unranked
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        hooks.uninstall()
        core.shutdown()
    assert watched == plain


def _frames(call: Callable[[], object]) -> list[str]:
    with pytest.raises(Exception) as caught:
        call()
    return [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_empty_outputs_are_waited_for_one_by_one(watched: Path) -> None:
    """They share their address, which is null: the wait for the first one is not the second's."""
    group = dist.group.WORLD
    assert group is not None
    c10d, name = torch.ops._c10d_functional, group.group_name
    parts = [c10d.reduce_scatter_tensor(torch.zeros(0), "sum", 4, name) for _ in range(2)]
    for number, part in enumerate(parts):
        c10d.wait_tensor(part)
        assert [r.seq for r in rank(watched).of(Kind.OP_DONE)] == list(range(number + 1))


def test_a_functional_receive_ends_with_its_wait(watched: Path) -> None:
    group = dist.group.WORLD
    assert group is not None and core.CURRENT is not None
    c10d = torch.ops._c10d_functional
    if not hasattr(c10d, "irecv"):
        pytest.skip("torch has no functional receive")
    c10d.wait_tensor(c10d.irecv(torch.zeros(4), 0, 0, group.group_name))
    assert ops(watched) == [("recv", 0, 0, 16, 16)]
    assert core.CURRENT.ops.num_open == 0


def test_an_asynchronous_op_knows_where_it_was_issued(way: str, watched: Path) -> None:
    """The first one of its kind comes through Python, later ones may not; a synchronous one stands
    where it is waited for."""
    if way == "native" and not (3, 11) <= sys.version_info[:2] <= (3, 12):
        pytest.skip("frames are read of CPython 3.11 and 3.12")
    line, name = sys._getframe().f_lineno + 3, sys._getframe().f_code.co_name
    for _ in range(2):
        # one line
        work = dist.all_reduce(torch.zeros(2), async_op=True)
        assert work is not None
        work.wait()
    dist.all_reduce(torch.zeros(2))
    assert core.CURRENT is not None
    sites = [core.CURRENT.call_site(r.t0) for r in rank(watched).of(Kind.OP_ISSUE)]
    last = None if SAYS_ASYNC else (__file__, line + 3, name)
    assert sites == [(__file__, line, name)] * 2 + [last]


@pytest.mark.parametrize("seed", range(20))
def test_both_ways_choose_the_same_inputs_to_look_at(way: str, watched: Path, seed: int) -> None:
    """Drawn steps of drawn sums and messages; looks that take too long come at drawn places."""
    c, draw = core.CURRENT, random.Random(seed)
    if c.native is None:
        return
    here, there = late_inputs.Chosen(), c.native.table.choice
    chosen = []
    for step in range(1, 300):
        for _ in range(draw.choice((0, 1, 2, 5, 40))):
            group, send = draw.choice("abc"), draw.random() < 0.5
            due = here.due(step, group, send)
            assert there.due(step, group, send) == due
            chosen.append(due)
        if draw.random() < 0.02:
            here.spend(10_000_000_000)
            there.spend(10_000_000_000)
        assert there.every == here.every
    assert True in chosen and False in chosen and here.every > 1
    there.captured = True
    assert c.native.table.choice.captured
