"""The core: what hooks get, on and off; steps, levels, budget; what a program may call."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

import pardbg_agent
from pardbg_agent import active, wire
from pardbg_agent import core as core_module
from pardbg_agent.control import inspect
from pardbg_agent.ctrl.agent_messages import Thread
from pardbg_agent.ring import DEFAULT_CAPACITY, RingReader
from pardbg_agent.settings import FULL, OFF, SUMMARY, RunSettings, budget_from_env, level_from_env
from pardbg_agent.watched_rank import Core
from pardbg_agent.wire import Kind


@pytest.fixture(autouse=True)
def no_core(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins and ends without an agent in this process."""
    monkeypatch.setattr(core_module, "CURRENT", None)
    monkeypatch.setattr(core_module, "_parked", None)
    monkeypatch.setattr(active, "CORE", None)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "PARDBG_LEVEL", "PARDBG_BUDGET"):
        monkeypatch.delenv(name, raising=False)
    yield


@pytest.fixture
def core(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Core:
    """A core with a ring and no hub."""
    run = {"v": 1, "run": "r", "ring_dir": str(run_dir / "rings")}
    (run_dir / "run.json").write_text(json.dumps(run))
    monkeypatch.setenv("PARDBG", str(run_dir))
    return core_module.ensure()


def records(core: Core) -> list[tuple[Any, ...]]:
    batch = RingReader(core.ring.buffer).read()
    return [] if batch is None else list(wire.RECORD.iter_unpack(batch[1]))


def said(core: Core) -> list[dict[str, Any]]:
    return [msgpack.unpackb(payload) for payload in core.defs.payloads]


def test_ensure_makes_one_core_and_its_files(core: Core, run_dir: Path) -> None:
    assert core_module.ensure() is core
    assert core.level == FULL
    proc = core.identity.proc
    names = sorted(path.name for path in (run_dir / "rings").iterdir())
    assert names == [f"{proc}.defs", f"{proc}.ring"]
    assert said(core)[0]["k"] == "process"
    assert said(core)[0]["proc"] == proc
    assert core.sender is None


def test_threads_that_ensure_at_once_get_the_same(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_module, "CURRENT", None)
    found: list[Core] = []
    threads = [
        threading.Thread(target=lambda: found.append(core_module.ensure())) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(c) for c in found}) == 1


def test_without_a_run_the_core_is_off_but_usable() -> None:
    core = core_module.ensure()
    assert (core.level, core.run) == (OFF, None)
    core.record(2, 3, 0, 1, 0, 0, 0, 0, 0, -1, -1, -1, 0, 0)
    core.step_end()
    core.ops.completed(core.ops.issued("g", 1, "barrier", 0, False, False, -1, 0, 1, 0))
    assert core.defs.name("x") == 1
    assert active.CORE is None


