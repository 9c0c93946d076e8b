"""NCCL's debug lines as they come: topologies, chosen algorithms, warnings, version.

Lines are from the job's output, or from NCCL_DEBUG_FILE's files. ``NCCL_DEBUG=WARN`` prints
warnings and the version, ``INFO`` with ``NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING`` all of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pardbg.nccl.topology import Topology, TopologyReader

MAX_WARNINGS: Final = 256
MAX_CHOICES: Final = 1024
ALGORITHMS: Final = (
    "TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT",
)  # fmt: skip
"""Names of algorithms by number, which older versions print."""
PROTOCOLS: Final = ("LL", "LL128", "SIMPLE")
WARNING: Final = re.compile(
    r"(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[(?P<device>-?\d+)\]\s+(?:[\w./]+:\d+\s+)?"
    r"NCCL WARN (?P<text>.+)"
)
_CHOICE: Final = re.compile(
    r"NCCL INFO (?:(?P<op>\w+):\s+)?(?P<bytes>\d+) Bytes\s+-> Algo (?P<algorithm>\w+)\s+"
    r"proto (?P<protocol>\w+)"
)
_NUMBER: Final = re.compile(r"0x[0-9a-f]+|\d+")
_VERSION: Final = re.compile(r"\b(?:R?NCCL) version (?P<version>\d[\w.+]*)")


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning of NCCL. ``t_ns``: time at which the line was read."""

    t_ns: int
    host: str
    pid: int
    text: str

    @property
    def kind(self) -> str:
        """Return the text without numbers and addresses."""
        return _NUMBER.sub("#", self.text)


@dataclass(frozen=True, slots=True)
class Choice:
    """Algorithm and protocol that NCCL chose for ops of a size."""

    op: str
    """NCCL's name of the op, ``AllReduce``; empty: not printed (before 2.24)."""
    bytes: int
    algorithm: str
    protocol: str


class DebugReader:
    """Takes lines in the order in which each process prints them."""

    def __init__(self) -> None:
        self.version = ""
        self.warnings: list[Warned] = []
        self.choices: dict[Choice, int] = {}
        """Choice -> number of ops."""
        self.revision = 0
        """Number of lines with new facts so far."""
        self._topology = TopologyReader()

    def add(self, line: str, t_ns: int = 0) -> bool:
        """Take a line; return whether it is one of NCCL's debug lines."""
        known = self._topology.add(line) or self._warned(line, t_ns) or self._chosen(line)
        if not known and not self.version and (found := _VERSION.search(line)):
            self.version, known = found["version"], True
        self.revision += known
        return known

    def topologies(self) -> list[Topology]:
        """Return the topologies of communicators, from the lines so far."""
        return self._topology.topologies()

    def _warned(self, line: str, t_ns: int) -> bool:
        found = WARNING.search(line)
        if found is None:
            return False
        if len(self.warnings) < MAX_WARNINGS:
            text = found["text"].strip()[:300]
            self.warnings.append(Warned(t_ns, found["host"], int(found["pid"]), text))
        return True

    def _chosen(self, line: str) -> bool:
        found = _CHOICE.search(line)
        if found is None:
            return False
        choice = Choice(
            found["op"] or "", int(found["bytes"]), _named(found["algorithm"], ALGORITHMS),
            _named(found["protocol"], PROTOCOLS),
        )  # fmt: skip
        if choice in self.choices or len(self.choices) < MAX_CHOICES:
            self.choices[choice] = self.choices.get(choice, 0) + 1
        return True


def _named(word: str, names: tuple[str, ...]) -> str:
    number = int(word) if word.isdecimal() and len(word) < 4 else len(names)
    return names[number] if number < len(names) else word.upper()[:32]
