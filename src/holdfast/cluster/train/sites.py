"""Sites: where in a batch the ids of a table are, learnt from what reached the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from holdfast.cluster.train.layout import are_same_elements

_DEPTH = 6  # of containers that are looked into
_DIMENSIONS = 4  # of tensors whose parts are recognised

_MOST_COLUMNS = 256  # that are cut at once, of which not all may be needed

Path: TypeAlias = tuple["Step", ...]


class Step(NamedTuple):
    """One step on the way to a tensor: an attribute, or an item."""

    key: Any
    is_attribute: bool = False


class Part(NamedTuple):
    """Of one dimension: all from ``start`` on, or up to ``end``; or the one at ``start``, without the dimension."""

    start: int = 0
    end: int | None = None
    is_single: bool = False

    def is_in(self, size: int) -> bool:
        """Whether a dimension of this size has it."""
        return self.start < size if self.is_single else max(self.start, self.end or 0) <= size

    def as_index(self) -> int | slice:
        """For indexing a tensor."""
        return self.start if self.is_single else slice(self.start, self.end)


_WHOLE = Part()


class OpenBatch:
    """A batch in which each tensor is looked for once, and cut into columns once, whatever the number of sites."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._tensors: dict[Path, Tensor | None] = {}
        self._columns: dict[tuple[Path, int], Sequence[Tensor]] = {}

    def tensor(self, path: Path) -> Tensor | None:
        """The tensor at the end of a path; None where the batch has none there."""
        if path not in self._tensors:
            self._tensors[path] = _follow(path, self._batch)
        return self._tensors[path]

    def columns(self, path: Path, dimension: int) -> Sequence[Tensor]:
        """The tensor at the end of a path, which is there, cut along a dimension."""
        key = (path, dimension)
        if key not in self._columns:
            tensor = self.tensor(path)
            assert tensor is not None
            self._columns[key] = tensor.unbind(dimension)
        return self._columns[key]


def _follow(path: Path, batch: Any) -> Tensor | None:
    found = batch
    try:
        for step in path:
            found = getattr(found, step.key) if step.is_attribute else found[step.key]
    except (AttributeError, LookupError, TypeError):
        return None
    return found if isinstance(found, Tensor) else None


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """A tensor of a batch, and a part of it that every batch has."""

    path: Path
    parts: tuple[Part, ...]

    def view(self, batch: OpenBatch) -> Tensor | None:
        """The ids in a batch, without a copy; None where the batch is made differently."""
        found = batch.tensor(self.path)
        if found is None or found.dim() != len(self.parts):
            return None
        cut = [number for number, part in enumerate(self.parts) if part != _WHOLE]
        if not all(self.parts[number].is_in(found.shape[number]) for number in cut):
            return None
        if len(cut) == 1 and self.parts[cut[0]].is_single and found.shape[cut[0]] <= _MOST_COLUMNS:
            return batch.columns(self.path, cut[0])[self.parts[cut[0]].start]
        return found[tuple(part.as_index() for part in self.parts)]


def learn(batch: Any, ids: Tensor) -> Site | None:
    """Where in a batch these ids are: None for a copy, or a part that takes more than an index per dimension."""
    storage = ids.untyped_storage().data_ptr()
    for path, tensor in _tensors(batch, (), _DEPTH):
        if tensor.dtype == ids.dtype and tensor.untyped_storage().data_ptr() == storage:
            parts = _part_of(tensor, ids)
            if parts is not None:
                return Site(path, parts)
    return None


def _tensors(value: Any, path: Path, depth: int) -> Iterator[tuple[Path, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif depth:
        for step, item in _items(value):
            yield from _tensors(item, (*path, step), depth - 1)


def _items(value: Any) -> Iterator[tuple[Step, Any]]:
    if isinstance(value, Mapping):
        yield from ((Step(key), item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        yield from ((Step(number), item) for number, item in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((Step(each.name, True), getattr(value, each.name)) for each in dataclasses.fields(value))
    elif hasattr(value, "__dict__"):
        yield from ((Step(name, True), item) for name, item in vars(value).items())


def _part_of(tensor: Tensor, ids: Tensor) -> tuple[Part, ...] | None:
    """An index for each dimension of ``tensor`` that gives ``ids``."""
    if tensor.dim() > _DIMENSIONS or not ids.numel():
        return None
    starts = _starts(tensor, int(ids.storage_offset()) - int(tensor.storage_offset()))
    if starts is None:
        return None
    for parts in _candidates(tensor, starts, ids.numel()):
        found = tensor[tuple(part.as_index() for part in parts)]
        if are_same_elements(found, ids):
            return parts
    return None


def _starts(tensor: Tensor, offset: int) -> list[int] | None:
    """Where in each dimension the element at ``offset`` is."""
    starts = [0] * tensor.dim()
    strides = tensor.stride()
    for number in sorted(range(tensor.dim()), key=lambda number: -strides[number]):
        stride = strides[number]
        if stride > 0 and tensor.shape[number] > 1:
            starts[number] = offset // stride
            offset -= starts[number] * stride
    is_inside = all(0 <= start < max(size, 1) for start, size in zip(starts, tensor.shape, strict=True))
    return starts if offset == 0 and is_inside else None


def _candidates(tensor: Tensor, starts: list[int], wanted: int) -> Iterator[tuple[Part, ...]]:
    """Some dimensions at one index, the rest whole; then the same with one of the rest cut to what is wanted."""
    dimensions = range(tensor.dim())
    choices = [single for count in range(tensor.dim() + 1) for single in combinations(dimensions, count)]
    for single in choices:
        if not any(starts[number] for number in dimensions if number not in single):
            yield tuple(Part(starts[number], is_single=True) if number in single else Part() for number in dimensions)
    for single in choices:
        for cut in dimensions:
            if cut not in single:
                yield from _cut(tensor, starts, wanted, single, cut)


def _cut(
    tensor: Tensor, starts: list[int], wanted: int, single: tuple[int, ...], cut: int
) -> Iterator[tuple[Part, ...]]:
    others = [number for number in range(tensor.dim()) if number not in single and number != cut]
    size = 1
    for number in others:
        size *= tensor.shape[number]
    if any(starts[number] for number in others) or not size or wanted % size:
        return
    end = starts[cut] + wanted // size
    if end <= tensor.shape[cut]:
        kept = Part(starts[cut], None if end == tensor.shape[cut] else end)
        yield tuple(
            kept if number == cut else Part(starts[number], is_single=True) if number in single else Part()
            for number in range(tensor.dim())
        )
