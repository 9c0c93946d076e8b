"""Options of the commands that start or join a job: what is recorded, and on how many nodes."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pardbg.cli.common import all_of
from pardbg.control.machine.holding import HOLD_S, MAX_HOLD_S
from pardbg.hub.run.config import NO_HANG, OnHang
from pardbg.words import parse_duration, parse_size
from pardbg_agent import wire
from pardbg_agent.wire import LEVELS

if TYPE_CHECKING:
    from pardbg.session.rotation import PartLimits

MIN_HOLD_S: Final = wire.LEASE_NS / 1e9


@dataclass(frozen=True, slots=True)
class Recording:
    """Values of ``recording_options`` and ``node_options``, by the options' names."""

    limits: PartLimits
    level: str | None
    allow_eval: bool
    on_exception: float
    """Maximum time, s, for which a rank that raised is held; 0: the rank dies at once."""
    loss_pattern: str | None
    force: bool
    hub: str | None = None
    key: Path | None = None
    node_rank: int | None = None
    nnodes: int | None = None
    on_hang: OnHang = NO_HANG
    metrics: tuple[str, ...] = ()
    """Destinations of exported figures: HOST:PORT, ``otlp``."""
    tensors: str | None = None
    """Steps in which tensors are captured."""
    full: tuple[str, ...] = ()
    """Tensors of which all elements are kept."""
    init_to: Path | None = None
    """Folder that ranks write their initial parameters to."""
    init_from: Path | None = None
    """Folder that ranks read their initial parameters from."""
    init_noise: str | None = None
    """Dtype by whose rounding the initial parameters are then perturbed."""

    @property
    def attentive(self) -> bool:
        """Return whether only totals are recorded, so that the level is raised around findings."""
        level = self.level or os.environ.get(wire.ENV_LEVEL, "")
        return level.strip().lower() == "summary"

    def env(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the job's environment: ``env``, or this process's own, with the level."""
        made = dict(os.environ if env is None else env)
        if self.level is not None:
            made[wire.ENV_LEVEL] = self.level
        if self.tensors is not None:
            made[wire.ENV_TENSORS] = self.tensors
        if self.full:
            made[wire.ENV_FULL] = ",".join(self.full)
        for name, folder in (
            (wire.ENV_INIT_TO, self.init_to), (wire.ENV_INIT_FROM, self.init_from),
        ):  # fmt: skip
            if folder is not None:
                made[name] = str(folder.absolute())
        if self.init_noise is not None:
            made[wire.ENV_INIT_NOISE] = self.init_noise
        return made


class _Parsed(click.ParamType):  # type: ignore[type-arg]  # no generic before click 8.4
    """Option type with values from ``parse``, whose ValueError has the advice for the user."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _at_least(name: str, parse: Callable[[str], int], least: str) -> _Parsed:
    def parsed(text: str) -> int:
        found = parse(text)
        if found < parse(least):
            raise ValueError(f"{text} is too small: the minimum is {least}")
        return found

    return _Parsed(name, parsed)


def _on_exception(text: str) -> float:
    """Return how long a rank that raised is held, s; 0: not held."""
    word, _, time = text.strip().partition(":")
    if word == "die" and not time:
        return 0.0
    try:
        seconds = parse_duration(time) / 1e9 if time else HOLD_S
    except ValueError:
        seconds = -1.0
    if word != "hold" or not MIN_HOLD_S <= seconds <= MAX_HOLD_S:
        raise ValueError(f"{text!r}: write die, hold, or hold:TIME from 10s to 1h")
    return seconds


def _pattern(text: str) -> str:
    from pardbg.analysis.base.printed import given_pattern

    try:
        return given_pattern(text).pattern
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None


def _steps(text: str) -> str:
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not (last.isdecimal() and int(first) <= int(last))):
        raise ValueError(f"{text!r}: write a step, or a range of steps as in 0-1")
    return text


def _words(text: str) -> list[str]:
    """Split words as a shell does; empty if a quote is left open."""
    try:
        return shlex.split(text)
    except ValueError:
        return []


def _where(text: str) -> str:
    host, _, port = text.rpartition(":")
    if text != "otlp" and not (host and port.isdecimal() and int(port) < 1 << 16):
        raise ValueError(f"{text!r}: write HOST:PORT, or otlp")
    return text


def _on_hang(text: str) -> OnHang:
    first, *rest = text.split(",")
    abort = rest[-1:] == ["abort"]
    action = ",".join(rest[: len(rest) - abort])
    word, *command = _words(action) or ["exec"]
    if first != "bundle" or word != "exec" or bool(action) != bool(command):
        raise ValueError(f"{text!r}: write bundle[,exec CMD][,abort]")
    return OnHang(True, tuple(command), abort)


ON_EXCEPTION: Final = _Parsed("WHAT", _on_exception)
DURATION: Final = _at_least("TIME", parse_duration, "1s")
"""Type of options with a duration of at least a second, in ns."""


