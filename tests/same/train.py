"""Two steps of the decoder: ``train LAYOUT [FAULT [BLOCK]]``. Whatever the layout, the ranks
together see the same rows, and compute the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining as pp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from pardbg.lab.recipes.launch import share_gpus
from tests.same.cuts import Tp
from tests.same.model import HEADS, LENGTH, WORDS, Block, Decoder, Faults, loss_of
from tests.same.parts import (
    ContextDecoder,
    Gathered,
    RunningDecoder,
    VocabHead,
    context_loss,
    vocab_loss,
    with_experts,
)

STEPS, ROWS, MICROBATCHES = int(os.environ.get("SAME_STEPS", "2")), 24, 4
REDUCED = (
    "hand-dp", "owned", "tensor-dp", "tensor-dp-unsaid", "pipeline-dp", "three-d", "running-dp",
)  # fmt: skip
"""Layouts whose gradients are averaged over data parallelism by hand."""
Step = Callable[[Tensor], float]
"""Forward and backward of a batch; returns the loss."""


def device() -> torch.device:
    """Where it trains; SAME_DEVICE names another."""
    return torch.device(os.environ.get("SAME_DEVICE", "cpu"))


class Job:
    """A rank's model, and what it does in a step."""

    def __init__(self, layout: str, faults: Faults) -> None:
        self.layout, self.faults = layout, faults
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.dp, self.tp = 1, Tp()
        self.dp_group: Any = None
        torch.manual_seed(1)
        self.model: nn.Module = nn.Identity()
        self.optimizer: Any = None
        self.step: Step = self.whole_batch
        getattr(self, layout.replace("-", "_"))()
        own = [p for p in self.model.parameters() if p.requires_grad]
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(self.groups(own), lr=1e-2)

    def groups(self, parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
        """What the optimizer gets; what is frozen by mistake has a rate of 0."""
        frozen: set[int] = set()
        if self.faults.at("frozen"):
            frozen = {id(p) for n, p in self.model.named_parameters() if "blocks.1." in n}
        moved = [p for p in parameters if id(p) not in frozen]
        left = [p for p in parameters if id(p) in frozen]
        return [{"params": moved}, {"params": left, "lr": 0.0, "weight_decay": 0.0}]

    # -- layouts

    def plain(self) -> None:
        self.model = Decoder(faults=self.faults)

    def threads(self) -> None:
        torch.set_num_threads(2)
        self.plain()

    def accumulate(self) -> None:
        self.plain()
        self.step = self.accumulated

    def again(self) -> None:
        self.model = Decoder(faults=self.faults, again=True)

    def ddp(self) -> None:
        self.dp = self.size
        self.model = DistributedDataParallel(Decoder(faults=self.faults))

    def hand_dp(self) -> None:
        self.dp = self.size
        self.plain()

    def owned(self) -> None:
        """ZeRO 1 by hand: each rank's optimizer has every size-th parameter, whole."""
        self.hand_dp()
        own = [*self.model.parameters()][self.rank :: self.size]
        self.optimizer = torch.optim.AdamW(own, lr=1e-2)

    def fsdp(self) -> None:
        self.dp = self.size
        self.model = Decoder(faults=self.faults)
        for block in self.model.blocks:
            fully_shard(block)
        fully_shard(self.model)

    def fsdp_tensor(self) -> None:
        """Blocks cut by tensor parallelism, and again by FSDP: strided shards."""
        self.dp = self.size // 2
        mesh = init_device_mesh(device().type, (self.dp, 2), mesh_dim_names=("dp", "tp"))
        self.dp_group = mesh.get_group("dp")
        self.dtensor(mesh["tp"])
        for block in self.model.blocks:  # type: ignore[union-attr]
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(self.model, mesh=mesh["dp"])

    def fsdp1(self) -> None:
        self.dp = self.size
        torch.manual_seed(1)
        whole = Decoder(faults=self.faults)
        policy = ModuleWrapPolicy({Block})
        self.model = FullyShardedDataParallel(
            whole, auto_wrap_policy=policy, device_id=device(), use_orig_params=True
        )

    def hsdp(self) -> None:
        self.dp = self.size
        shape = (self.size // 2, 2)
        mesh = init_device_mesh(device().type, shape, mesh_dim_names=("copies", "shards"))
        self.model = Decoder(faults=self.faults)
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)

    def ddp_again(self) -> None:
        self.dp = self.size
        self.model = DistributedDataParallel(Decoder(faults=self.faults, again=True))

    def zero1(self) -> None:
        self.ddp()
        self.optimizer = ZeroRedundancyOptimizer(
            self.model.parameters(), torch.optim.AdamW, lr=1e-2
        )

    def tensor(self) -> None:
        self.tp = Tp(dist.new_group(list(range(self.size))))
        self.model = Decoder(self.tp, faults=self.faults)

    def tensor_unsaid(self) -> None:
        """Nobody states what is cut, and each rank draws numbers of its own."""
        torch.manual_seed(self.rank + 2)
        self.tp = Tp(dist.new_group(list(range(self.size))), said=False)
        self.model = Decoder(self.tp, faults=self.faults)

    def tensor_dp_unsaid(self) -> None:
        self.tensor_dp()
        torch.manual_seed(self.rank + 2)
        self.tp.said = False
        self.model = Decoder(self.tp, faults=self.faults)

    def sequence(self) -> None:
        self.tp = Tp(dist.new_group(list(range(self.size))))
        self.model = Decoder(self.tp, positions=True, faults=self.faults)

    def dtensor(self, mesh: Any = None, rows: RowwiseParallel | None = None) -> None:
        mesh = mesh or init_device_mesh(device().type, (self.size,))
        rows = rows or RowwiseParallel()
        self.model = Decoder(faults=self.faults)
        for block in self.model.blocks:
            block.attn.heads = HEADS // mesh.size()
            plan = {f"attn.{name}": ColwiseParallel() for name in "qkv"}
            plan |= {"attn.proj": rows, "mlp.down": rows}
            plan["mlp.up"] = ColwiseParallel()
            parallelize_module(block, mesh, plan)

    def dtensor_sequence(self) -> None:
        """As torchtitan's Llama: norms have their part of each sequence, so that their gradients
        are summands, and results of collectives are waited for where they are used."""
        mesh, whole, part = init_device_mesh(device().type, (self.size,)), Replicate(), Shard(1)
        self.dtensor(mesh, RowwiseParallel(output_layouts=part))
        into = PrepareModuleInput(input_layouts=(part,), desired_input_layouts=(whole,))
        for block in self.model.blocks:
            plan = {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
            parallelize_module(block, mesh, {**plan, "attn": into, "mlp": into})
        parallelize_module(self.model, mesh, {
            "embed": RowwiseParallel(input_layouts=whole, output_layouts=part),
            "places": RowwiseParallel(input_layouts=whole, output_layouts=Shard(0)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=part, output_layouts=whole),
        })  # fmt: skip

    def tensor_dp(self) -> None:
        self.dp = self.size // 2
        mesh = init_device_mesh(device().type, (self.dp, 2), mesh_dim_names=("dp", "tp"))
        self.tp, self.dp_group = Tp(mesh.get_group("tp")), mesh.get_group("dp")
        self.model = Decoder(self.tp, faults=self.faults)

    def gpipe(self) -> None:
        self.pipelined(pp.ScheduleGPipe)

    def one_f_one_b(self) -> None:
        self.pipelined(pp.Schedule1F1B)

    def interleaved(self) -> None:
        self.pipelined(pp.ScheduleInterleaved1F1B, 2)

    def zero_bubble(self) -> None:
        self.pipelined(pp.ScheduleInterleavedZeroBubble, 2)

    def looped(self) -> None:
        self.pipelined(pp.ScheduleLoopedBFS, 2)

    def three_d(self) -> None:
        """2 pipeline stages x 2 in tensor parallelism x data parallelism."""
        self.dp = self.size // 4
        mesh = init_device_mesh(device().type, (self.dp, 2, 2), mesh_dim_names=("dp", "pp", "tp"))
        self.tp, self.dp_group = Tp(mesh.get_group("tp")), mesh.get_group("dp")
        self.pipelined(pp.Schedule1F1B, 1, mesh.get_group("pp"))

    def pipeline_dp(self) -> None:
        self.dp = self.size // 2
        mesh = init_device_mesh(device().type, (self.dp, 2), mesh_dim_names=("dp", "pp"))
        self.dp_group = mesh.get_group("dp")
        self.pipelined(pp.Schedule1F1B, 1, mesh.get_group("pp"))

    def vocab(self) -> None:
        self.tensor()
        head = VocabHead(self.tp)
        with torch.no_grad():
            head.weight.copy_(self.model.head.weight.chunk(self.size)[self.rank])
        self.model.head = head
        self.step = self.backward_of(
            lambda tokens: vocab_loss(self.model(tokens), tokens, self.tp, self.faults)
        )

    def context(self, zigzag: bool = False) -> None:
        self.tp = Tp(dist.new_group(list(range(self.size))))
        model = self.model = ContextDecoder(self.tp, zigzag, self.faults)
        self.step = self.backward_of(lambda tokens: context_loss(model, tokens, self.faults))

    def context_zigzag(self) -> None:
        self.context(True)

    def running(self) -> None:
        self.model = RunningDecoder(None, False, self.faults)

    def running_dp(self) -> None:
        self.dp = self.size
        self.model = RunningDecoder(None, not self.faults.at("mean-own"), self.faults)

    def experts(self, local: bool = False) -> None:
        """Experts over all ranks, which are data parallel beside."""
        self.dp = self.size
        ep = Tp(dist.new_group(list(range(self.size)))) if self.size > 1 else Tp()
        self.model = with_experts(ep, local, self.faults)

    def experts_local(self) -> None:
        """Each rank counts its experts from 0."""
        self.experts(local=True)

    def gathered(self) -> None:
        self.dp = self.size
        self.plain()
        self.shards = Gathered(self.model, self.faults)
        self.optimizer = torch.optim.AdamW(list(self.shards.shards.values()), lr=1e-2)
        at = iter(range(STEPS))

        def step(tokens: Tensor) -> float:
            if not next(at) or not self.faults.at("not-gathered"):
                self.shards.gather()
            return self.whole_batch(tokens)

        self.step = step

    def pipelined(self, schedule: Any, chunks: int = 1, group: Any = None) -> None:
        """Each stage is a Sequential, whose layers count from 0."""
        ranks = dist.get_world_size(group)
        whole = Decoder(self.tp, faults=self.faults)
        places = nn.Sequential(Embeds(whole), *whole.blocks, Logits(whole))
        num = ranks * chunks
        cuts = [round(at * len(places) / num) for at in range(num + 1)]
        mine = range(dist.get_rank(group), num, ranks)
        parts = [places[cuts[at] : cuts[at + 1]] for at in mine]
        stages = [
            pp.PipelineStage(part, at, num, device(), group=group)
            for at, part in zip(mine, parts, strict=True)
        ]
        self.model = nn.ModuleList(parts)
        self.parts = parts
        run = schedule(stages if chunks > 1 else stages[0], MICROBATCHES, loss_fn=self.loss)
        self.last = num - 1 in mine
        self.step = lambda tokens: self.scheduled(run, tokens)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.model = nn.Identity()
        self.of_stages = [p for part in parts for p in part.parameters()]

    # -- steps

    def loss(self, logits: Tensor, tokens: Tensor) -> Tensor:
        return loss_of(logits, tokens, self.faults)

    def whole_batch(self, tokens: Tensor) -> float:
        loss = self.loss(self.model(tokens), tokens)
        (loss * (self.size if self.faults.at("loss-scaled") else 1)).backward()
        return loss.item()

    @staticmethod
    def backward_of(loss_of_batch: Callable[[Tensor], Tensor]) -> Step:
        def step(tokens: Tensor) -> float:
            loss = loss_of_batch(tokens)
            loss.backward()
            return loss.item()

        return step

    def accumulated(self, tokens: Tensor) -> float:
        total = 0.0
        for part in tokens.chunk(MICROBATCHES):
            loss = self.loss(self.model(part), part)
            loss = loss if self.faults.at("not-divided") else loss / MICROBATCHES
            loss.backward()
            total += loss.item()
        return total

    def scheduled(self, run: Any, tokens: Tensor) -> float:
        losses: list[Tensor] = []
        labels = tokens.flip(0) if self.faults.at("labels-swapped") else tokens
        run.step(
            *([tokens] if 0 in self.stages(run) else []),
            **({"target": labels, "losses": losses} if self.last else {}),
        )
        return sum(float(loss) for loss in losses) / max(1, len(losses))

    @staticmethod
    def stages(run: Any) -> list[int]:
        stages = getattr(run, "_stages", None) or [run._stage]
        return [stage.stage_index for stage in stages]

    # -- between backward and the optimizer's step

    def parameters(self) -> list[nn.Parameter]:
        return list(getattr(self, "of_stages", None) or self.model.parameters())

    def reduce(self) -> None:
        wrong = self.faults.at
        if self.layout in REDUCED:
            left_out = self.parameters()[-1] if wrong("one-left-out") else None
            for p in self.parameters():
                if p.grad is not None and p is not left_out and not wrong("not-averaged-at-all"):
                    dist.all_reduce(p.grad, group=self.dp_group)
                    p.grad /= 1 if wrong("summed") else self.dp
                    p.grad /= self.dp if wrong("averaged-twice") else 1
        if self.layout in ("context", "context-zigzag") and not wrong("not-summed"):
            for p in self.parameters():
                dist.all_reduce(p.grad)
                p.grad /= self.size if wrong("averaged") else 1
        if self.layout.startswith("experts") and self.size > 1:
            self.reduce_experts()
        if self.layout == "gathered":
            self.shards.scatter()
        if self.layout == "sequence" and not wrong("norms"):
            for name, p in self.model.named_parameters():
                if any(part in name for part in ("norm", "embed", "places")):
                    dist.all_reduce(p.grad, group=self.tp.group)
        if wrong("doubled"):
            for p in self.parameters():
                p.grad.mul_(2)
        if wrong("one-rank") and self.rank == 1:
            self.parameters()[0].grad.mul_(1.5)
        if wrong("bf16"):
            for p in self.parameters():
                p.grad.copy_(p.grad.bfloat16())
        if self.faults.name == "slice" and self.rank == 1:
            for name, p in self.model.named_parameters():
                if f"blocks.{self.faults.block}.mlp.up.weight" in name:
                    local_of(p.grad)[2:5, 1:] *= 3
        if self.faults.name == "zeroed":
            for name, p in self.model.named_parameters():
                if f"blocks.{self.faults.block}." in name:
                    p.grad.zero_()

    def reduce_experts(self) -> None:
        """Experts have the gradients of all ranks' tokens already."""
        wrong = self.faults.at
        for name, p in self.model.named_parameters():
            own = ".experts." in name
            if not own and not (wrong("router") and "router" in name):
                dist.all_reduce(p.grad)
            if not (own and wrong("experts-summed")):
                p.grad /= self.dp
            if own and wrong("experts-frozen"):
                p.grad = None

    def update(self) -> None:
        if self.faults.at("skipped-on-one") and self.rank == 1:
            self.optimizer.param_groups[0].update(lr=0.0, weight_decay=0.0)
        self.optimizer.step()
        if self.layout == "owned":
            for at, p in enumerate(self.model.parameters()):
                p.grad = None  # also where another rank's optimizer has it
                if not (self.faults.at("not-broadcast") and at % self.size == 1):
                    dist.broadcast(p.detach(), at % self.size)


def local_of(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class Embeds(nn.Module):
    def __init__(self, whole: Decoder) -> None:
        super().__init__()
        self.embed, self.places = whole.embed, whole.places

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens) + self.places(torch.arange(tokens.shape[1]))


class Logits(nn.Module):
    def __init__(self, whole: Decoder) -> None:
        super().__init__()
        self.norm, self.head = whole.norm, whole.head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))


def rows(job: Job, drawn: torch.Generator) -> Tensor:
    """The rank's rows of a step's batch."""
    tokens = torch.randint(0, WORDS, (ROWS, LENGTH), generator=drawn)
    if job.dp == 1:
        return tokens
    at = dist.get_rank(job.dp_group)
    return tokens[at :: job.dp]


def main(words: Sequence[str]) -> None:
    layout, fault, block = (*words, "", "")[:3]
    torch.set_default_dtype(getattr(torch, os.environ.get("SAME_DTYPE", "float32")))
    if device().type != "cpu":
        torch.set_default_device(device())
        share_gpus()
    dist.init_process_group("gloo" if device().type == "cpu" else "nccl")
    job = Job(layout, Faults(fault, int(block or -1)))
    drawn = torch.Generator(device()).manual_seed(7)
    for _ in range(STEPS):
        loss = job.step(rows(job, drawn))
        job.reduce()
        job.update()
        job.optimizer.zero_grad()
        sys.stdout.write(f"{job.rank} {float(loss).hex()}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
