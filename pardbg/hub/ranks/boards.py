"""Boards of this node's processes (``pardbg_agent.control.posts``) and copies of other nodes'
boards, so that ranks of all nodes compare their next ops.

A post that is lost on the way is missing on the copy; absence is not evidence, and posts are not
sent twice."""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pardbg.events.decode import Malformed
from pardbg.hub.ctrl_messages import Change
from pardbg.hub.removal import remove_ring
from pardbg_agent.control import posts

LOOK_NS: Final = 250_000_000
PIECE_BYTES: Final = 1 << 20
"""Approximate bytes of posts in a message."""
MAX_COPIES: Final = 512
"""Maximum number of copies, a third of a MiB each; further ranks are not compared here."""
TURN_MS: Final = 2
"""Time between two reads of the boards while a watch is set, in ms."""


@dataclass(slots=True)
class _Own:
    peer: posts.Peer
    seen: int = 0
    """Number of posts passed on."""
    told: tuple[int, int] = (-1, 0)
    """(rank, kinds of watches) passed on."""


@dataclass(slots=True)
class Boards:
    """Boards in one run's directory of rings."""

    folder: Path
    run: str
    _own: dict[str, _Own] = field(default_factory=dict)
    _copies: dict[str, posts.Posts] = field(default_factory=dict)
    _looked_ns: int = 0

    @property
    def active(self) -> bool:
        """Return whether a watch is set on this node."""
        return any(own.peer.kinds for own in self._own.values())

    def changes(self, now: int) -> Iterator[list[Change]]:
        """Yield changes since the last call, in messages of about ``PIECE_BYTES``."""
        gone = self._look(now) if now - self._looked_ns >= LOOK_NS else []
        piece, size = gone, 0
        for proc, own in self._own.items():
            peer = own.peer
            peer.refresh()
            count, fresh = peer.news(own.seen)
            if not fresh and own.told == (peer.rank, peer.kinds):
                continue
            own.seen, own.told = count, (peer.rank, peer.kinds)
            piece.append((proc, peer.rank, peer.kinds, peer.job, tuple(fresh.items())))
            size += sum(map(len, fresh.values()))
            if size >= PIECE_BYTES:
                yield piece
                piece, size = [], 0
        if piece:
            yield piece

    def _look(self, now: int) -> list[Change]:
        """Find new boards; return those whose process has ended."""
        self._looked_ns = now
        gone: list[Change] = []
        for proc, own in list(self._own.items()):
            if not own.peer.alive():
                del self._own[proc]
                gone.append((proc, -1, 0, own.peer.job, ()))
                own.peer.close()
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.folder):
                proc = entry.name.removesuffix(posts.SUFFIX)
                if not entry.name.endswith(posts.SUFFIX) or proc in self._own:
                    continue
                if "~" not in proc:
                    self._meet(proc, entry.path)
                elif proc not in map(_name, self._copies):
                    remove_ring(self.folder, self.run, proc)  # or of a copier before us
        return gone

    def _meet(self, proc: str, path: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            peer = posts.Peer(path, posts.map_file(path, posts.SIZE), None)
            if peer.refresh() and peer.alive():
                self._own[proc] = _Own(peer)
            else:
                peer.close()

    def take(self, changes: Iterable[Change], by_ns: int) -> None:
        """Write other nodes' new posts, with their times moved. Raises Malformed."""
        for change in changes:
            try:
                self._write(change, by_ns)
            except (ValueError, struct.error) as error:
                raise Malformed(f"board: {error}") from None

    def _write(self, change: Change, by_ns: int) -> None:
        proc, rank, kinds, job, written = change
        copy = self._copies.get(proc) or self._copy(proc, job, rank)
        if copy is None:
            return
        copy.identify(rank, kinds | posts.ELSEWHERE)
        for place, raw in written:
            if 0 <= place < posts.NUM_PLACES:
                copy.write(place, posts.moved(place, raw, by_ns))
        if rank < 0:
            copy.end()
            del self._copies[proc]  # its file goes at the next look

    def _copy(self, proc: str, job: int, rank: int) -> posts.Posts | None:
        if rank < 0 or len(self._copies) >= MAX_COPIES:
            return None
        if not re.fullmatch(r"[\w.-]{1,200}", proc):
            raise ValueError("process")
        with contextlib.suppress(OSError):
            path = self.folder / (_name(proc) + posts.SUFFIX)
            self._copies[proc] = posts.Posts.create(str(path), job, rank)
        return self._copies.get(proc)

    def close(self) -> None:
        """Unmap all boards; the files are removed with the rings."""
        for own in self._own.values():
            own.peer.close()
        self._own.clear()
        self._copies.clear()


def _name(proc: str) -> str:
    """Return a copy's file name, a new one for each copier: readers drop one that has ended."""
    return f"{proc}~{os.getpid()}"
