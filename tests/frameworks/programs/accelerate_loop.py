import torch
import torch.nn as nn
from accelerate import Accelerator

a = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(0)
m = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 4))
o = torch.optim.AdamW(m.parameters(), 1e-3)
x = torch.randn(8 * 12 * 2, 32)
dl = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(x, x[:, :4].argmax(1)), batch_size=8
)
m, o, dl = a.prepare(m, o, dl)
for i, (x, y) in enumerate(dl):
    with a.accumulate(m):
        l = nn.functional.cross_entropy(m(x), y)
        a.backward(l)
        o.step()
        o.zero_grad()
    a.print(f"step {i} loss {l.item():.4f}", flush=True)
a.end_training()
