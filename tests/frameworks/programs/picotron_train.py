"""picotron's training loop on CPU, data made here. PICO=1f1b or afab; PICO_TP, PICO_PP, PICO_DP."""

import datetime
import os
import sys
import types

sys.path[:0] = os.environ.get("PARDBG_FRAMEWORKS_PATH", "").split(":")
sys.path.insert(0, os.path.dirname(__file__))
os.environ.update(
    FLASH_ATTEN="0",
    DEVICE="cpu",
    DTYPE="float32",
    CONTEXT_PARALLEL="0",
    TOKENIZERS_PARALLELISM="false",
)
import importlib.machinery

import torch
import torch.nn as nn

for n in (
    "flash_attn",
    "flash_attn.flash_attn_interface",
    "flash_attn.layers",
    "flash_attn.layers.rotary",
    "flash_attn.ops",
    "flash_attn.ops.triton",
    "flash_attn.ops.triton.layer_norm",
):
    mod = types.ModuleType(n)
    mod.__spec__ = importlib.machinery.ModuleSpec(n, None)
    sys.modules[n] = mod
    mod.flash_attn_func = mod.apply_rotary_emb = mod.layer_norm_fn = None
importlib.import_module("cpu_for_cuda")  # before the framework looks at torch.cuda
import picotron.process_group_manager as pgm
import torch.distributed as dist
import transformers
from picotron.context_parallel.context_parallel import apply_context_parallel
from picotron.data_parallel.data_parallel import DataParallelBucket
from picotron.model import Llama
from picotron.pipeline_parallel.pipeline_parallel import (
    PipelineParallel,
    train_step_pipeline_1f1b,
    train_step_pipeline_afab,
)
from picotron.process_group_manager import setup_process_group_manager
from picotron.tensor_parallel.tensor_parallel import apply_tensor_parallel
from picotron.utils import average_loss_across_dp_cp_ranks, print, set_all_seed
from torch.optim import AdamW

e = lambda k, d: int(os.environ.get(k, d))
W = int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=3))
setup_process_group_manager(
    tp_size=e("PICO_TP", 1),
    cp_size=e("PICO_CP", 1),
    pp_size=e("PICO_PP", W),
    dp_size=e("PICO_DP", 1),
)
p = pgm.process_group_manager
set_all_seed(42)

cfg = transformers.LlamaConfig(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=128,
    max_position_embeddings=32,
)
cfg.__dict__["rope_theta"] = 10000.0
S, B, GA = 32, 2, e("PICO_GA", 4)


class DL:
    grad_acc_steps = GA
    micro_batch_size = B
    seq_length_per_gpu = S // p.cp_world_size

    def __init__(s):
        s.g = torch.Generator().manual_seed(p.dp_rank)

    def __next__(s):
        t = torch.randint(0, 128, (B, S + 1), generator=s.g)
        a = p.cp_rank * s.seq_length_per_gpu
        b = a + s.seq_length_per_gpu
        return {
            "input_ids": t[:, :-1][:, a:b].contiguous(),
            "target_ids": t[:, 1:][:, a:b].contiguous(),
            "position_ids": torch.arange(a, b).expand(B, -1).contiguous(),
            "hidden_states": None,
        }


model = Llama(config=cfg)
if p.tp_world_size > 1:
    model = apply_tensor_parallel(model)
if p.pp_world_size > 1:
    model = PipelineParallel(model, cfg)
if p.cp_world_size > 1:
    model = apply_context_parallel(model)
if p.dp_world_size > 1:
    model = DataParallelBucket(model)
opt = AdamW(model.parameters(), 1e-3)
dl = DL()
shapes = (B, dl.seq_length_per_gpu, 32)
dev = torch.device("cpu")


def train_step():
    acc = 0.0
    for i in range(GA):
        b = next(dl)
        if p.cp_dp_world_size > 1:
            model.require_backward_grad_sync = i == GA - 1
        out = model(input_ids=b["input_ids"])
        l = nn.functional.cross_entropy(out.flatten(0, 1), b["target_ids"].flatten()) / GA
        l.backward()
        acc += l.item()
    return acc


for step in range(1, 1 + int(os.environ.get("STEPS", 6))):
    opt.zero_grad()
    if p.pp_world_size > 1:
        loss = (
            train_step_pipeline_afab
            if os.environ.get("PICO") == "afab"
            else train_step_pipeline_1f1b
        )(model, dl, shapes, dev, torch.float32)
    else:
        loss = train_step()
    loss = average_loss_across_dp_cp_ranks(loss, dev)
    opt.step()
    if hasattr(model, "reset"):
        model.reset()
    if p.tp_rank == 0 and p.dp_rank == 0 and p.cp_rank == 0 and p.pp_is_last_stage:
        print(
            f"[rank {p.global_rank}] Step: {step:<5d} | Loss: {loss:6.4f} | Global batch size: 1K",
            is_print_rank=True,
        )
dist.barrier()
dist.destroy_process_group()
