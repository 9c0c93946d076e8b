"""Two hosts on one machine: each rank in a network namespace of its own, joined by a veth pair, the
second one in a time namespace whose clock is OFFSET_MS ahead. Only root may make them.

    python -m tests.distributed.programs.two_hosts OFFSET_MS      the ranks; exit code 0
    python -m tests.distributed.programs.two_hosts --possible     exit code 0 if they can be made

In each round one rank comes LATE_MS after the other: by less than the clocks differ.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time

ROUNDS, LATE_MS, PORT = 8, 20, 29511
NET, TIME = 0x40000000, 0x80
ADDRESSES = ("10.77.0.1", "10.77.0.2")


def unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def clock_ahead(ms: int) -> None:
    """Of children from now on."""
    unshare(TIME)
    with open("/proc/self/timens_offsets", "w", encoding="ascii") as file:
        file.write(f"monotonic {ms // 1000} {ms % 1000 * 1_000_000}\n")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def interface(address: str) -> None:
    ip("addr", "add", f"{address}/24", "dev", "pdbg")
    ip("link", "set", "pdbg", "up")
    ip("link", "set", "lo", "up")


def rank(number: int) -> None:
    os.environ.update(
        RANK=str(number), WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
        GROUP_RANK=str(number), MASTER_ADDR=ADDRESSES[0], MASTER_PORT=str(PORT),
        GLOO_SOCKET_IFNAME="pdbg", PARDBG_HOST=f"n{number}",
    )  # fmt: skip
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    x = torch.ones(4)
    for i in range(ROUNDS):
        dist.barrier()
        time.sleep(LATE_MS / 1000 * (i % 2 == number))
        dist.all_reduce(x)
    dist.destroy_process_group()


def second_host(offset_ms: int, to_parent: int, from_parent: int) -> int:
    """In its own namespaces; its rank is a child, as only children get the clock."""
    unshare(NET)
    clock_ahead(offset_ms)
    os.write(to_parent, b"made")
    os.read(from_parent, 4)  # the cable is in
    interface(ADDRESSES[1])
    return forked_rank(1)


def forked_rank(number: int) -> int:
    pid = os.fork()
    if not pid:
        rank(number)
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> int:
    if sys.argv[1] == "--possible":
        unshare(NET)
        clock_ahead(1)
        ip("link", "add", "pdbg", "type", "veth", "peer", "name", "other")
        return 0
    import torch.distributed  # noqa: F401 - once, for both ranks

    unshare(NET)
    (made_r, made_w), (cable_r, cable_w) = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        return second_host(int(sys.argv[1]), made_w, cable_r)
    os.read(made_r, 4)
    ip("link", "add", "pdbg", "type", "veth", "peer", "name", "pdbg", "netns", str(pid))
    interface(ADDRESSES[0])
    os.write(cable_w, b"done")
    first = forked_rank(0)
    second = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return first or second


if __name__ == "__main__":
    sys.exit(main())
