"""Address of a live run for viewers: on this machine, over TCP with a key, or through ssh."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import zmq

from pardbg.events.commands import Command, HubFacts, Reply
from pardbg.events.control_codes import Verb
from pardbg.events.decode import Malformed
from pardbg.hub.ctrl_messages import pack, unpack, viewer_address
from pardbg.hub.run.config import ConfigError, Endpoints
from pardbg.hub.run.start import RunHandle
from pardbg.hub.serve.sockets import check_keys, keys_of_environment, load_keys, secure_client
from pardbg.plain_text import plain
from pardbg_agent.ctrl.codec import reader

ENV_REMOTE: Final = "PARDBG_REMOTE"
"""Command that runs pardbg at the other end of ssh, if it is not on the PATH there."""
ANSWER_S: Final = 5.0
_SSH: Final = re.compile(
    r"ssh://(?P<host>(?:\w[\w.-]*@)?\w[\w.-]*)(?::(?P<port>\d{1,5}))?(?:/(?P<run>[\w.-]*))?"
)


@dataclass(frozen=True, slots=True)
class Target:
    """A live run and the endpoints of its hub."""

    run: str
    name: str
    pub: str
    ctrl: str
    alive: Callable[[], bool]
    keys: Mapping[str, Any] | None = None
    path: Path | None = None
    """Directory of the run on this machine; None for a run elsewhere."""
    where: str = ""
    """Address that the user gave for a run elsewhere, whose end only its hub reports."""
    close: Callable[[], None] = lambda: None


def local(run_dir: Path) -> Target:
    """Return the run of a directory on this machine; for a relay its hub. Raises ConfigError."""
    handle = RunHandle(Path(run_dir))
    config = handle.config
    ends = config.upstream if config.is_relay else config
    keys = load_keys(config.dir) if ends.pub.startswith("tcp:") else None
    return Target(config.run, config.name, ends.pub, ends.ctrl, handle.alive, keys, handle.run_dir)


def elsewhere(text: str, key: Path | None, env: Mapping[str, str]) -> Target:
    """Return the run at ``tcp://HOST:PORT``, ``ssh://[USER@]HOST[:PORT][/RUN]``, or ConfigError."""
    return _over_ssh(text, env) if text.startswith("ssh:") else _over_tcp(text, key, env)


# -- TCP


def _over_tcp(text: str, key: Path | None, env: Mapping[str, str]) -> Target:
    ends, keys = Endpoints(text), _keys(key, env)
    try:
        port = int(text.rpartition(":")[2])
        socket.create_connection((ends.host, port), ANSWER_S).close()
    except socket.gaierror:
        raise ConfigError(f"{text}: cannot resolve {ends.host}") from None
    except OSError as error:
        why = "refused: is the job running?" if isinstance(error, ConnectionRefusedError) else error
        raise ConfigError(f"{text} cannot be reached: {why}") from None
    facts = _status(text, ends.ctrl, keys)
    return Target(
        facts.run, plain(facts.name), ends.pub, ends.ctrl, lambda: True,
        keys, where=text,
    )  # fmt: skip


def _keys(path: Path | None, env: Mapping[str, str]) -> dict[str, Any]:
    if path is None:
        if (found := keys_of_environment(env, to_look=True)) is not None:
            return found
        raise ConfigError(
            "tcp:// needs --key FILE (the run's keys, full or view-only) or PARDBG_KEY"
        )
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"{path} can be read by others: chmod 600 it")
        return check_keys(json.loads(path.read_text()), str(path), to_look=True)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f"{path} is not a pardbg key file") from None