recording_options: Final = all_of(
    click.option("--force", is_flag=True, help="Overwrite the session file if it exists."),
    click.option("--level", type=click.Choice(LEVELS[1:]),
                 help="How much ranks record. summary: totals per step, with full detail for a "
                      "while around findings."),
    click.option("--max-size", type=_at_least("SIZE", parse_size, "64KiB"),
                 help="Start a new file at this size, as in 2GiB."),
    click.option("--max-time", type=DURATION,
                 help="Start a new file after this time, as in 24h."),
    click.option("--rotate", type=click.IntRange(1), metavar="N",
                 help="Keep only the newest N files (default: all)."),
    click.option("--tensors", type=_Parsed("STEPS", _steps),
                 help="Keep sketches of parameters and gradients in these steps (0-1), for "
                      "`pardbg same`."),
    click.option("--full", multiple=True, metavar="TENSOR",
                 help="With --tensors: in the first of these steps keep this tensor's elements "
                      "too, as `pardbg same` names it (grad:blocks.1.mlp.up.weight; patterns): "
                      "up to 32 MiB a rank."),
    click.option("--init-to", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
                 help="Write the parameters that training begins with to DIR, …"),
    click.option("--init-from", metavar="DIR",
                 type=click.Path(path_type=Path, file_okay=False, exists=True),
                 help="… and begin with them in another layout, to compare both with "
                      "`pardbg same`. This changes the job's numbers."),
    click.option("--init-noise", type=click.Choice(["own", "bfloat16", "float16"]),
                 help="With --init-from: move each parameter by a rounding of its own dtype, or "
                      "of the one that is computed in: a recording for `pardbg same --floor`."),
    click.option("--allow-eval", is_flag=True,
                 help="Let the controller run code in held ranks (p, tensor, compare …)."),
    click.option("--on-exception", type=ON_EXCEPTION, default="die", metavar="WHAT",
                 help="What a rank that raises does: die, or hold (keep it and its peers "
                      "for inspection); hold:TIME limits how long without a viewer (default 10m)."),
    click.option("--loss-pattern", type=_Parsed("REGEX", _pattern),
                 help="Pattern of the loss in the job's output: r'loss=(?P<loss>[0-9.]+)', and "
                      "optionally the step: (?P<step>[0-9]+)."),
)  # fmt: skip
hang_options: Final = all_of(
    click.option("--metrics", type=_Parsed("WHERE", _where), multiple=True,
                 metavar="HOST:PORT|otlp",
                 help="Serve figures of the run to Prometheus at this address; otlp: push them, as "
                      "OTEL_EXPORTER_OTLP_ENDPOINT says."),
    click.option("--on-hang", type=_Parsed("WHAT", _on_hang), metavar="bundle[,exec CMD][,abort]",
                 help="When ranks hang: write NAME.tar.zst beside the recording, which replay and "
                      "report open; then run CMD with its path, or abort the culprit."),
    click.option("--after", type=DURATION,
                 help="How long ranks stand still before that (default 60s)."),
    click.option("--notify", metavar="CMD|URL", help="Tell of each error once: JSON on stdin of "
                 "CMD, or POST."),
)  # fmt: skip
node_options: Final = all_of(
    click.option("--hub", metavar="tcp://HOST:PORT", help="For a job on several nodes: "
                 "address of node 0's hub (three ports, from PORT). Give it on every node."),
    click.option("--key", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                 help="File with the run's keys, the same on every node; node 0 creates it."),
    click.option("--node-rank", type=click.IntRange(0), metavar="N", help="This node's "
                 "number (default: from torchrun's options, Slurm or Kubernetes)."),
    click.option("--nnodes", type=click.IntRange(1), metavar="N", help="Number of nodes."),
)  # fmt: skip
"""Options for a job on several nodes, with the same values on each."""


def recording(
    max_size: int | None, max_time: int | None, rotate: int | None, **others: Any
) -> Recording:
    """Return the options' values together. Raises UsageError."""
    from pardbg.session.rotation import PartLimits

    if rotate is not None and max_size is None and max_time is None:
        raise click.UsageError("--rotate needs --max-size or --max-time, which start a new file")
    if others.get("init_noise") is not None and others.get("init_from") is None:
        raise click.UsageError("--init-noise goes with --init-from")
    if others.get("full") and others.get("tensors") is None:
        raise click.UsageError("--full goes with --tensors")
    folder = others.get("init_to")
    if folder is not None and not others.get("node_rank") and any(folder.glob("rank-*.pt")):
        raise click.UsageError(f"--init-to: {folder} has a run's parameters; name another folder")
    hang, after, notify = (others.pop(name, None) for name in ("on_hang", "after", "notify"))
    if after is not None and hang is None and notify is None:
        raise click.UsageError("--after goes with --on-hang or --notify")
    word = "http://" if notify is None else "".join(_words(notify)[:1])
    if not word or ("://" in word and not word.startswith(("http://", "https://"))):
        raise click.UsageError(f"--notify {notify!r}: give a command or an http(s) address")
    hang = replace(hang or NO_HANG, notify=(notify or "").strip(), after_s=(after or 60e9) / 1e9)
    limits = PartLimits(max_size or 0, max_time or 0, rotate or 0)
    return Recording(limits, on_hang=hang, **others)
