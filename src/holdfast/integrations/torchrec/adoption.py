"""Makes tables of what TorchRec divided: shards of rows, strips of values, under the names of an unsharded model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle
from torchrec.modules.embedding_configs import data_type_to_dtype

from holdfast.checkpoint.ranks.agreement import Agreement
from holdfast.checkpoint.training.divided import SeeRows
from holdfast.checkpoint.training.extent import Extent
from holdfast.checkpoint.training.lent import LentTable
from holdfast.checkpoint.training.tables import Table
from holdfast.errors import ConfigurationError
from holdfast.integrations.torchrec.collection import Collection, Kernel, find_collections
from holdfast.integrations.torchrec.fused import FusedFacts, FusedTable, row_shape_of, slots_of
from holdfast.integrations.torchrec.lookups import LookupWatch
from holdfast.integrations.torchrec.stand_in import StandIns


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A table of an operator of this rank."""

    kernel: Kernel
    number: int

    @property
    def weight(self) -> Tensor:
        """The rows."""
        found: Tensor = self.kernel.operator.split_embedding_weights()[self.number]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some values of each row of a table, as the plan divides them, and what of their rows is on this rank."""

    collection: Collection
    table: str
    sharding: Any
    extent: Extent
    values: int
    place: Place | None

    @property
    def dtype(self) -> torch.dtype:
        """That of its weights, as the model was configured."""
        found: torch.dtype = data_type_to_dtype(self.collection.config(self.table).data_type)
        return found

    @property
    def name(self) -> str:
        """Under which it is stored."""
        return self.extent.name(self.values)


class AdoptedModel:
    """The tables of TorchRec's modules, as the Checkpointer sees them."""

    def __init__(self, models: Mapping[str, nn.Module], agreement: Agreement) -> None:
        self._collections = find_collections(models)
        self._stand_ins = StandIns()
        parts = [part for collection in self._collections for part in parts_of(collection, agreement.rank)]
        fused = [part for part in parts if part.sharding.compute_kernel == "fused"]
        facts = _agree(fused, agreement)
        self._fused = {part.name: _fused_table(part, facts[part.name]) for part in fused}
        self.tables: tuple[Table, ...] = tuple(
            self._fused[part.name] if part.name in self._fused else _dense_table(part) for part in parts
        )
        self._watches = list(self._lookup_watches(fused))
        self._stand_for(fused, facts)

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        """Of the tables that operators update themselves."""
        return self._stand_ins.optimizers

    def knows(self, module: nn.Module) -> bool:
        """Whether it is one of TorchRec's wrappers or collections: all others were refused."""
        return type(module).__module__.startswith("torchrec.distributed")

    def watch(self, see: SeeRows) -> list[RemovableHandle]:
        """Tell of the rows of every lookup, when its backward pass begins."""
        return [watch.install(see) for watch in self._watches]

    def read_options(self) -> None:
        """Learning rates, as they are now."""
        self._stand_ins.read_options()

    def write_options(self) -> None:
        """Learning rates, as they were stored."""
        self._stand_ins.write_options()

    def _lookup_watches(self, fused: Sequence[Part]) -> Iterator[LookupWatch]:
        """One for each operator; raises ConfigurationError if rows of a fused table are in none."""
        kernels = {id(part.place.kernel.operator): part.place.kernel for part in fused if part.place is not None}
        for kernel in kernels.values():
            own = {part.place.number: part for part in fused if part.place is not None and part.place.kernel is kernel}
            yield LookupWatch(kernel.operator, [self._fused[own[number].name] for number in range(len(own))])

    def _stand_for(self, fused: Sequence[Part], facts: Mapping[str, Mapping[str, Any]]) -> None:
        added: set[int] = set()
        for part in fused:
            found, parameter = facts[part.name], part.collection.parameter(part.table)
            if id(parameter) not in added:
                added.add(id(parameter))
                self._stand_ins.add(found["kind"], found["options"], parameter)
            if part.place is not None:
                kernel = part.place.kernel
                around = kernel.holder.fused_optimizer
                self._stand_ins.add_operator(found["kind"], found["options"], kernel.operator, around)
        self._stand_ins.build()


def adopt(models: Mapping[str, nn.Module], agreement: Agreement) -> AdoptedModel:
    """The divided tables of models, some of which are TorchRec's; all ranks call this together."""
    return AdoptedModel(models, agreement)


def parts_of(collection: Collection, rank: int) -> Iterator[Part]:
    """What the plan makes of each table, in the plan's order: the same on all ranks."""
    places = {
        (config.name, *_offsets(config)): Place(kernel=kernel, number=number)
        for kernel in collection.kernels()
        for number, config in enumerate(kernel.configs)
    }
    for table, sharding in collection.plan.items():
        yield from _parts(collection, table, sharding, places, rank)


