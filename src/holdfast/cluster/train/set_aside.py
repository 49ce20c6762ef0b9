"""SetAside: what a training leaves aside while its model is evaluated."""

from __future__ import annotations

from holdfast.checkpoint.training.rng import capture_rng, restore_rng
from holdfast.cluster.train.build import BuiltModel
from holdfast.cluster.train.dense import DenseVector


class SetAside:
    """The rows of a batch, dense values, modes of modules and random generators, as they are now.

    Args:
        built: The model.
        dense: Its dense parameters.
    """

    def __init__(self, built: BuiltModel, dense: DenseVector) -> None:
        self._built = built
        self._dense = dense
        self._values = dense.values()
        self._rng = capture_rng()
        self._held = [table.exchange(None) for table in built.tables]
        self._modes = [(module, module.training) for module in built.module.modules()]

    def bring_back(self) -> None:
        """Go on as before."""
        self._dense.bring_back(self._values)
        restore_rng(self._rng)
        for module, mode in self._modes:
            module.training = mode
        for table, rows in zip(self._built.tables, self._held, strict=True):
            table.exchange(rows)
