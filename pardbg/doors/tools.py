"""The tools of ``pardbg mcp``: what reports, ``ctl``, ``explain`` and ``same`` say, page by page.

Their docstrings are what a model reads of them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

from pardbg.analysis.answers.hang import rank_stacks
from pardbg.analysis.answers.report import as_json
from pardbg.analysis.base.asof import View
from pardbg.analysis.same import comparison, module_rows
from pardbg.control.language.arguments import ctl_words
from pardbg.control.language.ranksets import Known, RankFacts, resolve
from pardbg.doors.evidence import Evidence, JobLog, LiveRun, Recording, open_evidence
from pardbg.doors.explained import explained
from pardbg.errors import UserError
from pardbg.events.control_codes import Verb
from pardbg.hub.client import HubControl
from pardbg.hub.run.runs import list_runs
from pardbg.joblog import words as joblog_words
from pardbg.render.frame.activity import activity_text
from pardbg.render.reports import replies

MAX_CHARS: Final = 8_000
"""Maximum characters of an answer, about two thousand tokens."""
MAX_LIMIT: Final = 200
_HEAD_SHARE: Final = 2
"""Inverse of the maximum share of an answer for everything except the rows."""
_SHORTER: Final = ((64, 2_000), (16, 500), (4, 120), (1, 40), (0, 0))
"""(items of a list, characters of a text) that are kept, tried in order."""


def packed(value: object) -> str:
    """Return compact JSON that can be sent: names of files may be any bytes."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)
    return text.encode("utf-8", "replace").decode()


