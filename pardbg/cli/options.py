"""Options of the commands that start or join a job: what is recorded, over how many nodes, and the
commands to begin with.

[Note: .pardbgrc] A viewer reads ``~/.pardbgrc`` and then ``./.pardbgrc``, as pdb does. The one in
the current directory may have come with somebody else's project, so, as gdb does, a file that is
not the user's own or that others may write to is refused; and it holds console words alone, never
Python that runs here. A job without a screen reads none, unless ``--rc FILE`` names it: a
breakpoint that somebody forgot must not hold a job that nobody looks at.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pardbg.cli.common import all_of
from pardbg.control.language.verbs import Reply, Verb
from pardbg.control.machine.breakpoints import EDITS
from pardbg.control.machine.holding import HOLD_S, MAX_HOLD_S
from pardbg.errors import UserError
from pardbg.ui.commands.command_line import Command
from pardbg.ui.commands.startup import Rc, RcLine, run_rc
from pardbg.words import binary_size, parse_duration, parse_size
from pardbg_agent import wire
from pardbg_agent.wire import LEVELS

if TYPE_CHECKING:
    from pardbg.session.rotation import PartLimits

MIN_HOLD_S: Final = wire.LEASE_NS / 1e9


@dataclass(frozen=True, slots=True)
class Recording:
    """What ``recording_options`` and ``node_options`` said, by the options' names."""

    limits: PartLimits
    level: str | None
    allow_eval: bool
    on_exception: float
    """Maximum time a rank that raised is held, s; 0: it dies at once."""
    loss_pattern: str | None
    force: bool
    hub: str | None = None
    key: Path | None = None
    node_rank: int | None = None
    nnodes: int | None = None

    @property
    def attentive(self) -> bool:
        """Return whether only totals are recorded, so that the level is raised where needed."""
        level = self.level or os.environ.get(wire.ENV_LEVEL, "")
        return level.strip().lower() == "summary"

    def env(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the job's environment: ``env``, or this process's own, with the level."""
        made = dict(os.environ if env is None else env)
        if self.level is not None:
            made[wire.ENV_LEVEL] = self.level
        return made


class _AtLeast(click.ParamType[int]):
    """A size or a duration."""

    def __init__(self, name: str, parse: Callable[[str], int], least: str) -> None:
        self.name = name
        self._parse, self._least = parse, least

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        try:
            found = self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if found < self._parse(self._least):
            self.fail(f"{value} is too small: the minimum is {self._least}", param, ctx)
        return found


class _OnException(click.ParamType[float]):
    """Seconds; 0 for ``die``."""

    name = "WHAT"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        if isinstance(value, float):
            return value
        word, _, text = str(value).strip().partition(":")
        if word == "die" and not text:
            return 0.0
        try:
            seconds = parse_duration(text) / 1e9 if text else HOLD_S
        except ValueError:
            seconds = -1.0
        if word != "hold" or not MIN_HOLD_S <= seconds <= MAX_HOLD_S:
            self.fail(f"{value!r}: write die, hold, or hold:TIME from 10s to 1h", param, ctx)
        return seconds


class _Pattern(click.ParamType[str]):
    name = "REGEX"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        from pardbg.analysis.base.printed import given_pattern

        try:
            return given_pattern(str(value)).pattern
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)


ON_EXCEPTION: Final = _OnException()


recording_options: Final = all_of(
    click.option("--force", is_flag=True, help="Overwrite the session file if it exists."),
    click.option("--level", type=click.Choice(LEVELS[1:]),
                 help="How much ranks record. summary: totals per step, with full detail for a "
                      "while around findings."),
    click.option("--max-size", type=_AtLeast("SIZE", parse_size, "64KiB"),
                 help="Start a new file at this size, as in 2GiB."),
    click.option("--max-time", type=_AtLeast("TIME", parse_duration, "1s"),
                 help="Start a new file after this time, as in 24h."),
    click.option("--rotate", type=click.IntRange(1), metavar="N",
                 help="Keep only the newest N files (default: all)."),
    click.option("--allow-eval", is_flag=True,
                 help="Let the controller run code in held ranks (p, tensor, compare …)."),
    click.option("--on-exception", type=ON_EXCEPTION, default="die", metavar="WHAT",
                 help="What a rank that raises does: die, or hold (keep it and its peers "
                      "for inspection); hold:TIME limits how long without a viewer (default 10m)."),
    click.option("--loss-pattern", type=_Pattern(),
                 help="Pattern of the loss in the job's output: r'loss=(?P<loss>[0-9.]+)', and "
                      "optionally the step: (?P<step>[0-9]+)."),
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
"""For a job of several nodes: the same command on each."""


def recording(
    max_size: int | None, max_time: int | None, rotate: int | None, **others: Any
) -> Recording:
    """Return the options' values together. Raises UsageError."""
    from pardbg.session.rotation import PartLimits

    if rotate is not None and max_size is None and max_time is None:
        raise click.UsageError("--rotate needs --max-size or --max-time, which start a new file")
    return Recording(PartLimits(max_size or 0, max_time or 0, rotate or 0), **others)


RC_NAME: Final = ".pardbgrc"
MAX_RC_BYTES: Final = 64 << 10
HEADLESS: Final = (*EDITS, Verb.LEVEL, Verb.MARK)
"""Verbs that make sense before the job runs and unattended."""
rc_options: Final = all_of(
    click.option("--rc", "rc_file", type=click.Path(path_type=Path), metavar="FILE",
                 help="File of commands to start with, one per line; also without a screen."),
    click.option("--no-rc", is_flag=True, help=f"Do not read ~/{RC_NAME} and ./{RC_NAME}."),
)  # fmt: skip


def viewer_rc(rc_file: Path | None, no_rc: bool) -> Rc:
    """Return the commands a viewer starts with. Raises UserError for a named file."""
    home, here = Path.home() / RC_NAME, Path.cwd() / RC_NAME
    found, problems = [], []
    for path, shown in () if no_rc else ((home, f"~/{RC_NAME}"), (here, RC_NAME)):
        if path == here and here.exists() and home.exists() and here.samefile(home):
            continue
        try:
            found += _lines(path, shown, own=True)
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"{shown}: not read: {error.strerror or error}")
    return Rc((*found, *named_rc(rc_file).lines), tuple(problems))


