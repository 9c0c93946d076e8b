"""What watches see in real torch: NaN before it spreads, what is slow, memory above a limit,
modules that a breakpoint asks for. A
fake world of 4 ranks; this is rank 1, and its gate is a real one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.modules.module import _global_forward_hooks
from torch.testing._internal.distributed.fake_pg import FakeStore

import pardbg_agent
from pardbg.control.language.expr import gates, parse
from pardbg_agent import core, hooks
from pardbg_agent.control.breaks import breaks_of
from pardbg_agent.control.watches import watches_of
from pardbg_agent.ctrl.agent_messages import BreakAt, Watch
from pardbg_agent.hooks.context import Op
from pardbg_agent.hooks.memory import usage
from pardbg_agent.hooks.watch import not_finite, op_watches
from tests.distributed.programs.watched import make_run

NAN, INF = float("nan"), float("inf")
MS = 1_000_000


@pytest.fixture
def c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[core.Core]:
    monkeypatch.setenv("PARDBG", make_run(tmp_path)["PARDBG"])
    hooks.install()
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    assert core.CURRENT is not None
    yield core.CURRENT
    dist.destroy_process_group()
    hooks.uninstall()
    core.shutdown()


def watch(c: core.Core, kind: str, limit: float = 0.0, number: int = 1) -> None:
    watches = watches_of([Watch(number, kind, limit)])
    c.gate.set_breaks(breaks_of([]), watches)
    c.watches = watches


def hits(c: core.Core, program: Callable[[], object]) -> list[tuple[str, str]]:
    """(what was found, what comes next) each time the program is held; it goes on at once."""
    found: list[tuple[str, str]] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            program()
        except BaseException as error:  # noqa: BLE001 - told below
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        state = c.gate.state()
        if state.held and state.hit is not None:
            found.append((state.hit[1], state.next))
            c.gate.run()
        thread.join(0.001)
    assert not raised, raised
    assert not c.guard.errors
    return found


# -- nan


def test_nan_in_an_input_holds_that_op_before_it_is_issued(c: core.Core) -> None:
    watch(c, "nan")
    t = torch.zeros(8)

    def program() -> None:
        dist.all_reduce(t)
        t[5], t[7] = NAN, INF
        dist.all_reduce(t)
        dist.all_reduce(t)  # the same step: once is enough
        pardbg_agent.step()
        dist.send(t, dst=2)

    assert hits(c, program) == [
        ("2 of 8 values are not finite (1 NaN, 1 infinite; the first at 5) in the input of "
         "all_reduce default #1", "all_reduce default #1"),
        ("2 of 8 values are not finite (1 NaN, 1 infinite; the first at 5) in the input of "
         "send to r2", "send to r2"),
    ]  # fmt: skip


def test_every_tensor_of_an_op_is_looked_at_and_every_kind_of_number(c: core.Core) -> None:
    good, bad = torch.zeros(2), torch.tensor([0.0, NAN])
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    programs: list[Callable[[], object]] = [
        lambda: dist.all_to_all([torch.empty(2) for _ in range(4)], [good, good, bad, good]),
        lambda: dist.reduce_scatter(torch.empty(2), [good, bad, good, good]),
        lambda: dist.all_gather([torch.empty(2) for _ in range(4)], bad),
        lambda: scatter(torch.empty(1), torch.full((4,), NAN)),
        lambda: dist.broadcast(bad, src=1),
        lambda: dist.all_reduce(torch.nn.Parameter(bad)),
        lambda: dist.all_reduce(bad.half()),
        lambda: dist.send(torch.full((2,), NAN).to(torch.float8_e4m3fn), dst=0),
        lambda: dist.send(torch.tensor([1 + 1j, complex(0, NAN)]), dst=0),
    ]
    for program in programs:
        watch(c, "nan")
        assert len(hits(c, program)) == 1, program
        c.step += 1  # at most one in a step


def test_what_nobody_has_written_yet_and_what_may_be_infinite_is_let_pass(c: core.Core) -> None:
    watch(c, "nan")
    bad = torch.full((4,), NAN)

    def program() -> None:
        dist.broadcast(bad, src=0)
        dist.recv(bad, src=0)
        dist.all_gather([bad, bad, bad, bad], torch.zeros(4))
        dist.all_reduce(torch.full((4,), -INF), op=dist.ReduceOp.MAX)
        dist.all_reduce(torch.full((4,), 1e38))
        dist.all_reduce(torch.ones(4, dtype=torch.int64))
        dist.barrier()

    assert hits(c, program) == []


def test_a_gradient_is_named_at_the_optimizers_gate(c: core.Core) -> None:
    watch(c, "nan")
    model = torch.nn.ModuleDict({"body": torch.nn.Linear(2, 3), "head": torch.nn.Linear(3, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def program() -> None:
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        weight = model["body"].weight
        assert isinstance(weight, torch.nn.Parameter) and weight.grad is not None
        weight.grad[2, 1] = NAN  # place 5 of 3 × 2
        optimizer.step()

    assert hits(c, program) == [
        ("1 of 6 values is not finite (1 NaN; the first at 5) in the gradient of body.weight",
         "optimizer.step 0")
    ]  # fmt: skip


def test_an_op_that_reduces_gradients_names_the_parameter(c: core.Core) -> None:
    """As in a DDP bucket: NaN came from the second layer, and backward took it to the first."""
    watch(c, "nan")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, bias=False))
    for p in model.parameters():
        p.grad = torch.full_like(p, NAN)
    bucket = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    ((text, _),) = hits(c, lambda: dist.all_reduce(bucket))
    assert text == (
        "10 of 10 values are not finite (10 NaN; the first at 0) in the input of all_reduce "
        "default #0; so is the gradient of 1.weight"
    )


def test_many_tensors_are_looked_at_in_one_go() -> None:
    """As gradients on a device are, which is waited for once."""
    good = [torch.full((3,), 1e38), torch.zeros(0), torch.ones(2, dtype=torch.int64),
            torch.full((4,), 6e4, dtype=torch.float16)]  # fmt: skip
    assert not_finite.all_finite(good) and not_finite.all_finite([])
    for bad in (NAN, INF, -INF):
        assert not not_finite.all_finite([*good, torch.tensor([1.0, bad])])
        assert not not_finite.all_finite([torch.tensor([bad, 1.0], dtype=torch.bfloat16), *good])


def test_the_loss_and_what_the_program_logs(c: core.Core) -> None:
    watch(c, "nan")
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def program() -> None:
        (weight * NAN).sum().backward()
        optimizer.step()
        pardbg_agent.log(loss=1.0, perplexity=INF)
        dist.barrier()

    assert hits(c, program) == [
        ("the loss is nan", "optimizer.step 0"), ("logged perplexity is inf", "barrier default #0")
    ]  # fmt: skip


# -- slow


def test_time_of_its_own_before_an_op_is_found_before_the_op(c: core.Core) -> None:
    """Seven steps of two ops with 1 ms before each, then 300 ms before the second. A busy machine
    may be late elsewhere, too."""
    watch(c, "slow", 5.0)
    t = torch.zeros(2)

    def program() -> None:
        for step in range(8):
            for op in range(2):
                time.sleep(0.3 if (step, op) == (7, 1) else 0.001)
                dist.all_reduce(t)
            pardbg_agent.step()

    found = next(text for text, coming in hits(c, program) if coming == "all_reduce default #15")
    assert "× the median" in found
    assert " of its own before all_reduce default #15, " in found, found


def test_a_planted_delay_is_time_of_its_own(c: core.Core) -> None:
    watch(c, "slow", 5.0)
    t = torch.zeros(2)

    def program() -> None:
        for step in range(8):
            if step == 7:
                c.gate.set_delay(60 * MS)
            dist.all_reduce(t)
            pardbg_agent.step()

    found = hits(c, program)
    assert any("of its own before all_reduce" in text or "took" in text for text, _ in found), found


def test_a_slow_step_and_a_held_one_that_is_none(c: core.Core) -> None:
    watch(c, "slow", 4.0)
    c.step_t0 = time.monotonic_ns()
    for _ in range(7):
        c._watch_step(c.watches.slow, c.step, 0, 20 * MS)  # type: ignore[arg-type]
    c._watch_step(c.watches.slow, 7, 0, 80 * MS)  # type: ignore[arg-type]
    assert c.gate._due is None, "4 times is not more than 4 times"
    c.gate.permit(1, 0, 0, 0, 10**10)
    c._watch_step(c.watches.slow, 7, 0, 500 * MS)  # type: ignore[arg-type]
    assert c.gate._due is None, "it was held"
    c.gate.run(2)
    since = c.gate.opened_ns
    c._watch_step(c.watches.slow, 8, since, since + 81 * MS)  # type: ignore[arg-type]
    assert c.gate._due == (1, "step 8 took 81 ms, 4.05 × the median 20 ms of 8")


def test_a_slow_op_and_a_slow_action(c: core.Core) -> None:
    watch(c, "slow", 3.0)
    dist.all_reduce(torch.zeros(2))
    name = c.defs.op("all_reduce", "float32", "sum")
    group = next(iter(core_groups(c)))

    def ended(seq: int, step: int, ms: int) -> None:
        op = Op(0, name, 0, step, seq, group, 0, -1, -1, -1, 8, 8, True)
        op_watches.op_ended(c, op, ms * MS)

    for step in range(7):  # two in each step: the first takes 10 times as long, always
        ended(2 * step, step, 200)
        ended(2 * step + 1, step, 20)
    assert c.gate._due is None
    ended(14, 7, 250)
    ended(15, 7, 70)
    assert c.gate._due == (1, "all_reduce default #15 took 70 ms, 3.50 × the median 20 ms of 7")
    c.gate.set_breaks(breaks_of([]))
    assert c.gate._due is None
    watch(c, "slow", 3.0)
    for mb in range(6):
        op_watches.action_ended(c, 2, "F", f"2F{mb}", 0, 15 * MS)
    op_watches.action_ended(c, 2, "F", "2F6", 0, 60 * MS)
    assert c.gate._due == (1, "2F6 took 60 ms, 4 × the median 15 ms of 6")


def core_groups(c: core.Core) -> list[int]:
    from pardbg_agent.hooks import context

    return [group.group_id for group in context.of(c).groups.values()]


# -- memory


def test_memory_is_what_was_counted_and_the_passing_of_the_limit_is_the_hit(c: core.Core) -> None:
    """A weight of 1000 × 4 B and its gradient: 8000 B at the end of the first step; Adam's two
    moments and its step count of 4 B make 16,004."""
    watch(c, "memory", 10_000)
    weight = torch.nn.Parameter(torch.zeros(1000))
    plain, adam = torch.optim.SGD([weight], lr=0.1), torch.optim.Adam([weight])

    def program(optimizer: Any, steps: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(steps):
                weight.grad = torch.ones(1000)
                optimizer.step()

        return run

    assert hits(c, program(plain, 1)) == []
    found = hits(c, program(adam, 3))
    assert [text for text, _ in found] == [
        "15.6 KiB allocated (parameters 3.91 KiB, gradients 3.91 KiB, optimizer 7.82 KiB), "
        "more than 9.77 KiB"
    ], "it stays above: said once"


def test_microbatches_in_flight_keep_their_activations(c: core.Core) -> None:
    """300 B each: two in flight are 600, three 900."""
    watch(c, "memory", 700.0)
    usage.counted(c, 0, 300)
    usage.schedule_begins(c)
    for verb in ("F", "F", "B", "F"):
        usage.chunk(c, 0, verb)
    assert c.gate._due is None
    usage.chunk(c, 0, "F")
    assert c.gate._due == (1, "900 B allocated (activations 900 B), more than 700 B")


# -- modules


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp, self.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(torch.utils.checkpoint.checkpoint(self.mlp, x, use_reentrant=False))


def training(net: Any, steps: int) -> Callable[[], None]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def run() -> None:
        for _ in range(steps):
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()

    return run


def breaks(c: core.Core, *conditions: str) -> None:
    trees = [parse(text) for text in conditions]
    asked = [BreakAt(n, gates(tree), tree) for n, tree in enumerate(trees, 1)]
    c.gate.set_breaks(breaks_of(asked))


class Wrapper(torch.nn.Module):
    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> Any:
        return self.module(x)


def test_a_break_at_a_module_holds_where_it_ended(c: core.Core) -> None:
    run = training(Wrapper(Net()), 3)
    breaks(c, "module==mlp and action==F", 'module=="" and action==B')
    # hooked from the end of the first step on; a forward that recomputation repeats is none
    once = ["return of mlp", "backward of the model"]
    assert [text for text, _ in hits(c, run)] == 2 * once
    breaks(c, "module==head")
    assert [text for text, _ in hits(c, run)] == 3 * ["return of head", "backward of head"]
    breaks(c, "op==send")
    assert hits(c, run) == [] and not _global_forward_hooks


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch 2.14's compiler asks for it
def test_modules_are_not_hooked_where_one_is_compiled(c: core.Core) -> None:
    net = Net()
    net.head.compile(backend="eager")
    breaks(c, "module==mlp")
    assert hits(c, training(net, 2)) == [] and not _global_forward_hooks
    torch._dynamo.reset()
