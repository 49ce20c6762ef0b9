"""Arrays as kernels take them."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigurationError

Number = TypeVar("Number", bound=np.generic)


def plain(array: NDArray[Number]) -> NDArray[Number]:
    """Contiguous and aligned: what comes in a message may be neither."""
    return array if array.flags.c_contiguous and array.flags.aligned else array.copy(order="C")


def rows_inside(rows: NDArray[Any], size: int, holder: str) -> NDArray[np.int64]:
    """Rows as kernels take them; one that the holder does not have raises ConfigurationError."""
    known = plain(rows.astype(np.int64, copy=False))
    if len(known) and not (known.min() >= 0 and known.max() < size):
        outside = known[(known < 0) | (known >= size)][0]
        raise ConfigurationError(f"row {outside} is outside {holder} of {size} rows")
    return known
