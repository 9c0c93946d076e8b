"""Histories of states, control events and output, read as of a cursor; and bookmarks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import zstandard

from pardbg.events import fields
from pardbg.events.decode import Malformed, decode_map

_SLACK: Final = 1.25
MAX_BOOKMARKS: Final = 4096
MAX_TEXT: Final = 200


class History:
    """Values in order of time, the oldest dropped beyond a limit of number or size."""

    MAX_BYTES: int = 256 << 20

    def __init__(self, limit: int, keep_ns: int | None = None) -> None:
        self._limit = limit
        self._keep_ns = keep_ns
        """Age, ns, beyond which values go, except a fifth of ``limit``; None: no limit of age."""
        self._times: list[int] = []
        self._values: list[Any] = []
        self._sizes: list[int] = []
        self._last_n = -1
        self.num_bytes = 0
        """Bytes of the values that are kept."""
        self.evicted = 0
        """Values dropped because the limit was reached."""

    def __len__(self) -> int:
        return len(self._times)

    @property
    def newest_ns(self) -> int | None:
        return self._times[-1] if self._times else None

    def is_new(self, n: int | None, t_ns: int) -> bool:
        """Return whether message number ``n`` is new.

        A restarted hub may count from 0 again while its times go on, so the time decides.
        """
        if n is None:
            return True
        if n <= self._last_n and self._times and t_ns <= self._times[-1]:
            return False
        self._last_n = n
        return True

    def add(self, t_ns: int, value: Any, num_bytes: int = 0) -> None:
        if self._times and t_ns < self._times[-1]:
            t_ns = self._times[-1]  # order of arrival wins over a clock's small step back
        self._times.append(t_ns)
        self._values.append(value)
        self._sizes.append(num_bytes)
        self.num_bytes += num_bytes
        if len(self._times) > self._limit * _SLACK:
            self._evict(len(self._times) - self._limit)
        elif self.num_bytes > self.MAX_BYTES:
            extra = self.num_bytes - self.MAX_BYTES // 2
            self._evict(bisect_left(list(accumulate(self._sizes)), extra) + 1)
        elif (old := self._too_old(t_ns)) > len(self._times) // 4:
            self._evict(old)

    def _too_old(self, now_ns: int) -> int:
        most = len(self._times) - self._limit // 5
        if self._keep_ns is None or most <= len(self._times) // 4:
            return 0
        return min(most, bisect_left(self._times, now_ns - self._keep_ns))

    def _evict(self, count: int) -> None:
        self.num_bytes -= sum(self._sizes[:count])
        for column in (self._times, self._values, self._sizes):
            del column[:count]
        self.evicted += count

    def count(self, t_ns: int | None) -> int:
        """Return the number of values at or before ``t_ns``."""
        return len(self._times) if t_ns is None else bisect_right(self._times, t_ns)

    def at(self, index: int) -> tuple[int, Any]:
        return self._times[index], self._values[index]

    def last(self, t_ns: int | None, number: int) -> list[tuple[int, Any]]:
        """Return the last ``number`` values as of ``t_ns``, oldest first."""
        end = self.count(t_ns)
        start = max(0, end - number)
        return list(zip(self._times[start:end], self._values[start:end], strict=True))


class StateHistory(History):
    """STATE messages, kept as bytes (many come, few are read), packed if they are large: 0.3 MB
    each for a thousand ranks."""

    MAX_BYTES = 64 << 20
    _LARGE: Final = 1 << 14

    _LOOK_BACK: Final = 16
    _MOST_DECODED: Final = 1 << 13
    """Ranks' states, of all messages that are kept decoded: 1.6 kB each."""
    _MOST_JOINED, _MOST_NAMED = 4, 1 << 13
    stood_ns = 0
    """Time, ns, that a rank has waited in an op by the newest state; 0 while ranks are held."""

    def __init__(self, limit: int, keep_ns: int | None = None) -> None:
        super().__init__(limit, keep_ns)
        self._decoded: dict[int, dict[str, Mapping[str, Any]]] = {}
        self._num_decoded = 0
        self._named, self._names = dict[int, frozenset[str]](), frozenset[str]()
        """Processes that a message names, by its number; most name the same ones."""
        self._joined: dict[int, dict[str, Mapping[str, Any]]] = {}
        """Joined states as of the messages asked for last, by the number of messages."""

    def add(self, t_ns: int, value: Any, num_bytes: int = 0) -> None:
        if len(value) >= self._LARGE:
            value = zstandard.compress(value, 1)
        super().add(t_ns, value, len(value))

    def ranks(self, t_ns: int | None) -> tuple[int | None, dict[str, Mapping[str, Any]]]:
        """Return (time of the newest state, {proc: its state}) as of ``t_ns``.

        Processes that a message does not name keep their state from earlier messages.
        """
        end = self.count(t_ns)
        if not end:
            return None, {}
        known = self._joined.get(end + self.evicted)
        if known is None:
            while len(self._joined) >= self._MOST_JOINED:
                self._joined.pop(next(iter(self._joined)))
            known = self._joined[end + self.evicted] = self._join(end)
        return self._times[end - 1], known

    def _join(self, end: int) -> dict[str, Mapping[str, Any]]:
        newest, earlier = self._ranks_at(end - 1), range(max(0, end - self._LOOK_BACK), end - 1)
        if all(names <= newest.keys() for names in set(map(self._names_at, earlier))):
            return newest
        found: dict[str, Mapping[str, Any]] = {}
        for index in earlier:
            found |= self._ranks_at(index)
        return found | newest

    def _names_at(self, index: int) -> frozenset[str]:
        return self._named.get(index + self.evicted) or frozenset(self._ranks_at(index))

    def _ranks_at(self, index: int) -> dict[str, Mapping[str, Any]]:
        key = index + self.evicted
        known: dict[str, Mapping[str, Any]] | None = self._decoded.get(key)
        if known is None:
            payload = self._values[index]
            if payload.startswith(zstandard.FRAME_HEADER):  # no msgpack map begins so
                payload = zstandard.decompress(payload)
            try:
                said = fields.mapping(decode_map(payload), "ranks")
            except Malformed:
                said = {}
            known = {str(proc): of for proc, of in said.items() if isinstance(of, dict)}
            self._decoded[key] = known
            if len(self._named) >= self._MOST_NAMED:
                self._named.clear()
            names = frozenset(known)
            self._named[key] = self._names = self._names if self._names == names else names
            self._num_decoded += len(known) + 1
            while len(self._decoded) > 256 or self._num_decoded > self._MOST_DECODED:
                self._num_decoded -= len(self._decoded.pop(next(iter(self._decoded)))) + 1
        return known


@dataclass(frozen=True, slots=True, order=True)
class Bookmark:
    """A marked moment, hub clock ns."""

    t_ns: int
    text: str


class Bookmarks:
    """Bookmarks, one per moment; the newest text for a moment replaces the older."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}

    def put(self, mark: Bookmark) -> None:
        """Mark a moment; with an empty text, remove the moment's mark."""
        if not mark.text:
            self._texts.pop(mark.t_ns, None)
        elif len(self._texts) < MAX_BOOKMARKS:
            self._texts[mark.t_ns] = " ".join(mark.text.split())[:MAX_TEXT]

    def all(self) -> tuple[Bookmark, ...]:
        """Return all bookmarks by time; bookmark 1 is the first."""
        return tuple(sorted(Bookmark(t, text) for t, text in self._texts.items()))
