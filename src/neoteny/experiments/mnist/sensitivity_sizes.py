"""What differs between the scales of mnist-sensitivity: networks, runs, and the three values tried with each method.

After this: `mnist_sensitivity_claims`, which looks for these values, and `mnist_sensitivity`, which runs them.
"""

from __future__ import annotations

from dataclasses import dataclass

from neoteny.problems import PermutedMNIST


@dataclass(frozen=True)
class Size:
    """What differs between scales; values ascend."""

    problem: PermutedMNIST
    width: int
    runs: int
    norm_runs: int
    cbp_runs: int
    step_size: float = 0.003
    l2: tuple[float, ...] = (1e-5, 1e-4, 1e-3)
    best_l2: float = 1e-4
    noise_std: tuple[float, ...] = (1e-6, 1e-5, 1e-4)
    dropout: tuple[float, ...] = (0.01, 0.03, 0.1)
    decay: tuple[tuple[float, float], ...] = ((0.99, 0.9), (0.999, 0.99), (0.9999, 0.999))
    adam_step_size: tuple[float, ...] = (3e-5, 5e-5, 1e-4)
    replacement_rate: tuple[float, ...] = (1e-6, 1e-5, 1e-4)
    stack_size: int = 100


SIZES = {
    "smoke": Size(
        PermutedMNIST(tasks=3, examples_per_task=25, source="synthetic"), width=10, runs=2, norm_runs=2, cbp_runs=2
    ),
    "laptop": Size(
        PermutedMNIST(tasks=40, examples_per_task=1000),
        width=20,
        runs=5,
        norm_runs=5,
        cbp_runs=5,
        step_size=0.01,
        l2=(1e-4, 1e-3, 1e-2),
        best_l2=1e-3,
        noise_std=(1e-5, 1e-4, 1e-3),
        adam_step_size=(3e-4, 1e-3, 3e-3),
        replacement_rate=(1e-4, 1e-3, 1e-2),
    ),
    "paper": Size(PermutedMNIST(), width=2000, runs=10, norm_runs=3, cbp_runs=30, stack_size=30),
}
