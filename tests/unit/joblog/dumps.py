"""Flight Recorder dumps as NCCL's watchdog writes them, of one op a number."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

START_NS = 1_795_000_000 * 10**9


def frames(line: int) -> list[dict[str, Any]]:
    """As torch has them, the innermost first."""
    return [
        {"name": "all_reduce", "line": 3012,
         "filename": "/v/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"},
        {"name": "forward_pass", "line": line, "filename": "/home/u/bad.py"},
        {"name": "<module>", "line": 90, "filename": "/home/u/bad.py"},
    ]  # fmt: skip


def write(
    folder: Path, rank: int, ops: Sequence[tuple[str, int]], complete: int, members: str = "[0, 1]"
) -> Path:
    """Write a dump with these (op, elements), of which ``complete`` are; op N is issued at line
    10 + N of the program."""
    entries = [
        {
            "process_group": ("0", "default_pg"), "collective_seq_id": seq, "p2p_seq_id": 0,
            "profiling_name": f"nccl:{op}", "time_created_ns": START_NS + seq * 10**6 + rank,
            "input_sizes": [[numel]], "input_dtypes": ["Float"], "output_sizes": [[numel]],
            "output_dtypes": ["Float"], "is_p2p": False, "frames": frames(10 + seq),
            "state": "completed" if seq <= complete else "started", "retired": seq <= complete,
        }
        for seq, (op, numel) in enumerate(ops, 1)
    ]  # fmt: skip
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": members}}
    content = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}
    path = folder / f"nccl_trace_rank_{rank}"
    path.write_bytes(pickle.dumps(content, protocol=2))
    return path
