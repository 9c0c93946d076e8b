"""Three sockets of the hub, and the rights to use them.

DATA in, what is published out, CTRL both ways. Local sockets lie in a 0700 directory; TCP is CURVE
or nothing. Three kinds of client keys: ``agent`` (sends data, obeys), ``viewer`` (looks),
``control`` (looks and commands). ZAP tells them apart per socket; CTRL sees each message's role. A
view-only client has on CTRL the identity that the hub gives, never its claimed one ([Note: names]).
Quick to import: a job waits for its hub to listen, not for the rest of it."""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import zmq
from zmq.utils import z85

from pardbg.hub import MAX_CTRL_BYTES, MAX_MESSAGE_BYTES
from pardbg.hub.ctrl_messages import VIEWER
from pardbg.hub.run import config as files
from pardbg.hub.run.config import KEYS_FILE, ConfigError, RunConfig, read_json
from pardbg.hub.run.run_files import write_hub

_ENDPOINT: Final = "inproc://zeromq.zap.01"
"""Endpoint at which libzmq asks; fixed by ZAP (RFC 27)."""
_VERSION: Final = b"1.0"
_STOP: Final = b"stop"
_NOWHERE: Final = "ipc:///dev/null/nowhere"


class KeyCheck:
    """ZAP handler for libzmq in a thread of its own, from ``start`` to ``stop``: role and identity
    of a TCP client's key.

    [Note: names] A ROUTER gives an identity to its last claimant, before any message is seen. So
    that no client takes another's: ours claim identities that cannot be guessed (``wire.address``),
    and for a key in ``renamed`` libzmq takes the identity that we give instead of the claimed one.
    It takes the later of the two, and goes on with the claimed one when it has asked us: so we
    answer when its thread has done so."""

    def __init__(
        self, context: zmq.Context[Any], role_of: Callable[[str, bytes], str | None],
        renamed: Mapping[str, bytes],
    ) -> None:  # fmt: skip
        self._context = context
        self._role_of = role_of
        """(socket's domain, Z85 key) -> its role there; None: refused."""
        self._renamed = renamed
        """Role -> prefix of the identities that we choose."""
        self._socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(_ENDPOINT)
        self._thread = threading.Thread(target=self._run, name="pardbg-keys", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._context.socket(zmq.REQ) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(_ENDPOINT)
            socket.send(_STOP)
            socket.recv()
        self._thread.join()

    def _run(self) -> None:
        with self._socket as socket:
            while (frames := socket.recv_multipart()) != [_STOP]:
                socket.send_multipart(self._answer(frames))
            socket.setsockopt(zmq.LINGER, -1)
            socket.send(b"")

    def _answer(self, frames: list[bytes]) -> list[bytes]:
        role = None
        if len(frames) == 7 and frames[0] == _VERSION and frames[5] == b"CURVE":
            role = self._role_of(frames[2].decode("ascii", "replace"), z85.encode(frames[6]))
        number = frames[1] if len(frames) > 1 else b""
        if role is None:
            return [_VERSION, number, b"400", b"unknown key", b"", b""]
        return [_VERSION, number, b"200", b"OK", role.encode(), self._metadata(role)]

    def _metadata(self, role: str) -> bytes:
        """Return the identity that replaces the claimed one, as a ZMTP property."""
        if role not in self._renamed:
            return b""
        self._let_finish()
        identity = self._renamed[role] + os.urandom(16).hex().encode()
        name = b"Identity"
        return bytes([len(name)]) + name + len(identity).to_bytes(4, "big") + identity

    def _let_finish(self) -> None:
        """Return once libzmq's only I/O thread has finished the step in which it asked: then it
        tries to connect this socket."""
        with (
            self._context.socket(zmq.PAIR) as probe,
            probe.get_monitor_socket(zmq.EVENT_CONNECT_RETRIED) as tried,
        ):
            probe.connect(_NOWHERE)
            tried.recv_multipart()
            probe.disable_monitor()


ENV_KEY: Final = "PARDBG_KEY"
"""Variable with the contents of a key file."""
Role = Literal["agent", "viewer", "control"]
ROLES: Final[tuple[Role, ...]] = ("agent", "viewer", "control")
OWNER: Final = "owner"
"""Role of every client in the run's 0700 directory: agent, viewer and control alike."""
_MAY: Final[dict[str, tuple[Role, ...]]] = {
    "data": ("agent",),
    "pub": ("viewer", "control"),
    "ctrl": ROLES,
}
PULL_HWM: Final = 256
PUB_HWM: Final = 8_000
"""Maximum messages queued for each viewer. A thousand ranks begin with a dozen definitions each, in
a second; without one of them a viewer does not know what an op is."""
LINGER_MS: Final = 1_000
"""Maximum time, in ms, for viewers to fetch the messages in their queues."""


def make_keys() -> dict[str, Any]:
    """Make CURVE keys (Z85 text) for one run."""
    pairs = {}
    for who in ("server", *ROLES):
        public, secret = zmq.curve_keypair()
        pairs[who] = {"public": public.decode(), "secret": secret.decode()}
    return pairs


def check_endpoints(config: RunConfig, keys: dict[str, Any] | None) -> None:
    """Refuse a TCP endpoint without keys, loopback or not. Raises ConfigError."""
    for endpoint in (config.data, config.pub, config.ctrl):
        scheme = endpoint.partition("://")[0]
        if scheme == "ipc":
            continue
        if scheme != "tcp":
            raise ConfigError(f"{endpoint}: only ipc:// and tcp:// endpoints are served")
        if not keys:
            raise ConfigError(f"{endpoint}: TCP needs CURVE keys; there is no {KEYS_FILE}")


@dataclass
class ServerSecurity:
    """CURVE and ZAP on the hub's sockets; does nothing without keys."""

    context: zmq.Context[Any]
    keys: dict[str, Any] | None
    _check: KeyCheck | None = None

    def start(self) -> None:
        """Start the key check, before any bind."""
        if self.keys is None:
            return
        self._roles: dict[bytes, Role] = {
            self.keys[role]["public"].encode(): role for role in ROLES
        }
        self._check = KeyCheck(self.context, self._role_on, {"viewer": VIEWER})
        self._check.start()

    def _role_on(self, domain: str, key: bytes) -> Role | None:
        role = self._roles.get(key)
        return role if role in _MAY.get(domain, ()) else None

    def secure(self, socket: zmq.Socket[bytes], domain: str) -> None:
        """Make a socket a CURVE server's, before it is bound."""
        if self.keys is not None:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self.keys["server"]["secret"].encode())
            socket.setsockopt(zmq.ZAP_DOMAIN, domain.encode())

    def role(self, frame: zmq.Frame) -> Role | Literal["owner"]:
        """Return the role of a message's sender; on local sockets it has all rights."""
        if self.keys is None:
            return OWNER
        try:
            user = str(frame.get("User-Id"))
        except zmq.ZMQError:
            return "viewer" if _over_tcp(frame) else OWNER  # ipc: in a directory of ours
        return next((role for role in ROLES if role == user), "viewer")

    def stop(self) -> None:
        if self._check is not None:
            self._check.stop()
            self._check = None


