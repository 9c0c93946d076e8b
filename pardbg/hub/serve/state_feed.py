"""STATE: where each rank is, said to viewers some times a second; and who stands still."""

from __future__ import annotations

from typing import Any, Final

from pardbg.hub.ranks.stacks_on_stall import Standstill, ask
from pardbg.hub.ranks.where import Where
from pardbg.hub.serve.agents import Agents
from pardbg.hub.serve.collector import Collector
from pardbg.hub.serve.router import Router
from pardbg_agent.wire import Key, Msg

STATE_NS: Final = 100_000_000
STATE_PER_RANK_NS: Final = 500_000
"""Many ranks: STATE is said less often, so that it never takes more than some percent of a core."""
STATE_IDLE_NS: Final = 1_000_000_000
_TIMES: Final = ("since_ns", "open_since_ns", "held_since_ns", "heartbeat_ns")
VOLATILE: Final = ("heartbeat_ns", "sent", "hook_ns", "cpu")
"""Fields of a row whose change alone is no news."""


class StateFeed:
    """Says STATE when something changed, at a bounded rate."""

    def __init__(
        self, hub_id: str, agents: Agents, where: Where, router: Router, collector: Collector
    ) -> None:  # fmt: skip
        self._hub_id, self._agents = hub_id, agents
        self._where, self._router, self._collector = where, router, collector
        self._standstill, self._stall_number = Standstill(), 0
        self._told: dict[str, Any] = {}
        self._told_ns = 0
        self.force = True
        """Say it at the next turn, changed or not."""

    def tick(self, now: int) -> None:
        """Say STATE where it is due, and ask ranks that stand still for their stacks."""
        waited = now - self._told_ns
        rate = max(STATE_NS, STATE_PER_RANK_NS * len(self._told))
        if not self.force and waited < rate:
            return
        rows = self._agents.rows(now)
        self._watch_standstill(self._on_our_clock(rows), now)
        seen = {
            proc: {k: v for k, v in row.items() if k not in VOLATILE} for proc, row in rows.items()
        }
        if not self.force and seen == self._told and waited < STATE_IDLE_NS:
            return
        self._told, self._told_ns, self.force = seen, now, False
        self._collector.say(Key.STATE, hub=self._hub_id, ranks=rows)

    def _on_our_clock(self, rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Status blocks tell times by their own process's clock."""
        offsets = {proc: by for proc in rows if (by := self._agents.offset_ns(proc))}
        if not offsets:
            return rows
        return {
            proc: {k: v + offsets.get(proc, 0) if k in _TIMES and v else v for k, v in row.items()}
            for proc, row in rows.items()
        }

    def _watch_standstill(self, rows: dict[str, dict[str, Any]], now: int) -> None:
        due = self._standstill.due(rows, now)
        if not due:
            return
        self._stall_number -= 1  # viewers' questions count upwards
        number = self._stall_number
        pids = {proc: self._agents.pid(proc) for proc in due}
        ask(self._where, number, rows, pids, lambda said: self._collector.say(Key.CONTROL, **said),
            now)  # fmt: skip
        for proc in due:
            self._router.send(proc, {"t": Msg.WHERE.value, "id": number})
