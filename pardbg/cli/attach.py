"""``pardbg attach`` and ``explain``: jobs that were started without pardbg."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import click

from pardbg.cli.common import FORCE, JSON, echo, has_terminal, need_terminal, new_file, talk
from pardbg.cli.files import show_screens
from pardbg.cli.options import DURATION
from pardbg.errors import UserError
from pardbg.words import agreed, duration, ranks_text

if TYPE_CHECKING:
    from pardbg.doors.explained import Explained
    from pardbg.events.device_facts import Ras
    from pardbg.hub.attach.job_ranks import JobRank
    from pardbg.hub.attach.look import Look, StoreLook
    from pardbg.hub.attach.stacks_verdict import StackVerdict

MAX_ROWS: Final = 64
MAX_WIDTH: Final = 100
SIGNS: Final = {"error": "✗", "warning": "!"}


@dataclass(frozen=True, slots=True)
class ByDumps:
    """Findings from dumps of ``ranks`` alone. ``why``: rank to the reason why it has no dump."""

    ranks: tuple[int, ...]
    why: Mapping[int, str]
    findings: Sequence[Mapping[str, Any]]


@click.command()
@click.argument("pids", nargs=-1, type=int, metavar="[PID…]")
@click.option("--launcher", type=int, metavar="PID", help="Ranks below this process (torchrun).")
@click.option("--user", is_flag=True, help="All jobs that this user runs on this machine.")
@click.option("--slurm", default="", metavar="JOB", help="Ranks of this Slurm job.")
@click.option("--store", is_flag=True, help="Ask the job's TCPStore, as one more client, which "
              "ranks of all machines have come to init_process_group.")  # fmt: skip
@click.option("--dumps", is_flag=True, help="Ask each rank for a Flight Recorder dump, by the pipe "
              "of TORCH_NCCL_DEBUG_INFO_PIPE_FILE.")  # fmt: skip
@JSON
@click.option("--agent", is_flag=True, help="Have the agent enter the ranks: from then on the job "
              "is recorded and can be watched.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Session file to write.")
@FORCE
@click.option("--allow-eval", is_flag=True,
              help="Let the controller run code in held ranks (p, tensor, compare …).")  # fmt: skip
@click.option("--wait", type=DURATION, default="60s", metavar="TIME",
              help="Maximum time for all ranks to come to the end of a step.")  # fmt: skip
def attach(
    pids: Sequence[int], launcher: int | None, user: bool, slurm: str, store: bool, dumps: bool,
    json_: bool, agent: bool, output: Path | None, force: bool, allow_eval: bool, wait: int,
) -> int:  # fmt: skip
    """Look at a running job that was started without pardbg, from outside.

    Reads a stack of each rank on this machine, without stopping or changing anything, and names the
    ranks that the others wait for. Without PIDs: the one job that this user runs here.
    With --agent the job is watched from its next step on, until `pardbg ctl RUN kill`.
    """
    if agent:
        if json_ or user or store or dumps:
            raise UserError("--agent enters one job: leave out --json, --user, --store, --dumps")
        return _join(pids, launcher, slurm, output, force, allow_eval, wait / 1e9)
    if output is not None or force or allow_eval:
        raise UserError("-o, --force and --allow-eval go with --agent")
    _look(pids, launcher, user, slurm, store, dumps, json_)
    return 0


def _look(
    pids: Sequence[int], launcher: int | None, user: bool, slurm: str, store: bool, dumps: bool,
    json_: bool,
) -> None:  # fmt: skip
    from pardbg.hub.attach.job_ranks import find
    from pardbg.hub.attach.look import ask_ras, ask_store, look
    from pardbg.hub.attach.stacks_verdict import judge

    if sum(map(bool, (pids, launcher is not None, user, slurm))) > 1:
        raise UserError("PIDs, --launcher, --user and --slurm exclude each other: give one")
    several = user or bool(slurm)
    found = []
    for ranks in find(pids, launcher, several, slurm):
        seen = look(ranks)
        verdict, status = judge(seen.stacks, tuple(seen.unread), seen.moves), ask_ras(ranks)
        told = ask_store(ranks) if store else None
        plain = _as_json(ranks, seen, verdict, status, told)
        by_dumps = _by_dumps(ranks) if dumps else None
        plain["dumps"] = by_dumps and asdict(by_dumps)
        found.append(plain)
        if several and not json_:
            echo(f"── {ranks[0].command}"[: shutil.get_terminal_size().columns])
        if ranks[0].watched and not json_:
            talk("this job runs under pardbg: `pardbg watch` shows more")
        for line in () if json_ else _text(ranks, seen, verdict, status, told):
            echo(line)
        if by_dumps and not json_:
            _tell_dumps(by_dumps)
    if json_:
        echo(json.dumps(found if several else found[0], indent=2))


def _by_dumps(ranks: Sequence[JobRank]) -> ByDumps:
    """Return the findings of the ranks' Flight Recorders, and the reason why a rank has no dump."""
    from pardbg.hub.attach.dump_pipes import ask_dumps
    from pardbg.session.importers.read import import_files

    asked = ask_dumps(ranks)
    if not asked.dumps:
        return ByDumps((), asked.why, ())
    with TemporaryDirectory(prefix="pardbg-") as folder:
        for rank, content in asked.dumps.items():
            (Path(folder) / f"rank_{rank}").write_bytes(content)
        session = Path(folder) / "dumps.mcap"
        try:
            import_files([Path(folder) / f"rank_{rank}" for rank in asked.dumps], session)
        except UserError as error:
            return ByDumps((), asked.why | dict.fromkeys(asked.dumps, str(error)), ())
        return ByDumps(tuple(sorted(asked.dumps)), asked.why, _findings(session))


