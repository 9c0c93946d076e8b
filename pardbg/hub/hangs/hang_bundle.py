"""Facts on a hang in one archive, ``.tar.zst``; the session comes first."""

from __future__ import annotations

import io
import json
import platform
import shutil
import tarfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, Final

import zstandard

from pardbg.analysis.answers.hang import rank_stacks
from pardbg.analysis.answers.report import Report, as_json
from pardbg.analysis.base.asof import View
from pardbg.hub.attach.job_ranks import JobRank
from pardbg.hub.attach.look import look
from pardbg.hub.ranks.processes import environ
from pardbg.hub.run.config import ERR_FILE, OUT_FILE, RunConfig
from pardbg.joblog.scan import read
from pardbg.joblog.verdict import judge
from pardbg.joblog.words import as_json as log_json
from pardbg.joblog.words import text as log_text
from pardbg.render.reports.text import text
from pardbg.session.reader import BUNDLED
from pardbg.session.writer import resume
from pardbg_agent import wire
from pardbg_agent.life.secret_words import HIDDEN, names_secret, without_secrets

LEVEL: Final = 1
OUTPUT_BYTES: Final = 32 << 20
"""Maximum bytes from the end of each stream of the job's output."""
DUMP_BYTES: Final = 64 << 20
MAX_LOOKED_AT: Final = 64
_VARIABLES: Final = (
    "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCH", "PYTORCH", "NCCL",
    "GLOO", "CUDA", "NVIDIA_", "SLURM_", "OMP_", "MKL_", "PARDBG", "PYTHON", "LD_", "UCX_", "FI_",
)  # fmt: skip
_DUMPS: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


def write(file: BinaryIO, config: RunConfig, session: Path, view: View, data: Report) -> None:
    """Write a bundle; ``session`` may grow, and is cut here. Raises OSError; ValueError (8 GiB)."""
    packed = zstandard.ZstdCompressor(LEVEL).stream_writer(file, closefd=False)
    with packed, tarfile.open(fileobj=packed, mode="w|", format=tarfile.USTAR_FORMAT) as tar:
        with open(session, "rb") as source, TemporaryFile(dir=session.parent) as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            resume(Path(f"/proc/self/fd/{copy.fileno()}"), config.facts).close()
            _add(tar, BUNDLED, copy)
        for name, content in _contents(config, view, data):
            _add(tar, name, io.BytesIO(content))


def _add(tar: tarfile.TarFile, name: str, source: BinaryIO) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = source.seek(0, io.SEEK_END), 0o600
    source.seek(0)
    tar.addfile(member, source)


def _contents(config: RunConfig, view: View, data: Report) -> Iterator[tuple[str, bytes]]:
    yield "report.txt", text(data).encode("utf-8", "backslashreplace")
    yield "report.json", _packed(as_json(data))
    logs = [config.dir / name for name in (OUT_FILE, ERR_FILE) if (config.dir / name).exists()]
    log = read([str(path) for path in logs])
    yield "explain.txt", "\n".join(log_text(judge(log), log, 100)).encode("utf-8", "replace")
    yield "explain.json", _packed(log_json(judge(log), log))
    for path in logs:
        yield path.name, _end(path, OUTPUT_BYTES)
    ranks = [
        JobRank(process.pid, rank, process.world_size or 0, (), "", True)
        for rank, process in view.ranks.items()
        if process.host == config.host and environ(process.pid).get(wire.ENV_RUN) == str(config.dir)
    ]  # fmt: skip
    yield "stacks.json", _packed(_stacks(view, ranks[:MAX_LOOKED_AT]))
    yield "versions.json", _packed(_versions(view))
    for one in ranks[:1]:
        yield "environment.json", _packed(_environment(one.pid))
    for one in ranks:
        for name in _DUMPS:
            prefix = environ(one.pid).get(name)
            if prefix and (dump := Path(f"{prefix}{one.rank}")).is_file():
                yield f"flight_recorder/{one.rank}", _end(dump, DUMP_BYTES)


def _packed(value: object) -> bytes:
    return json.dumps(value, indent=1, default=str).encode()


def _end(path: Path, most: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, io.SEEK_END) - most))
        return file.read(most)


def _stacks(view: View, ranks: list[JobRank]) -> dict[str, object]:
    """Return the recorded stacks, and those that py-spy reads now."""
    now = look(ranks)
    return {
        "recorded": {one.rank: one.frames for one in rank_stacks(view)},
        "now": {one.rank: one.frames for one in now.stacks},
        "not_read": now.unread,
    }


def _versions(view: View) -> dict[str, object]:
    """Return the versions here, and those that each rank reported."""
    packages = sorted({(one.name, one.version) for one in metadata.distributions()})
    return {
        "python": platform.python_version(), "platform": platform.platform(),
        "packages": dict(packages),
        "ranks": {rank: process.facts for rank, process in view.ranks.items()},
    }  # fmt: skip


def _environment(pid: int) -> dict[str, str]:
    """Return a rank's environment variables for torch and its libraries, without secrets."""
    return {
        name: HIDDEN if names_secret(name) else without_secrets([value])[0]
        for name, value in environ(pid).items() if name.startswith(_VARIABLES)
    }  # fmt: skip
