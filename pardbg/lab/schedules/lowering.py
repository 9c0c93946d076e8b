"""Sends and receives for a table that has none, in the order in which torch puts them.

A send follows its compute at once; the receive is appended to the other rank's row at that moment,
so that both ends of a pair of ranks have their messages in one order. Source:
torch/distributed/pipelining/schedules.py, ``_add_send_recv``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pardbg.lab.schedules.schedule_table import Cell, Op, Table


@dataclass(frozen=True, slots=True)
class Lowered:
    """A table with its messages, as far as an order could be found."""

    rows: tuple[tuple[Cell, ...], ...]
    stuck: Mapping[int, Cell]
    """rank -> the compute that can never begin; empty: all is there."""


def lower(table: Table) -> Lowered:
    """Add the messages. A table that has them stays as it is."""
    if table.has_messages:
        return Lowered(table.rows, {})
    owner, last = table.owners, table.num_stages - 1
    todo = [[c for c in row if any(op.is_compute for op in c.ops)] for row in table.rows]
    made: list[list[Cell]] = [[] for _ in todo]
    seen: list[set[Op]] = [set() for _ in todo]
    at = [0] * len(todo)
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(todo):
            if at[rank] == len(row) or not all(
                _ready(op, last, seen[rank]) for op in row[at[rank]].ops
            ):
                continue
            cell = row[at[rank]]
            made[rank].append(cell)
            for op in cell.ops:
                seen[rank].add(op)
                for where, message in _messages(op, rank, owner, last):
                    made[where].append(Cell((message,), -1))
                    seen[where].add(message)
            at[rank] += 1
            moved = True
    stuck = {rank: row[at[rank]] for rank, row in enumerate(todo) if at[rank] < len(row)}
    return Lowered(tuple(map(tuple, made)), stuck)


def peer(op: Op, owner: Mapping[int, int]) -> int | None:
    """Return the rank at the other end of a message."""
    step = 1 if op.kind in ("SEND_F", "RECV_B") else -1
    return owner.get(op.stage + step)


def consumed(op: Op) -> Op | None:
    """Return the receive that brings a compute action's input."""
    if op.kind == "F":
        return Op(op.stage, "RECV_F", op.microbatch)
    if op.kind in ("B", "I"):
        return Op(op.stage, "RECV_B", op.microbatch)
    return None


def _messages(op: Op, rank: int, owner: Mapping[int, int], last: int) -> Sequence[tuple[int, Op]]:
    """(rank, message) of what ``op`` hands on to another rank."""
    if op.kind == "F" and op.stage < last:
        way, other = "F", op.stage + 1
    elif op.kind in ("B", "I") and op.stage > 0:
        way, other = "B", op.stage - 1
    else:
        return ()
    to = owner.get(other)
    if to is None or to == rank:
        return ()
    mb = op.microbatch
    return ((rank, Op(op.stage, f"SEND_{way}", mb)), (to, Op(other, f"RECV_{way}", mb)))


def _ready(op: Op, last: int, seen: set[Op]) -> bool:
    """Return whether its input is on this rank: received, or made here."""
    stage, kind, mb = op
    if kind == "F" and stage > 0:
        return Op(stage, "RECV_F", mb) in seen or Op(stage - 1, "F", mb) in seen
    if kind in ("B", "I") and stage < last:
        return Op(stage, "RECV_B", mb) in seen or (
            Op(stage + 1, "I", mb) in seen or Op(stage + 1, "B", mb) in seen
        )
    return True
