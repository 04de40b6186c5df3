"""Continual backpropagation added to a plain PyTorch loop: two lines, marked with an arrow."""

import torch
from torch import nn

import neoteny

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
method = neoteny.ContinualBackprop(replacement_rate=1e-3, maturity_threshold=100)
plastic = neoteny.attach(model, optimizer, method, example=torch.zeros(1, 10))  # <- one

target = torch.randn(10, 1)
for step in range(3000):
    if step and step % 1000 == 0:  # the stream drifts: a new target function
        target = torch.randn(10, 1)
    x = torch.randn(16, 10)
    loss = (model(x) - torch.tanh(x @ target)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    plastic.step()  # <- two
    if step % 1000 == 999:
        print(f"step {step + 1}: loss {loss.item():.3f}, units replaced so far {plastic.replaced}")

print(plastic)
print(neoteny.diagnose(model, torch.randn(500, 10)))
