"""Ranks that exchange their gradients themselves, in dense tensors.

DistributedDataParallel does so for sparse gradients as well, but over gloo that corrupts the heap now and then (torch
2.13, with nothing of Holdfast loaded), and a test of ours must not fail for it.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn


def exchange_gradients(model: nn.Module) -> None:
    """Give every parameter the mean of all ranks' gradients, to the bit the same on each."""
    for parameter in model.parameters():
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = _gathered(parameter.grad.coalesce())
        else:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def _gathered(gradient: Tensor) -> Tensor:
    """The rows of all ranks, one rank's after another's, as DDP leaves them."""
    counts = _all(torch.tensor([gradient.indices().shape[1]]))
    most = max(map(int, counts))
    indices = _all(_padded(gradient.indices()[0], most))
    values = _all(_padded(gradient.values(), most))
    ids = torch.cat([part[: int(count)] for part, count in zip(indices, counts, strict=True)])
    rows = torch.cat([part[: int(count)] for part, count in zip(values, counts, strict=True)])
    return torch.sparse_coo_tensor(ids[None], rows / dist.get_world_size(), gradient.shape, check_invariants=False)


def _padded(tensor: Tensor, length: int) -> Tensor:
    padded = tensor.new_zeros((length, *tensor.shape[1:]))
    padded[: len(tensor)] = tensor
    return padded


def _all(tensor: Tensor) -> list[Tensor]:
    parts = [torch.zeros_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.contiguous())
    return parts
