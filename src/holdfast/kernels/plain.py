"""Arrays as kernels take them."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.generic)


def plain(array: NDArray[Number]) -> NDArray[Number]:
    """Contiguous and aligned: what comes in a message may be neither."""
    return array if array.flags.c_contiguous and array.flags.aligned else array.copy(order="C")
