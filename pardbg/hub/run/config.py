"""A run's directory, and its configuration ``run.json``."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

from pardbg.errors import UserError
from pardbg.hub.ranks.processes import start_time
from pardbg.hub.removal import RINGS_DIR, mark, refusal, remove_unstarted
from pardbg.session.rotation import UNLIMITED, PartLimits
from pardbg_agent import wire
from pardbg_agent.identity import boot_id, host_name
from pardbg_agent.life.secret_words import without_secrets

if TYPE_CHECKING:
    from typing import Unpack

    from pardbg.session.writer import RunFacts

VERSION: Final = 1
_TCP: Final = re.compile(r"tcp://(?:[A-Za-z0-9_.-]+|\*|\[[0-9A-Za-z:.%_-]+\]):(?P<port>[0-9]{1,5})")
KEYS_FILE: Final = "keys.json"
"""File in the run directory, 0600, with every key of the run."""
_RUN_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
RESERVED_BYTES: Final = 4096
MAX_SOCKET_PATH: Final = 100
"""A unix socket's path ends at 107 bytes."""
LEAST_SHM: Final = 1 << 20
HUB_FILE, LAUNCH_FILE, EXIT_FILE = "hub.pid", "launch.json", "exit.json"
JOB_FILE = "job.json"
"""File written by the job's first process before it becomes the job, without the launcher."""
PART_FILE = "part.json"
"""{"part": number}: the newest file of a recording in parts."""
STATE_FILE = "hub.state"
"""State that spares a restarted hub reading the whole recording (``hub.serve.resume``)."""
HUB_LOG, OUT_FILE, ERR_FILE = "hub.log", "job.out", "job.err"
TOLD_FILE, KILL_FILE = "told", "kill"
"""Signals that the job was given, a line each; a file whose existence asks for the job's end."""
HANG_FILE, NOTIFIED_FILE = "hang.json", "notified.json"
"""Result of the inquiry into a hang; findings that were notified."""
RECORDED_FILE = "recorded.json"
"""Result of the recording, by the hub, at its end or when it can write no more of it."""
NOTICES_FILE = "notices"
"""Messages of the hub to the terminal that started the run, a line each."""


CTRL_PORT, DATA_PORT, PUB_PORT = 0, 1, 2
"""Offsets of the three ports of a hub that other nodes reach, from the port in its address."""


class ConfigError(UserError):
    """A run directory that cannot be made, read or used. One line."""


class SetupError(ConfigError):
    """This machine cannot record a run; the job can still run without pardbg. One line."""


@dataclass(frozen=True, slots=True)
class Place:
    """Place of this node among those of a run."""

    hub: str
    node: int
    nnodes: int
    keys: Mapping[str, Any]
    """Keys of the run: see ``pardbg.hub.serve.sockets``."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Endpoints of a hub for other nodes, from ``tcp://HOST:PORT``. Raises ConfigError."""

    text: str

    def __post_init__(self) -> None:
        found = _TCP.fullmatch(self.text)
        if found is None or not 0 < int(found["port"]) <= 65535 - PUB_PORT:
            raise ConfigError(f"{self.text!r} is not of the form tcp://HOST:PORT")

    @property
    def host(self) -> str:
        return self.text.removeprefix("tcp://").rpartition(":")[0].strip("[]")

    @property
    def ctrl(self) -> str:
        return self._at(CTRL_PORT)

    @property
    def data(self) -> str:
        return self._at(DATA_PORT)

    @property
    def pub(self) -> str:
        return self._at(PUB_PORT)

    def everywhere(self) -> Endpoints:
        """Return the same ports on every address of this host; a loopback address as it is."""
        if self.host in ("127.0.0.1", "::1"):
            return self
        return Endpoints(f"tcp://*:{self.text.rpartition(':')[2]}")

    def _at(self, number: int) -> str:
        address, _, port = self.text.rpartition(":")
        return f"{address}:{int(port) + number}"


@dataclass(frozen=True, slots=True)
class OnHang:
    """Actions at a hang, and the address to notify of errors."""

    bundle: bool = False
    command: tuple[str, ...] = ()
    abort: bool = False
    after_s: float = 60.0
    """Time in s that ranks stand still before an inquiry."""
    notify: str = ""
    """Command, or http(s) address."""


NO_HANG: Final = OnHang()