def _tell_dumps(told: ByDumps) -> None:
    _tell(told.findings, told.ranks, min(MAX_WIDTH, shutil.get_terminal_size().columns))
    for why, who in _by_reason(told.why).items():
        echo(f"No dump of {ranks_text(who)}: {why}")


def _join(
    pids: Sequence[int], launcher: int | None, slurm: str, output: Path | None, force: bool,
    allow_eval: bool, wait_s: float,
) -> int:  # fmt: skip
    """Let the agent enter the job; show the run, if there is a terminal."""
    from pardbg.cli.live import job_name, session_target, show_live
    from pardbg.hub.attach.entry import join
    from pardbg.hub.attach.job_ranks import find, refuse_part

    (ranks,) = find(pids, launcher, slurm=slurm)
    refuse_part(ranks)
    name = job_name(ranks[0].command.split())
    talk(f"the agent enters {ranks_text(tuple(one.rank for one in ranks))} of {name}: each rank is "
         f"held at the end of a step until all are there")  # fmt: skip
    handle, entrance = join(ranks, session_target(output, name, force), name, allow_eval, wait_s)
    if entrance.failed:
        for why, who in _by_reason(entrance.failed).items():
            talk(f"{ranks_text(who)}: {why}")
        raise UserError("the agent is in no rank, and the job runs on as it was")
    took = duration(entrance.seconds * 1e9)
    talk(f"watched after {took} as {handle.run}, recorded in {handle.session}")
    if has_terminal():
        return show_live(handle.run_dir)
    talk(f"see it: `pardbg watch {handle.run}`; take the agent out: `pardbg ctl {handle.run} kill`")
    return 0


