"""STATE: each rank's state, sent to viewers a few times a second; and ranks that stand still.

A rank stands still when its status block does not change. While a rank waits in an op for STALL_NS,
each rank that stands still is asked for its stack, once per standstill, so that a recording has the
place in the code too; a rank that does not answer (its GIL is held, it is stopped) is inspected
from outside. Ranks that run on are asked once a wait has lasted LONG_NS, and again each time that
it has lasted twice as long. No rank is asked while the debugger holds any."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pardbg.analysis.hangs.stacks import kept
from pardbg.events.commands import StackGroup, WhereFound
from pardbg.events.control_events import ControlEvent
from pardbg.events.control_facts import Stall, StallPart
from pardbg.hub.ctrl_messages import Row
from pardbg.hub.ranks.rendezvous import Rendezvous
from pardbg.hub.ranks.stack_requests import StackRequests, speaking, telling
from pardbg.hub.run.config import HANG_FILE, HUB_LOG, OnHang, RunConfig, read_json, write_json
from pardbg.hub.run.own_process import argv as own_process
from pardbg.hub.serve.agents import Agents
from pardbg.hub.serve.collector import Collector
from pardbg.hub.serve.nccl_reports import RasQuery
from pardbg.hub.serve.router import Router
from pardbg_agent.ctrl.agent_messages import Thread
from pardbg_agent.ctrl.agent_messages import Where as AskWhere
from pardbg_agent.wire import BEAT_NS, Key

MAX_RANKS: Final = 256
"""Maximum number of stacks taken at a time."""
STATE_NS: Final = 100_000_000
STATE_PER_RANK_NS: Final = 500_000
"""Interval of STATE per rank: for many ranks, it must not take more than some % of a core."""
_HASTE: Final = 4
"""Factor on STATE's rate when a rank comes to a stand: a hang is found once all are known."""
STATE_IDLE_NS: Final = 1_000_000_000
_TIMES: Final = (
    "since_ns",
    "open_since_ns",
    "held_since_ns",
    "heartbeat_ns",
    "reached_ns",
    "seen_ns",
)
_VOLATILE: Final = (
    "heartbeat_ns",
    "head",
    "seen_ns",
    "lead_ns",
    "reached_ns",
    "sent",
    "hook_ns",
    "cpu",
    "scheduled",
    "load",
)
"""Fields of a row whose change alone is not news."""
STALL_NS: Final = 2_000_000_000
"""Minimum wait in one op, in ns."""
LONG_NS: Final = 5_000_000_000
"""Wait in one op from which on ranks that run on are asked, too: the missing one may compute."""
STILL_NS: Final = 1_000_000_000
"""Time without progress after which a rank is asked for its stack."""
ALONE_NS: Final = 30_000_000_000
"""Time without progress after which the last rank that runs is asked, though nobody waits."""
SILENT_NS: Final = 4 * BEAT_NS
"""Silence of an agent after which something holds its GIL."""
MAX_DEPTH: Final = 48
MAX_THREADS: Final = 6
APART_NS: Final = 1_500_000_000
"""Maximum spread, in ns, of the ranks' arrivals in a hang that is to be found at once."""
_NONE: Final[Mapping[str, int]] = {}
_CHANGES: Final = ("step", "phase", "action", "stage", "mb", "since_ns", "open", "open_op",
                   "open_since_ns")  # fmt: skip


def longest_wait_ns(rows: Mapping[str, Row], now: int) -> int:
    """Return the longest wait in an op among these processes (of one host), in ns; 0: none."""
    waits = (now - row["open_since_ns"] for row in rows.values() if row["open"] and row["alive"])
    return max(waits, default=0)


