"""A script as people have it, with Hugging Face's Accelerate. Nothing of Troupe's is named here."""

import accelerate
import torch
from torch import nn
from torch.nn.functional import mse_loss

accelerator = accelerate.Accelerator(cpu=True)
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
x = torch.randn(256, 8)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2), data)
losses = []
for _ in range(3):
    total = torch.zeros(())
    for batch, target in data:
        optimizer.zero_grad()
        loss = mse_loss(model(batch), target)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.detach()
    losses.append(accelerator.gather(total[None]).mean().item() / len(data))
if accelerator.is_main_process:
    print("LOSSES", *(f"{loss:.5f}" for loss in losses), torch.distributed.get_backend(), flush=True)
accelerator.end_training()
