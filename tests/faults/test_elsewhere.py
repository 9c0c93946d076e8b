"""Viewers elsewhere than the run: over TCP with a key, and through ssh (here a stand-in that runs
what it is given on this machine, and forwards a socket by a link)."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pardbg.events.control_codes import Why
from pardbg.events.control_facts import Refusal
from pardbg.hub.client import HubControl, LiveSource
from pardbg.hub.run.config import ConfigError, Place, write_json
from pardbg.hub.serve.sockets import keys_to_look, make_keys
from pardbg.hub.target import elsewhere
from pardbg.store.store import Store
from tests.distributed.runs import started
from tests.processes import rank_env, wait_until

ROOT = Path(__file__).parents[2]
SSH = f"""#!{sys.executable}
import os, re, subprocess, sys
words, control = sys.argv[1:], sys.argv[sys.argv.index("-S") + 1]
if "-M" in words:
    known = words[-1].endswith("there")
    sys.exit(0 if known else print("ssh: no such host", file=sys.stderr) or 255)
if "-O" in words:
    verb = words[words.index("-O") + 1]
    if verb == "forward":
        here, there = words[words.index("-L") + 1].split(":")
        os.symlink(there, here)
    sys.exit(0)
sys.exit(subprocess.run(words[-1], shell=True).returncode)
"""


def wait_for(source: LiveSource, line: str) -> None:
    """Until the job has said the line."""
    store = Store(live=True)

    def said() -> bool:
        store.apply_all(source.poll(20))
        return any(value[2] == line for _, value in store.output.last(None, 100))

    wait_until(said, 30, line)


@pytest.mark.timeout(120)
def test_over_tcp_one_key_commands_and_the_other_only_looks(
    tmp_path: Path, free_port: Callable[..., int]
) -> None:
    hub, keys = f"tcp://127.0.0.1:{free_port(3)}", make_keys()
    write_json(tmp_path / "run.key", keys)
    write_json(tmp_path / "look.key", keys_to_look(keys))
    argv = [sys.executable, "-c", "import time; print('at work', flush=True); time.sleep(60)"]
    with started(argv, tmp_path / "s.mcap", env=rank_env(), place=Place(hub, 0, 1, keys)) as run:
        (tmp_path / "run.key").chmod(0o640)
        with pytest.raises(ConfigError, match="chmod 600"):
            elsewhere(hub, tmp_path / "run.key", {})
        (tmp_path / "run.key").chmod(0o600)
        target = elsewhere(hub, tmp_path / "run.key", {})
        look = elsewhere(hub, None, {"PARDBG_KEY": (tmp_path / "look.key").read_text()})
        assert (target.run, target.name, target.where) == (run.run, run.name, hub)
        source, looker, control = LiveSource(look), HubControl(look), HubControl(target)
        try:
            wait_for(source, "at work")
            assert looker.command("status").ok
            assert looker.command("kill", confirm=True).refusal == Refusal(Why.VIEW_ONLY)
            wrong = {**make_keys(), "server": keys["server"]}
            for refused in (make_keys(), wrong):
                write_json(tmp_path / "other.key", refused)
                with pytest.raises(ConfigError, match="refused the key"):
                    elsewhere(hub, tmp_path / "other.key", {})
            assert control.command("kill", confirm=True).ok
            wait_until(lambda: not source.poll(20) and source.finished, 30, "the run's end")
        finally:
            for one in (source, looker, control):
                one.close()
        assert run.wait(40) == 128 + 15


@pytest.mark.timeout(120)
def test_through_ssh_a_run_is_found_and_commanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(SSH)
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    remote = {"PARDBG_REMOTE": f"cd {ROOT} && {sys.executable} -m pardbg"}
    argv = [sys.executable, "-c", "import time; print('at work', flush=True); time.sleep(60)"]
    with started(argv, tmp_path / "s.mcap", env=rank_env()) as run:
        target = elsewhere(f"ssh://me@there:22/{run.run[:-2]}", None, remote)
        assert target.run == run.run
        source, control = LiveSource(target), HubControl(target)
        try:
            wait_for(source, "at work")
            assert control.command("kill", confirm=True).ok
        finally:
            control.close()
            source.close()
            target.close()
        assert run.wait(40) == 128 + 15
    with pytest.raises(ConfigError, match="no live run nobody"):
        elsewhere("ssh://there/nobody", None, remote)
    with pytest.raises(ConfigError, match="ssh: no such host"):
        elsewhere("ssh://away", None, remote)
    with pytest.raises(ConfigError, match="the command that runs it there"):
        elsewhere("ssh://there", None, {"PARDBG_REMOTE": "/no/such/pardbg"})


def test_what_cannot_be_is_one_line(tmp_path: Path, free_port: Callable[..., int]) -> None:
    key, port = tmp_path / "k", free_port()
    write_json(key, make_keys())
    (tmp_path / "no.key").write_text(json.dumps([1]))
    (tmp_path / "no.key").chmod(0o600)
    for text, path, why in (
        (f"tcp://127.0.0.1:{port}", key, "refused: is the job running"),
        ("tcp://no.such.host.invalid:29700", key, "cannot resolve no.such.host.invalid"),
        ("tcp://node0", key, "is not of the form tcp://HOST:PORT"),
        (f"tcp://127.0.0.1:{port}", None, "needs --key FILE"),
        (f"tcp://127.0.0.1:{port}", tmp_path / "none", "cannot read"),
        (f"tcp://127.0.0.1:{port}", tmp_path / "no.key", "does not hold a run's keys"),
        ("ssh://-oProxyCommand=x", None, "is not of the form ssh://"),
    ):
        with pytest.raises(ConfigError, match=why):
            elsewhere(text, path, {})
    with socket.create_server(("127.0.0.1", 0)) as other:  # takes connections, says nothing
        other.settimeout(20)
        with pytest.raises(ConfigError, match="is not a pardbg hub"):
            elsewhere(f"tcp://127.0.0.1:{other.getsockname()[1]}", key, {})