class RowNews:
    """Decision whether to send status rows: changed, at a bounded rate, or after a while.

    Without changes that is once a second; but about STALL_NS after a wait began, the standstill is
    the news: rows are then sent at the full rate, so that it is known at once wherever they pass
    through (a relay's rows go to the hub, the hub's to viewers)."""

    def __init__(self) -> None:
        self.told_ns = 0
        self.force = True
        """Whether to send them at the next turn, changed or not."""
        self._told: dict[str, Row] = {}
        self._haste = 1

    def due(self, now: int, nodes: int = 1) -> bool:
        """Return whether to check the rows. ``nodes``: number of nodes that send to one hub."""
        rate = max(STATE_NS, STATE_PER_RANK_NS * len(self._told) * nodes // self._haste)
        return self.force or now - self.told_ns >= rate

    def take(self, rows: dict[str, Row], now: int, stood_ns: int) -> bool:
        """Return whether to send ``rows`` now (``stood_ns``: longest wait in an op); they count as
        sent then."""
        newly = STALL_NS - STILL_NS // 2 <= stood_ns < STALL_NS + STILL_NS
        seen = {
            proc: {k: v for k, v in row.items() if k not in _VOLATILE} for proc, row in rows.items()
        }
        self._haste = _HASTE if newly else 1
        due = self.force or newly or now - self.told_ns >= STATE_IDLE_NS
        if not due and seen == self._told:
            return False
        self._told, self.told_ns, self.force = seen, now, False
        return True


class StateFeed:
    """Sender of STATE."""

    def __init__(
        self, hub_id: str, agents: Agents, where: StackRequests, router: Router,
        collector: Collector,
    ) -> None:  # fmt: skip
        self._hub_id, self._agents = hub_id, agents
        self._where, self._router, self._collector = where, router, collector
        self.standstill, self._stall_number = Standstill(), 0
        self._rendezvous, self._ras = Rendezvous(), RasQuery()
        self.news = RowNews()

    def tick(self, now: int) -> None:
        """Send STATE if it is due, and ask ranks that stand still for their stacks."""
        for found in self._rendezvous.took():
            self._collector.control(ControlEvent(found))
        for answer in self._ras.took():
            self._collector.control(ControlEvent(answer))
        if not self.news.due(now):
            return
        rows = self._agents.rows(now)
        self._watch_standstill(rows, now)
        stood_ns = self.standstill.stood_ns
        if self.news.take(rows, now, stood_ns):
            self._collector.say(Key.STATE, stood_ns=stood_ns, hub=self._hub_id, ranks=rows)

    def _on_our_clock(self, rows: dict[str, Row], offsets: Mapping[str, int]) -> dict[str, Row]:
        if not offsets:
            return rows
        return {
            proc: {k: v + offsets.get(proc, 0) if k in _TIMES and v else v for k, v in row.items()}
            for proc, row in rows.items()
        }

    def _watch_standstill(self, told: dict[str, Row], now: int) -> None:
        offsets = {proc: by for proc in told if (by := self._agents.offset_ns(proc))}
        due, rows = self.standstill.due(told, now, offsets), self._on_our_clock(told, offsets)
        if any(
            str(row["open_op"]).startswith("init_process_group")
            and now - row["open_since_ns"] >= STALL_NS
            for row in rows.values()
        ):
            known = {int(row["rank"]): self._agents.pid(proc) for proc, row in rows.items()}
            self._rendezvous.look(known, now)
        if not due:
            return
        self._stall_number -= 1  # viewers' questions count upwards
        number = self._stall_number
        pids = {proc: self._agents.pid(proc) for proc in self._agents.innermost(due)}
        ask(self._where, number, rows, pids,
            lambda stall: self._collector.control(ControlEvent(stall)), now)  # fmt: skip
        for proc in pids:
            self._router.send(proc, AskWhere(number))
        ranks = [(int(row["rank"]), *self._agents.place(p)) for p, row in rows.items()]
        self._ras.ask(ranks, self._agents.ranks_here().keys(), now)


@dataclass(slots=True)
class _Still:
    status: tuple[Any, ...]
    since_ns: int
    asked: bool = False


class Standstill:
    """Detector of standstills in the status rows, which names the ranks to ask."""

    def __init__(self) -> None:
        self._ranks: dict[str, _Still] = {}
        self._long_ns = 0
        """Time from which on ranks that run on are asked, too."""
        self._several = False
        """Whether there was more than one rank."""
        self.stood_ns = 0
        """Longest wait of a rank in an op, in ns, while no rank is held; 0: none waits."""

    def due(
        self, rows: Mapping[str, Row], now: int, offsets: Mapping[str, int] = _NONE
    ) -> list[str]:
        """Return the processes whose stacks are wanted now. Rows have times by their process's own
        clock: ``offsets`` to ours, renewed at intervals, change nothing in a status."""
        living = {proc: row for proc, row in rows.items() if row["alive"] and row["rank"] >= 0}
        for proc, row in living.items():
            status = tuple(row[name] for name in _CHANGES)
            known = self._ranks.get(proc)
            if known is None or known.status != status:
                self._ranks[proc] = _Still(status, now)
        for proc in self._ranks.keys() - living.keys():
            del self._ranks[proc]
        held = any(row["held"] for row in living.values())
        since = (
            max(row["open_since_ns"] + offsets.get(proc, 0), self._ranks[proc].since_ns)
            for proc, row in living.items() if row["open"]
        )  # fmt: skip
        stood_ns = max((now - began for began in since), default=0)
        states = {row["os"] for row in living.values()}
        self.stood_ns = 0 if held or "t" in states or states == {"T"} else stood_ns
        self._several |= len(living) > 1
        alone = self._several and len(living) == 1
        if held or (stood_ns < STALL_NS and not alone):
            self._long_ns = 0
            return []
        still_ns = STILL_NS if stood_ns >= STALL_NS else ALONE_NS
        if stood_ns >= LONG_NS and now >= self._long_ns:
            self._long_ns, still_ns = now + stood_ns, 0
        due = [p for p, s in self._ranks.items() if not s.asked and now - s.since_ns >= still_ns]
        for proc in due[:MAX_RANKS]:
            self._ranks[proc].asked = True
        return due[:MAX_RANKS]


class HangWatch:
    """Starter of a process of our own (``pardbg.hub.hangs.inquiry``) that looks into lasting waits,
    and at the run's end. Costs nothing until then; once per hang."""

    def __init__(self, config: RunConfig) -> None:
        self._config, self._after_ns = config, int(config.on_hang.after_s * 1e9)
        self._asked = config.on_hang != OnHang(after_s=config.on_hang.after_s)
        self._began_ns = self._next_ns = self._from_ns = 0
        self._known, self._pause_ns, self.stands = False, self._after_ns, False
        self._process: subprocess.Popen[bytes] | None = None

    def due(self, stood_ns: int, now: int) -> bool:
        """Return whether to look now; ``stood_ns``: duration of the standstill, 0 also while ranks
        are held: that is no part of it. A look that has found nothing yet ends then."""
        if not stood_ns:
            self._from_ns = now
        self.stands = min(stood_ns, now - self._from_ns) >= self._after_ns
        self._known = self._known and self.stands
        if self._process and not self.stands and not read_json(self._config.dir / HANG_FILE):
            self._process.kill()
        look = self._asked and self.stands and not self._known and now >= self._next_ns
        return look and self._process is None

    def start(self, when: Literal["hang", "end"], now: int) -> None:
        """Start the process that does the rest; if it cannot be started, this hang is unseen."""
        since_ns = now - self._after_ns + min(APART_NS, self._after_ns // 2)
        words = own_process("pardbg.hub.hangs.inquiry", str(self._config.dir), when, str(since_ns))
        self._began_ns = now
        try:
            write_json(self._config.dir / HANG_FILE, {})
            with open(self._config.dir / HUB_LOG, "ab") as log:
                self._process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        except (OSError, RuntimeError):
            self._known = True

    def busy(self) -> bool:
        """Return whether the process still works; it limits its own time."""
        return self._process is not None and self._process.poll() is None

    def took(self, now: int) -> tuple[str, ...] | None:
        """Return the culprit processes of a hang, once, when it is known that there is one. Ranks
        of healthy jobs stand, too: after each look in vain the next is later, until looks take a
        percent of the time."""
        if self._process is None or self.busy():
            return None
        self._process, found = None, read_json(self._config.dir / HANG_FILE)
        self._known = bool(found)
        most_ns = max(8 * self._after_ns, 100 * (now - self._began_ns))
        self._next_ns = now + self._pause_ns
        self._pause_ns = self._after_ns if found else min(2 * self._pause_ns, most_ns)
        return tuple(map(str, found["culprits"])) if found else None


def silent(rows: Mapping[str, Row], procs: list[str], now: int) -> list[str]:
    """Return the processes whose agents will not answer."""
    return [
        proc
        for proc in procs
        if now - rows[proc]["heartbeat_ns"] >= SILENT_NS or rows[proc]["os"] in ("T", "t")
    ]


def ask(
    where: StackRequests,
    number: int,
    rows: Mapping[str, Row],
    pids: Mapping[str, int],
    say: Callable[[Stall], object],
    now: int,
) -> None:
    """Have stacks taken; ``say`` gets them."""
    procs = {proc: (int(rows[proc]["rank"]), pid) for proc, pid in pids.items()}

    def answer(found: WhereFound) -> None:
        parts = tuple(_part(part, found.stacks) for part in found.tree)
        say(Stall(now, parts, found.source, found.issued, found.locks))

    where.ask(number, procs, answer, now, silent(rows, list(procs), now))


def _part(part: StackGroup, stacks: Mapping[int, tuple[Thread, ...]]) -> StallPart:
    """Return the ranks in one place; with their threads where one beside the main one tells."""
    inside: dict[int, str] = {}
    threads: dict[int, tuple[Thread, ...]] = {}
    for rank in part.ranks:
        first = speaking(stacks.get(rank, ()))
        if first is None:
            continue
        if first.inside:
            inside[rank] = first.inside
        others = [t for t in stacks.get(rank, ()) if t is not first and telling(t)]
        if others or not first.main:
            threads[rank] = tuple(
                replace(thread, frames=kept(thread.frames, MAX_DEPTH // 4))
                for thread in [first, *others][:MAX_THREADS]
            )
    every = ((rank, thread.handles) for rank in part.ranks for thread in stacks.get(rank, ()))
    handles = {rank: what for rank, what in every if what}
    return StallPart(part.ranks, kept(part.frames, MAX_DEPTH), inside, threads, handles)
