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