def _by_reason(failed: Mapping[int, str]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for rank, why in sorted(failed.items()):
        found[why] = (*found.get(why, ()), rank)
    return found


def _text(
    ranks: Sequence[JobRank], seen: Look, verdict: StackVerdict, status: Ras | None,
    told: StoreLook | None,
) -> Iterator[str]:  # fmt: skip
    from pardbg.analysis.findings.kinds.device_kinds import ras_text
    from pardbg.hub.attach.job_ranks import on_all_nodes

    width = shutil.get_terminal_size().columns
    pids = {one.rank: one.pid for one in ranks}
    yield f"{'rank':>6}  {'pid':<8}  {'doing':<28}  at"
    rows = sorted(seen.stacks, key=lambda one: (one.rank not in verdict.culprits, one.rank))
    for one in rows[:MAX_ROWS]:
        yield f"{one.rank:>6}  {pids[one.rank]:<8}  {one.doing:<28}  {one.place}"[:width]
    if len(rows) > MAX_ROWS:
        yield f"        … {len(rows) - MAX_ROWS} more: --json has all"
    for rank, why in sorted(seen.unread.items()):
        yield f"{rank:>6}  {pids[rank]:<8}  no stack: {why}"[:width]
    yield ""
    yield _sentence(seen, verdict)
    if status is not None and status.rows:
        yield ras_text((row.comm, row.what, row.ranks, row.global_ranks) for row in status.rows)
    if told is not None:
        yield _of_store(told)
    if any(one.guessed for one in ranks):
        yield "Which rank each is they do not say: numbered by the order of their start, a guess."
    elsewhere = sorted({*range(ranks[0].world_size)} - pids.keys())
    if elsewhere:
        there = f"`{on_all_nodes(ranks[0].slurm)}`" if ranks[0].slurm else "Run the same there."
        yield f"Not on this machine: {ranks_text(elsewhere)}. {there}"
    elif verdict.kind == "nobody-waits" and not (ranks[0].watched or ranks[0].guessed):
        yield "To watch and record it from its next step on: `pardbg attach --agent`."


def _sentence(seen: Look, verdict: StackVerdict) -> str:
    from pardbg.hub.attach.stacks_verdict import DEVICE_CALL

    named, waiting = ranks_text(verdict.culprits), ranks_text(verdict.waiting)
    call = verdict.call or "an op"
    at = sorted({one.place for one in seen.stacks if one.rank in verdict.culprits})
    place = f", at {', '.join(at[:3])}" if at else ""
    if verdict.kind == "missing-rank":
        come, wait = agreed("has not come", verdict.culprits), agreed("waits", verdict.waiting)
        return f"✗ {_capital(named)} {come} to {call}{place}; {waiting} {wait} there."
    if verdict.kind == "behind-devices":
        stand, wait = agreed("is elsewhere", verdict.culprits), agreed("waits", verdict.waiting)
        return (
            f"✗ {_capital(named)} {stand}{place}; {waiting} {wait} for {verdict.call}, where an op "
            "may wait for that."
        )
    if verdict.kind == "different-ops":
        waits = agreed("waits", verdict.culprits)
        return f"✗ {_capital(named)} {waits} elsewhere than the others{place}."
    if verdict.kind == "all-wait":
        verb = "for" if call == DEVICE_CALL else "in"
        return f"All wait {verb} {call}: from stacks alone nobody can be named."
    if seen.moves:
        return "Ranks that waited have gone on since: the job runs."
    return "No rank waits for another at this moment."


def _of_store(told: StoreLook) -> str:
    if told.why:
        return f"The store could not be asked: {told.why}"
    if not told.come:
        return "The store knows no rank in init_process_group: none has come, or gloo is not used."
    if not told.missing:
        return "By the store, all ranks have come to init_process_group."
    come = agreed("has not come", told.missing)
    return f"✗ By the store, {ranks_text(told.missing)} {come} to init_process_group."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _as_json(
    ranks: Sequence[JobRank], seen: Look, verdict: StackVerdict, status: Ras | None,
    told: StoreLook | None,
) -> dict[str, Any]:  # fmt: skip
    from pardbg_agent.ctrl.codec import encode

    stacks = {one.rank: one for one in seen.stacks}
    return {
        "kind": verdict.kind,
        "culprits": list(verdict.culprits),
        "waiting": list(verdict.waiting),
        "call": verdict.call or None,
        "world_size": ranks[0].world_size, "guessed": any(one.guessed for one in ranks),
        "seconds": round(seen.seconds, 3),
        "slurm_job": ranks[0].slurm or None,
        "nccl_ras": status and encode(status, whole=True),
        "store": told and {"come": list(told.come), "missing": list(told.missing),
                           "why_not_asked": told.why or None},
        "ranks": [
            {
                "rank": one.rank, "pid": one.pid, "why_no_stack": seen.unread.get(one.rank),
                **({"doing": s.doing, "axis": s.axis or None, "place": s.place, "asleep": s.asleep,
                    "frames": [list(frame) for frame in s.frames]}
                   if (s := stacks.get(one.rank)) else {}),
            }
            for one in ranks
        ],
    }  # fmt: skip


@click.command()
@click.argument("logs", nargs=-1, required=True, metavar="LOG…|DUMP…|-")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="S.mcap",
              help="Write a session, which `replay` and `report` open.")  # fmt: skip