class Settings(TypedDict, total=False):
    """Fields of RunConfig that the starter of a run may choose."""

    recipe: str
    attached: tuple[str, ...]
    limits: PartLimits
    allow_eval: bool
    on_exception_s: float
    loss_pattern: str
    on_hang: OnHang


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Configuration of a run, kept in run.json."""

    run: str
    name: str
    argv: tuple[str, ...]
    """The job's command line, with its secrets until the job is started (``without_secrets``)."""
    cwd: str
    data: str
    pub: str
    ctrl: str
    session: str
    t_ns: int
    wall_ns: int
    host: str
    boot_id: str
    recipe: str = ""
    attached: tuple[str, ...] = ()
    """Command line of a rank that existed before the run (``pardbg attach --agent``): ``argv`` is
    then that of the process that stands for the job."""
    owner_pid: int | None = None
    """Process that passes the job's streams on (``pardbg run``); None: the job has no owner."""
    owner_start: str = ""
    keys: dict[str, Any] | None = None
    limits: PartLimits = UNLIMITED
    allow_eval: bool = False
    """Whether the controller may run code in held ranks; read by agents."""
    on_exception_s: float = 0.0
    """Time in s that a rank that raised is held without a viewer; 0: not held. Read by agents."""
    loss_pattern: str = ""
    """Regular expression that finds the loss in a line of the job's output."""
    on_hang: OnHang = NO_HANG
    hub: str = ""
    """``tcp://HOST:PORT`` of the hub of several nodes, which runs on node 0."""
    node: int = 0
    nnodes: int = 1
    v: int = VERSION
    dir: Path = field(default=Path(), compare=False)

    @property
    def ring_dir(self) -> Path:
        """Return the directory of this host's rings: derived, so that no file can name another."""
        inside = self.dir / RINGS_DIR
        return inside if inside.is_dir() else shm_root() / self.run

    @property
    def upstream(self) -> Endpoints:
        """Return the endpoints of the hub of several nodes. Raises ConfigError."""
        return Endpoints(self.hub)

    @property
    def is_relay(self) -> bool:
        """Return whether the hub is elsewhere."""
        return bool(self.hub) and self.node > 0

    @property
    def facts(self) -> RunFacts:
        """Return the session file's facts about the run."""
        from pardbg.session.writer import RunFacts  # slow to import; the hub alone writes

        name, cwd, recipe = map(_readable, (self.name, self.cwd, self.recipe))
        argv = tuple(map(_readable, self.shown))
        return RunFacts(self.run, name, self.host, argv, cwd, recipe, self.t_ns, self.wall_ns)

    @property
    def shown(self) -> tuple[str, ...]:
        """Return the command line for records and screens, with ``***`` for likely secrets."""
        return tuple(without_secrets(self.attached or self.argv))

    def without_secrets(self) -> RunConfig:
        """Return the configuration for after the job's start, with ``shown`` as command line."""
        return replace(self, argv=self.shown, attached=self.attached and self.shown)

    def save(self) -> None:
        """Write run.json, 0600."""
        fields = asdict(self)
        fields.pop("dir")
        fields["ring_dir"] = str(self.ring_dir)  # for the agents
        write_json(self.dir / wire.RUN_FILE, fields)


def load(run_dir: Path) -> RunConfig:
    """Return the configuration in run.json. Raises ConfigError."""
    path = Path(run_dir) / wire.RUN_FILE
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields["v"] != VERSION:
            raise ConfigError(f"{path}: version {fields['v']}, this pardbg reads {VERSION}")
        known = {k: v for k, v in fields.items() if k in RunConfig.__dataclass_fields__}
        known |= {"argv": tuple(known["argv"]), "dir": Path(run_dir)}
        known["attached"] = tuple(known.get("attached", ()))
        known["limits"] = PartLimits(**known.get("limits", {}))
        if said := known.pop("on_hang", None):
            known["on_hang"] = OnHang(**{**said, "command": tuple(said["command"])})
        config = RunConfig(**known)
        if not _RUN_ID.fullmatch(config.run):
            raise ValueError(f"{config.run!r:.80} is not the id of a run")
        return config
    except OSError as error:
        raise ConfigError(f"{run_dir} is not a run: {error.strerror} (see `pardbg ls`)") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged: {error!r}") from None


def new_id(name: str) -> str:
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:24] or "run"
    return f"{slug}-{uuid.uuid4().hex[:8]}"


def make(
    argv: Sequence[str], *, name: str, run: str = "", session: Path, owner_pid: int | None = None,
    place: Place | None = None, **settings: Unpack[Settings],
) -> RunConfig:  # fmt: skip
    """Make a run's directories (0700) and its run.json. Raises SetupError."""
    run = run or new_id(name)
    config = RunConfig(
        run=run,
        name=name,
        argv=tuple(argv),
        cwd=_cwd(),
        data="", pub="", ctrl="",
        session=str(session),
        t_ns=time.monotonic_ns(),
        wall_ns=time.time_ns(),
        host=host_name(),
        boot_id=boot_id(),
        owner_pid=owner_pid,
        owner_start=start_time(owner_pid) if owner_pid is not None else "",
        hub=place.hub if place else "",
        node=place.node if place else 0,
        nnodes=place.nnodes if place else 1,
        **settings,
    )  # fmt: skip
    return _save_new(config, place)


