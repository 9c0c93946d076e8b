"""Which Python a job runs in, and when a build in the background starts for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pardbg.hub.run import native_build


def script(folder: Path, name: str, first_line: str) -> str:
    path = folder / name
    path.write_text(f"{first_line}\nprint()\n")
    path.chmod(0o700)
    return str(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """On PATH: python3 and a torchrun of it."""
    script(tmp_path, "python3", "#!/bin/sh")
    script(tmp_path, "torchrun", f"#!{tmp_path}/python3")
    script(tmp_path, "accelerate", "#!/usr/bin/env python3")
    script(tmp_path, "train.sh", "#!/bin/bash")
    return tmp_path


@pytest.mark.parametrize(
    ("program", "is_python"),
    [("python3", True), ("torchrun", True), ("accelerate", True), ("train.sh", False),
     ("missing", False)],
)  # fmt: skip
def test_the_python_of_a_command(folder: Path, program: str, is_python: bool) -> None:
    found = native_build.python_of([program, "-m", "x"], {"PATH": str(folder)})
    assert found == (str(folder / "python3") if is_python else None)


@pytest.mark.parametrize(
    "env",
    [{"PARDBG_NATIVE": "off"}, {"PARDBG_NATIVE_BUILD": "off"}, {"PARDBG_HOOKS": "dispatcher"}, {}],
)
def test_a_build_starts_unless_it_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str]
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(subprocess, "Popen", lambda argv, **how: started.append((argv, how)))
    native_build.start([sys.executable, "train.py"], {**env, "PARDBG": "/run"})
    assert len(started) == (0 if env else 1)
    for argv, how in started:
        assert argv[0] == sys.executable and argv[-1] == "--background"
        assert how["start_new_session"] and "PARDBG" not in how["env"]