def _parts(
    collection: Collection, table: str, sharding: Any, places: Mapping[tuple[Any, ...], Place], rank: int
) -> Iterator[Part]:
    name, config = collection.name(table), collection.config(table)
    rows, width = config.num_embeddings, config.embedding_dim
    shards = [] if sharding.sharding_spec is None else sharding.sharding_spec.shards
    if not shards:  # data parallel: on all ranks, in full
        extent = Extent(table=name, rows=rows, width=width)
        place = places[table, 0, 0]
        yield Part(collection=collection, table=table, sharding=sharding, extent=extent, values=width, place=place)
        return
    for value, values in sorted({(shard.shard_offsets[1], shard.shard_sizes[1]) for shard in shards}):
        own = [each for each in shards if each.shard_offsets[1] == value and each.placement.rank() == rank]
        first = own[0].shard_offsets[0] if own else 0
        held = places.get((table, first, value)) if own else None
        if own and held is None and own[0].shard_sizes[0]:
            raise ConfigurationError(
                f"table {name!r} ({sharding.sharding_type}): no lookup of this rank holds its rows from {first} on. "
                "The plan and the modules do not agree; create the Checkpointer after DistributedModelParallel"
            )
        yield Part(
            collection=collection,
            table=table,
            sharding=sharding,
            extent=Extent(table=name, rows=rows, width=width, first=min(first, rows), value=value),
            values=values,
            place=held,
        )


def _offsets(config: Any) -> tuple[int, int]:
    metadata = config.local_metadata
    return (0, 0) if metadata is None else (metadata.shard_offsets[0], metadata.shard_offsets[1])


def _agree(fused: Sequence[Part], agreement: Agreement) -> dict[str, dict[str, Any]]:
    """What is known of each fused table by the ranks that have rows of it; all must know the same."""
    own = {
        part.name: FusedFacts.of(
            part.place.kernel.operator, part.place.number, part.extent.table, part.sharding.sharding_type
        ).to_json()
        for part in fused
        if part.place is not None
    }
    found: dict[str, dict[str, Any]] = {}
    for facts in agreement.gather(own):
        for name, fact in facts.items():
            before = found.setdefault(name, fact)
            for what in ("kind", "dtype"):
                if before[what] != fact[what]:
                    raise ConfigurationError(
                        f"shards of table {name!r} differ: {before[what]} on one rank, {fact[what]} on another. Give "
                        "all shards of a table the same precision and optimizer"
                    )
    if missing := [part.name for part in fused if part.name not in found]:
        raise ConfigurationError(f"table {missing[0]!r} is fused, but no rank has an operator for it")
    return found


def _fused_table(part: Part, facts: Mapping[str, Any]) -> FusedTable:
    if part.place is not None:
        weight, slots = part.place.weight, slots_of(part.place.kernel.operator, part.place.number)
    else:
        weight = torch.empty((0, part.values), dtype=getattr(torch, facts["dtype"]))
        shape = (0, *row_shape_of(facts["kind"], part.values))
        slots = {name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, dtype in facts["slots"].items()}
    return FusedTable(
        name=part.name,
        parameter=nn.Parameter(weight, requires_grad=False),
        extent=part.extent,
        stands_for=part.collection.parameter(part.table),
        kept=slots,
        is_current=partial(_are_current, part),
    )


def _are_current(part: Part, rows: Tensor) -> bool:
    """Whether a lookup of this rank uses these rows. Asked of every table at every save: it looks at no other table."""
    if part.place is None or all(part.place.kernel.holder is not each for each in part.collection.holders()):
        return False
    operator = part.place.kernel.operator
    weights = operator.weights_dev if rows.is_cuda else operator.weights_host
    same: bool = weights.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr()
    return same


def _dense_table(part: Part) -> Table:
    """A table of the dense kernel: an ordinary parameter with an ordinary optimizer, where this rank has rows."""
    parameter, sharding = part.collection.parameter(part.table), part.sharding
    shared = 1 if part.place is None else len(part.place.kernel.configs)
    if sharding.sharding_spec is None:  # data parallel: on all ranks, in full
        return Table(name=part.name, parameter=parameter, counted_with=shared)
    if part.place is not None and parameter.shape == part.place.weight.shape:
        return LentTable(name=part.name, parameter=parameter, extent=part.extent, counted_with=shared)
    if part.place is not None:
        raise ConfigurationError(
            f"table {part.extent.table!r} ({sharding.sharding_type}) has several shards on one rank, and the compute "
            "kernel 'dense'. This is not supported: give its shards to different ranks, or constrain it to 'fused', "
            "with ParameterConstraints(compute_kernels=['fused'])"
        )
    rows = nn.Parameter(torch.empty((0, part.values), dtype=part.dtype), requires_grad=False)
    return LentTable(name=part.name, parameter=rows, extent=part.extent, stands_for=parameter)
