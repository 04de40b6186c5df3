"""Stable-Baselines3's PPO made continual on the Slippery Ant: two lines, marked with an arrow.

The framework owns the loop, the network and the optimizer, so nobody can call `plastic.step()` there: with `auto=True`
the optimizer's own hook does, after every update. Needs `pip install "neoteny[sb3,pybullet]"`; with "mujoco" as
argument, `"neoteny[sb3,mujoco]"`.

To stop and go on later, save three things: `model.save(path)`, `plastic.state_dict()` and the environment's clock and
world, `env.unwrapped.state_dict()`. Then make an environment, `env.reset(seed=0)`,
`env.unwrapped.load_state_dict(...)`, `PPO.load(path, env=env, custom_objects={"seed": None})` (with a seed the
framework would restart the environment), the same `attach` with `trained=True`, `plastic.load_state_dict(...)`.
"""

import os
import sys

# This file has the name of the package it shows, and Python looks into a script's own folder first.
if (here := os.path.dirname(os.path.abspath(__file__))) in sys.path:
    sys.path.remove(here)

import gymnasium
import torch
from stable_baselines3 import PPO

import neoteny
import neoteny.problems.ant.env  # makes the environment known to gymnasium

torch.set_num_threads(1)  # networks this small gain nothing from more
STEPS = 2048
# In the paper the ground changes every 10 million steps; it tries rates of 1e-5 to 1e-3, mature after 100 to 50000.
method = neoteny.ContinualBackprop(replacement_rate=1e-3, maturity_threshold=50)

simulator = sys.argv[1] if len(sys.argv) > 1 else "pybullet"
env = gymnasium.make("neoteny/SlipperyAnt-v0", simulator=simulator, period_steps=512, episode_steps=500)
policy = {
    # It counts steps by weight, so a new unit's first steps are those of a new network. torch's own Adam (the default)
    # works as well: a new unit's moments are cleared there, too, but with the old count its first steps are too long.
    "optimizer_class": neoteny.optim.Adam,  # <- one
    "optimizer_kwargs": {"eps": 1e-5},  # what the framework itself chooses for torch's Adam
}
model = PPO("MlpPolicy", env, n_steps=256, batch_size=64, seed=0, device="cpu", policy_kwargs=policy)
kept = {
    "example": torch.zeros(1, *(env.observation_space.shape or ())),
    "init": neoteny.Initial("orthogonal", scale=2**0.5),  # how the framework draws hidden layers, and so new units
    "seed": 0,
}
plastic = neoteny.attach(model.policy, model.policy.optimizer, method, auto=True, **kept)  # <- two
print(plastic.wiring)

frictions: dict[float, int] = {}


def count_frictions(names: dict, _: dict) -> bool:
    """Called by the framework after every step of the environment."""
    for info in names["infos"]:
        frictions[info["friction"]] = frictions.get(info["friction"], 0) + 1
    return True


model.learn(STEPS, callback=count_frictions)
print("\nfriction in force:", ", ".join(f"{value:.3g} for {steps} steps" for value, steps in frictions.items()))
print("replaced:", ", ".join(f"{name} {count}" for name, count in plastic.replaced.items()))
