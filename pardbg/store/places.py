"""Groups that a program made by hand: torch does not tell their ranks, so each member reports only
its own place."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pardbg.events import fields
from pardbg.store.definitions import GroupDef
from pardbg.store.process import Process
from pardbg.words import ranks_text

Key = tuple[int, str]
"""(epoch, key) of a group."""


class Places:
    """Members by place of each hand-made group. Processes that name a group alike and fill each
    place once are taken for its members, which is a guess (the group's name says so)."""

    def __init__(self, groups: dict[Key, GroupDef]) -> None:
        self._groups = groups  # groups whose members are known
        self._members: dict[Key, dict[int, tuple[Process, int]]] = {}
        """Group key -> place in the group -> (process, id that the process has given the group)."""
        self._torn: set[Key] = set()

    def forget(self, epochs: Collection[int]) -> None:
        """Forget the groups of lives that are gone."""
        for key in [key for key in self._members if key[0] in epochs]:
            del self._members[key]
            self._torn.discard(key)

    def take(self, process: Process, group: GroupDef, values: Mapping[str, Any]) -> GroupDef:
        """Give all members so far their definition, and return this process's: with the ranks of
        all members once each place is taken. Before that, and if two claim the same place, the
        definition has no ranks and a key of its own, so it matches no other process's."""
        key = group.epoch, group.key
        place, size, number = (fields.integer(values, name, 0) for name in ("place", "size", "id"))
        members = self._members.get(key, {})
        if not 0 <= place < size or (not members and len(self._members) >= fields.MAX_GROUPS):
            return _apart(process, group)
        self._members[key] = members
        if members.setdefault(place, (process, number))[0] is not process:
            self._torn.add(key)
        self._groups.pop(key, None)
        whole = None if key in self._torn else _whole(group, members, size)
        for other, at in members.values():
            other.groups[at] = whole or _apart(other, group)
        return whole or _apart(process, group)


def _whole(
    group: GroupDef, members: Mapping[int, tuple[Process, int]], size: int
) -> GroupDef | None:
    told = [members[place][0].rank for place in sorted(members)]
    ranks = tuple(rank for rank in told if rank is not None)
    named = replace(group, name=f"{ranks_text(ranks)} (guessed)", ranks=ranks)
    return named if len(set(ranks)) == size else None


def _apart(process: Process, group: GroupDef) -> GroupDef:
    return replace(group, key=f"{process.proc}/{group.key}")
