"""Settings of the agent from run.json and from the environment, and its line on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from dataclasses import dataclass, field
from typing import Final

from pardbg_agent import wire
from pardbg_agent.wire import LEVELS

OFF, SUMMARY, FULL = 0, 1, 2
ENV_BUDGET: Final = "PARDBG_BUDGET"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Fields of run.json that the agent uses."""

    run: str
    ring_dir: str
    data: str = ""
    """DATA endpoint; empty: no hub, the ring alone."""
    ctrl: str = ""
    keys: dict[str, str] = field(default_factory=dict)
    allow_eval: bool = False
    """Whether the job was started with --allow-eval."""
    hold_exceptions: bool = False
    """Whether the job was started with --on-exception hold."""


class Refused(OSError):
    """Raised for another user's run. The user was told, in one line of one rank."""


_told: set[str] = set()


def load_run(run_dir: str) -> RunSettings:
    """Read run.json. Raises OSError, ValueError or KeyError."""
    with open(os.path.join(run_dir, wire.RUN_FILE), encoding="utf-8") as file:
        _check_owner(run_dir, run_dir, os.stat(run_dir))
        _check_owner(run_dir, file.name, os.fstat(file.fileno()))
        data = json.load(file)
    rings = str(data["ring_dir"])
    ends = [str(data.get(name) or "").partition("ipc://")[2] for name in ("data", "ctrl")]
    for path in (rings, *filter(None, ends)):
        if os.path.exists(path):
            _check_owner(run_dir, path, os.stat(path))
    return RunSettings(
        run=str(data.get("run", "")),
        ring_dir=rings,
        data=str(data.get("data") or ""),
        ctrl=str(data.get("ctrl") or ""),
        keys=dict(data.get("keys") or {}),
        allow_eval=data.get("allow_eval") is True,
        hold_exceptions=bool(data.get("on_exception_s")),
    )


def _check_owner(run_dir: str, path: str, found: os.stat_result) -> None:
    """Raise Refused if another user made a path, or may change it: a job's environment must not
    make it open another user's files."""
    if found.st_uid == os.geteuid() and (not found.st_mode & 0o022 or stat.S_ISSOCK(found.st_mode)):
        return
    if run_dir not in _told and os.environ.get("RANK", "0") == "0":
        _told.add(run_dir)
        complain(f"{path} is another user's, or others may write to it: nothing is recorded")
    raise Refused(path)


def level_from_env() -> int:
    """Return the number of ``PARDBG_LEVEL``; full if unset or (with a message) unknown."""
    name = os.environ.get(wire.ENV_LEVEL, "").strip().lower() or "full"
    if name not in LEVELS:
        not_understood(wire.ENV_LEVEL, f"write {', '.join(LEVELS)}; recording in full")
        return FULL
    return LEVELS.index(name)


def budget_from_env() -> float:
    """Return ``PARDBG_BUDGET`` (``1%`` or ``0.01``) as a fraction of the step; 0: no budget, also
    for (with a message) an invalid value."""
    text = os.environ.get(ENV_BUDGET, "").strip()
    try:
        value = float(text.rstrip("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if text and not 0 <= value < 1:
        not_understood(ENV_BUDGET, "write a share of the step, as in 1%; there is no budget")
    return value if 0 < value < 1 else 0.0


def not_understood(name: str, what_to_do: str) -> None:
    """Complain about an environment variable once per job, not once per rank."""
    if os.environ.get("RANK", "0") == "0":
        complain(f"{name}={os.environ[name]} is not understood: {what_to_do}")


def complain(text: str) -> None:
    """Write one line on the user's stderr."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"pardbg: {text}"[:300].splitlines()[0] + "\n")
        sys.stderr.flush()
