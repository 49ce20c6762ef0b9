"""What is kept of live tensors from one save to the next."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from holdfast.checkpoint.snapshot.known_views import KnownViews
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.codec.choice import table_codecs
from holdfast.kernels.quantize import tensors
from tests.checkpoint.snapshot.staging_agent import table_spec


def test_state_is_the_same_bytes_until_it_lies_elsewhere() -> None:
    views, tensor = KnownViews(), torch.randn(4, 3)
    first = views.state_bytes(0, tensor)
    tensor.add_(1.0)
    assert views.state_bytes(0, tensor.detach()) is first
    assert bytes(first.numpy()) == tensor.numpy().tobytes()
    other = tensor.clone()
    assert bytes(views.state_bytes(0, other).numpy()) == other.numpy().tobytes()
    assert views.state_bytes(0, other).data_ptr() == other.data_ptr()
    assert len(views.state_bytes(0, other[:2])) == 24  # at the same address


def test_state_that_is_not_contiguous_is_copied_every_time() -> None:
    views, tensor = KnownViews(), torch.randn(4, 3)
    for _ in range(2):
        tensor.mul_(2.0)
        assert bytes(views.state_bytes(0, tensor.T).numpy()) == tensor.T.contiguous().numpy().tobytes()


def test_columns_are_those_of_the_tables_memory_and_codecs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "is_cheap", lambda table, scheme: tensors.is_plain(table))
    spec = table_spec(10, 4)
    weight, momentum = torch.randn(10, 4), torch.randn(10, 4)
    copy = TableCopy(
        index=0, columns=spec.columns, tensors=(weight, momentum), start=0, stop=10, ids=None,
        codecs=table_codecs(spec, 2),
    )  # fmt: skip
    views = KnownViews()
    first = views.columns(copy)
    assert views.columns(replace(copy, tensors=(weight.detach(), momentum.detach()))) is first
    moved = views.columns(replace(copy, tensors=(weight.clone(), momentum)))
    assert moved is not first and moved["weight"].tensor.data_ptr() != weight.data_ptr()
    assert not views.columns(replace(copy, codecs={}))
