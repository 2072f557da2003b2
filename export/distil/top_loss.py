"""The loss of a head's rows, and its gradients, without the logits of all rows at once."""

from typing import Any

import torch
from torch import Tensor
from torch.amp import custom_bwd, custom_fwd
from torch.autograd import Function

_ROWS = 1024
"""Rows whose logits exist at once."""


class TopLoss(Function):
    """The sum over rows of the cross entropy between given probabilities and those of the head's logits.

    Both gradients are computed with the loss, so that logits are read and written a few times instead of a dozen:
    with 8,192 ids and a layer of 576 values, that was two thirds of a step.
    """

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(context: Any, hidden: Tensor, weight: Tensor, ids: Tensor, shares: Tensor) -> Tensor:  # noqa: ANN401
        """hidden: [rows, values]. weight: [ids, values]. ids, shares: [rows, likeliest], a share of 0 for no id."""
        read, matrix = hidden.bfloat16(), weight.bfloat16()
        for_hidden, for_weight = torch.empty_like(read), torch.zeros_like(weight)
        loss = torch.zeros(())
        first = (shares > 0).int().argmax(-1, keepdim=True)  # stands for what has no id, written twice
        places = torch.where(shares > 0, ids, ids.gather(1, first))
        taken = torch.where(shares > 0, shares, shares.gather(1, first))
        for start in range(0, len(read), _ROWS):
            part = slice(start, start + _ROWS)
            chances = torch.softmax(read[part] @ matrix.T, -1)
            own = chances.gather(1, ids[part]).float().clamp_min(1e-30).log()
            loss -= (shares[part] * own).sum()
            chances *= shares[part].sum(-1, keepdim=True).to(chances.dtype)
            less = chances.gather(1, places[part]) - taken[part].to(chances.dtype)
            chances.scatter_(1, places[part], less)  # scatter_add_ would copy all to 32 bits and back
            for_hidden[part] = chances @ matrix
            for_weight += chances.T @ read[part]
        context.save_for_backward(for_hidden, for_weight)
        context.kind = hidden.dtype
        return loss

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(context: Any, scale: Tensor) -> tuple[Tensor, Tensor, None, None]:  # noqa: ANN401
        for_hidden, for_weight = context.saved_tensors
        return for_hidden.to(context.kind) * scale, for_weight * scale, None, None
