"""The mean of several workers' gradients, in a fixed order: one step of synchronous training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.cluster.payload import Gradients
from holdfast.kernels.optimize import sum_duplicates


def mean(pushes: Sequence[Gradients], groups: int) -> Gradients:
    """Sums in the order of the pushes, divided by their number. One push is its own mean, bit for bit."""
    if len(pushes) == 1:
        return pushes[0]
    share = np.float32(len(pushes))
    sums = [
        sum_duplicates(
            np.concatenate([each.rows[group] for each in pushes]),
            np.concatenate([each.values[group] for each in pushes]),
        )
        for group in range(groups)
    ]
    dense = pushes[0].dense.copy()
    for each in pushes[1:]:
        dense += each.dense
    return Gradients(
        rows=[each.ids for each in sums],
        values=[each.gradients / share for each in sums],
        dense=dense / share,
        lr_tables=pushes[0].lr_tables,
        lr_dense=pushes[0].lr_dense,
    )
