"""NCCL's debug lines, as versions from 2.7 on print them."""

from __future__ import annotations

from pardbg.nccl.debug_lines import Choice, DebugReader

# Lines of NCCL 2.21 to 2.27, host names changed.
LINES = (
    "n0:980:980 [0] NCCL INFO cudaDriverVersion 12040",
    "NCCL version 2.21.5+cuda12.4",
    "n0:980:1265 [0] NCCL INFO comm 0x55986b8b8560 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 18000 "
    "commId 0x5ae77eb5ea4ec1ee - Init START",
    "n0:981:1267 [1] NCCL INFO comm 0x561dde2fb110 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2a000 "
    "commId 0x5ae77eb5ea4ec1ee - Init START",
    "n0:980:1265 [0] NCCL INFO Ring 00 : 1 -> 0 -> 1",
    "n0:981:1267 [1] NCCL INFO Ring 00 : 0 -> 1 -> 0",
    "n0:981:1267 [1] NCCL INFO Connected NVLS tree",
    "n0:981:1267 [1] NCCL INFO threadThresholds 8/8/64 | 512/8/64 | 512 | 512",
    "n0:981:1267 [1] NCCL INFO 16 coll channels, 0 collnet channels, 16 nvls channels, 16 p2p "
    "channels, 1 p2p channels per peer",
    "n0:980:1265 [0] NCCL INFO comm 0x55986b8b8560 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 18000 "
    "commId 0x5ae77eb5ea4ec1ee - Init COMPLETE",
)


def read(*lines: str) -> DebugReader:
    reader = DebugReader()
    for at, line in enumerate(lines):
        reader.add(line, at)
    return reader


def test_a_communicator_its_channels_and_processes() -> None:
    reader = read(*LINES)
    [found] = reader.topologies()
    assert reader.version == "2.21.5+cuda12.4"
    assert found.rings == ((0, 1),) and found.channels == 16
    assert found.processes == {0: ("n0", 980), 1: ("n0", 981)}
    assert reader.warnings == [] and not reader.choices


def test_algorithms_by_name_and_by_number() -> None:
    """2.24 and newer print the op, names and channels; before it numbers and an estimated time."""
    reader = read(
        "n0:980:1265 [0] NCCL INFO AllReduce: 8388608 Bytes -> Algo RING proto LL128 "
        "channel{Lo..Hi}={0..15}",
        "[0] NCCL INFO 805306368 Bytes -> Algo 1 proto 2 time 3970.683594",
        "[0] NCCL INFO 805306368 Bytes -> Algo 1 proto 2 time 3970.683594",
        "n0:980:1265 [0] NCCL INFO AllGather:    16 Bytes -> Algo RING  proto LL     "
        "channel{Lo..Hi}={0..0}",
    )
    assert reader.choices == {
        Choice("AllReduce", 8388608, "RING", "LL128"): 1,
        Choice("", 805306368, "RING", "SIMPLE"): 2,
        Choice("AllGather", 16, "RING", "LL"): 1,
    }


def test_warnings_have_their_process() -> None:
    """The place in NCCL's source comes before or after the word, by version."""
    reader = read(
        "n1:983:1261 [3] transport/net_ib.cc:2260 NCCL WARN NET/IB : Got completion from peer "
        "10.0.0.7<55921> with status=12 opcode=1 len=0 vendor err 129 (Send) localGid ::1",
        "n1:983:983 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to "
        "10.0.0.7<34927> failed : Software caused connection abort",
        "n1:983:983 [3] NCCL INFO comm 0x55f01c18e490 rank 35 nranks 64 - Abort COMPLETE",
    )
    assert [(one.host, one.pid, one.t_ns) for one in reader.warnings] == [
        ("n1", 983, 0), ("n1", 983, 1),
    ]  # fmt: skip
    assert reader.warnings[0].text.startswith("NET/IB : Got completion from peer")


def test_other_lines_say_nothing() -> None:
    reader = read("step 3 loss 2.5", "NCCL is fast", "[rank0]:[W] ProcessGroupNCCL.cpp:1250 x", "")
    assert reader.revision == 0 and not reader.warnings and not reader.topologies()
