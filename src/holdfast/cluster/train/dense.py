"""DenseVector: everything of a model that is not a table on servers, as one vector that its parameters are views of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from holdfast.cluster.train.transfer import Transfer
from holdfast.errors import ConfigurationError


class DenseVector:
    """A worker's copy of the dense parameters.

    Args:
        parameters: In the order of the vector.
        device: Where they are.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], device: torch.device) -> None:
        self._parameters = parameters
        self.is_installed = False  # whether it holds what servers had, and not how the model begins
        parts = [each.detach().reshape(-1).to(device) for each in parameters]
        self._flat = torch.cat(parts) if parts else torch.empty(0, device=device)
        self._views = [
            part.view(each.shape)
            for part, each in zip(self._flat.split([each.numel() for each in parameters]), parameters, strict=True)
        ]
        self._attach()

    @property
    def has_gradient(self) -> bool:
        """Whether a backward pass reached it since the last step."""
        return any(each.grad is not None for each in self._parameters)

    def install(self, values: Transfer) -> None:
        """Take over what came from servers: one copy, whatever the number of parameters."""
        if values.values != self._flat.numel():
            raise ConfigurationError(
                f"the dense vector has {self._flat.numel()} values, and {values.values} came from servers"
            )
        values.fill(self._flat)
        self._changed()

    def bring_back(self, values: Tensor) -> None:
        """Take over what ``values()`` gave before."""
        self._flat.copy_(values)
        self._changed()

    def _changed(self) -> None:
        self.is_installed = True
        self._attach()
        torch.clear_autocast_cache()  # it would keep copies of the last ones in lower precision

    def values(self) -> Tensor:
        """A copy."""
        return self._flat.clone()

    def gradients(self) -> Tensor:
        """Of the whole vector, 0 where a parameter has none; a tensor that nobody else has."""
        if not self._parameters:
            return torch.empty(0, device=self._flat.device)
        parts = [
            (torch.zeros_like(view) if (found := each.grad) is None else _strided(found)).reshape(-1)
            for each, view in zip(self._parameters, self._views, strict=True)
        ]
        return torch.cat(parts) if len(parts) > 1 else parts[0].clone()

    def _attach(self) -> None:
        """A parameter whose memory somebody has replaced becomes a view again."""
        for each, view in zip(self._parameters, self._views, strict=True):
            if each.data_ptr() != view.data_ptr() or each.device != view.device:
                each.data = view


def _strided(gradient: Tensor) -> Tensor:
    return gradient if gradient.layout == torch.strided else gradient.to_dense()
