"""Containers of deploy/'s manifests as a kubelet makes them, out of namespaces: command, variables,
volumes, user, read-only root, host names, a network between pods. What is not there: images,
cgroups, the API server. Needs root, ``ip``, ``unshare`` and ``nsenter``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.processes import MARK

TOOLS: Final = ("ip", "unshare", "nsenter", "setpriv", "mount")
SET_UP: Final = """
set -e
hostname "$POD"; mount --bind "$HOSTS" /etc/hosts
for path in $HIDDEN; do mkdir -p "$STAGE$path"; mount --bind "$path" "$STAGE$path"; done
while [ "$1" != -- ]; do mount --bind "$1" "$2"; shift 2; done; shift
for path in $PRIVATE; do [ ! -d "$path" ] || mount -t tmpfs -o mode=755 none "$path"; done
for path in $HIDDEN; do mkdir -p "$path"; mount --move "$STAGE$path" "$path"; done
[ -z "$OWN_PIDS" ] || mount -t proc proc /proc
[ -z "$READ_ONLY" ] || mount -o remount,bind,ro /
exec setpriv $USER_OPTIONS --inh-caps=-all --bounding-set=-all --no-new-privs \
  env -i $KEPT "$@"
"""
"""In the container's own mount, host name and (unless they are shared) process namespaces. What the
image would have, this Python and this project, may lie where the container's user cannot look, or
in /tmp, or both: HIDDEN comes back there, after PRIVATE folders that are there were replaced."""
IMAGE: Final = (sys.base_prefix, sys.prefix, str(Path(__file__).parents[2]))


def expanded(text: str, env: Mapping[str, str]) -> str:
    """``$(NAME)`` as the kubelet expands it: unknown names stay; ``$$`` is a dollar."""
    return re.sub(
        r"\$\$|\$\(([^()$]*)\)",
        lambda found: "$" if found[0] == "$$" else env.get(found[1], found[0]),
        text,
    )


def variables(
    container: Mapping[str, Any], added: Mapping[str, str], secrets: Mapping[str, str]
) -> dict[str, str]:
    """The container's environment. ``added`` by a controller, which appends: what stands in
    ``env`` cannot refer to it. ``secrets``: by ``name/key``."""
    env: dict[str, str] = {}
    for each in container.get("env", ()):
        source = each.get("valueFrom", {}).get("secretKeyRef")
        if source:
            env[each["name"]] = secrets[f"{source['name']}/{source['key']}"]
        else:
            env[each["name"]] = expanded(each["value"], env)
    return env | added


@dataclass(frozen=True)
class Network:
    """Two pods and the cable between them: ``names`` lead to the first or to both of them."""

    spaces: tuple[str, str]
    hosts: Path


@contextmanager
def network(folder: Path, names: Sequence[Sequence[str]], ipv6: bool) -> Iterator[Network]:
    """Of IPv4, or of IPv6 alone; ``names[i]`` are pod i's, as DNS has them."""
    number = os.getpid() % 250
    spaces = f"pdk{number}a", f"pdk{number}b"
    at = [f"fd00:98::{i + 1}" if ipv6 else f"10.98.{number}.{i + 1}" for i in (0, 1)]
    hosts = folder / "hosts"
    own = ["::1 localhost"] if ipv6 else ["127.0.0.1 localhost"]
    hosts.write_text(
        "\n".join([*own, *(f"{a} {' '.join(n)}" for a, n in zip(at, names, strict=True))]) + "\n"
    )
    try:
        for space in spaces:
            _ip("netns", "add", space)
        _ip("link", "add", "eth0", "netns", spaces[0], "type", "veth",
            "peer", "name", "eth0", "netns", spaces[1])  # fmt: skip
        for space, address in zip(spaces, at, strict=True):
            _ip("-n", space, "link", "set", "lo", "up")
            if ipv6:
                _ip("-n", space, "addr", "del", "127.0.0.1/8", "dev", "lo")
            more = ["/64", "nodad"] if ipv6 else ["/24"]
            _ip("-n", space, "addr", "add", address + more[0], "dev", "eth0", *more[1:])
            _ip("-n", space, "link", "set", "eth0", "up")
        yield Network(spaces, hosts)
    finally:
        for space in spaces:
            _ip("netns", "del", space, check=False)


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True, timeout=20)


