"""The rank, host and time of a log line, from the prefixes of launchers and loggers.

Prefixes nest (Kubernetes before torchrun before glog), so they are taken off one by one. Times of
different clocks are kept apart: a container runtime's is UTC, a logger's is often local.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Final, Literal

Clock = Literal["job", "runtime"]
"""Clock of a time: ``job``: the program's; ``runtime``: journald's, Kubernetes', Docker's."""
MAX_PREFIXES: Final = 8
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_REPEATED: Final = re.compile(r"\s*\[repeated (\d+)x across cluster\].*$")


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a line, as far as its prefixes tell."""

    rank: int | None = None
    """Global rank; None: not known."""
    local_rank: int | None = None
    host: str = ""
    worker: str = ""
    """Launcher's name of a process without a rank (Ray's ``pid=…``)."""
    job_s: float | None = None
    runtime_s: float | None = None
    """Seconds by the two clocks. Lines of glog have no year: all times get the same year."""

    @property
    def process(self) -> str:
        """Return a key that is equal for lines of one process."""
        return f"{self.host}/{self.rank}/{self.local_rank}/{self.worker}"

    def time_s(self, clock: Clock) -> float | None:
        return self.job_s if clock == "job" else self.runtime_s


_HOST: Final = r"(?P<host>[A-Za-z](?:[\w.]*-)*[\w.]*\d[\w.-]*)"
_LEVEL: Final = r"\[?(?:CRITICAL|ERROR|WARNING|INFO|DEBUG)\b\]?"
_PREFIXES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        # Kubernetes, containerd's files, Docker with timestamps
        r"(?P<runtime>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d))\s"
        r"(?:std(?:out|err) [FP] )?",
        r"\[pod/(?P<host>[^/\]]+)/[^\]]+\]\s",
        # journald and syslog
        r"(?P<syslog>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (?P<host>[\w.-]+) "
        r"(?P<worker>[\w@./-]+(?:\[\d+\])?): ",
        r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d\s",  # a CI's, of no known clock
        # Docker Compose, DeepSpeed's pdsh
        rf"{_HOST}\s+\|\s",
        rf"{_HOST}: (?!.*\bline \d)",
        # Accelerate, and collectors that say which stream a line is of
        rf"{_HOST} \[std(?:out|err)\] ",
        r"std(?:out|err): ",
        # the time of day, before another prefix
        r"\d\d:\d\d:\d\d(?:[.,]\d+)?\s+(?=[\[(])",
        # Ray
        r"\((?P<worker>\w[\w.:]*(?:\s+rank=(?P<rank>\d+))?\s+pid=\d+)"
        r"(?:, ip=(?P<host>[\da-fA-F.:]+))?\)\s",
        # Open MPI, torch's excepthook, torchrun (--tee, --log-line-prefix-template), srun -l
        r"\[\d+,(?P<rank>\d+)\](?:<std(?:out|err)>)?:\s?",
        r"\[rank(?P<rank>\d+)\]:\s?",
        r"\[RANK (?P<rank>\d+)\]\s",
        r"\[(?:[A-Za-z_][A-Za-z_-]*)?(?P<local>\d+)\]:\s?",
        r"(?P<rank>\d{1,6}): ",
        # numbers that a collector put before each line
        r"\[\d+\] (?=\[)",
        # glog, and Python's logging in torch's format
        r"\[?(?P<severity>[EWIF])(?P<glog>\d{3,4} \d\d:\d\d:\d\d(?:\.\d+)?)\s+(?:\d+ )?"
        r"[\w./-]+:\d+\]\s?",
        r"\[[EWIF] [\w./-]+:\d+\]\s",
        # a traceback's indentation and an exception's name belong to the text
        r"\[?(?P<logging>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)\]?"
        rf"(?:\s?[,:|-]+\s?|\s*(?={_LEVEL})|\s)?(?:[\w.]+: (?={_LEVEL}))?(?:{_LEVEL}[\s:]+)?",
    )
)


def split(line: str, before: Origin = Origin()) -> tuple[Origin, str]:
    """Return the origin of a line, and its text without prefixes. ``before``: origin by the file's
    name; prefixes take precedence."""
    text, origin = _ANSI.sub("", line).rstrip("\r\n"), before
    text = _REPEATED.sub("", text.rpartition("\r")[2])
    for _ in range(MAX_PREFIXES):
        found = next((m for p in _PREFIXES if (m := p.match(text)) and m.end()), None)
        if found is None:
            break
        origin, text = _told_by(origin, found), text[found.end() :]
    return origin, text


def _told_by(origin: Origin, found: re.Match[str]) -> Origin:
    groups = {name: value for name, value in found.groupdict().items() if value is not None}
    numbers = {"rank": "rank", "local": "local_rank"}
    facts: dict[str, int] = {
        field: int(groups[name]) for name, field in numbers.items() if name in groups
    }
    origin = replace(
        origin,
        rank=facts.get("rank", origin.rank),
        local_rank=facts.get("local_rank", origin.local_rank),
        host=groups.get("host", origin.host),
        worker=" ".join(groups.get("worker", origin.worker).split()),
    )
    if "runtime" in groups or "syslog" in groups:
        return replace(origin, runtime_s=_seconds(groups))
    if "glog" in groups or "logging" in groups:
        return replace(origin, job_s=_seconds(groups))
    return origin


_FORMATS: Final = {"syslog": "%Y %b %d %H:%M:%S", "glog": "%Y %m%d %H:%M:%S"}
YEAR: Final = 2000
"""Year used for all times, so that formats without a year can be compared with others."""


def _seconds(groups: dict[str, str]) -> float | None:
    name = next(name for name in ("runtime", "syslog", "glog", "logging") if name in groups)
    text = groups[name]
    text, _, fraction = text.replace(",", ".").partition(".")
    digits = re.match(r"\d*", fraction)
    part = float(f"0.{digits[0]}") if digits and digits[0] else 0.0
    try:
        if name in _FORMATS:
            text = text.rjust(len("1231 00:00:00"), "0") if name == "glog" else text
            moment = datetime.strptime(f"{YEAR} {text}", _FORMATS[name])
        else:
            moment = datetime.fromisoformat(text[:19].replace(" ", "T")).replace(year=YEAR)
    except ValueError:
        return None
    return moment.replace(tzinfo=timezone.utc).timestamp() + part


_FILE_RANK: Final = re.compile(r"(?:^|[^a-z])(?:global_?)?rank[-_.]?(\d+)(?!\d)", re.IGNORECASE)
_TORCHRUN_FILE: Final = re.compile(r"attempt_\d+/(\d+)/std(?:out|err)\.log$")
_SLURM_FILE: Final = re.compile(r"[-_.]task[-_.]?(\d+)(?!\d)")


def of_file(path: str) -> Origin:
    """Return the origin by a file's name: ``rank_3.log``, torchrun's ``attempt_0/3/stderr.log``."""
    if found := _TORCHRUN_FILE.search(path):
        return Origin(local_rank=int(found[1]))
    name = path.rpartition("/")[2]
    found = _FILE_RANK.search(name) or _SLURM_FILE.search(name)
    return Origin(rank=int(found[1])) if found else Origin()
