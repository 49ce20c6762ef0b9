"""Embedding tables, discovered automatically in the model, with the optimizer that moves their rows."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from holdfast.checkpoint.training.dtensors import SwappedParameters
from holdfast.checkpoint.training.extent import Extent
from holdfast.checkpoint.training.forms import has_form
from holdfast.checkpoint.training.slot_names import WEIGHT as WEIGHT
from holdfast.checkpoint.training.slot_names import named_slots, slot_key
from holdfast.checkpoint.training.slot_names import weight_name as weight_name
from holdfast.errors import ConfigurationError, UnsupportedState
from holdfast.format.dtypes import code_of, torch_dtype
from holdfast.types import ColumnSpec, TableSpec

Embedding = nn.Embedding | nn.EmbeddingBag
_Forms = list[tuple[str, torch.dtype, torch.Size]]  # of columns


@dataclass(eq=False, slots=True, kw_only=True)
class Table:
    """A parameter of embedding rows, the modules that look rows up in it, and the optimizer that moves them.

    Of a divided table it is what this rank holds: ``extent`` says of which rows and values.
    """

    name: str  # that of a strip, where the rank holds some values of each row
    parameter: nn.Parameter
    optimizer: Optimizer | None = None
    modules: tuple[Embedding, ...] = ()  # all those whose ``weight`` it is
    extent: Extent | None = None  # None: every rank holds all of it
    stands_for: nn.Parameter | None = None  # the model's parameter, where that is another tensor
    counted_with: int = 1  # tables in its memory, itself included, whose changes torch counts together
    _last_spec: tuple[_Forms, TableSpec] | None = field(default=None, init=False, repr=False)

    @property
    def rows(self) -> int:
        """How many rows are held here: all, unless it is divided."""
        return self.parameter.shape[0]

    @property
    def whole_name(self) -> str:
        """The name of the whole table."""
        return self.name if self.extent is None else self.extent.table

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape of the whole table's weights."""
        return tuple(self.parameter.shape) if self.extent is None else (self.extent.rows, self.extent.width)

    @property
    def identity(self) -> int:
        """That of the parameter by which the model and its optimizers know it."""
        return id(self.parameter if self.stands_for is None else self.stands_for)

    @property
    def optimized(self) -> nn.Parameter:
        """The parameter that its optimizer holds, and keeps state for."""
        return self.parameter

    @property
    def origin(self) -> int:
        """The table's row that its tensors begin with."""
        return 0 if self.extent is None else self.extent.first

    def share(self, rank: int, world: int) -> tuple[int, int]:
        """The range of its tensors' rows that this rank saves: all it holds, or a part of what everybody holds."""
        if self.extent is None:
            return row_range(self.rows, rank, world)
        return row_range(self.rows, self.extent.replica, self.extent.replicas)

    def local_ids(self, ids: Tensor) -> Tensor:
        """Rows of the table, as far as they are held here, by their numbers in the tensors."""
        return ids if self.extent is None else self.extent.inside(ids, self.rows)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row's weights."""
        return tuple(self.parameter.shape[1:])

    @property
    def group(self) -> dict[str, Any] | None:
        """The optimizer's parameter group that holds it now."""
        groups = self.optimizer.param_groups if self.optimizer else ()
        return next((group for group in groups if any(held is self.optimized for held in group["params"])), None)

    def attach(self, optimizer: Optimizer) -> None:
        """One of the optimizers holds its parameter."""
        self.optimizer = optimizer

    def is_replaced(self) -> bool:
        """Whether a module that holds it in a way of its own looks rows up elsewhere by now."""
        return False

    def is_in(self, module: Embedding) -> bool:
        """Whether a module still holds it."""
        return module._parameters.get(WEIGHT) is self.parameter

    def local(self, gradient: Tensor) -> Tensor | None:
        """The rows of a gradient that are held here; None where these cannot be told."""
        return gradient

    def counted(self) -> list[Tensor]:
        """Tensors besides its own, the first of them that of the weights, which count changes of its memory."""
        return []

    def slots(self) -> dict[str, Tensor]:
        """The optimizer's tensors that have one entry per row, as they are now, by column, in the order of columns."""
        if self.optimizer is None or not self.optimizer.state:
            return {}
        state = self.optimizer.state.get(self.parameter)
        slots = {key: value for key, value in state.items() if self.is_slot(value)} if state else {}
        return named_slots(slots, f"table {self.name!r}") if slots else slots

    def is_slot(self, value: object) -> bool:
        """Whether a value of the optimizer's state has one entry per row, which can be copied row by row."""
        # Momentum over sparse gradients is itself a sparse tensor: state, but not rows that could be copied one by one.
        return (
            isinstance(value, Tensor)
            and value.layout is torch.strided
            and value.dim() >= 1
            and value.shape[0] == self.rows
        )

    def own_columns(self) -> dict[str, Tensor]:
        """What a keyed table keeps for each of its rows, by column: no optimizer's."""
        return {}

    def beside_weight(self) -> dict[str, Tensor]:
        """All that its row records hold beside the weight, in the order of columns."""
        slots, own = self.slots(), self.own_columns()
        found = {**slots, **own} if own else slots
        return dict(sorted(found.items())) if len(found) > 1 else found

    def is_like(self, shape: Sequence[int]) -> bool:
        """Whether a stored table of this shape could be this one."""
        return tuple(shape) == self.whole_shape

    def spec(self, beside: Mapping[str, Tensor] | None = None) -> TableSpec:
        """Every column of its row records, the weight first; ``beside`` is what ``beside_weight`` gave, if known."""
        tensors = {WEIGHT: self.parameter, **(self.beside_weight() if beside is None else beside)}
        if self.extent is not None:
            return self._spec(tensors)
        forms: _Forms = [(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
        last = self._last_spec
        if last is None or last[0] != forms:  # asked for in every save
            last = self._last_spec = (forms, self._spec(tensors))
        return last[1]

    def _spec(self, tensors: Mapping[str, Tensor]) -> TableSpec:
        columns = tuple(self._column(name, tensor) for name, tensor in tensors.items())
        strip = None if self.extent is None else self.extent.strip(self.parameter.shape[1])
        return TableSpec(name=self.name, rows=self.whole_shape[0], columns=columns, strip=strip)

    def ensure_slots(self, columns: Sequence[ColumnSpec]) -> dict[str, Tensor]:
        """The live slots to write rows into, exactly ``columns``: created, replaced, removed as needed.

        What servers count for each row and torch once for all, as Adam's steps, was restored as the optimizer's state:
        no slot.
        """
        if self.optimizer is None:
            return {}
        state = self.optimizer.state[self.parameter]
        wanted = {
            column.name: column
            for column in columns
            if not column.is_keyed and not is_number(state.get(slot_key(column.name)))
        }
        for name in self.slots().keys() - wanted.keys():  # going back to before the first step
            del state[slot_key(name)]
        for name, column in wanted.items():
            key, shape, dtype = slot_key(name), (self.rows, *column.row_shape), torch_dtype(column.dtype)
            live = state.get(key)
            if not has_form(live, shape, dtype):
                state[key] = torch.zeros(shape, dtype=dtype, device=self.parameter.device)
        if not state:
            del self.optimizer.state[self.parameter]
        return {name: state[slot_key(name)] for name in wanted}

    def _column(self, name: str, tensor: Tensor) -> ColumnSpec:
        try:
            return _column_spec(name, tensor.dtype, tensor.shape[1:])
        except UnsupportedState as error:
            raise UnsupportedState(f"table {self.name!r}, column {name!r}: {error}") from None


@lru_cache(maxsize=4096)
def _column_spec(name: str, dtype: torch.dtype, row_shape: torch.Size) -> ColumnSpec:
    """Asked for every column, several times in each save."""
    return ColumnSpec(name=name, dtype=code_of(dtype), row_shape=tuple(row_shape))


def is_number(value: object) -> bool:
    """Whether an optimizer keeps one number for all rows."""
    return isinstance(value, int | float) or (isinstance(value, Tensor) and value.dim() == 0)


def find_tables(
    models: Mapping[str, nn.Module],
    optimizers: Sequence[Optimizer] = (),
    extra: Mapping[str, nn.Parameter] | None = None,
    divided: Sequence[Table] = (),
    keyed: Sequence[Table] = (),
) -> tuple[Table, ...]:
    """Every ``nn.Embedding`` and ``nn.EmbeddingBag`` weight, once each, and the extra parameters used like one.

    ``divided`` are the tables of modules that divide them over the ranks, found by whoever knows these modules;
    ``keyed`` are those whose rows are found by keys, whether a module of the model holds their weights or not.

    A table is called by the path of the first embedding that holds it, after its model's key and a dot where the key
    is not empty. Raises ConfigurationError for a parameter in two optimizers and for a name used twice.
    """
    found: dict[int, Table] = {}
    known = {table.identity: table.whole_name for table in divided}
    for path, module in find_embeddings(models):
        weight = module._parameters.get(WEIGHT)  # absent where a parametrization computes it
        if weight is None or id(weight) in known:
            continue
        table = found.setdefault(id(weight), Table(name=path, parameter=weight))
        table.modules += (module,)
    found |= {id(table.parameter): table for table in divided}
    for table in keyed:
        table.modules = found[id(table.parameter)].modules if id(table.parameter) in found else ()
        found[id(table.parameter)] = table
    for name, parameter in (extra or {}).items():
        if known.get(id(parameter)) != name:
            _add_extra(found, known, name, parameter)
    _attach(found, optimizers, models)
    _refuse_repeated(table.name for table in found.values())
    return tuple(found.values())


def holders(optimizers: Sequence[Optimizer]) -> dict[int, tuple[Optimizer, ...]]:
    """The optimizers that hold each parameter, by its identity."""
    held: dict[int, tuple[Optimizer, ...]] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                held[id(parameter)] = (*held.get(id(parameter), ()), optimizer)
    return held


def stable_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module once, by a path in which DDP, ``torch.compile`` and averaging leave no trace.

    A wrapper and what it wraps have the same path; the wrapper comes first.
    """
    found: list[tuple[str, nn.Module]] = []
    _walk(model, "", set(), found)
    return iter(found)


def stable_parameters(model: nn.Module, swapped: SwappedParameters | None = None) -> dict[str, nn.Parameter]:
    """Every parameter once, by the first of its stable names; behind those that are swapped, the ones that stay."""
    return parameters_of(stable_modules(model), swapped)


def parameters_of(
    modules: Iterable[tuple[str, nn.Module]], swapped: SwappedParameters | None = None
) -> dict[str, nn.Parameter]:
    """``stable_parameters`` of a model whose modules these are."""
    named: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for path, module in modules:
        for name, parameter in module._parameters.items():
            if parameter is not None and swapped is not None:
                parameter = swapped.find(module, name, parameter)
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                _put(named, join_names(path, name), parameter)
    return named


def stable_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Every persistent buffer once, by the first of its stable names."""
    return buffers_of(stable_modules(model))


def buffers_of(modules: Iterable[tuple[str, nn.Module]]) -> dict[str, Tensor]:
    """Every persistent buffer of these modules once, by the first of its stable names."""
    named: dict[str, Tensor] = {}
    seen: set[int] = set()
    for path, module in modules:
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set and id(buffer) not in seen:
                seen.add(id(buffer))
                _put(named, join_names(path, name), buffer)
    return named


def _walk(module: nn.Module, path: str, seen: set[int], found: list[tuple[str, nn.Module]]) -> None:
    if id(module) in seen:
        return
    seen.add(id(module))
    found.append((path, module))
    if not module._modules:
        return
    wrapped = _wrapped_name(type(module))  # type: ignore[arg-type]  # mypy takes the class's __hash__ for its own
    for name, child in module._modules.items():
        if child is not None:
            _walk(child, path if name == wrapped else join_names(path, name), seen, found)


@lru_cache(maxsize=1024)  # a model is walked in every save
def _wrapped_name(kind: type[Any]) -> str | None:
    if issubclass(kind, nn.parallel.DistributedDataParallel | nn.DataParallel | AveragedModel):
        return "module"
    # Importing the compiler takes seconds; where nobody did, no class is one of its kind, nor will be later.
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is not None and issubclass(kind, compiler.OptimizedModule):
        return "_orig_mod"
    torchrec = sys.modules.get("torchrec.distributed.model_parallel")
    if torchrec is not None and issubclass(kind, torchrec.DistributedModelParallel):
        return "_dmp_wrapped_module"
    return None


def find_embeddings(models: Mapping[str, nn.Module]) -> Iterator[tuple[str, Embedding]]:
    """Every embedding, by the name of its table."""
    for key, model in models.items():
        for path, module in stable_modules(model):
            if isinstance(module, Embedding):
                yield join_names(key, path or WEIGHT), module


def _add_extra(found: dict[int, Table], divided: Mapping[int, str], name: str, parameter: nn.Parameter) -> None:
    if not isinstance(parameter, nn.Parameter) or parameter.dim() < 1:
        raise ConfigurationError(f"table {name!r} must be an nn.Parameter with one entry per row")
    if id(parameter) in found or id(parameter) in divided:
        known = divided.get(id(parameter)) or found[id(parameter)].name
        raise ConfigurationError(f"table {name!r} is already known as {known!r}; leave it out")
    found[id(parameter)] = Table(name=name, parameter=parameter)


def _attach(found: dict[int, Table], optimizers: Sequence[Optimizer], models: Mapping[str, nn.Module]) -> None:
    for identity, held_by in holders(optimizers).items():
        if len(held_by) > 1:
            kinds = " and ".join(type(optimizer).__name__ for optimizer in held_by)
            raise ConfigurationError(
                f"parameter {_name_of(identity, models)} is in two optimizers ({kinds}); keep it in only one"
            )
        for table in found.values():
            if table.identity == identity:
                table.attach(held_by[0])


def _name_of(identity: int, models: Mapping[str, nn.Module]) -> str:
    for key, model in models.items():
        for path, parameter in stable_parameters(model).items():
            if id(parameter) == identity:
                return repr(join_names(key, path))
    return "(not part of any model passed)"


def _refuse_repeated(names: Iterator[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigurationError(f"two tables are named {name!r}; give their models different keys")
        seen.add(name)


def _put(named: dict[str, Any], name: str, value: Tensor) -> None:
    if name in named:
        raise ConfigurationError(f"{name!r} names two tensors once wrapper prefixes are removed; rename one of them")
    named[name] = value


def join_names(*parts: str) -> str:
    """A dotted name, without the parts that are empty."""
    return ".".join(filter(None, parts))


def row_range(rows: int, rank: int, world: int) -> tuple[int, int]:
    """The contiguous share of a table's rows that a writer saves where every writer holds all of them."""
    return rows * rank // world, rows * (rank + 1) // world