class Pod:
    """One pod: its volumes are made once, and its containers mount them."""

    def __init__(self, name: str, spec: Mapping[str, Any], net: Network, number: int) -> None:
        self.name, self.spec, self._net = name, spec, net
        self._space = net.spaces[number]
        self._volumes: dict[str, Path] = {}

    def volume(self, name: str, made: Path | None = None) -> Path:
        """An emptyDir as kubelets make it; ``made``: another pod's, of a claim they share."""
        if name not in self._volumes:
            said = next(each for each in self.spec["volumes"] if each["name"] == name)
            root = "/dev/shm" if said.get("emptyDir", {}).get("medium") == "Memory" else "/var/tmp"
            path = made or Path(tempfile.mkdtemp(prefix="pdk-", dir=root))
            path.chmod(0o777)
            self._volumes[name] = path
        return self._volumes[name]

    def remove(self) -> None:
        for path in self._volumes.values():
            shutil.rmtree(path, ignore_errors=True)

    def start(
        self, container: Mapping[str, Any], env: Mapping[str, str], cwd: Path, log: Path
    ) -> subprocess.Popen[bytes]:
        """Start a container's command with these variables. Its output goes to ``log``."""
        mounts = [(str(self.volume(m["name"])), m["mountPath"]) for m in container["volumeMounts"]]
        words = [
            expanded(word, env) for word in [*container["command"], *container.get("args", ())]
        ]
        own_pids = not self.spec.get("shareProcessNamespace")
        spaces = ["--mount", "--uts", *(["--pid", "--fork", "--kill-child"] if own_pids else [])]
        program = Path(sys.executable).parent
        kept = {"PATH": f"{program}:{os.environ['PATH']}", "HOME": "/", "OMP_NUM_THREADS": "1",
                MARK: os.environ.get(MARK, "-")}  # fmt: skip
        argv = [
            "nsenter", f"--net=/run/netns/{self._space}", "unshare", *spaces, "sh", "-c", SET_UP,
            "sh", *(word for mount in mounts for word in mount), "--",
            *(f"{name}={value}" for name, value in env.items()), *words,
        ]  # fmt: skip
        hidden = [path for path in IMAGE if path.startswith("/tmp/") or _private(path)]
        user = self.spec["securityContext"]["runAsUser"]
        set_up = {
            "POD": self.name, "HOSTS": str(self._net.hosts), "OWN_PIDS": "1" if own_pids else "",
            "READ_ONLY": "1" if container["securityContext"]["readOnlyRootFilesystem"] else "",
            "USER_OPTIONS": f"--reuid={user} --regid={user} --clear-groups",
            "KEPT": " ".join(f"{name}={value}" for name, value in kept.items()),
            "HIDDEN": " ".join(hidden), "STAGE": f"{log}-image",
            "PRIVATE": " ".join(sorted(set(map(_private, hidden)) - {""})),
        }  # fmt: skip
        with log.open("wb") as out:
            return subprocess.Popen(
                argv, env={**os.environ, **set_up}, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip


def _private(path: str) -> str:
    """The topmost folder on the way there that others may not look into; "": none."""
    above = [*reversed(Path(path).parents), Path(path)]
    return str(next((at for at in above if not at.stat().st_mode & 0o001), ""))


def skip_unless_possible() -> None:
    """Skip the test where namespaces cannot be made, with the reason."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() or missing:
        pytest.skip(f"needs root and {', '.join(missing or TOOLS)}")
    tried = subprocess.run(["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "true"],
                           capture_output=True)  # fmt: skip
    if tried.returncode:
        pytest.skip(f"no namespaces here: {tried.stderr.decode()[:200]}")
