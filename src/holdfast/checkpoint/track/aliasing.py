"""Refuses tables whose memory can be changed through another tensor without being noticed.

Torch counts changes per tensor, and tensors derived from one another share the count. ``.data`` starts a new one: two
parameters over the same memory then each miss the other's changes, and so would every delta.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from holdfast.checkpoint.track.fingerprint import version_of
from holdfast.checkpoint.training.dtensors import local_of
from holdfast.checkpoint.training.tables import Table, join_names, stable_buffers, stable_parameters
from holdfast.errors import ConfigurationError


class _Span(NamedTuple):
    """The bytes of a tensor in its storage."""

    storage: int
    start: int
    stop: int
    name: str
    is_table: bool
    tensor: Tensor


def require_memory_of_their_own(tables: Sequence[Table], models: Mapping[str, nn.Module]) -> None:
    """Raise ConfigurationError for a table that shares memory with another tensor, and not the count of changes."""
    spans = sorted(_spans(tables, models), key=lambda span: span[:3])
    open_spans: list[_Span] = []  # those that may still overlap with what comes
    for span in spans:
        open_spans = [each for each in open_spans if each.storage == span.storage and each.stop > span.start]
        for other in open_spans:
            if (span.is_table or other.is_table) and not _count_together(other.tensor, span.tensor):
                raise _shared(other, span)
        open_spans.append(span)


def _spans(tables: Sequence[Table], models: Mapping[str, nn.Module]) -> Iterator[_Span]:
    seen: set[int] = set()
    for table in tables:
        seen.add(id(table.parameter))
        yield from _span(f"table {table.name!r}", table.parameter, is_table=True)
    for key, model in models.items():
        for kind, tensors in (("parameter", stable_parameters(model)), ("buffer", stable_buffers(model))):
            for name, tensor in ((name, local_of(tensor)) for name, tensor in tensors.items()):
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield from _span(f"{kind} {join_names(key, name)!r}", tensor, is_table=False)


def _span(name: str, tensor: Tensor, *, is_table: bool) -> Iterator[_Span]:
    if tensor.layout is not torch.strided or not tensor.numel() or tensor.is_meta:
        return
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # a tensor without a memory of its own
        return
    width = tensor.element_size()
    start = int(tensor.storage_offset()) * width
    last = sum((int(size) - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    yield _Span(storage._cdata, start, start + (last + 1) * width, name, is_table, tensor)


def _count_together(first: Tensor, second: Tensor) -> bool:
    """Whether a change of one shows in the other's count."""
    before = version_of(second)
    if before is None or version_of(first) is None:
        return False
    increment_version(first)
    return version_of(second) != before


def _shared(first: _Span, second: _Span) -> ConfigurationError:
    return ConfigurationError(
        f"{first.name} and {second.name} share memory, but PyTorch versions them separately (one was created from the "
        "other's .data), so a change to one would be missed in the other. If they are meant to be tied, assign the "
        "parameter itself (b.weight = a.weight); if not, copy it (a.weight.detach().clone())"
    )
