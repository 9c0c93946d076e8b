"""Telling somebody of findings, each once in a run: a command gets JSON, an address a POST."""

from __future__ import annotations

import http.client
import json
import shlex
import subprocess
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pardbg.analysis.answers.report import finding_json
from pardbg.analysis.findings.finding import Finding
from pardbg.hub.run import config as files
from pardbg.hub.run.config import RunConfig

TIMEOUT_S: Final = 10.0


def tell(
    config: RunConfig, found: Iterable[Finding], when: str, bundle: Path | None = None
) -> None:
    """Tell of errors, and at a hang of all that is ``found``, unless that was done before."""
    path = config.dir / files.NOTIFIED_FILE
    told = (files.read_json(path) or {"findings": []})["findings"]
    for one in found if config.on_hang.notify else ():
        key = [one.kind, sorted(one.culprits or one.ranks), one.group, one.seq]
        if key in told or (when == "end" and one.severity != "error"):
            continue
        told.append(key)
        files.write_json(path, {"findings": told})
        about = {"run": config.run, "name": config.name, "host": config.host, "when": when,
                 "session": config.session, "bundle": None if bundle is None else str(bundle),
                 "finding": finding_json(one)}  # fmt: skip
        try:
            _send(config, json.dumps(about).encode())
        except (OSError, ValueError, http.client.HTTPException, subprocess.SubprocessError) as why:
            files.add_notice(config.dir, f"--notify: {why}")
            return  # nor would the others get through: they are told at the end


def _send(config: RunConfig, data: bytes) -> None:
    where, cwd = config.on_hang.notify, config.cwd or None
    if where.startswith(("http://", "https://")):
        kind = {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(where, data, kind), timeout=TIMEOUT_S).close()
    else:
        subprocess.run(shlex.split(where), cwd=cwd, input=data, timeout=TIMEOUT_S, check=True)