def _cwd() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _save_new(config: RunConfig, place: Place | None) -> RunConfig:
    """Make the directories in the first usable root. Raises SetupError."""
    problem = "no directory has a path short enough for a socket; set TMPDIR to one"
    for root in roots():
        path = root / config.run
        if len(str(path / "data")) > MAX_SOCKET_PATH:
            continue
        try:
            private_dir(root)
            path.mkdir(mode=0o700)
            mark(path, config.run)
            _make_ring_dir(config.run, path)
            data, pub, ctrl = (f"ipc://{path}/{name}" for name in ("data", "pub", "ctrl"))
            made = replace(config, dir=path, data=data, pub=pub, ctrl=ctrl)
            if place is not None:
                write_json(path / KEYS_FILE, dict(place.keys))
            made.save()
            return made
        except OSError as error:  # also a full one
            problem = refusal(root) or f"{root}: {error.strerror or error}"
            remove_unstarted(config.run, [root], shm_root())
    raise SetupError(f"cannot make a run directory: {problem}")


def roots() -> list[Path]:
    """Return possible parents of run directories, at least one. Raises ConfigError."""
    # platformdirs.user_runtime_dir says the same, but warns where the variable is not set.
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
    found = [runtime / "pardbg"] if runtime.is_absolute() and _is_ours(runtime) else []
    try:
        temporary = tempfile.gettempdir()
    except FileNotFoundError:  # none can be written to: whoever makes a directory here is told why
        temporary = os.environ.get("TMPDIR") or "/tmp"
    return [*found, Path(temporary) / f"pardbg-{os.getuid()}"]


def refused_roots() -> list[str]:
    """Return a line for each root owned by another user."""
    return [why for root in roots() if (why := refusal(root))]


def shm_root() -> Path:
    """Return the directory of the rings of this user's runs."""
    return Path(f"/dev/shm/pardbg-{os.getuid()}")


def _is_ours(path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _make_ring_dir(run: str, run_dir: Path) -> None:
    root = shm_root()
    try:
        if root.parent.is_dir() and root != run_dir.parent and has_room(root.parent):
            private_dir(root)
            (root / run).mkdir(mode=0o700)
            mark(root / run, run)
            return
    except OSError:
        remove_unstarted(run, [], root)
    path = run_dir / RINGS_DIR
    path.mkdir(mode=0o700)
    mark(path, run)


def has_room(folder: Path) -> bool:
    """Return whether some ranks' smallest rings fit in what is left of the file system."""
    about = os.statvfs(folder)
    return not about.f_blocks or about.f_frsize * about.f_bavail >= LEAST_SHM  # 0: no limit


def private_dir(path: Path) -> None:
    """Make the directory, or check that it belongs to this user alone (others may write to /tmp).

    Raises OSError.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to another user")
        if found.st_mode & 0o077:
            os.fchmod(fd, 0o700)
    finally:
        os.close(fd)


def write_json(path: Path, value: Any) -> None:
    """Write a small JSON file, 0600, atomically. Raises OSError."""
    text = json.dumps(value, indent=1).encode()
    fresh, kept = path.with_name(f".{path.name}.{os.getpid()}"), _reserve_of(path)
    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(fresh, flags | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(text)
    except OSError:
        if not kept.exists() or len(text) > RESERVED_BYTES:
            raise
        fresh = kept
        with os.fdopen(os.open(fresh, flags), "wb") as file:
            file.write(text.ljust(RESERVED_BYTES))
    os.replace(fresh, path)


def add_notice(run_dir: Path, text: str) -> None:
    """Send a line to the terminal that started the run."""
    with (
        contextlib.suppress(OSError),
        open(run_dir / NOTICES_FILE, "a", encoding="utf-8", errors="backslashreplace") as file,
    ):
        file.write(f"pardbg: {text}\n")


def _readable(text: str) -> str:
    """Return text that can be encoded: bytes that are not UTF-8 become ``\\udcff``."""
    return text.encode("utf-8", "backslashreplace").decode()


def reserve(path: Path) -> None:
    """Reserve space for ``write_json`` on a disk that may get full."""
    with contextlib.suppress(OSError):
        _reserve_of(path).write_bytes(b" " * RESERVED_BYTES)


def _reserve_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.0")


def write_whole(path: Path, raw: bytes) -> None:
    """Write a file atomically. Raises OSError."""
    fresh = path.with_name(f".{path.name}")
    fresh.write_bytes(raw)
    os.replace(fresh, path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a small JSON object; None if the file does not exist (yet)."""
    with contextlib.suppress(OSError, ValueError):
        value = json.loads(path.read_text(encoding="utf-8"))
        return value if isinstance(value, dict) else None
    return None
