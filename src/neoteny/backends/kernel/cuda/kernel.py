"""The CUDA kernel: a block of updates of many runs in one launch, compiled at run time for one learner.

The source (`source`) is compiled with NVRTC through cupy. Every run is trained by its own team of threads, so its
numbers do not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from neoteny.backends.kernel.cuda.launch import Uploads, check_range, compile_kernel, launch
from neoteny.backends.kernel.cuda.plan import Device, Plan, Team
from neoteny.backends.kernel.cuda.source import source
from neoteny.backends.kernel.examples import Examples
from neoteny.backends.kernel.options import FOLD, OPTIMIZERS, Numbers, Options
from neoteny.backends.kernel.pack import Packed


class CudaKernel:
    """Advances packed runs on the GPU; see `kernel.backend.Kernel`.

    Attributes:
        team: threads and blocks of a run; None: what suits the network.
    """

    team: Team | None = None

    def __init__(self, packed: Packed, numbers: Numbers, scales: Sequence[float]) -> None:
        device = packed.parameters.device
        if device.type != "cuda":
            raise ValueError(f"CudaKernel: the runs must be on a CUDA device, not on {device}.")
        self._packed, self._numbers, self._device = packed, numbers, device
        options, item = packed.options, packed.parameters.element_size()
        properties = torch.cuda.get_device_properties(device)
        room = Device(
            properties.shared_memory_per_block_optin, properties.shared_memory_per_multiprocessor, properties.major >= 9
        )
        team = self.team or Team.of(options, room)
        dense = is_dense(options, numbers, team)
        plan = Plan.of(options, item, dense, team, room)
        self._plan = plan
        text = source(options, plan, item, dense, scales)
        self._function = compile_kernel(text, "online", plan.shared_bytes, device.index or 0)
        rates = (
            numbers.step_size, numbers.momentum, numbers.shrink, numbers.noise_std, numbers.replacement_rate,
            numbers.maturity_threshold.astype(np.float64), numbers.decay_rate,
        )  # fmt: skip
        runs = len(packed.seeds)
        self._rates = torch.from_numpy(np.stack(rates)).to(device)
        # Zeros: what the blocks of a run exchange is read before some of it is first written.
        self._exchange = torch.zeros(max(16, runs * plan.exchange.size), dtype=torch.uint8, device=device)
        outside = 0 if plan.workspace_inside else runs * plan.team.blocks * plan.workspace.size
        self._workspace = torch.zeros(max(16, outside), dtype=torch.uint8, device=device)
        self._stream = torch.cuda.Stream(device)
        self._uploads = Uploads(device)

    def advance(self, examples: Examples, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        packed = self._packed
        runs, hidden = len(packed.seeds), packed.options.hidden
        check_range("CudaKernel", examples, start, stop, packed.step)
        if start == stop or runs == 0:
            return np.zeros(runs), np.full(runs, -1, dtype=np.int64)
        # A stream of its own, so that stacks in several threads train side by side; the results are waited for.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            found = self._launch(examples, start, stop)
        packed.step += stop - start
        if packed.options.replaces:
            packed.accumulator[:] = found[:, 2 : 2 + hidden]
            packed.replaced += found[:, 2 + hidden :].astype(np.int64)
        return found[:, 0].copy(), found[:, 1].astype(np.int64)

    def _launch(self, examples: Examples, start: int, stop: int) -> np.ndarray:
        """The results of one launch; see `Given` in steps.cu."""
        packed, team = self._packed, self._plan.team
        runs, hidden = len(packed.seeds), packed.options.hidden
        given = np.zeros((runs, 2 + 2 * hidden))
        given[:, 2 : 2 + hidden] = packed.accumulator
        results = torch.from_numpy(given).to(self._device)
        tensors = [
            packed.parameters, packed.first, packed.second, packed.mean_activation, packed.utility, packed.decay_power,
            packed.born, packed.buffers, packed.dropout_seed, packed.seeds, self._rates, results,
            *self._uploads.of(examples), self._workspace, self._exchange,
        ]  # fmt: skip
        scalars = [np.int32(value) for value in (runs, packed.step, start, stop, examples.steps)]
        arguments = (*scalars, *(np.uint64(tensor.data_ptr()) for tensor in tensors))
        grid = -(-runs // team.teams) * team.blocks
        launch(self._function, grid, team.threads * team.teams, arguments, self._plan.shared_bytes, self._stream)
        return results.cpu().numpy()


def is_dense(options: Options, numbers: Numbers, team: Team) -> bool:
    """Whether an update takes every weight, and not only those whose input is not zero.

    L2 under plain SGD is a lazy factor of each matrix, unless it takes nearly all of a weight away at once. Noise comes
    in a pass of its own; only weights that are kept in shared memory, and sums of |w| for the replacement of units, are
    better served by an update of all.
    """
    if OPTIMIZERS[options.optimizer] != "sgd" or (options.noise and (team.keeps or options.replaces)):
        return True
    return options.shrink and bool((1.0 - numbers.step_size * numbers.shrink <= FOLD).any())