@pytest.mark.parametrize("case", ["no directory", "not json", "ring_dir under a file"])
def test_what_cannot_be_made_turns_the_agent_off_in_one_line(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    monkeypatch.setenv("PARDBG", str(run_dir))
    if case == "no directory":
        monkeypatch.setenv("PARDBG", str(run_dir / "gone"))
    elif case == "not json":
        (run_dir / "run.json").write_text("{")
    else:
        (run_dir / "run.json").write_text(json.dumps({"ring_dir": str(run_dir / "run.json/x")}))
    core = core_module.ensure()
    assert core.level == OFF
    err = capsys.readouterr().err
    assert err.startswith("pardbg: agent is off: ")
    assert err.count("\n") == 1
    assert core_module.ensure() is core  # and not again and again
    assert capsys.readouterr().err == ""


def test_set_rank_reaches_header_and_definition(core: Core) -> None:
    core.set_rank(2, 4)
    header = RingReader(core.ring.buffer).header
    assert (header.rank, header.world_size) == (2, 4)
    assert core.identity.rank == 2
    assert said(core)[-1]["rank"] == 2


def test_a_rank_comes_from_torchruns_variables(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "3")
    core = core_module.start(RunSettings("r", str(run_dir)))
    assert core.identity.rank == 0
    assert core.identity.proc.startswith("3.")
    assert RingReader(core.ring.buffer).header.epoch == 3


def test_step_end_carries_the_agents_cost(core: Core) -> None:
    core.step_t0 = 100
    core.hook_ns, core.hook_calls = 40, 4
    core.step_end(t1=1100)
    core.hook_ns, core.hook_calls = 100, 6
    core.step_end(t1=2100)
    first, second = records(core)
    assert first[0] == Kind.STEP
    assert (first[4], first[5], first[6], first[12], first[13]) == (100, 1100, 0, 40, 4)
    assert (second[4], second[5], second[6], second[12], second[13]) == (1100, 2100, 1, 60, 2)
    assert core.step == 2


def test_the_budget_lowers_the_level_after_five_dear_steps(core: Core) -> None:
    core.budget, core.step_t0 = 0.01, 0
    t = 0
    for expected in (FULL, FULL, FULL, FULL, SUMMARY):
        t += 1000
        core.hook_ns += 11  # 1.1 % of 1000
        core.step_end(t1=t)
        assert core.level == expected
    assert said(core)[-1] == {
        "k": "note", "key": "level", "value": "summary: hooks took 1.1% of a step, budget 1.0%",
    }  # fmt: skip


def test_one_cheap_step_resets_the_budgets_count(core: Core) -> None:
    core.budget, core.step_t0 = 0.01, 0
    for n in range(1, 20):
        core.hook_ns += 9 if n % 5 == 0 else 11
        core.step_end(t1=n * 1000)
    assert core.level == FULL


@pytest.mark.parametrize(
    ("text", "fraction"),
    [("1%", 0.01), ("0.02", 0.02), ("", 0), ("0", 0), ("x", 0), ("200%", 0), ("-1", 0), ("nan", 0)],
)
def test_budget_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, fraction: float
) -> None:
    monkeypatch.setenv("PARDBG_BUDGET", text)
    assert budget_from_env() == pytest.approx(fraction)
    said = capsys.readouterr().err.splitlines()
    odd = not fraction and text not in ("", "0")
    assert said == [
        f"pardbg: PARDBG_BUDGET={text} is not understood: write a share of the step, as in 1%; "
        "there is no budget"
    ] * odd  # fmt: skip


@pytest.mark.parametrize(
    ("text", "level", "rank", "lines"),
    [("off", OFF, "0", 0), ("Summary", SUMMARY, "0", 0), ("", FULL, "0", 0), ("loud", FULL, "0", 1),
     ("loud", FULL, "1", 0)],
)  # fmt: skip
def test_level_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, level: int,
    rank: str, lines: int,
) -> None:  # fmt: skip
    """Rank 0 speaks for the job."""
    monkeypatch.setenv("PARDBG_LEVEL", text)
    monkeypatch.setenv("RANK", rank)
    assert level_from_env() == level
    assert capsys.readouterr().err.count("PARDBG_LEVEL=loud is not understood") == lines


def test_the_programs_own_words(core: Core) -> None:
    with pardbg_agent.span("tokenize", part=2, parts=6, chunk=1):
        pass
    pardbg_agent.log(loss=2.5, lr=1)
    pardbg_agent.step()
    pardbg_agent.step(7)
    kinds = [row[0] for row in records(core)]
    assert kinds == [
        Kind.SPAN_BEGIN, Kind.SPAN, Kind.METRIC, Kind.METRIC, Kind.STEP, Kind.STEP,
    ]  # fmt: skip
    begin, end = records(core)[:2]
    assert begin[4:6] == (end[4], end[4]) and end[5] >= end[4]  # t0, t1
    assert begin[3] == end[3] and begin[10] == end[10] == 1  # name, chunk
    assert begin[12:14] == end[12:14] == (2, 6)  # part, parts
    raw = RingReader(core.ring.buffer).read()
    assert raw is not None
    assert wire.RECORD_F.unpack(raw[1][128:192])[12] == 2.5
    assert [row[6] for row in records(core)[4:]] == [0, 7]
    assert core.explicit_steps
    assert core.step == 8


