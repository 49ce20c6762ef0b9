"""What a Criteo sample looks like."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

DENSE_FIELDS = 13

# Distinct values of each categorical field in the 45.8 million samples of Criteo Kaggle.
# fmt: off
KAGGLE_CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
# fmt: on

SMALLEST_CARDINALITY = 3


class Batch(NamedTuple):
    """Samples as tensors. A named tuple, because data loaders pass and pin tuples of tensors as they are."""

    dense: Tensor  # float32 [samples, 13]
    ids: Tensor  # int64 [samples, 26]; [samples, 26, k] where a field has k values
    labels: Tensor  # float32 [samples], 0 or 1


def scaled_cardinalities(scale: float) -> tuple[int, ...]:
    """Criteo Kaggle's cardinalities times ``scale``, none below 3."""
    if not scale > 0:
        raise ValueError(f"scale is {scale}: take a positive number, 1.0 for the real cardinalities")
    return tuple(max(SMALLEST_CARDINALITY, round(rows * scale)) for rows in KAGGLE_CARDINALITIES)