def _status(text: str, ctrl: str, keys: Mapping[str, Any]) -> HubFacts:
    """Return the hub's facts about itself. Raises ConfigError with the reason for no answer."""
    from zmq.utils.monitor import recv_monitor_message  # here, as it brings in asyncio

    context: zmq.Context[Any] = zmq.Context()
    dealer: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    for option, value in (
        (zmq.LINGER, 0), (zmq.IPV6, 1), (zmq.IDENTITY, viewer_address()),
    ):  # fmt: skip
        dealer.setsockopt(option, value)
    secure_client(dealer, keys, "control")
    monitor = dealer.get_monitor_socket(
        zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_DISCONNECTED
    )  # fmt: skip
    try:
        dealer.connect(ctrl)
        dealer.send(pack(Command(1, Verb.STATUS)))
        poller = zmq.Poller()
        poller.register(dealer, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        ready = dict(poller.poll(int(ANSWER_S * 1000)))
        if dealer in ready:
            with contextlib.suppress(Malformed):
                reply = unpack(dealer.recv(), reader(Reply))
                if isinstance(reply.answer, HubFacts):
                    return reply.answer
        if monitor in ready:
            event = recv_monitor_message(monitor)["event"]
            if event != zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                raise ConfigError(f"{text} refused the key: is --key the key file of that run?")
        raise ConfigError(f"{text}: what listens there is not a pardbg hub")
    finally:
        dealer.disable_monitor()
        monitor.close(linger=0)
        dealer.close(linger=0)
        context.term()


# -- ssh


def _over_ssh(text: str, env: Mapping[str, str]) -> Target:
    """Connect by the system's ssh, which asks for passwords; list runs, forward one's sockets."""
    found = _SSH.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text!r} is not of the form ssh://[USER@]HOST[:PORT][/RUN]")
    if shutil.which("ssh") is None:
        raise ConfigError(f"{text}: no ssh on this machine")
    holder = tempfile.TemporaryDirectory(prefix="pardbg-ssh-", ignore_cleanup_errors=True)
    folder = Path(holder.name)
    base = ["ssh", "-S", str(folder / "s"), *(["-p", found["port"]] if found["port"] else [])]
    host = found["host"]

    def close() -> None:
        subprocess.run([*base, "-O", "exit", host], capture_output=True, check=False)
        holder.cleanup()

    def alive() -> bool:
        done = subprocess.run([*base, "-O", "check", host], capture_output=True, check=False)
        return done.returncode == 0

    try:
        # Its stderr is a file: the ssh that stays in the background would keep a pipe open.
        with open(folder / "said", "w+b") as said:
            master = ["-M", "-f", "-N", "-o", "ControlPersist=no", "-o", "ConnectTimeout=15"]
            done = subprocess.run([*base, *master, host], stderr=said, check=False)
            said.seek(0)
            _check(text, done.returncode, said.read())
        run = _run_there(text, [*base, host], found["run"] or "", env)
        for name in ("pub", "ctrl"):
            there = f"{folder / name}:{run['path']}/{name}"
            _run(text, [*base, "-O", "forward", "-L", there, host])
    except BaseException:
        close()
        raise
    pub, ctrl = (f"ipc://{folder / name}" for name in ("pub", "ctrl"))
    return Target(
        str(run["run"]), plain(str(run["name"])), pub, ctrl, alive, where=text, close=close
    )


def _run_there(text: str, ssh: list[str], name: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Return the live run of that name, or the only one."""
    said = _run(text, [*ssh, f"{env.get(ENV_REMOTE) or 'pardbg'} ls --json"])
    try:
        runs = [run for run in json.loads(said) if name in (run["run"], run["name"])
                or run["run"].startswith(name)]  # fmt: skip
    except (ValueError, LookupError, TypeError):
        raise ConfigError(f"{text}: `pardbg ls --json` there printed no list of runs") from None
    if not runs:
        raise ConfigError(f"{text}: no live run {name or 'is there'}")
    if len(runs) > 1 and not name:
        known = ", ".join(run["run"] for run in runs)
        raise ConfigError(f"{text}: {len(runs)} runs are live there: name one of {known}")
    return dict(runs[-1])


def _run(text: str, argv: list[str]) -> bytes:
    done = subprocess.run(argv, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    _check(text, done.returncode, done.stderr)
    return done.stdout


def _check(text: str, code: int, stderr: bytes) -> None:
    if code == 0:
        return
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    why = plain(lines[-1]) if lines else f"exit code {code}"
    hint = f"; set {ENV_REMOTE} to the command that runs it there" if code == 127 else ""
    raise ConfigError(f"{text}: {why}{hint}")
