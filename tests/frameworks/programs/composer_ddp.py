"""MosaicML's Trainer, which asks for the CPU's name by a Python program of its own; two
microbatches a step, and an evaluation at the end."""

import torch
from composer import Callback, ComposerModel, Trainer
from composer.utils import dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(ComposerModel):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 4))

    def forward(self, batch):
        return self.net(batch[0])

    def loss(self, outputs, batch):
        return nn.functional.cross_entropy(outputs, batch[1])

    def eval_forward(self, batch, outputs=None):
        return self(batch) if outputs is None else outputs

    def get_metrics(self, is_train=False):
        return {}

    def update_metric(self, batch, outputs, metric):
        pass


class Say(Callback):
    def batch_end(self, state, logger):
        if dist.get_global_rank() == 0:
            print(f"batch {int(state.timestamp.batch)} loss {float(state.loss):.4f}", flush=True)


dist.initialize_dist("cpu")
torch.manual_seed(0)
x = torch.randn(200, 32)
data = TensorDataset(x, x[:, :4].argmax(1))
model = Model()
Trainer(
    model=model,
    train_dataloader=DataLoader(data, batch_size=8, sampler=dist.get_sampler(data, shuffle=True)),
    eval_dataloader=DataLoader(data, batch_size=32, sampler=dist.get_sampler(data)),
    max_duration="6ba",
    device="cpu",
    optimizers=torch.optim.Adam(model.parameters(), 1e-3),
    progress_bar=False,
    device_train_microbatch_size=4,
    callbacks=[Say()],
    loggers=[],
).fit()
