"""docs/tutorial-same.md does what it says, command by command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.processes import rank_env

pytestmark = pytest.mark.timeout(240)
PAGE = (ROOT / "docs" / "tutorial-same.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)


def same(folder: Path, session: str) -> tuple[int, dict[str, Any]]:
    words = [sys.executable, "-m", "pardbg", "same", "ref.mcap", session, "--json"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60)
    return done.returncode, json.loads(done.stdout)


def test_its_commands_tell_what_the_page_says(
    tmp_path: Path, free_port: Callable[..., int]
) -> None:
    (program,) = [text for kind, text in BLOCKS if kind == "python"]
    (tmp_path / "train.py").write_text(program, "utf-8")
    runs = [line for _, text in BLOCKS for line in text.splitlines() if "pardbg run" in line]
    assert len(runs) == 3
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**rank_env({"PARDBG_NATIVE": "off"}), "PATH": path}
    for command in runs:
        command = command.replace("torchrun", f"torchrun --master-port {free_port()}")
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stdout + done.stderr
    code, told = same(tmp_path, "par.mcap")
    assert (code, told["reason"]) == (0, "same")
    code, told = same(tmp_path, "bad.mcap")
    assert (code, told["what"], told["name"]) == (1, "d_out", "blocks.2.norm")
    assert told["hypothesis"]["cause"] == "sum" and told["place"]["through"] == "blocks.2.mlp.up"
    (beside,) = told["beside"]
    assert (beside["block"], beside["times"], beside["usual"]) == ("blocks.2", 0, 1)
