"""Makes tables of embeddings whose weights are DTensors: rows in ranges, values in strips, as the ranks hold them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from holdfast.checkpoint.ranks.agreement import Agreement, gather_or_raise
from holdfast.checkpoint.ranks.tiling import require_tiles
from holdfast.checkpoint.training.divided import Divided, SeeRows
from holdfast.checkpoint.training.dtensors import SwappedParameters, box_of, is_dtensor
from holdfast.checkpoint.training.extent import Extent
from holdfast.checkpoint.training.sharded_table import ShardedTable
from holdfast.checkpoint.training.slot_names import WEIGHT
from holdfast.checkpoint.training.tables import Embedding, Table, find_embeddings
from holdfast.errors import ConfigurationError
from holdfast.format.boxes import Box


@dataclass(slots=True, kw_only=True)
class _Found:
    """A DTensor that is a table, and the modules that hold it."""

    weight: nn.Parameter
    modules: tuple[Embedding, ...] = ()


class WithDTensors:
    """Tables that are DTensors, beside those that somebody else divides."""

    def __init__(self, tables: Sequence[Table], others: Divided) -> None:
        self.tables = (*others.tables, *tables)
        self._others = others

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        """DTensors have ordinary ones."""
        return self._others.optimizers

    def knows(self, module: nn.Module) -> bool:
        """Modules under FSDP2: all that they divide are DTensors."""
        return self._others.knows(module) or _is_fully_sharded(module)

    def watch(self, see: SeeRows) -> list[RemovableHandle]:
        """What optimizers do to DTensors, they do in the ordinary way."""
        return self._others.watch(see)

    def read_options(self) -> None:
        """Those of the others."""
        self._others.read_options()

    def write_options(self) -> None:
        """Those of the others."""
        self._others.write_options()


def with_dtensors(
    models: Mapping[str, nn.Module],
    extra: Mapping[str, nn.Parameter],
    swapped: SwappedParameters,
    others: Divided,
    agreement: Agreement,
) -> WithDTensors:
    """The tables of these models that are DTensors, and those of ``extra``; all ranks ask together."""
    found: dict[int, str] = {}
    by_name: dict[str, _Found] = {}
    for path, module in find_embeddings(models):
        weight = module._parameters.get(WEIGHT)
        weight = None if weight is None else swapped.find(module, WEIGHT, weight)
        if is_dtensor(weight):
            name = found.setdefault(id(weight), path)
            each = by_name.setdefault(name, _Found(weight=weight))
            each.modules += (module,)
    for name, parameter in extra.items():
        if is_dtensor(parameter) and id(parameter) not in found:
            by_name[name] = _Found(weight=parameter)
    shared = gather_or_raise(agreement, lambda: _places(by_name))
    by_rank = [{name: Box(offsets=tuple(at), sizes=tuple(sizes)) for name, at, sizes in each} for each in shared]
    tables = [
        table
        for name, each in by_name.items()
        for table in _tables(name, each, _of_all(name, by_rank), swapped, agreement.rank)
    ]
    return WithDTensors(tables, others)


def _places(found: Mapping[str, _Found]) -> list[Any]:
    boxes = {name: _box(name, each.weight) for name, each in found.items()}
    return [[name, each.offsets, each.sizes] for name, each in boxes.items()]


def _box(name: str, weight: Tensor) -> Box:
    if weight.dim() != 2:
        raise ConfigurationError(
            f"table {name!r} is a DTensor of shape {tuple(weight.shape)}; a table that is one has rows and values. "
            "Leave it out of tables=, and it is saved with the dense part"
        )
    return box_of(weight, f"table {name!r}")


def _of_all(name: str, by_rank: Sequence[Mapping[str, Box]]) -> list[Box]:
    if lacking := [rank for rank, boxes in enumerate(by_rank) if name not in boxes]:
        raise ConfigurationError(
            f"table {name!r} is a DTensor on some ranks and not on rank {lacking[0]}: divide it in the same way on all"
        )
    return [boxes[name] for boxes in by_rank]


def _tables(name: str, found: _Found, boxes: Sequence[Box], swapped: SwappedParameters, rank: int) -> Iterator[Table]:
    """What this rank holds of a table, in each strip of values that ranks hold."""
    weight, own = found.weight, boxes[rank]
    rows, width = weight.shape
    filled = {box for box in boxes if box.volume}
    require_tiles(f"table {name!r}", weight.shape, filled)
    for value, values in sorted({(box.offsets[1], box.sizes[1]) for box in filled}) or [(0, width)]:
        is_here = (own.offsets[1], own.sizes[1]) == (value, values) or not filled
        alike = [number for number, box in enumerate(boxes) if box == own] if is_here and own.volume else [rank]
        extent = Extent(
            table=name,
            rows=rows,
            width=width,
            first=own.offsets[0] if is_here else 0,
            value=value,
            replica=alike.index(rank),
            replicas=len(alike),
        )
        elsewhere = None if is_here else nn.Parameter(torch.empty((0, values), dtype=weight.dtype), requires_grad=False)
        yield ShardedTable(
            name=extent.name(values),
            weight=weight,
            extent=extent,
            modules=found.modules if is_here else (),
            held_in=lambda module: _held(module, swapped),
            elsewhere=elsewhere,
        )


def _held(module: Embedding, swapped: SwappedParameters) -> Any:
    parameter = module._parameters.get(WEIGHT)
    return None if parameter is None else swapped.find(module, WEIGHT, parameter)


def _is_fully_sharded(module: nn.Module) -> bool:
    """By the name of the type that ``fully_shard`` mixes into a module's class."""
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)
