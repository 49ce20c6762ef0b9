"""Modules whose tables live on servers: nn.Embedding and nn.EmbeddingBag, computing with the rows of a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.cluster.train.table import Table
from holdfast.cluster.train.untouchable import UntouchableWeight, untouchable
from holdfast.errors import ConfigurationError

logger = logging.getLogger("holdfast")

_SHORT_BAG = 4  # ids


class RemoteTable(nn.Module):
    """What both kinds share: no weight of their own, and a table instead, once the model is built."""

    scale_grad_by_freq: bool
    _remote: Table | None  # once the model is built; names that no subclass of a user's has
    _rows_device: torch.device  # where its rows are looked up

    def reset_parameters(self) -> None:
        """Servers write the rows."""

    def connect(self, table: Table) -> None:
        """The model is built: the weight shows the rows of a batch from now on."""
        self.__dict__["_remote"] = table
        self._parameters["weight"] = table.parameter

    @property
    def rows_device(self) -> torch.device:
        """Where its rows are looked up."""
        return self._rows_device

    def move_rows(self, device: torch.device) -> None:
        """Rows are looked up there from now on."""
        self.__dict__["_rows_device"] = device

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight" and not isinstance(value, UntouchableWeight):
            weight = self._parameters["weight"]
            origin = weight.origin if isinstance(weight, UntouchableWeight) else self._connected.name
            raise untouchable(origin, "an assignment")
        super().__setattr__(name, value)

    @property
    def _connected(self) -> Table:
        if (table := self.__dict__.get("_remote")) is None:
            weight = cast(UntouchableWeight, self._parameters["weight"])
            raise untouchable(weight.origin, "forward()")
        return cast(Table, table)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """``to()`` and its like: there is no weight to move, but the next rows go elsewhere."""
        moved = fn(torch.empty(0, device=self._rows_device))
        if moved.dtype != torch.float32:
            raise ConfigurationError(
                f"tables on servers are float32, and {type(self).__name__} was to become {moved.dtype}: convert other "
                "modules one by one, or use torch.autocast"
            )
        if self.__dict__.get("_remote") is not None and moved.device != self._rows_device:
            raise ConfigurationError(
                f"the model is on {self._rows_device} already; to train on {moved.device}, move it in the "
                "function that builds it"
            )
        self.move_rows(moved.device)
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """A table is not part of a worker's state: servers save it."""

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        if f"{prefix}weight" in state_dict:
            raise ConfigurationError(
                f"{prefix}weight lives on servers and cannot be loaded in a worker: import the state into a run with "
                "holdfast.import_checkpoint, and start the cluster on that run"
            )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, on servers"


class RemoteEmbedding(RemoteTable, nn.Embedding):
    """nn.Embedding, with the rows of a batch."""

    def forward(self, input: Tensor) -> Tensor:
        if self.padding_idx is None and not self.scale_grad_by_freq:
            rows = self._connected.gathered(input)
            if rows is not None:
                return rows if input.dim() == 1 else rows.view(*input.shape, rows.shape[1])
        found = self._connected.look_up(input, self.padding_idx)
        return F.embedding(found.positions, found.rows, found.padding, None, 2.0, self.scale_grad_by_freq, False)


class RemoteEmbeddingBag(RemoteTable, nn.EmbeddingBag):
    """nn.EmbeddingBag, with the rows of a batch."""

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        if per_sample_weights is None and self._are_short(input):
            rows = self._connected.gathered(input)
            if rows is None:  # the same sums in the same order: whether rows were expected must not show in any bit
                found = self._connected.look_up(input, None)
                rows = F.embedding(found.positions.reshape(-1), found.rows)
            return self._reduced(rows, input.shape[1])
        found = self._connected.look_up(input, self.padding_idx)
        return F.embedding_bag(
            found.positions,
            found.rows,
            None if offsets is None else offsets.to(found.positions.dtype),
            scale_grad_by_freq=self.scale_grad_by_freq,
            mode=self.mode,
            sparse=False,  # among the rows of a batch nearly all have a gradient
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=found.padding,
        )

    def _are_short(self, bags: Tensor) -> bool:
        """Whether the rows of all ids take little more memory than the bags, and need nothing but to be added."""
        is_plain = self.mode != "max" and self.padding_idx is None and not self.scale_grad_by_freq
        return is_plain and bags.dim() == 2 and 1 <= bags.shape[1] <= _SHORT_BAG

    def _reduced(self, rows: Tensor, bag: int) -> Tensor:
        if bag == 1:
            return rows
        bags = rows.view(-1, bag, rows.shape[1])
        return bags.sum(1) if self.mode == "sum" else bags.mean(1)


@cache
def remote_class(kind: type[nn.Module]) -> type[RemoteTable]:
    """The class that a module of this kind becomes.

    It stands between a user's subclass and torch's class, so that ``super().forward()`` in the subclass arrives here.
    """
    base = RemoteEmbedding if issubclass(kind, nn.Embedding) else RemoteEmbeddingBag
    if kind in (nn.Embedding, nn.EmbeddingBag):
        return cast(type[RemoteTable], type(kind.__name__, (base,), {"__module__": __name__}))
    return cast(type[RemoteTable], type(kind.__name__, (kind, base), {"__module__": kind.__module__}))
