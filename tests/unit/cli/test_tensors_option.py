"""``--tensors``: a step or a range of steps, told to the job by its environment."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pardbg.cli.options import recording, recording_options
from pardbg_agent.hooks.watch.tensor_capture import steps
from pardbg_agent.wire import ENV_FULL, ENV_INIT_FROM, ENV_INIT_NOISE, ENV_INIT_TO, ENV_TENSORS


def told(*words: str, name: str = ENV_TENSORS) -> str | None:
    found: list[str | None] = []

    @click.command()
    @recording_options
    def command(**how: object) -> None:
        found.append(recording(**how).env({}).get(name))  # type: ignore[arg-type]

    done = CliRunner().invoke(command, words, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return found[0]


@pytest.mark.parametrize(("text", "captured"), [
    ("0", range(1)), ("0-1", range(2)), ("100-100", range(100, 101)), ("7-9", range(7, 10)),
])  # fmt: skip
def test_steps_reach_the_ranks(text: str, captured: range, monkeypatch: pytest.MonkeyPatch) -> None:
    said = told("--tensors", text)
    assert said is not None and told() is None
    monkeypatch.setenv(ENV_TENSORS, said)
    assert steps() == captured


@pytest.mark.parametrize("text", ["", "x", "-1", "3-1", "1-", "0-1-2", "0,1"])
def test_what_is_no_range_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(click.UsageError):
        told("--tensors", text)
    monkeypatch.setenv(ENV_TENSORS, text)
    assert len(steps()) == 0 and list(steps()) == []


def test_names_of_tensors_reach_the_ranks() -> None:
    words = ("--full", "grad:head.weight", "--full", "out:blocks.*")
    assert told("--tensors", "0", *words, name=ENV_FULL) == "grad:head.weight,out:blocks.*"
    assert told("--tensors", "0", name=ENV_FULL) is None
    with pytest.raises(click.UsageError):
        told(*words, name=ENV_FULL)


def test_folders_of_initial_values_reach_ranks_of_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "init").mkdir()
    for option, name in (("--init-to", ENV_INIT_TO), ("--init-from", ENV_INIT_FROM)):
        assert told(option, "init", name=name) == str(tmp_path / "init")
    (tmp_path / "init" / "rank-7-0.pt").write_text("another run's")
    with pytest.raises(click.UsageError):
        told("--init-to", "init")
    noise = told("--init-from", "init", "--init-noise", "own", name=ENV_INIT_NOISE)
    assert noise == "own"
    for wrong in (("--init-from", "none"), ("--init-noise", "own"), ("--init-noise", "int8")):
        with pytest.raises(click.UsageError):
            told(*wrong)
