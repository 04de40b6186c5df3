"""Replica: an attachment among the ranks of DistributedDataParallel.

Every rank holds the whole model and makes the same update. So that it also replaces the same units by the same draws,
all ranks begin with the first rank's state (seed, laws, statistics), and from then on every method sees the same
numbers on all of them (`units/ranks.py`, `units/totals.py`). Nothing is communicated before the first update, and
nothing at all where torch.distributed is not in use. Before this: `hooks`; after it: `attachment`.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from neoteny.attachment.compiling import NOT_OVER_RANKS
from neoteny.methods.chain import Chain
from neoteny.units.ranks import Gathered, Ranks
from neoteny.wiring.modules import wrapped

if TYPE_CHECKING:
    from neoteny.attachment.hooks import Recorder
    from neoteny.attachment.module_view import ModuleView

if TYPE_CHECKING or dist.is_available():
    from torch.distributed.algorithms.join import Joinable, JoinHook
else:  # a torch without torch.distributed
    Joinable = JoinHook = object

WHOSE = ("all", "first")


def check_ranks(ranks: str, process_group: Any) -> None:
    """Refuse a choice of ranks that is not known."""
    if ranks not in WHOSE:
        raise ValueError(f"ranks must be one of {', '.join(map(repr, WHOSE))}; got {ranks!r}.")
    if process_group is not None and not isinstance(process_group, dist.ProcessGroup):
        raise TypeError(f"process_group must be a torch process group; got {type(process_group).__name__}.")


class Replica(Joinable):
    """What an attachment does together with other ranks; `torch.distributed.algorithms.Join` takes it."""

    view: ModuleView
    optimizers: tuple[Optimizer, ...]
    _chain: Chain
    _model: nn.Module
    _recorder: Recorder

    def __init__(self, given: nn.Module, ranks: str, process_group: Any) -> None:
        super().__init__()
        around = [each for each in wrapped(given) if isinstance(each, DistributedDataParallel)]
        self._wrapper = weakref.ref(around[0]) if around else None
        self._ranks, self._group = ranks, process_group
        self._looked = self._met = False
        self._synchronised_passes = 0
        self._counting: Any = None

    def state_dict(self) -> dict[str, Any]:
        """Of the attachment."""
        raise NotImplementedError

    def _restore(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _before_update(self, *, joined: bool = False) -> None:
        raise NotImplementedError

    def _tick(self, updates: int = 0, *, joined: bool = False) -> None:
        raise NotImplementedError

    def join_hook(self, **options: Any) -> JoinHook:
        """For `torch.distributed.algorithms.Join([ddp, plastic])`: what a rank does that has no batch left."""
        self._look()
        if self._looked and self.view.ranks is not None and self._wrapper is None:
            raise ValueError("Join needs DistributedDataParallel: attach the wrapped model, neoteny.attach(ddp, ...).")
        return JoinedRank(self)

    @property
    def join_device(self) -> torch.device:
        """Where the model is."""
        return self.view.device()

    @property
    def join_process_group(self) -> Any:
        """Of the ranks that train the model."""
        self._look()
        ddp = self._ddp()
        return self._group if ddp is None else ddp.process_group

    def _look(self) -> None:
        """Find the ranks; nothing is communicated."""
        if self._looked or not (dist.is_available() and dist.is_initialized()):
            return
        self._looked = True
        if self._wrapper is None and self._group is None and dist.get_world_size() > 1:
            inner = self._model
            everything = [each for each in gc.get_objects() if issubclass(type(each), DistributedDataParallel)]
            around = [each for each in everything if any(module is inner for module in each.module.modules())]
            self._wrapper = weakref.ref(around[0]) if around else None
        ddp = self._ddp()
        group = self._group if ddp is None else ddp.process_group
        if group is None or dist.get_world_size(group) == 1:
            return
        alone = [type(each).__name__ for each in self._chain.methods if each.needs_inputs]
        if alone:
            self._looked = False  # say it at every update
            raise ValueError(
                f"{alone[0]} runs the network on inputs that each rank has for itself, so the replicas of "
                "DistributedDataParallel would part. Train with one process, or leave the method out."
            )
        if self.view.capturable:
            self._looked = False
            raise ValueError(NOT_OVER_RANKS)
        self.view.ranks = Ranks(group, first_only=self._ranks == "first")
        self._show(self._recorder)
        if ddp is not None:
            self._counting = ddp.register_forward_pre_hook(_PassCount(self))

    def _show(self, recorder: Recorder) -> None:
        """Let methods read what is recorded, of all ranks."""
        self.view.activations, self.view.input_gradients = recorder.inputs, recorder.gradients
        ranks = self.view.ranks
        if ranks is not None:
            device = self.view.device()
            # The gradients of all ranks are averaged, so each rank's own share of one is divided by their number.
            scale = 1.0 if ranks.first_only else 1.0 / ranks.size
            self.view.activations = Gathered(recorder.inputs, ranks, device)
            self.view.input_gradients = Gathered(recorder.gradients, ranks, device, scale)

    def _forget(self) -> None:
        """Forget what was recorded, here and of other ranks."""
        self._recorder.clear()
        for read in (self.view.activations, self.view.input_gradients):
            if isinstance(read, Gathered):
                read.forget()
        if self.view.totals is not None:
            self.view.totals.clear()

    def _meet(self, joined: bool) -> None:
        """Before an update: say that it comes, and begin with the first rank's state if it is the first."""
        self._look()
        ranks = self.view.ranks
        if ranks is None:
            return
        if not joined:
            self._announce(1)
        if not self._met:
            self._met = True
            self._begin(ranks)
        if any(method.needs_loss for method in self._chain.methods):
            loss = self.view.loss
            known = [] if loss is None else [loss.detach().reshape(())]
            losses = ranks.gather(known, self.view.device())
            self.view.loss = torch.stack(losses).mean() if losses else None

    def _begin(self, ranks: Ranks) -> None:
        mine = self.state_dict()
        kept = {key: mine[key] for key in ("groups", "methods")}
        found = ranks.all_have(kept)
        other = next((rank for rank, theirs in enumerate(found) if theirs != found[0]), None)
        if other is not None:
            raise ValueError(
                f"The ranks have attached different things: rank 0 has {found[0]}, rank {other} has {found[other]}. "
                "Attach the same methods to the same model on every rank, with the same kind of example."
            )
        self._take(ranks, mine, 0, ranks.rank != 0)

    def _take(self, ranks: Ranks, mine: Any, source: int, needed: bool) -> None:
        """Take over one rank's state."""
        theirs = ranks.share(_on_host(mine) if ranks.rank == source else None, self.view.device(), source)
        if needed:
            self._restore(theirs)
            self._chain.move(self.view.device())

    def _announce(self, number: int) -> None:
        """Inside of `Join`, tell ranks that have no batch left whether this rank goes on (1) or not (0)."""
        ranks, ddp = self.view.ranks, self._ddp()
        if ranks is None:
            return
        if not self._join_config.enable:
            if ddp is not None and ddp._join_config.enable:
                raise ValueError(
                    "ddp.join() does not know of the attachment, so that a rank without batches would not take part in "
                    "its sums. Write `with torch.distributed.algorithms.Join([ddp, plastic]):` instead."
                )
            return
        if self._join_config.is_first_joinable:
            raise ValueError("Join([ddp, plastic]): the wrapped model must come first, as it is called first.")
        self._synchronised_passes = 0
        ranks.count(number, self.view.device())

    def _ddp(self) -> DistributedDataParallel | None:
        return None if self._wrapper is None else self._wrapper()

    def _average(self, gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """The mean over ranks of gradients that DistributedDataParallel did not see."""
        self._look()
        ranks = self.view.ranks
        if ranks is None:
            return gradients
        pairs = zip(gradients, parameters, strict=True)
        whole = [torch.zeros_like(other) if each is None else each for each, other in pairs]
        sums, had = ranks.sum(whole, [float(each is not None) for each in gradients])
        return [each / ranks.size if float(some) else None for each, some in zip(sums, had, strict=True)]


class JoinedRank(JoinHook):
    """The join hook: a rank that has no batch left takes part in the sums of the others, with nothing of its own."""

    def __init__(self, replica: Any) -> None:
        self._replica = replica

    def main_hook(self) -> None:
        """Do what the others do after one of their passes, as far as ranks talk to each other."""
        replica = self._replica
        ranks, ddp = replica.view.ranks, replica._ddp()
        # The wrapper has just learnt whether the others synchronise, or only accumulate, the gradients of this pass.
        if ranks is None or not ddp.require_forward_param_sync:
            return
        device = replica.view.device()
        if ranks.count(0, device):
            replica._before_update(joined=True)
            if ranks.count(0, device):
                replica._tick(joined=True)

    def post_hook(self, is_last_joiner: bool) -> None:
        """Take over the state of a rank that was there to the end; the wrapper does so with the weights."""
        replica = self._replica
        ranks: Ranks | None = replica.view.ranks
        if ranks is None:
            return
        stayed = ranks.all_have(is_last_joiner)
        if all(stayed):
            return
        source = max(rank for rank, flag in enumerate(stayed) if flag)
        states = [each.state_dict() for each in replica.optimizers]
        theirs = ranks.share(_on_host(states) if ranks.rank == source else None, replica.view.device(), source)
        replica._take(ranks, replica.state_dict(), source, not is_last_joiner)
        if not is_last_joiner:
            for optimizer, state in zip(replica.optimizers, theirs, strict=True):
                optimizer.load_state_dict(state)


class _PassCount:
    """Forward pre-hook of the wrapper: inside of `Join` each synchronised pass must be followed by one update."""

    def __init__(self, replica: Replica) -> None:
        self._replica = weakref.ref(replica)

    def __call__(self, ddp: Any, args: Any) -> None:
        replica = self._replica()
        if replica is None or not replica._join_config.enable:
            return
        if ddp.training and torch.is_grad_enabled() and ddp.require_backward_grad_sync:
            replica._synchronised_passes += 1
            if replica._synchronised_passes > 1:
                raise RuntimeError(
                    "Inside of Join, a second pass began before plastic.step(): ranks without batches expect one "
                    "update after each pass. Accumulate gradients inside of `with ddp.no_sync():`, call plastic.step() "
                    "also where a gradient scaler skipped the update, and attach without auto=True there."
                )


def _on_host(value: Any) -> Any:
    """The same with its tensors on the CPU: a pickled tensor returns to the device number that it came from."""
    return tree_map(lambda each: each.cpu() if isinstance(each, Tensor) else each, value)