def _over_tcp(frame: zmq.Frame) -> bool:
    """Return whether a message came from an internet address; over ipc libzmq tells uid and pid."""
    try:
        ipaddress.ip_address(str(frame.get("Peer-Address")).partition("%")[0])
    except (zmq.ZMQError, ValueError):
        return False
    return True


def load_keys(run_dir: Path) -> dict[str, Any] | None:
    """Return the run's keys; None if it has none. Raises ConfigError."""
    path = run_dir / KEYS_FILE
    if not path.exists():
        return None
    return check_keys(read_json(path), str(path))


def keys_of_environment(env: Mapping[str, str], *, to_look: bool = False) -> dict[str, Any] | None:
    """Return the keys in PARDBG_KEY; None if it is not set. Raises ConfigError."""
    text = env.get(ENV_KEY)
    if not text:
        return None
    try:
        return check_keys(json.loads(text), ENV_KEY, to_look=to_look)
    except ValueError:
        raise ConfigError(f"{ENV_KEY} does not hold the contents of a key file") from None


def keys_to_look(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a view-only viewer."""
    return {"server": {"public": keys["server"]["public"]}, "viewer": keys["viewer"]}


def check_keys(keys: Any, name: str, *, to_look: bool = False) -> dict[str, Any]:
    """Return complete keys, ``to_look`` those of a viewer without control. Raises ConfigError."""
    try:
        needed = keys_to_look(keys) if to_look else {who: keys[who] for who in ("server", *ROLES)}
        for who, pair in needed.items():
            halves = ("public",) if to_look and who == "server" else ("public", "secret")
            if any(len(pair[half]) != 40 for half in halves):
                raise ValueError(who)
    except (TypeError, LookupError, ValueError):
        raise ConfigError(f"{name} is damaged: it does not hold a run's keys") from None
    return dict(keys)


def secure_client(socket: zmq.Socket[bytes], keys: Mapping[str, Any] | None, role: Role) -> None:
    """Make a socket a CURVE client of that role (or of ``viewer`` if no other key exists)."""
    if keys is None:
        return
    pair = keys.get(role) or keys["viewer"]
    server = keys["server"]
    public = server["public"] if isinstance(server, dict) else server
    socket.setsockopt(zmq.CURVE_SERVERKEY, public.encode())
    socket.setsockopt(zmq.CURVE_PUBLICKEY, pair["public"].encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, pair["secret"].encode())


def listen(socket: zmq.Socket[bytes], endpoint: str) -> None:
    """Bind a socket; over TCP on every kind of address. Raises ConfigError."""
    problem = ""
    for ipv6 in (1, 0) if endpoint.startswith("tcp:") else (0,):
        socket.setsockopt(zmq.IPV6, ipv6)
        try:
            socket.bind(endpoint)
            return
        except zmq.ZMQError as error:
            problem = os.strerror(error.errno or 0)
            if error.errno == errno.EADDRINUSE:  # an ipc socket that is there is taken over
                problem += ": is another hub on this node (--node-rank)? Else choose another port"
    raise ConfigError(f"cannot listen on {endpoint}: {problem}")


class Sockets:
    """Sockets, bound when made. Raises ConfigError where an endpoint cannot be bound."""

    def __init__(self, config: RunConfig, keys: dict[str, Any] | None) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self.security = ServerSecurity(self._context, keys)
        self.security.start()
        self._nodes = config.upstream.everywhere() if config.hub else None
        """Address at which other nodes of the run reach the hub."""
        try:
            self.pull = self._bind(zmq.PULL, config.data, "data")
            self.pub = self._bind(zmq.XPUB, config.pub, "pub")
            self.ctrl = self._bind(zmq.ROUTER, config.ctrl, "ctrl")
        except ConfigError:
            self.security.stop()
            self._context.destroy(linger=0)
            raise
        self._poller = zmq.Poller()
        for socket in (self.pull, self.pub, self.ctrl):
            self._poller.register(socket, zmq.POLLIN)

    def _bind(self, kind: int, endpoint: str, domain: str) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_CTRL_BYTES if domain == "ctrl" else MAX_MESSAGE_BYTES)
        if kind == zmq.PULL:
            socket.setsockopt(zmq.RCVHWM, PULL_HWM)
        elif kind == zmq.XPUB:
            socket.setsockopt(zmq.SNDHWM, PUB_HWM)
            socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        if endpoint.startswith("tcp:"):
            self.security.secure(socket, domain)
        listen(socket, endpoint)
        if self._nodes is not None:
            self.security.secure(socket, domain)
            listen(socket, getattr(self._nodes, domain))
        return socket

    def wait(self, timeout_ms: int) -> None:
        """Wait until a message comes, or the time is up."""
        self._poller.poll(timeout_ms)

    def subscribed(self) -> bool:
        """Return whether a viewer has subscribed since the last call."""
        found = False
        try:
            while True:
                found |= self.pub.recv(zmq.NOBLOCK)[:1] == b"\x01"
        except zmq.Again:
            return found

    def close(self) -> None:
        """Close the sockets; viewers get LINGER_MS for the messages in their queues."""
        for socket in (self.pull, self.pub, self.ctrl):
            socket.close(linger=LINGER_MS)
        self.security.stop()
        self._context.term()


@dataclass(frozen=True, slots=True)
class Listening:
    """Hub that agents and viewers can find, and whose messages wait in its sockets."""

    hub: str
    """Id of the hub."""
    sockets: Sockets
    before: dict[str, Any] | None
    """``hub.pid`` of the previous hub."""


def begin_to_listen(config: RunConfig) -> Listening:
    """Bind the sockets, then write ``hub.pid``. Raises ConfigError."""
    keys = load_keys(config.dir)
    check_endpoints(config, keys)
    path = config.dir / files.HUB_FILE
    found = Listening(uuid.uuid4().hex[:12], Sockets(config, keys), read_json(path))
    write_hub(config.dir, found.hub)
    return found
