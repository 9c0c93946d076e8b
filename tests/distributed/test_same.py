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
from pardbg.events.control_codes import Verb
from pardbg.hub.client import HubControl
from pardbg.render.reports.replies import as_json
from pardbg.session.reader import load
from tests.distributed.runs import started
from tests.forked import forked, served
from tests.processes import rank_env, run_argv, torchrun_argv

pytestmark = pytest.mark.timeout(500)
LONG = pytest.mark.long
"""More layouts and faults, each of a job of its own: `make test-long`."""
PROGRAM = "tests.same.train"
FULL = "grad:blocks.1.mlp.up.weight,d_out:*.norm2"
"""Tensors whose elements are kept."""
RUNS = {
    "plain": (1, "plain"), "ddp": (2, "ddp"), "fsdp": (3, "fsdp"), "dtensor": (2, "dtensor"),
    "tensor": (2, "tensor"), "pipeline": (2, "one-f-one-b"), "twice": (2, "ddp", "doubled"),
    "one-rank": (2, "ddp", "one-rank"), "not-reduced": (2, "tensor", "not-reduced", "1"),
    "not-copied": (2, "tensor", "copy-mlp", "1"), "unsaid": (2, "tensor-unsaid"),
    "stale": (2, "owned", "not-broadcast"),
    "own-values": (2, "tensor-unsaid"), "slice": (3, "fsdp", "slice", "1"),
}  # fmt: skip


def job(nproc: int, *words: str, init: bool = False) -> list[str]:
    """``init``: parameters are written or taken, which ranks must know before torch is there."""
    argv = torchrun_argv("-m", PROGRAM, *words, nproc=nproc)
    return forked(argv) if init else served(argv, PARDBG_TENSORS="0-1", PARDBG_FULL=FULL)


