"""The programs, and what is true of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Case:
    """One program under torchrun."""

    name: str
    program: str
    env: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    """Modules that must be found where the programs run."""
    nproc: int = 2
    steps: int | None = 6
    """Training steps; None: ranks differ."""
    schedule: str | None = None
    """Of the pipeline; "": it is inferred; None: there is none."""
    stages: int = 2
    microbatches: int = 0
    loss: bool = True
    """The last loss that the program prints is the one shown, to four digits."""
    memory: tuple[int, ...] = ()
    """Bytes of parameters, gradients and optimizer state on each rank, and of all as expected."""
    findings: tuple[str, ...] = ()
    """Kinds of warnings and errors that must be found; no others may."""
    torchrun: tuple[str, ...] = ()
    """Further options of torchrun."""
    parts: tuple[int, ...] = ()
    """Steps of each life or role that the report lists."""


CASES: Final = (
    Case("by-hand 1f1b, named", "by_hand", {"NAMED": "1"}, schedule="1f1b", microbatches=6),
    Case("by-hand afab, named", "by_hand", {"KIND": "afab", "NAMED": "1"}, schedule="gpipe",
         microbatches=6),
    Case("by-hand 1f1b", "by_hand", schedule="", microbatches=6),
    Case("by-hand afab", "by_hand", {"KIND": "afab"}, schedule="", microbatches=6),
    Case("by-hand 1f1b, 3 ranks", "by_hand", nproc=3, schedule="", stages=3, microbatches=6),
    Case("by-hand interleaved, named", "by_hand_virtual", {"NAMED": "1"},
         schedule="Interleaved1F1B", stages=4, microbatches=4),
    Case("by-hand zero bubble, named", "by_hand_virtual", {"KIND": "zb", "NAMED": "1"},
         schedule="ZB-H1 by hand", microbatches=4),
    # Not a line of ranks, or backward in two parts: nothing is shown rather than a guess.
    Case("by-hand interleaved", "by_hand_virtual"),
    Case("by-hand zero bubble", "by_hand_virtual", {"KIND": "zb"}),
    Case("ring attention", "ring_attention", loss=False),
    Case("ring all-reduce", "hand_ring_allreduce", loss=False),
    Case("parameter server", "param_server", steps=None, loss=False, parts=(6, 0)),
    Case("gan", "gan", loss=False),
    Case("local sgd", "local_sgd", steps=12, loss=False),
    Case("no gradient average", "no_sync_bug", steps=8, loss=False,
         findings=("no-gradient-exchange",)),
    Case("none, accumulated", "no_sync_bug", {"GA": "4"}, steps=8,
         findings=("no-gradient-exchange",)),
    Case("odd optimizers", "misc_opt", steps=None, loss=False),
    Case("rpc", "rpc_ps", nproc=3, steps=None, loss=False, parts=(0, 6)),
    Case("averaged by hand", "averaged", steps=24, loss=False),
    Case("averaged by hand, one drifts", "averaged", {"DRIFT": "1"}, nproc=3, steps=24, loss=False,
         findings=("replica-divergence",)),
    Case("restarted", "averaged", {"FAIL": "1"}, steps=24, loss=False,
         torchrun=("--max-restarts", "1"), parts=(9, 24), findings=("restarted",)),
    Case("two train, one looks on", "averaged", {"ROLES": "1"}, nproc=3, steps=None, loss=False,
         parts=(0, 24)),
    Case("optimizers in a container", "container", loss=True),
    # It has no data parallel wrapper: both ranks train apart.
    Case("megatron, gradients accumulate", "megatron_pp", {"MEG_PP": "1"}, ("megatron.core",),
         loss=False, findings=("no-gradient-exchange",)),
    Case("megatron dp x pp", "megatron_pp", {"MEG_PP": "2"}, ("megatron.core",), nproc=4,
         schedule="Megatron 1F1B", microbatches=8, loss=False),
    Case("megatron 1f1b", "megatron_pp", needs=("megatron.core",), schedule="Megatron 1F1B",
         microbatches=8),
    Case("megatron interleaved", "megatron_pp", {"MEG_VPP": "2"}, ("megatron.core",),
         schedule="Megatron Interleaved1F1B", stages=4, microbatches=8),
    Case("deepspeed 1f1b", "deepspeed_pipe", needs=("deepspeed",), schedule="DeepSpeed 1F1B",
         microbatches=8),
    Case("deepspeed dualpipev", "deepspeed_pipe", {"DS_DUALV": "1"}, ("deepspeed",),
         schedule="DeepSpeed DualPipeV", stages=4, microbatches=8),
    Case("nanotron 1f1b", "nanotron_pp", needs=("nanotron",), schedule="nanotron 1F1B",
         microbatches=6),
    Case("nanotron afab", "nanotron_pp", {"NANO": "afab"}, ("nanotron",),
         schedule="nanotron GPipe", microbatches=6),
    Case("picotron 1f1b", "picotron_train", needs=("picotron", "transformers"),
         schedule="picotron 1F1B", microbatches=4),
    Case("picotron afab", "picotron_train", {"PICO": "afab"}, ("picotron", "transformers"),
         schedule="picotron GPipe", microbatches=4),
    Case("picotron tp x pp", "picotron_train", {"PICO_TP": "2", "PICO_PP": "2"},
         ("picotron", "transformers"), nproc=4, schedule="picotron 1F1B", microbatches=4),
    Case("colossalai 1f1b", "colossal_pp", needs=("colossalai",), schedule="ColossalAI 1F1B",
         microbatches=8),
    Case("colossalai interleaved", "colossal_pp", {"COL": "interleaved"}, ("colossalai",),
         schedule="ColossalAI Interleaved1F1B", stages=4, microbatches=8),
    Case("colossalai zero bubble V", "colossal_pp", {"COL": "zbv"}, ("colossalai",),
         schedule="ColossalAI ZBVZeroBubble", stages=4, microbatches=8),
    # 21,252 parameters, P = 85,008 bytes on 2 ranks. DeepSpeed's optimizer steps a copy of its
    # half, so O = P/2 for the copy + P for Adam + 4 bytes of its step; it frees the other half of
    # the gradients at level 1, too, where P + G + O/N expects all of them. Level 3 keeps parameters
    # of up to 100,000 elements whole beside their shards: P/2 + P.
    Case("deepspeed zero 1", "flat_buffers", {"ZERO": "1"}, ("deepspeed",),
         memory=(85_008, 42_504, 127_516, 297_528)),
    Case("deepspeed zero 2", "flat_buffers", {"ZERO": "2"}, ("deepspeed",),
         memory=(85_008, 42_504, 127_516, 255_024)),
    Case("deepspeed zero 3", "flat_buffers", {"ZERO": "3"}, ("deepspeed",),
         memory=(127_512, 42_504, 127_516, 212_520)),
    # FSDP1 has half of each, and steps its shard itself: O = P + 4.
    Case("fsdp1", "flat_buffers", {"WRAP": "fsdp"}, memory=(42_504, 42_504, 85_012, 170_016)),
    Case("fsdp1 grad op", "flat_buffers", {"WRAP": "fsdp", "STRATEGY": "SHARD_GRAD_OP"},
         memory=(42_504, 42_504, 85_012, 170_016)),
    Case("lightning ddp", "lightning_ddp", needs=("lightning",), loss=False),
    Case("accelerate", "accelerate_loop", needs=("accelerate",), loss=False),
    Case("fairscale oss", "fairscale_dp", needs=("fairscale",), loss=False),
    # Its last line has the mean of all steps as another loss.
    Case("transformers trainer", "hf_trainer", needs=("transformers", "accelerate"), loss=False),
    Case("transformers trainer, one rate differs", "hf_trainer", {"RATE": "1"},
         ("transformers", "accelerate"), nproc=3, loss=False, findings=("replica-divergence",)),
    Case("composer", "composer_ddp", needs=("composer", "cpuinfo"), loss=False),
    Case("metric learning", "metric_learning", needs=("pytorch_metric_learning",), loss=False),
)  # fmt: skip
