"""Rows as differences from the same rows of a baseline, as a video's frames refer to a key frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from holdfast.codec.base import Encoded, Records, Rows
from holdfast.codec.quantized import Quantized, escapes_of, put_escapes
from holdfast.codec.rows import check_rows, from_single, to_single
from holdfast.errors import ConfigurationError
from holdfast.kernels import quantize


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The checkpoint that differences refer to: its id and the digest of its part list."""

    checkpoint: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The inner codec's records of (row − the baseline's stored row), which decode only beside that baseline.

    The error is the inner codec's on the difference, and one rounding. Rows that are escapes are kept exactly, not as
    differences. ``baseline_rows`` are always the rows as the baseline's own codec gives them back.
    """

    inner: Quantized
    baseline: Baseline
    name: ClassVar[str] = "difference"

    def parameters(self) -> Mapping[str, int | float | str | Mapping[str, int | float | str]]:
        """All that makes this codec another than one of the same name; JSON."""
        return {
            "inner": {"name": self.inner.name, **self.inner.parameters()},
            "baseline": self.baseline.checkpoint,
            "digest": self.baseline.digest,
        }

    def bytes_per_row(self, dim: int, dtype: str = "F32") -> int:
        """Those of the inner codec."""
        return self.inner.bytes_per_row(dim, dtype)

    def escaped(self, records: Records, dim: int, dtype: str = "F32") -> NDArray[np.bool_]:
        """Which rows are among the escapes."""
        return self.inner.escaped(records, dim, dtype)

    def encode(self, rows: Rows, baseline_rows: Rows, dtype: str = "F32", *, threads: int = 1) -> Encoded:
        """Records and escapes of ``[rows, dim]`` rows."""
        check_rows(rows, dtype)
        _check_beside(rows, baseline_rows)
        if self.inner.is_exact(rows.shape[1], dtype):
            return self.inner.encode(rows, dtype)
        with np.errstate(all="ignore"):  # what is not finite stays so, and is escaped
            difference = to_single(rows, dtype) - to_single(baseline_rows, dtype)
        records, escaped = quantize.encode(difference, self.inner.scheme, threads=threads)
        return Encoded(records=records, escapes=escapes_of(rows, records, escaped))

    def decode(
        self,
        encoded: Encoded,
        baseline_rows: Rows,
        beside: Baseline,
        dim: int,
        dtype: str = "F32",
        *,
        threads: int = 1,
    ) -> Rows:
        """The rows, given those of the baseline; any other baseline is refused."""
        self.check_baseline(beside)
        if self.inner.is_exact(dim, dtype):
            return self.inner.decode(encoded, dim, dtype)
        difference = quantize.decode(encoded.records, self.inner.scheme, dim, threads=threads)
        _check_beside(difference, baseline_rows)
        with np.errstate(all="ignore"):
            rows = from_single(to_single(baseline_rows, dtype) + difference, dtype)
        put_escapes(rows, encoded, dtype)
        return rows

    def check_baseline(self, beside: Baseline) -> None:
        """Raise unless these are differences from that baseline."""
        if beside != self.baseline:
            raise ConfigurationError(
                f"these rows are differences from checkpoint {self.baseline.checkpoint} ({self.baseline.digest}), "
                f"not from {beside.checkpoint} ({beside.digest}): decode them against the baseline they name"
            )


def _check_beside(rows: Rows, baseline_rows: Rows) -> None:
    if rows.shape != baseline_rows.shape:
        raise ConfigurationError(
            f"{len(rows)} rows against {len(baseline_rows)} of the baseline, of shapes {rows.shape} and "
            f"{baseline_rows.shape}: pass the baseline's row for each row"
        )