def page(head: Mapping[str, object], rows: Sequence[object], offset: int, limit: int) -> str:
    """Return ``head`` and rows from ``offset``: as many as ``limit`` and MAX_CHARS allow, and
    ``next_offset`` where more follow. Raises UserError."""
    if offset < 0 or not 1 <= limit <= MAX_LIMIT:
        raise UserError(f"offset is 0 or more, limit 1 to {MAX_LIMIT}; got {offset} and {limit}")
    about = fitted(dict(head), MAX_CHARS // _HEAD_SHARE)
    frame = {**_fields(about), "total": len(rows), "offset": offset, "next_offset": len(rows)}
    room = MAX_CHARS - len(packed({**frame, "rows": []}))
    shown: list[object] = []
    for row in rows[offset : offset + limit]:
        text = packed(row)
        if len(text) + 1 > room and shown:
            break
        if len(text) + 1 > room:
            row = fitted(row, room - 1)
            text = packed(row)
        shown.append(row)
        room -= len(text) + 1
    following = offset + len(shown)
    frame["next_offset"] = following if following < len(rows) else None
    return packed({**frame, "rows": shown})


def fitted(value: object, most: int) -> object:
    """Return the value, with lists and texts shortened until its JSON has at most ``most``
    characters."""
    if len(packed(value)) <= most:
        return value
    for items, characters in _SHORTER:
        shorter = _cut(value, items, characters)
        if len(packed(shorter)) <= most:
            return shorter
    return {"left_out": f"{len(packed(value))} characters"}


def _cut(value: object, items: int, characters: int) -> object:
    if isinstance(value, str) and len(value) > characters:
        return f"{value[:characters]}…"
    if isinstance(value, (list, tuple)):
        kept = [_cut(one, items, characters) for one in value[:items]]
        return kept if len(value) <= items else [*kept, f"… {len(value) - items} more"]
    if isinstance(value, Mapping):
        return {key: _cut(one, items, characters) for key, one in value.items()}
    return value


def _fields(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, Mapping) else {}


MAX_OPEN: Final = 4
"""Maximum number of open recordings and runs; beyond it, the one opened first is closed."""
ANSWER_S: Final = 30.0


class Tools:
    """Tools that answer questions about a default target, or about the one named in a question."""

    def __init__(self, target: str | None, key: Path | None = None) -> None:
        self._default, self._key = target, key
        self._open: dict[str | None, Evidence] = {}
        self._ports: dict[str, HubControl] = {}
        self._lock = threading.Lock()
        self._lease: threading.Timer | None = None
        """Timer that gives control up when no more questions come."""
        if target is not None:
            self._evidence("")

    def reading(self) -> tuple[Callable[..., str], ...]:
        """Return the tools that do not change a run."""
        return (
            self.report, self.findings, self.where, self.ranks, self.steps, self.collectives,
            self.pipeline, self.explain, self.same,
        )  # fmt: skip

    def close(self) -> None:
        """Leave every run; ranks that were held run on."""
        self._stop_lease()
        self._give_up()
        for one in self._open.values():
            one.close()

    # ---------------------------------------------------------------- tools

    def report(self, section: str = "", offset: int = 0, limit: int = 20, target: str = "") -> str:
        """Overview of the run and its worst findings; or one section of the whole report, row by
        row: ranks, groups, steps, pipelines, overlap, bandwidth, collectives, p2p, traffic, memory,
        devices, findings, parts."""
        about, whole = self._report(target)
        lists = {name: rows for name, rows in whole.items() if isinstance(rows, list)}
        if section:
            if section not in lists:
                raise UserError(f"no section {section!r}: {', '.join(lists)}")
            return page(about, lists[section], offset, limit)
        short = ("kind", "severity", "culprits", "where", "text")
        head = {
            **about, "run": whole["run"], "loss_not_finite": whole["loss_not_finite"],
            "sections": {name: len(rows) for name, rows in lists.items()}, "rows_are": "findings",
        }  # fmt: skip
        rows = [{name: one[name] for name in short} for one in lists["findings"]]
        return page(head, rows, offset, limit)

    def findings(self, offset: int = 0, limit: int = 5, target: str = "") -> str:
        """What is wrong, the worst first: kind, culprits (ranks that caused it), ranks (affected),
        group and seq of the op, place in the code, what to try, and the facts it rests on."""
        about, whole = self._report(target)
        return page(about, whole["findings"], offset, limit)

    def where(self, ranks: str = "", offset: int = 0, limit: int = 20, target: str = "") -> str:
        """Stacks of ranks (a rank set: 2, 0-3, all), innermost frame last: of now in a live run,
        else as recorded when the ranks stood still."""
        seen = self._recording(target)
        about, head = seen.look()[1], {"taken": "when ranks stood still"}
        if isinstance(seen, LiveRun):
            found = _stacks_now(seen, ranks)
            if found["ok"]:
                head = {"taken": "now", "taken_by": found["source"], "locks": found["locks"]}
                return page({**about, **head}, found["tree"], offset, limit)
            head |= {"not_now": found["error"]}
        with seen.looking() as store:
            view = View(store, None)
            wanted = _chosen(ranks, {rank: one.host for rank, one in view.ranks.items()})
            rows = [{"ranks": [one.rank], "t_ns": one.t_ns, "frames": one.frames,
                     "handles": one.handles}
                    for one in rank_stacks(view) if one.rank in wanted]  # fmt: skip
        return page({**about, **head}, rows, offset, limit)

    def ranks(self, ranks: str = "", offset: int = 0, limit: int = 20, target: str = "") -> str:
        """A row per rank (of a rank set: 2, 0-3, all): host, pid, state, what it does now or did
        last and since when, steps, waiting as a fraction of the last step, memory."""
        seen = self._recording(target)
        data, about = seen.look()
        now = {row.now.rank: row.now for row in data.ranks}
        wanted = _chosen(ranks, {rank: one.host for rank, one in now.items()})
        rows = [
            {**row, "step": one.step, "now": activity_text(one.now), "since_ns": one.since_ns,
             "wait_fraction": one.wait_fraction, "memory_bytes": one.memory_bytes,
             "behind_ns": one.lag_ns}
            for row in as_json(data)["ranks"] if (one := now[row["rank"]]).rank in wanted
        ]  # fmt: skip
        return page(about, rows, offset, limit)

    def steps(
        self, sort: Literal["newest", "slowest"] = "newest", offset: int = 0, limit: int = 20,
        target: str = "",
    ) -> str:  # fmt: skip
        """Training steps: duration, loss, and time per phase (mean over ranks)."""
        about, whole = self._report(target)
        rows = whole["steps"][::-1]
        if sort == "slowest":
            rows = sorted(rows, key=lambda row: -row["duration_ns"])
        return page(about, rows, offset, limit)

    def collectives(
        self, group: str = "", odd: bool = False,
        sort: Literal["newest", "skew_ns", "wait_ns", "transfer_ns", "bytes"] = "newest",
        p2p: bool = False, offset: int = 0, limit: int = 20, target: str = "",
    ) -> str:  # fmt: skip
        """Collectives matched over their ranks (or messages, with p2p), of one group, or only odd
        ones (verdict is not "matched"): who came last, skew, wait, transfer, bus bandwidth."""
        about, whole = self._report(target)
        rows = whole["p2p" if p2p else "collectives"][::-1]
        rows = [row for row in rows if (not group or row["group"] == group)
                and not (odd and row["verdict"] == "matched")]  # fmt: skip
        if sort != "newest":
            rows = sorted(rows, key=lambda row: -(row.get(sort) or 0))
        return page(about, rows, offset, limit)

    def pipeline(
        self, step: int = -1, offset: int = 0, limit: int = 10, target: str = ""
    ) -> str:  # fmt: skip
        """The pipeline: schedule, bubble (measured, implied, bound), stages, waits, critical path;
        a row per step, or with step a row per rank: busy, idle by cause, actions in order."""
        about, whole = self._report(target)
        if whole["pipeline"] is None:
            raise UserError("no pipeline was seen in this run")
        steps = whole["pipeline"].pop("steps")
        if step < 0:
            rows = [{k: v for k, v in one.items() if k != "ranks"} for one in steps[::-1]]
            return page({**about, **whole["pipeline"]}, rows, offset, limit)
        found = next((one for one in steps if one["step"] == step), None)
        if found is None:
            raise UserError(f"no step {step} in the pipeline; the last is {steps[-1]['step']}")
        rows = found.pop("ranks")
        return page({**about, **found}, rows, offset, limit)

    def explain(
        self, logs: list[str] | None = None, offset: int = 0, limit: int = 10, target: str = ""
    ) -> str:  # fmt: skip
        """What log files of a job tell (default: the target's own log, or what it printed): which
        rank is missing or disagrees, which failed first, what only follows. Flight Recorder dumps
        among them make it exact."""
        if logs is None:
            seen = self._evidence(target)
            if not isinstance(seen, JobLog):
                return _explain_output(seen, offset, limit)
            logs = list(seen.paths)
        if "-" in logs:
            raise UserError("standard input is the client's: give a file")
        return _explained(logs, {"source": "log"}, offset, limit)

    def same(
        self, a: str = "", b: str = "", floor: str = "", offset: int = 0, limit: int = 20
    ) -> str:  # fmt: skip
        """Whether session b computes what its reference a does, and which tensor differs first
        (both recorded with --tensors); without b: whether a's replicas are equal. exit_code 0:
        the same, 1: not, 2: cannot be compared."""
        if floor and not b:
            raise UserError("floor is of two sessions: give b, too")
        named = [a, *filter(None, (b, floor))]
        with ExitStack() as looked:
            stores = [looked.enter_context(self._recording(one).looking()) for one in named]
            found = comparison.compare(*stores) if b else comparison.alone(*stores)
        head = module_rows.as_dict(found)
        head.pop("modules")  # of the same rows, which are paged
        rows = head.pop("rows")
        return page(head, rows if isinstance(rows, list) else [], offset, limit)

    def control(
        self, command: str, timeout_s: float = ANSWER_S, lease_s: float = 60.0, frame: int = 0,
        all_frames: bool = False,
    ) -> str:  # fmt: skip
        """Change the live run, as `pardbg ctl` does: pause, continue, step, tick, next, op, until
        EXPR, break EXPR, tbreak EXPR, watch WHAT, condition, ignore, delete, breaks, delay RANKS
        TIME, status, p EXPR, locals, list, level, mark NOTE; most take a rank set (pause 2).
        With all_frames, frame counts those of torch and other libraries, too.
        Control is given up lease_s after the last command: held ranks run on, breakpoints go.
        Every command is in the run's audit trail. `RUN kill` ends the job."""
        seen = self._recording("")
        if not isinstance(seen, LiveRun):
            raise UserError(f"{seen.name} is a recording: control needs a live run")
        if not command.strip():
            raise UserError("give a command, as in `pause 2`")
        if not (1 <= lease_s <= 86_400 and 0.1 <= timeout_s <= 3_600):
            raise UserError("lease_s is 1 to 86400, timeout_s 0.1 to 3600")
        run, verb, ranks, args = ctl_words(tuple(command.split()), frame, all_frames)
        if run is not None and run not in (seen.target.run, seen.name):
            raise UserError(f"this server controls {seen.target.run} alone, not {run}")
        if verb is Verb.KILL and run is None:
            raise UserError(f"kill ends the job: name the run, as in `{seen.target.run} kill`")
        port = self._port(seen)
        self._stop_lease()
        try:
            reply = port.command(verb, ranks, timeout_s, confirm=verb is Verb.KILL, **args)
        finally:
            self._lease = threading.Timer(lease_s, self._give_up)
            self._lease.daemon = True
            self._lease.start()
        return page(replies.as_json(reply), [], 0, 1)

    # ---------------------------------------------------------------- pieces

    def _evidence(self, target: str) -> Evidence:
        """Return the evidence for a question, opened if it is not yet. Raises UserError."""
        name = target or self._default
        with self._lock:
            last = self._open.get(name)
            if name is None and isinstance(last, LiveRun) and last.ended and list_runs():
                self._open.pop(name).close()
            if name not in self._open:
                self._open[name] = open_evidence(name, self._key)
                if len(self._open) > MAX_OPEN:
                    oldest = next(one for one in self._open if one != self._default)
                    self._open.pop(oldest).close()
            return self._open[name]

    def _recording(self, target: str) -> Recording:
        found = self._evidence(target)
        if isinstance(found, JobLog):
            raise UserError(f"{found.paths[0]} is a log: only explain reads it")
        return found

    def _report(self, target: str) -> tuple[Mapping[str, object], Mapping[str, Any]]:
        """Return the source of a report, and the report in JSON form."""
        data, about = self._recording(target).look()
        return about, as_json(data)

    def _stop_lease(self) -> None:
        if self._lease is not None:
            self._lease.cancel()

    def _give_up(self) -> None:
        """Leave the run, rather than only give up control: while a viewer is connected, a rank is
        held at its exception."""
        with self._lock:
            ports, self._ports = self._ports, {}
        for port in ports.values():
            port.close()

    def _port(self, run: LiveRun) -> HubControl:
        """Return the control port of a run, the same viewer until ``_give_up``."""
        with self._lock:
            if run.target.run not in self._ports:
                self._ports[run.target.run] = HubControl(run.target, kind="mcp-")
            return self._ports[run.target.run]


def _chosen(ranks: str, hosts: Mapping[int, str | None]) -> tuple[int, ...]:
    """Return the ranks of a rank set; for an empty text all, even while there are none."""
    if ranks.strip() in ("", "all"):
        return tuple(hosts)
    return resolve(
        ranks, Known({rank: RankFacts(rank, host or "") for rank, host in hosts.items()})
    )


def _stacks_now(run: LiveRun, ranks: str) -> Mapping[str, Any]:
    """Return the answer to ``where``, as a script: a connected viewer would keep a rank held at its
    exception."""
    port = HubControl(run.target, script=True, kind="mcp-")
    try:
        return replies.as_json(port.command(Verb.WHERE, ranks or None, ANSWER_S))
    finally:
        port.close()


def _explain_output(seen: Recording, offset: int, limit: int) -> str:
    """Explain the job's recorded output."""
    with seen.looking() as store, TemporaryDirectory() as folder:
        path = Path(folder) / "output.log"
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            for _, (rank, _stream, text) in store.output.last(None, store.limits.output_lines):
                file.write(f"{text}\n" if rank is None else f"[rank{rank}]: {text}\n")
        about = {"source": "output of the job, as recorded", "name": seen.name}
        return _explained([str(path)], about, offset, limit)


def _explained(
    logs: Sequence[str], about: Mapping[str, object], offset: int, limit: int
) -> str:  # fmt: skip
    read = explained(logs)
    found = joblog_words.as_json(read.verdict, read.log)
    rows = found.pop("findings")
    return page({**about, **found}, rows, offset, limit)