class Recorded(dict[str, Path]):
    """Name -> session, recorded when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __missing__(self, name: str) -> Path:
        path = self[name] = self.folder / f"{name}.mcap"
        init = {"plain": "PARDBG_INIT_TO", "unsaid": "PARDBG_INIT_FROM"}.get(name)
        more = {init: str(self.folder / "init")} if init else {}
        env = rank_env({"PARDBG_TENSORS": "0-1", "PARDBG_FULL": FULL, **more})
        with started(job(*RUNS[name], init=init is not None), path, env=env) as handle:
            assert handle.wait(120) == 0
        return path


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = Recorded(tmp_path_factory.mktemp("same"))
    assert found["plain"]  # whose parameters another begins with
    return found


def printed(session: Path) -> str:
    return "\n".join(text for _, (_, _, text) in load(session).output.last(1 << 62, 1 << 10))


def same(*words: Any) -> tuple[int, dict[str, Any]]:
    with contextlib.redirect_stdout(io.StringIO()) as shown, pytest.raises(SystemExit) as done:
        main(["same", *map(str, words), "--json"])
    assert isinstance(done.value.code, int)
    return done.value.code, json.loads(shown.getvalue())


def whats(told: dict[str, Any]) -> set[str]:
    return {row["what"] for row in told["rows"]}


@pytest.mark.parametrize(("layout", "alone"), [
    ("ddp", "invariants-hold"), ("tensor", "no-replicas"), ("pipeline", "no-replicas"),
    pytest.param("fsdp", "no-replicas", marks=LONG),
    pytest.param("dtensor", "no-replicas", marks=LONG),
    pytest.param("unsaid", "nothing-judged", marks=LONG),
])  # fmt: skip
def test_layouts_of_one_computation_are_the_same(
    sessions: dict[str, Path], layout: str, alone: str
) -> None:
    code, told = same(sessions["plain"], sessions[layout])
    assert code == 0, told
    assert whats(told) == {"out", "d_out", "grad", "param"}
    code, told = same(sessions[layout])
    assert (code, told["reason"]) == (0 if alone == "invariants-hold" else 2, alone)


@LONG
def test_without_the_references_values_only_that_is_said(sessions: dict[str, Path]) -> None:
    code, told = same(sessions["plain"], sessions["own-values"])
    assert (code, told["reason"]) == (2, "initial-parameters-differ")


@LONG
def test_a_parameter_that_is_not_taken_over_is_named_without_a_reference(
    sessions: dict[str, Path],
) -> None:
    """Rank 1 steps every second parameter, and keeps it to itself."""
    for of in ((sessions["stale"],), (sessions["plain"], sessions["stale"])):
        code, told = same(*of)
        assert (code, told["reason"], told["step"], told["what"]) == (1, "differs", 1, "used")
        cause = told["hypothesis"]
        assert (cause["cause"], cause["ranks"], cause["makers"]) == ("not-taken", [0], [1])


def test_stages_get_the_names_of_their_layers(sessions: dict[str, Path]) -> None:
    _, told = same(sessions["plain"], sessions["pipeline"])
    rows = {(row["what"], row["name"]) for row in told["rows"]}
    assert {("grad", "blocks.2.mlp.up.weight"), ("out", "blocks.2"), ("d_out", "head")} <= rows


def test_an_output_that_is_not_reduced_is_named_with_its_block(sessions: dict[str, Path]) -> None:
    code, told = same(sessions["plain"], sessions["not-reduced"])
    assert (code, told["what"], told["name"]) == (1, "out", "blocks.1.mlp")
    assert (told["hypothesis"]["cause"], told["hypothesis"]["ranks"]) == ("sum", [0, 1])
    assert (told["place"]["kind"], told["place"]["source"].split("/")[-1].split(":")[0]) == (
        "Mlp", "model.py",
    )  # fmt: skip
    (odd,) = told["beside"]
    assert (odd["block"], odd["backward"], odd["op"]) == ("blocks.1", False, "all_reduce")
    assert (odd["times"], odd["usual"], odd["siblings"]) == (1, 2, 3)


def test_a_gradient_that_is_not_reduced_is_named_with_whose_backward_it_leaves(
    sessions: dict[str, Path],
) -> None:
    code, told = same(sessions["plain"], sessions["not-copied"])
    assert (code, told["what"], told["name"]) == (1, "d_out", "blocks.1.norm2")
    assert told["hypothesis"]["cause"] == "sum" and told["place"]["through"] == "blocks.1.mlp.up"
    (odd,) = told["beside"]
    assert (odd["block"], odd["backward"], odd["times"], odd["usual"]) == ("blocks.1", True, 1, 2)


def test_a_gradient_that_is_doubled_is_named_with_its_factor(sessions: dict[str, Path]) -> None:
    code, told = same(sessions["plain"], sessions["twice"])
    assert code == 1
    # backward runs from the last parameter to the first
    assert (told["step"], told["what"], told["name"]) == (0, "grad", "head.weight")
    cause = told["hypothesis"]
    assert cause["cause"] == "factor" and cause["factor"] == pytest.approx(2, rel=1e-5)


@LONG
def test_the_elements_that_differ_are_named_with_their_shard(sessions: dict[str, Path]) -> None:
    """Rank 1 has rows 43 to 85 of 128, and three times the gradient in three of them."""
    code, told = same(sessions["plain"], sessions["slice"])
    assert (code, told["what"], told["name"]) == (1, "grad", "blocks.1.mlp.up.weight")
    (one,) = told["elements"]
    assert one["shape"] == [128, 32]
    assert [(s["rank"], s["wrong"], s["compared"]) for s in one["shards"]] == [
        (0, 0, 43 * 32), (1, 3 * 31, 43 * 32), (2, 0, 42 * 32),
    ]  # fmt: skip
    wrong = one["shards"][1]
    assert (wrong["ranges"], wrong["first"]) == ([[45, 47], [1, 31]], [45, 1])
    assert wrong["run"] == pytest.approx(3 * wrong["reference"], rel=1e-3)


def test_the_elements_of_a_gradient_are_told_by_sample(sessions: dict[str, Path]) -> None:
    """Each rank has one term of a sum; nothing comes back to the last position, which no label
    follows."""
    _, told = same(sessions["plain"], sessions["not-copied"])
    one = told["elements"][0]
    assert (one["what"], one["name"]) == ("d_out", "blocks.1.norm2")
    assert (one["by_sample"], one["shape"]) == (True, [24, 8, 32])
    for shard in one["shards"]:
        assert shard["compared"] == 24 * 8 * 32 and shard["wrong"] > 0.8 * shard["compared"]
        assert shard["ranges"][:2] == [[0, 23], [0, 6]] and shard["strips"][1][7] == 0
    assert [shard["rank"] for shard in one["shards"]] == [0, 1]


def test_replicas_that_differ_need_no_reference(sessions: dict[str, Path]) -> None:
    code, told = same(sessions["one-rank"])
    assert (code, told["reason"]) == (1, "replicas-differ")
    assert (told["step"], told["what"], told["name"]) == (0, "grad", "embed.weight")
    assert told["hypothesis"]["ranks"] == [0, 1]


def test_losses_are_those_without_capture(sessions: dict[str, Path]) -> None:
    plain = run_argv(job(2, "ddp"), env=rank_env(), timeout_s=120)
    assert plain.code == 0
    losses, captured = (sorted(re.findall(r"0x[0-9a-fp.+-]+", text))
                        for text in (plain.out, printed(sessions["ddp"])))  # fmt: skip
    assert len(losses) == 4 and losses == captured


@LONG
def test_watch_same_holds_the_ranks_at_the_module_that_differs(
    sessions: dict[str, Path], tmp_path: Path
) -> None:
    """On a live run, which goes on until then."""
    env = rank_env({"PARDBG_TENSORS": "0-1", "SAME_STEPS": "100000"})
    argv = job(2, "tensor", "copy-mlp", "1", init=True)
    with started(argv, tmp_path / "live.mcap", env=env) as handle:
        words = ["ctl", handle.run, "watch", "same", str(sessions["plain"]), "--timeout", "120"]
        with contextlib.redirect_stdout(io.StringIO()) as shown, pytest.raises(SystemExit) as done:
            main(words)
        assert done.value.code == 1 and "blocks.1.norm2" in shown.getvalue()
        control = HubControl(handle.run_dir)
        status = as_json(control.command(Verb.STATUS))
        control.close()
    assert status["mode"] == "held" and {*status["held"], *status["waiting"]} == {0, 1}
    assert "backward of blocks.1.norm2" in status["reason"]