def named_rc(rc_file: Path | None) -> Rc:
    """Return the commands of a named file. Raises UserError."""
    if rc_file is None:
        return Rc()
    try:
        return Rc(tuple(_lines(rc_file, str(rc_file), own=False)))
    except OSError as error:
        raise UserError(f"--rc {rc_file}: {error.strerror or error}") from None


def _lines(path: Path, shown: str, *, own: bool) -> list[RcLine]:
    """Raises OSError. ``own``: only if nobody else can have written it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError("not a regular file")
        if own and facts.st_uid != os.getuid():
            raise OSError("owned by another user")
        if own and facts.st_mode & 0o022:
            raise OSError(f"writable by others (chmod go-w {shown})")
        if facts.st_size > MAX_RC_BYTES:
            raise OSError(f"larger than {binary_size(MAX_RC_BYTES)}")
        text = file.read(MAX_RC_BYTES).decode("utf-8", "replace")
    lines = ((n, line.strip()) for n, line in enumerate(text.splitlines(), 1))
    return [RcLine(f"{shown}:{n}", line) for n, line in lines if line and line[0] != "#"]


def apply_rc(run_dir: Path, rc: Rc, talk: Callable[[str], None]) -> None:
    """Give the commands to an unattended run, as a script would. A hit of their breakpoints holds
    the job for HOLD_S, and the user is told."""
    if not rc.lines:
        return
    from pardbg.hub.client import HubControl  # slow to import

    port = HubControl(run_dir, script=True)

    def ask(verb: Verb, ranks: str | None, **args: Any) -> Reply:
        if verb not in HEADLESS:
            return Reply(False, f"{verb.value} needs running ranks and a viewer", {})
        return port.command(verb, ranks, 10.0, lease_s=HOLD_S, **args)

    def perform(found: Command) -> str:
        return f"{found.action.command} needs a screen"

    try:
        run_rc(rc, ask, perform, lambda text, bad: talk(text))
    finally:
        port.close()
