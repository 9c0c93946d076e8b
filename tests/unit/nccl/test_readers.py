"""Readers of NCCL's own words, on lines as its sources print them."""

from __future__ import annotations

import json
import random

import pytest

from pardbg.nccl import inspector, ras
from pardbg.nccl.topology import Topology, TopologyReader


def debug_lines(order: list[int], comm_id: str = "0xabc") -> list[str]:
    """Two channels of a ring in this order, the second the other way; as 2.21 prints them."""
    size, lines = len(order), []
    for at, rank in enumerate(order):
        lead = f"node{rank // 4}:{100 + rank}:{200 + rank} [{rank % 4}] NCCL INFO"
        before, after = order[at - 1], order[(at + 1) % size]
        lines += [
            f"{lead} ncclCommInitRank comm 0x5{rank} rank {rank} nranks {size} cudaDev 0 nvmlDev 0 "
            f"busId 1000 commId {comm_id} - Init START",
            f"{lead} Channel 00/02 :    0   1   2   3",
            f"{lead} Ring 00 : {before} -> {rank} -> {after}",
            f"{lead} Ring 01 : {after} -> {rank} -> {before}",
            f"{lead} Trees [0] {rank + 1 if rank + 1 < size else -1}/-1/-1->{rank}->{rank - 1} "
            f"[1] -1/-1/-1->{rank}->-1",
            f"{lead} Channel 00/0 : {rank}[{rank % 4}] -> {after}[{after % 4}] via P2P/IPC/read",
            f"{lead} Channel 01/0 : {rank}[{rank % 4}] -> {before}[{before % 4}] [send] via "
            "NET/IB/0/GDRDMA",
            f"{lead} ncclCommInitRank comm 0x5{rank} rank {rank} nranks {size} cudaDev 0 nvmlDev 0 "
            f"busId 1000 commId {comm_id} - Init COMPLETE",
        ]
    return lines


def topologies(lines: list[str]) -> list[Topology]:
    reader = TopologyReader()
    for line in lines:
        reader.add(line)
    return reader.topologies()


def test_rings_trees_and_transports() -> None:
    [found] = topologies(debug_lines([0, 2, 1, 3]))
    assert found.rings == ((0, 2, 1, 3), (0, 3, 1, 2)) and found.complete
    assert found.num_trees == 2
    assert found.transports[0, 2] == "P2P"
    assert found.transports[0, 3] == "NET/IB"


def test_communicators_told_by_threads_at_once() -> None:
    """Lines of ranks and communicators come interleaved; those of a thread in their order."""
    rng = random.Random(3)
    queues = [[line] for line in ()]
    for order, comm_id in (([0, 1, 2, 3], "0x1"), ([0, 3, 2, 1], "0x2")):
        lines = debug_lines(order, comm_id)
        if comm_id == "0x2":
            lines = [line.replace(":10", ":90") for line in lines]  # another thread
        queues += [lines[at : at + 8] for at in range(0, 32, 8)]
    mixed = []
    while queues:
        queue = rng.choice(queues)
        mixed.append(queue.pop(0))
        queues = [one for one in queues if one]
    found = {one.comm_id: one.rings[0] for one in topologies(mixed)}
    assert found == {"0x1": (0, 1, 2, 3), "0x2": (0, 3, 2, 1)}


def test_a_rank_that_says_nothing_leaves_no_ring() -> None:
    lines = [line for line in debug_lines([0, 1, 2]) if ":101:" not in line]
    [found] = topologies(lines)
    assert found.rings == () and not found.complete and found.transports


def test_a_connection_of_old_is_no_ring() -> None:
    lines = [line for line in debug_lines([0, 1]) if "Channel 01/0" not in line]
    old = lines[0].split(" NCCL")[0]
    lines.insert(2, f"{old} NCCL INFO Ring 00 : 0[23000] -> 1[1e000] [send] via NET/Socket/0")
    [found] = topologies(lines)
    assert found.rings[0] == (0, 1) and found.transports[0, 1] == "P2P"


OP = {
    "header": {"id": "0x7f8c", "rank": 2, "n_ranks": 8, "nnodes": 1},
    "metadata": {
        "inspector_output_format_version": "v4.0", "git_rev": "", "dump_timestamp_us": 1748030377,
        "rec_mechanism": "profiler_plugin", "hostname": "n1", "pid": 1639453,
    },
    "coll_perf": {
        "coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": 17179869184,
        "coll_exec_time_us": 61974, "coll_algobw_gbs": 277.210914, "coll_busbw_gbs": 485.119099,
    },
}  # fmt: skip
"""As nccl's plugins/profiler/inspector/README.md has it."""


def test_inspector() -> None:
    p2p = dict(OP)
    p2p["p2p_perf"] = {
        "p2p": "Send", "p2p_sn": 3, "p2p_peer": 5, "p2p_msg_size_bytes": 64,
        "p2p_exec_time_us": 12, "p2p_timing_source": "kernel_gpu", "p2p_algobw_gbs": 1.0,
        "p2p_busbw_gbs": 1.0,
    }  # fmt: skip
    del p2p["coll_perf"]
    newer = json.loads(json.dumps(OP))
    newer["metadata"]["inspector_output_format_version"] = "v7.0"
    lines = [json.dumps(OP), "", json.dumps(p2p), "{", "[]", json.dumps(newer), '{"header": 1}']
    coll, send = inspector.read(lines)
    assert coll == inspector.MeasuredOp(
        "0x7f8c", "AllReduce", 17179869184, 61_974_000, False, 485.119099
    )
    assert (send.op, send.size_bytes, send.on_device) == ("Send", 64, True)


RAS = """2 GPUs
{
  "nccl_version": "2.28.9", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
  "timestamp": "2025-12-19 13:06:53", "communicators_count": 1,
  "communicators": [{"hash": "0xae94", "secondary_hash": "0xb7:0xb8", "size": 4, "ranks_count": 3,
    "missing_ranks_count": 1, "ranks": [%s],
    "missing_ranks": [{"rank": 3, "host": "h2", "pid": 5, "cuda_dev": 1, "nvml_dev": 1%s
      "status": {"unresponsive": true, "considered_dead": false}}]}],
  "ras": {"collection_time_sec": 2.051, "timeouts_count": 1}
}
"""


def ras_rank(rank: int, launches: int, error: int = 0) -> str:
    return (
        f'{{"rank": {rank}, "host": "h1", "pid": {rank}, "cuda_dev": 0, "nvml_dev": 0, "status": '
        f'{{"init_state": 0, "async_error": {error}, "finalize_called": false, "destroy_flag": '
        f'false, "abort_flag": false}}, "collective_counts": {{"Broadcast": 1, "AllReduce": '
        f"{launches}}}}}"
    )


@pytest.mark.parametrize("comma", [",", ""])
def test_ras(comma: str) -> None:
    """With the comma that 2.28.9 leaves out, and without."""
    ranks = ", ".join([ras_rank(0, 7), ras_rank(1, 6), ras_rank(2, 7, error=3)])
    status = ras.parse(RAS % (ranks, comma))
    assert list(ras.summary(status)) == [
        ("0xae94", "unresponsive", (3,)), ("0xae94", "failed", (2,)), ("0xae94", "AllReduce", (1,)),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "2 GPUs", "{}", '{"communicators": 3, "nccl_version": 1}'])
def test_what_is_no_answer(text: str) -> None:
    with pytest.raises(ValueError):
        ras.parse(text)