def test_a_bad_argument_is_said_once_and_the_call_goes_on(
    core: Core, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of two numbers the good one is kept, in the same call and in those that follow; 5 is a name
    as good as any."""
    for loss in ("not a number", "again", 2.0):
        pardbg_agent.log(loss=loss, lr=1.0)
    with pardbg_agent.span(5, part="x"):  # type: ignore[arg-type]
        pass
    pardbg_agent.step("two")  # type: ignore[arg-type]
    pardbg_agent.step(3)
    found = records(core)
    assert [row[0] for row in found if row[0] != Kind.SPAN_BEGIN] == [
        Kind.METRIC, Kind.METRIC, Kind.METRIC, Kind.METRIC, Kind.SPAN, Kind.STEP, Kind.STEP,
    ]  # fmt: skip
    names = {d["id"]: d["s"] for d in said(core) if d["k"] == "name"}
    assert [names[row[3]] for row in found[:4]] == ["lr", "lr", "loss", "lr"]
    assert (core.guard.errors, core.guard.disabled) == (0, set())
    told = capfd.readouterr().err.splitlines()
    assert [line.partition(":")[2].partition(":")[0] for line in told] == [
        " log(loss=…)", " span('5')", " step(n)"
    ]  # fmt: skip


def test_the_programs_words_do_nothing_when_nobody_watches() -> None:
    with pardbg_agent.span("x") as one, pardbg_agent.span("y") as two:
        assert one is two
    pardbg_agent.log(loss=object())
    pardbg_agent.step()
    pardbg_agent.breakpoint("here")
    assert not pardbg_agent.attach()
    pardbg_agent.detach()


def test_a_breakpoint_is_a_gate(core: Core) -> None:
    core.gate.permit(1, 0, 0, wire.Gate.BREAK, 20_000_000)
    pardbg_agent.breakpoint("after loss")
    assert [row[0] for row in records(core)] == [Kind.HELD]
    assert {"k": "name", "id": 1, "s": "breakpoint after loss"} in said(core)


def test_attach_after_detach_goes_on_in_the_same_ring(core: Core) -> None:
    core.record(2, 3, 0, 1, 0, 0, 0, 0, 0, -1, -1, -1, 0, 0)
    core_module.shutdown()
    assert core_module.CURRENT is None
    assert active.CORE is None
    again = core_module.ensure()
    assert again is core
    again.record(2, 3, 0, 1, 0, 0, 0, 0, 0, -1, -1, -1, 0, 0)
    assert [row[-1] for row in records(core)] == [1, 2]
    again.gate.permit(1, 0, 0, 0, 10**9)
    assert again.gate.closed  # permits count again
    again.gate.run()


def test_an_op_on_its_way_as_the_agent_leaves_does_not_keep_it_out(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel asks for a Core when there is none, and no run any more: that one is off."""
    run = os.environ["PARDBG"]
    core_module.shutdown()
    monkeypatch.delenv("PARDBG")
    assert core_module.ensure().run is None
    monkeypatch.setenv("PARDBG", run)
    core_module.forget_off()
    assert core_module.ensure().run is not None
    core_module.forget_off()
    assert core_module.CURRENT is not None, "one that is on stays"


def test_a_full_tmpfs_gives_a_smaller_ring(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fallocate, limit = core_module.os.posix_fallocate, 1 << 20

    def full(fd: int, offset: int, size: int) -> None:
        if size > limit:
            raise OSError(28, "No space left on device")
        fallocate(fd, offset, size)

    monkeypatch.setattr("os.posix_fallocate", full)
    core = core_module.start(RunSettings("r", str(run_dir)))
    assert core.ring.capacity == 4096  # 65536 / 4 is 1 MiB + 4 KiB: too much; / 16 fits


def test_rings_leave_three_quarters_of_a_small_tmpfs_to_the_job(
    small_tmpfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 MiB, two ranks: 256 KiB each; unless the user says how many records."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert core_module.start(RunSettings("r", str(small_tmpfs))).ring.capacity == 4096
    monkeypatch.setenv("PARDBG_RING", "8192")
    assert core_module.start(RunSettings("r", str(small_tmpfs))).ring.capacity == 8192
    monkeypatch.delenv("PARDBG_RING")
    subprocess.run(["mount", "-o", "remount,size=0", str(small_tmpfs)], check=True)  # no limit
    assert core_module.start(RunSettings("r", str(small_tmpfs))).ring.capacity == DEFAULT_CAPACITY


def test_stacks_show_the_program_and_not_the_agent() -> None:
    found = inspect.stacks()
    assert found[0].main
    assert found[0].frames[-1][2] == "test_stacks_show_the_program_and_not_the_agent"
    assert found[0].frames[-1][0] == __file__
    assert all(isinstance(line, int) for _, line, _ in found[0].frames)


def test_stacks_are_bounded() -> None:
    def deep(n: int) -> tuple[Thread, ...]:
        return inspect.stacks() if n == 0 else deep(n - 1)

    frames = deep(200)[0].frames
    assert len(frames) == inspect.MAX_FRAMES
    assert frames[-1][2] == "deep"  # the innermost ones are kept


RAN: list[object] = []
"""What of a program was asked for its text: that may raise, or wait for ever."""


class _Own(Exception):
    def __str__(self) -> str:
        RAN.append(self)
        raise RuntimeError


class _Argument:
    def __str__(self) -> str:
        RAN.append(self)
        raise RuntimeError

    __repr__ = __str__


def _raised(value: BaseException) -> str:
    try:
        raise value
    except BaseException:  # noqa: BLE001 - SystemExit, too
        with contextlib.suppress(ZeroDivisionError):
            1 // 0  # noqa: B018 - handled and done with
        return inspect.stacks()[0].handles


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (ValueError("corrupt sample 1234"), "ValueError: corrupt sample 1234"),
        (KeyError("b"), "KeyError: 'b'"),
        (OSError(5, "I/O error", "a.bin"), "OSError: [Errno 5] I/O error: 'a.bin'"),
        (RuntimeError("two\n  lines"), "RuntimeError: two lines"),
        (SystemExit(), "SystemExit"),
        (_Own("x"), "_Own"),
        (ValueError(_Argument()), "ValueError"),
        (OSError(2, "No such file", _Argument()), "FileNotFoundError"),
        (ValueError(10**5000), "ValueError"),
        (ValueError("x" * 1_000_000), "ValueError"),
    ],
)  # fmt: skip
def test_stacks_tell_what_is_being_handled_without_code_of_the_program(
    value: BaseException, told: str
) -> None:
    assert _raised(value) == told
    assert inspect.stacks()[0].handles == "" and RAN == []


def test_what_is_being_handled_is_bounded_and_of_the_main_thread() -> None:
    assert len(_raised(ValueError("x" * 1000))) == inspect.MAX_HANDLED
    found: list[tuple[Thread, ...]] = []

    def other() -> None:
        try:
            raise ValueError
        except ValueError:
            found.append(inspect.stacks())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(10)
    assert found and {one.handles for one in found[0]} == {""}


@pytest.mark.parametrize("kept", [("type", ValueError("x"), None), ValueError("x")])
def test_pythons_keep_what_is_handled_in_two_ways(
    kept: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "_current_exceptions", lambda: {7: kept}, raising=False)
    assert inspect.handled(7) == "ValueError: x" and inspect.handled(8) == ""
    monkeypatch.delattr(sys, "_current_exceptions")
    assert inspect.handled(7) == ""


def test_importing_the_agent_brings_neither_torch_nor_zmq() -> None:
    code = (
        "import sys, pardbg_agent, pardbg_agent.core, pardbg_agent.ring\n"
        "bad = {'torch', 'zmq', 'numpy', 'pardbg'} & set(sys.modules)\n"
        "sys.exit(repr(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
