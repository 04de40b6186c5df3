"""Methods that run the network again, or read its loss, in PPO: with autograd and with gradients written out."""

from __future__ import annotations

import torch
from torch import Tensor

from neoteny.methods import L2ER, Adam, CChain
from neoteny.nets import ActorCritic
from neoteny.suite.rl.ppo import PPO, Batch, Learner
from neoteny.suite.sweep import Setting, network

AGENT = PPO(iteration_steps=8, epochs=1, minibatch=8)


def batches(updates: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return [Batch(draw(8, 3), draw(8, 2), draw(8) - 2.0, draw(8), draw(8)) for _ in range(updates)]


def test_both_ways_to_the_gradients_give_the_same() -> None:
    methods = (Adam(1e-3), L2ER(period=3, rank_step_size=1e-2), CChain(2.0, beta=None))
    ends = []
    for backend in ("reference", "cpu"):
        torch.manual_seed(0)
        learner = Learner(ActorCritic(3, 2, (6, 5)), methods, 0, AGENT, backend)
        for batch in batches(12):
            learner.update(batch)
        ends.append(learner.network().state_dict())
    for name, value in ends[0].items():
        torch.testing.assert_close(value, ends[1][name], rtol=1e-4, atol=1e-5, msg=name)


def test_a_method_that_reads_the_loss_is_left_to_autograd() -> None:
    net = network(ActorCritic, hidden=(6,))
    assert AGENT.why_not_compiled(Setting("a", net, (Adam(1e-3), CChain(2.0, beta=None)), agent=AGENT)) == ""
    assert AGENT.why_not_compiled(Setting("a", net, (Adam(1e-3), CChain()), agent=AGENT)) == "CChain reads the loss"
    learner = Learner(ActorCritic(3, 2, (6, 5)), (Adam(1e-3), CChain(warmup=0)), 0, AGENT, "reference")
    for batch in batches(5):
        learner.update(batch)
    assert all(bool(parameter.isfinite().all()) for parameter in learner.network().parameters())
