"""Two ranks whose asynchronous checkpoint rank 1 cannot write; it knows nothing of pardbg."""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


class Disk(dcp.FileSystemWriter):
    """Is full at rank 1."""

    def write_data(self, *args: Any, **kwargs: Any) -> Any:
        if dist.get_rank() == 1:
            raise OSError(28, "No space left on device")
        return super().write_data(*args, **kwargs)


def main(directory: str, asks: bool) -> None:
    dist.init_process_group("gloo")
    state = {f"of rank {dist.get_rank()}": torch.ones(4)}
    writer = Disk(os.path.join(directory, "checkpoint"))
    future = dcp.async_save(state, storage_writer=writer, process_group=dist.new_group())
    assert isinstance(future, Future)
    future.exception() if not asks else future.result()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] == ["asks"])
