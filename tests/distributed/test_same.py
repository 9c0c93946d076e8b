"""`pardbg same` on real ranks: layouts of one computation are the same, and faults are named."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pardbg.cli import main
from pardbg.session.reader import load
from tests.distributed.runs import started
from tests.forked import forked
from tests.processes import rank_env, run_argv, torchrun_argv

pytestmark = pytest.mark.timeout(500)
PROGRAM = "tests.distributed.programs.same_program"
RUNS = {
    "plain": (1, "plain"), "again": (1, "plain"), "ddp": (2, "ddp"), "fsdp": (3, "fsdp"),
    "tp": (2, "tp"), "twice": (2, "ddp", "twice"), "one-rank": (2, "ddp", "one-rank"),
    "other-data": (2, "ddp", "other-data"), "other-start": (1, "plain", "other-start"),
}  # fmt: skip


def job(nproc: int, *words: str) -> list[str]:
    return forked(torchrun_argv("-m", PROGRAM, *words, nproc=nproc))


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, found = tmp_path_factory.mktemp("same"), {}
    for name, how in RUNS.items():
        found[name] = folder / f"{name}.mcap"
        env = rank_env({"PARDBG_TENSORS": "0-1"})
        with started(job(*how), found[name], env=env) as handle:
            assert handle.wait(120) == 0
    return found


def printed(session: Path) -> str:
    return "\n".join(text for _, (_, _, text) in load(session).output.last(1 << 62, 1 << 10))


def same(*words: Any) -> tuple[int, dict[str, Any]]:
    with contextlib.redirect_stdout(io.StringIO()) as shown, pytest.raises(SystemExit) as done:
        main(["same", *map(str, words), "--json"])
    assert isinstance(done.value.code, int)
    return done.value.code, json.loads(shown.getvalue())


@pytest.mark.parametrize("layout", ["again", "ddp", "fsdp", "tp"])
def test_layouts_of_one_computation_are_the_same(sessions: dict[str, Path], layout: str) -> None:
    code, told = same(sessions["plain"], sessions[layout])
    assert code == 0, told
    alone, told = same(sessions[layout])
    has_replicas = layout in ("ddp", "tp")
    expected = (0, "invariants-hold") if has_replicas else (2, "no-replicas")
    assert (alone, told["reason"]) == expected


def test_a_gradient_that_is_doubled_is_named_with_its_factor(sessions: dict[str, Path]) -> None:
    code, told = same(sessions["plain"], sessions["twice"])
    assert code == 1
    # backward runs from the last parameter to the first
    assert (told["step"], told["what"], told["name"]) == (0, "grad", "4.bias")
    cause = told["hypothesis"]
    assert cause["cause"] == "factor" and cause["factor"] == pytest.approx(2, rel=1e-5)


def test_replicas_that_differ_need_no_reference(sessions: dict[str, Path]) -> None:
    code, told = same(sessions["one-rank"])
    assert (code, told["reason"]) == (1, "replicas-differ")
    assert (told["step"], told["what"], told["name"]) == (0, "grad", "0.weight")
    assert told["hypothesis"]["ranks"] == [0, 1]


@pytest.mark.parametrize(("fault", "why"), [
    ("other-data", "inputs-differ"), ("other-start", "initial-parameters-differ"),
])  # fmt: skip
def test_what_cannot_be_compared_is_no_difference(
    sessions: dict[str, Path], fault: str, why: str
) -> None:
    code, told = same(sessions["plain"], sessions[fault])
    assert (code, told["reason"]) == (2, why)


def test_losses_are_those_without_capture(sessions: dict[str, Path]) -> None:
    plain = run_argv(job(2, "ddp"), env=rank_env(), timeout_s=120)
    assert plain.code == 0
    losses, captured = (sorted(re.findall(r"0x[0-9a-fp.+-]+", text))
                        for text in (plain.out, printed(sessions["ddp"])))  # fmt: skip
    assert len(losses) == 6 and losses == captured
