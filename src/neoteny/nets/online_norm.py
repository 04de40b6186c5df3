"""Online normalisation (Chiley et al. 2019): normalisation that also works with one example at a time.

Activations are normalised with running statistics from *before* the step, and gradients are steered by a control
process so that, averaged over time, they are orthogonal to the normalised activations and to the constant vector, as
the gradients of an exact normalisation would be. The paper uses it as a baseline on permuted MNIST.

Everything is written over (*R, B, F) with statistics (*R, F): one network, or R networks in lock-step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class OnlineNorm(nn.Module):
    r"""Online normalisation of a batch (B, F), feature by feature.

    Forward, with the statistics from before the step, then their update (m and s are the mean and variance of each
    feature over the batch, a the forward decay):

    .. math::
        y &= (x - \mu) / \sqrt{\sigma^2 + \epsilon} \\
        \sigma^2 &\leftarrow a \sigma^2 + (1 - a) s + a (1 - a) (m - \mu)^2, \qquad \mu \leftarrow a \mu + (1 - a) m

    Backward, from the gradient g of y (b is the backward decay, the mean is over the batch):

    .. math::
        \tilde g &= g - (1 - b) \varepsilon_y y, \qquad
            \varepsilon_y \leftarrow \varepsilon_y + \operatorname{mean}(\tilde g y) \\
        g_x &= \tilde g / \sqrt{\sigma^2 + \epsilon} - (1 - b) \varepsilon_1, \qquad
            \varepsilon_1 \leftarrow \varepsilon_1 + \operatorname{mean}(g_x)

    Then layer scaling, :math:`z = y / \sqrt{\operatorname{mean}_F(y^2) + \epsilon}`, which bounds the output while the
    statistics lag behind, and the affine part :math:`w z + b`. The published code differs in two points: it walks
    through a batch one example at a time, and it scales behind the affine part.

    Evaluation normalises with frozen statistics and has the ordinary gradient.

    Args:
        features: F.
        forward_decay: decay rate of the mean and variance, in [0, 1).
        backward_decay: decay rate of the control process, in [0, 1).
        layer_scaling: whether to divide each example by its root mean square.
        affine: whether to learn a scale and a shift for each feature.
        eps: added to variances.

    Attributes:
        mu, var: running mean and variance, (F,), 0 and 1 at first.
        ey, e1: the accumulated errors of the control process, (F,), 0 at first.

    Example:
        >>> layer = OnlineNorm(3)
        >>> layer(torch.full((1, 3), 2.0))
        tensor([[1.0000, 1.0000, 1.0000]], grad_fn=<AddBackward0>)
        >>> layer.mu
        tensor([0.0020, 0.0020, 0.0020])

    References:
        Chiley et al., "Online Normalization for Training Neural Networks", 2019.
    """

    mu: Tensor
    var: Tensor
    ey: Tensor
    e1: Tensor
    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        features: int,
        forward_decay: float = 0.999,
        backward_decay: float = 0.99,
        layer_scaling: bool = True,
        affine: bool = True,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        for name, decay in (("forward_decay", forward_decay), ("backward_decay", backward_decay)):
            if not 0.0 <= decay < 1.0:
                raise ValueError(f"OnlineNorm: {name} must be at least 0 and below 1, got {decay!r}.")
        if not isinstance(features, int) or features < 1:
            raise ValueError(f"OnlineNorm: features must be a whole number of at least 1, got {features!r}.")
        if not eps > 0.0:
            raise ValueError(f"OnlineNorm: eps must be above 0, got {eps!r}.")
        self.features = features
        self.forward_decay = forward_decay
        self.backward_decay = backward_decay
        self.layer_scaling = layer_scaling
        self.eps = eps
        self.register_buffer("mu", torch.zeros(features))
        self.register_buffer("var", torch.ones(features))
        self.register_buffer("ey", torch.zeros(features))
        self.register_buffer("e1", torch.zeros(features))
        self.weight = nn.Parameter(torch.ones(features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(features)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        """x (*R, B, F) to the same shape; R is () unless the buffers are stacked."""
        if x.dim() != self.mu.dim() + 1 or x.shape[-1] != self.features:
            raise ValueError(
                f"OnlineNorm({self.features}): x must have shape (batch, {self.features}), got {tuple(x.shape)}."
            )
        # Under autocast x may be half precision; running statistics need the precision of the buffers.
        x = x.to(torch.promote_types(x.dtype, self.mu.dtype))
        rstd = torch.rsqrt(self.var + self.eps)  # a new tensor: the update below leaves it as it is
        if self.training:
            y = _controlled_norm(x, self.mu.clone(), rstd, self.ey, self.e1, self.backward_decay)
            self._update_statistics(x.detach())
        else:
            y = (x - self.mu.unsqueeze(-2)) * rstd.unsqueeze(-2)
        if self.layer_scaling:
            y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        if self.weight is not None and self.bias is not None:
            y = y * self.weight.unsqueeze(-2) + self.bias.unsqueeze(-2)
        return y

    @torch.no_grad()
    def _update_statistics(self, x: Tensor) -> None:
        decay = self.forward_decay
        mean = x.mean(-2)
        variance = (x - mean.unsqueeze(-2)).square().mean(-2)
        surprise = mean - self.mu
        self.var.copy_(decay * self.var + (1 - decay) * variance + decay * (1 - decay) * surprise.square())
        self.mu.copy_(decay * self.mu + (1 - decay) * mean)

    def extra_repr(self) -> str:
        """What print shows between the brackets."""
        return (
            f"{self.features}, forward_decay={self.forward_decay}, backward_decay={self.backward_decay}, "
            f"layer_scaling={self.layer_scaling}, affine={self.weight is not None}, eps={self.eps}"
        )


def _controlled_norm(*arguments: Any) -> Tensor:
    """`_ControlledNorm`, always eager: compiled (seen with torch 2.13) it returns wrong gradients without an error."""
    apply: Any = _ControlledNorm.apply
    if torch.compiler.is_compiling():
        apply = torch.compiler.disable(apply)
    return apply(*arguments)


class _ControlledNorm(torch.autograd.Function):
    """(x - mu) * rstd with the controlled gradient; backward updates `ey` and `e1` in place.

    Shapes: x (*R, B, F); mu, rstd, ey and e1 (*R, F).
    """

    @staticmethod
    def forward(x: Tensor, mu: Tensor, rstd: Tensor, ey: Tensor, e1: Tensor, backward_decay: float) -> Tensor:  # type: ignore[override]
        return (x - mu.unsqueeze(-2)) * rstd.unsqueeze(-2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, _, rstd, ctx.ey, ctx.e1, ctx.backward_decay = inputs
        # ey and e1 are not saved through save_for_backward: they are meant to move between forward and backward.
        ctx.save_for_backward(output, rstd)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        y, rstd = ctx.saved_tensors
        gain = 1.0 - ctx.backward_decay
        gradient = gradient - gain * ctx.ey.unsqueeze(-2) * y
        ctx.ey.add_((gradient * y).mean(-2))
        gradient = gradient * rstd.unsqueeze(-2) - gain * ctx.e1.unsqueeze(-2)
        ctx.e1.add_(gradient.mean(-2))
        return gradient, None, None, None, None, None

    @staticmethod
    def vmap(  # type: ignore[override]
        info: Any,
        in_dims: tuple[int | None, ...],
        x: Tensor,
        mu: Tensor,
        rstd: Tensor,
        ey: Tensor,
        e1: Tensor,
        backward_decay: float,
    ) -> tuple[Tensor, int]:
        """Hand the whole stack to the Function, so that backward updates each run's own `ey` and `e1`."""
        if in_dims[3] is None or in_dims[4] is None:
            raise ValueError(
                "OnlineNorm in training mode under vmap needs buffers of its own for every run; "
                "stack the buffers too (torch.func.stack_module_state) and map over them with in_dims 0."
            )
        tensors = [
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip((x, mu, rstd, ey, e1), in_dims[:5], strict=True)
        ]
        result: Any = _ControlledNorm.apply(*tensors, backward_decay)
        return result, 0