@click.option("--show", is_flag=True, help="Open the screens at 8 Findings.")
@FORCE
@JSON
def explain(
    logs: Sequence[str], output: Path | None, show: bool, force: bool, json_: bool
) -> None:  # fmt: skip
    """Say what the LOGs of a job tell: which rank is missing, which disagrees, which failed first.

    Reads logs of one rank or of all, with the prefixes of torchrun, Slurm, Ray, Kubernetes and
    journald, plain, gzip or zstd; a directory stands for the logs in it, `-` for standard input.
    Flight Recorder dumps (DUMP) of the same job make the answer exact; what they say alone follows.
    """
    from pardbg.doors.explained import explained
    from pardbg.joblog.words import as_json, text

    if show:
        need_terminal("explain --show", "pardbg explain LOG…")
    found = explained(logs)
    with _session(found, output, force, show) as session:
        by_ops = _findings(session) if found.dumps and session else []
        if show and session:
            show_screens(session, None, "", "findings")
            return
    if json_:
        plain = as_json(found.verdict, found.log)
        plain |= {"dumps": sorted(found.dumps), "findings_of_dumps": by_ops} if found.dumps else {}
        echo(json.dumps(plain, indent=2, ensure_ascii=False))
        return
    width = min(MAX_WIDTH, shutil.get_terminal_size().columns)
    for line in text(found.verdict, found.log, width):
        echo(line)
    _tell(by_ops, found.dumps, width)


@contextmanager
def _session(
    found: Explained, output: Path | None, force: bool, show: bool
) -> Iterator[Path | None]:  # fmt: skip
    """Yield the session, written if requested or needed; without ``output`` it is removed at the
    end."""
    if output is not None:
        with new_file(output, force) as fresh:
            found.write(fresh)
        talk(f"wrote {output}: open it with `pardbg replay {output}`")
        yield output
    elif found.dumps or show:
        with TemporaryDirectory(prefix="pardbg-") as folder:
            found.write(session := Path(folder) / "explain.mcap")
            yield session
    else:
        yield None


def _findings(session: Path) -> list[dict[str, Any]]:
    """Return the findings from the dumps' ops alone."""
    from pardbg.analysis.answers.report import as_json, report
    from pardbg.session.reader import load

    found: list[dict[str, Any]] = as_json(report(load(session)))["findings"]
    return [one for one in found if not one["kind"].startswith("log-")]


def _tell(by_ops: Sequence[Mapping[str, Any]], dumps: Collection[int], width: int) -> None:
    if not dumps:
        return
    echo(f"\nBy the dumps of {ranks_text(tuple(sorted(dumps)))} alone:")
    told = [one for one in by_ops if one["severity"] != "info"]
    for one in told:
        for line in textwrap.wrap(f"{SIGNS[one['severity']]} {one['text']}", width,
                                  subsequent_indent="  "):  # fmt: skip
            echo(line)
    if not told:
        echo("nothing wrong is found")


COMMANDS: Final = (attach, explain)
