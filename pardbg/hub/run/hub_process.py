"""Starting the hub of a run: by the launcher, and by guardian or keeper once both were killed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Final

from pardbg.hub.run import config as files
from pardbg.hub.run.own_process import argv as own_process

MAX_RESTARTS: Final = 5
END_S: Final = 20.0
"""Maximum time for the hub to write the rest of the recording after the job's end."""


def start_hub(
    run_dir: Path, *, sources: Collection[int] = (), heard: int | None = None
) -> subprocess.Popen[bytes]:
    """Start the hub. ``sources``: descriptors of the output of a job without an owner; ``heard``:
    of the pipe that tells which signals came. Raises OSError, RuntimeError."""
    words = ["--sources", *map(str, sources)] if sources else []
    words += ["--heard", str(heard)] if heard is not None else []
    with open(run_dir / files.HUB_LOG, "ab") as log:
        return subprocess.Popen(
            own_process("pardbg.hub.__main__", str(run_dir), *words),
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # numpy's, unused: address space
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            pass_fds=(*sources, *([] if heard is None else [heard])), start_new_session=True,
        )  # fmt: skip
