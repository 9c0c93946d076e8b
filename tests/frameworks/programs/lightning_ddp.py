"""Lightning Trainer on CPU. STRAT=ddp|fsdp ; fit, then test (two lives of one process)."""

import os
import warnings

import torch
import torch.nn as nn

warnings.filterwarnings("ignore")
import lightning as L


class M(L.LightningModule):
    def __init__(s):
        super().__init__()
        s.net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 4))

    def training_step(s, b, i):
        l = nn.functional.cross_entropy(s.net(b[0]), b[1])
        s.log("train_loss", l, prog_bar=True)
        print(
            f"rank {s.global_rank} step {s.global_step} loss {l.item():.4f}", flush=True
        ) if s.global_rank == 0 else None
        return l

    def test_step(s, b, i):
        s.log("test_loss", nn.functional.cross_entropy(s.net(b[0]), b[1]))

    def configure_optimizers(s):
        return torch.optim.Adam(s.parameters(), 1e-3)


torch.manual_seed(0)
x = torch.randn(8 * 6 * 2 * 2, 32)
y = x[:, :4].argmax(1)
dl = lambda: torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
t = L.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=os.environ.get("STRAT", "ddp"),
    max_epochs=1,
    accumulate_grad_batches=2,
    enable_progress_bar=False,
    logger=False,
    enable_checkpointing=False,
    use_distributed_sampler=True,
)
m = M()
t.fit(m, dl())
t.test(m, dl(), verbose=False)
