"""Tables of TorchRec whose rows are found by managed collision: which raw id a row belongs to changes while it trains.

An ``MCHManagedCollisionModule`` keeps its ids sorted, so that one insertion moves half of its buffers. Here everything
is turned to the order of rows, in which an insertion changes one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.modules.mc_embedding_modules import BaseManagedCollisionEmbeddingCollection
from torchrec.modules.mc_modules import ManagedCollisionModule, MCHManagedCollisionModule

from holdfast.checkpoint.training.keyed import EMPTY_KEY, KEY
from holdfast.checkpoint.training.keyed_rows import KeyedRows
from holdfast.checkpoint.training.tables import join_names, stable_modules
from holdfast.errors import ConfigurationError

_NO_ID = torch.iinfo(torch.int64).max  # what the module has where a row is empty; it sorts last


class ManagedRows:
    """The rows that one MCH module gives to raw ids, as a ``KeyedTable``."""

    def __init__(self, module: Any, weight: nn.Parameter) -> None:
        self._module = module
        self._weight = weight
        self._seen: tuple[int, ...] = ()
        self._columns = self._by_row()
        self._order_empty_rows()

    @property
    def weight(self) -> nn.Parameter:
        """That of the embedding table."""
        return self._weight

    @property
    def columns(self) -> Mapping[str, Tensor]:
        """Raw ids, and the counts and times of the eviction policy, as they were when ``take_changed`` was called."""
        return self._columns

    def take_changed(self) -> Tensor | None:
        """Rows whose id, count or time differs from what it was."""
        if self._versions() == self._seen:
            return torch.empty(0, dtype=torch.int64)
        now = self._by_row()
        differs = torch.stack([now[name] != before for name, before in self._columns.items()]).any(0)
        for name, before in self._columns.items():
            before.copy_(now[name])
        self._order_empty_rows()
        return torch.nonzero(differs).reshape(-1)

    def restored(self) -> None:
        """Sort again what the columns hold."""
        keys = self._columns[KEY]
        ids, rows = torch.where(keys == EMPTY_KEY, _NO_ID, keys).sort(stable=True)
        self._module._mch_sorted_raw_ids.copy_(ids)
        self._module._mch_remapped_ids_mapping.copy_(rows)
        for name, kept in self._module._mch_metadata.items():
            kept.copy_(self._columns[name][rows])
        self._seen = self._versions()

    def insert(self, keys: Tensor, columns: Mapping[str, Tensor]) -> Tensor:
        """The first rows: the last one belongs to ids that have none."""
        if len(keys) >= len(self._columns[KEY]):
            raise ValueError(f"zch_size={len(self._columns[KEY])} has room for one key less")
        self._columns[KEY][: len(keys)] = keys
        for name, values in columns.items():
            self._columns[name].zero_()[: len(keys)] = values
        self.restored()
        return torch.arange(len(keys))

    def get_state(self) -> dict[str, Any]:
        """When it evicts next, and the ids that it has seen since it did last."""
        module, used = self._module, self._module._current_history_buffer_offset
        started = module._input_history_buffer_size >= 0
        return {
            "iterations": int(module._current_iter_tensor),
            "current_iteration": module._current_iter,
            "last_eviction": module._last_eviction_iter,
            "history_size": module._input_history_buffer_size,
            "history": module._history_accumulator[:used] if started else None,
            "history_of": {name: kept[:used] for name, kept in module._history_metadata.items()},
            "evicted": module._evicted_emb_indices if module._evicted else None,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take that over."""
        module = self._module
        module._current_iter_tensor.fill_(state["iterations"])
        module._current_iter, module._last_eviction_iter = state["current_iteration"], state["last_eviction"]
        module._evicted = state["evicted"] is not None
        if module._evicted:
            module._evicted_emb_indices = state["evicted"].to(module.device, copy=True)
        self._set_history(state)

    def buffers(self) -> Sequence[Tensor]:
        """What the module would store of this by itself, in another order."""
        return tuple(self._module.buffers())

    def _set_history(self, state: Mapping[str, Any]) -> None:
        module, size, seen = self._module, state["history_size"], state["history"]
        module._input_history_buffer_size = size
        module._current_history_buffer_offset = 0 if seen is None else len(seen)
        if seen is None:
            return
        module._history_accumulator = _filled(seen, size, module.device)
        for name, kept in state["history_of"].items():
            module.register_buffer(f"_history_{name}", _filled(kept, size, module.device), persistent=False)
            module._history_metadata[name] = getattr(module, f"_history_{name}")

    def _order_empty_rows(self) -> None:
        """Columns do not say in which order empty rows are given away: let it be that of their numbers.

        It always is, unless the module was given another state.
        """
        empty = self._module._mch_remapped_ids_mapping[self._module._mch_sorted_raw_ids == _NO_ID]
        if bool((empty[1:] < empty[:-1]).any()):
            self.restored()

    def _by_row(self) -> dict[str, Tensor]:
        """The module's buffers in the order of rows."""
        ids, rows = self._module._mch_sorted_raw_ids, self._module._mch_remapped_ids_mapping
        found = {KEY: torch.empty_like(ids).index_copy_(0, rows, torch.where(ids == _NO_ID, EMPTY_KEY, ids))}
        for name, kept in self._module._mch_metadata.items():
            found[name] = torch.empty_like(kept).index_copy_(0, rows, kept)
        self._seen = self._versions()
        return found

    def _versions(self) -> tuple[int, ...]:
        kept = (self._module._mch_sorted_raw_ids, self._module._mch_remapped_ids_mapping)
        return tuple(each._version for each in (*kept, *self._module._mch_metadata.values()))


