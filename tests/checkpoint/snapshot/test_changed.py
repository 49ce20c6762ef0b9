"""What a strategy is told of the rows that changed."""

from __future__ import annotations

import pytest

from holdfast.checkpoint.snapshot.changed import ChangedRows, ChangedShares, baseline_row_bytes, delta_row_bytes
from holdfast.codec.choice import table_codecs, weight_codec
from holdfast.types import ColumnSpec, TableSpec

SPEC = TableSpec(
    name="table",
    rows=100,
    columns=(
        ColumnSpec(name="weight", dtype="F32", row_shape=(64,)),
        ColumnSpec(name="sum", dtype="F32", row_shape=(64,)),
    ),
)


def test_shares_are_of_the_bytes_of_all_tables_together() -> None:
    small = ChangedRows(rows=10, since_last=10, since_baseline=10, baseline_row_bytes=100, delta_row_bytes=104)
    large = ChangedRows(rows=1000, since_last=0, since_baseline=500, baseline_row_bytes=10, delta_row_bytes=14)
    shares = ChangedShares.of([small, large])
    assert shares.increment == pytest.approx(1040 / 11_000)
    assert shares.above_baseline == pytest.approx((1040 + 7000) / 11_000)


def test_no_tables_change_nothing() -> None:
    assert ChangedShares.of([]) == ChangedShares(increment=0.0, above_baseline=0.0)


def test_a_row_takes_its_id_more_in_a_delta_and_less_as_a_difference_in_few_bits() -> None:
    assert baseline_row_bytes(SPEC, {}) == 512
    assert delta_row_bytes(SPEC, {}, None) == 516
    codecs = table_codecs(SPEC, 8)
    assert 64 < baseline_row_bytes(SPEC, codecs) < 512
    assert delta_row_bytes(SPEC, codecs, weight_codec(2)) < baseline_row_bytes(SPEC, codecs)