def adopt_keyed(models: Mapping[str, nn.Module]) -> list[KeyedRows]:
    """The tables of managed collision modules, under the names of their embedding tables.

    Raises ConfigurationError for modules that are not supported.
    """
    found: list[KeyedRows] = []
    adopted: set[int] = set()
    for key, model in models.items():
        for path, module in stable_modules(model):
            if isinstance(module, BaseManagedCollisionEmbeddingCollection):
                for name, managed, weight in _tables(module, join_names(key, path)):
                    adopted.add(id(managed))
                    rows = ManagedRows(_require_supported(managed, name), weight)
                    found.append(KeyedRows(name=name, parameter=weight, keyed=rows, beside=rows.buffers))
    _refuse_others(models, adopted)
    return found


def _tables(collection: Any, path: str) -> Iterator[tuple[str, Any, nn.Parameter]]:
    inside = "embedding_bags" if hasattr(collection._embedding_module, "embedding_bags") else "embeddings"
    embeddings = getattr(collection._embedding_module, inside)
    for table, managed in collection._managed_collision_collection._managed_collision_modules.items():
        yield join_names(path, "_embedding_module", inside, table), managed, embeddings[table].weight


def _require_supported(module: Any, table: str) -> Any:
    if type(module) is not MCHManagedCollisionModule:
        raise ConfigurationError(
            f"table {table!r} is managed by {type(module).__name__}, which is not supported. Use "
            "MCHManagedCollisionModule, or hash ids to rows without managed collision"
        )
    if module._output_global_offset:
        raise ConfigurationError(
            f"table {table!r} is managed by a module that holds only the rows from {module._output_global_offset} on. "
            "This is not supported: leave the collection out of the sharding plan"
        )
    return module


def _refuse_others(models: Mapping[str, nn.Module], adopted: set[int]) -> None:
    for key, model in models.items():
        for path, module in stable_modules(model):
            kind, called = type(module), f"module {join_names(key, path)!r} is a {type(module).__name__}"
            if "ManagedCollision" in kind.__name__ and kind.__module__.startswith("torchrec.distributed"):
                raise ConfigurationError(
                    f"{called}, which is not supported: its ids are spread over the ranks. Leave this module out of "
                    "the sharding plan"
                )
            if isinstance(module, ManagedCollisionModule) and id(module) not in adopted:
                raise ConfigurationError(
                    f"{called} whose embedding table is not known: its ids could not be saved with its rows. Put both "
                    "in a ManagedCollisionEmbeddingBagCollection or a ManagedCollisionEmbeddingCollection"
                )


def _filled(seen: Tensor, size: int, device: torch.device) -> Tensor:
    """A buffer of that size that begins with what was seen."""
    buffer = torch.zeros(size, dtype=seen.dtype, device=device)
    buffer[: len(seen)] = seen
    return buffer
