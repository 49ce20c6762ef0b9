"""TensorBoard: metrics as event files."""

from __future__ import annotations

import os
from collections import defaultdict

from holdfast.integrations.metrics.exporter import Exporter, needed
from holdfast.integrations.metrics.instruments import Form, Measurement


class TensorBoard(Exporter):
    """Writes metrics to a folder that TensorBoard reads, by the steps of the training. Needs ``holdfast[tensorboard]``.

    With several ranks, give it to rank 0 alone.

    Args:
        log_dir: The folder. It may hold other event files, such as those of your own ``SummaryWriter``.

    Raises:
        ConfigurationError: TensorBoard is not installed.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        super().__init__()
        needed("tensorboard", extra="tensorboard", of="hf.metrics.TensorBoard")
        writing = needed("torch.utils.tensorboard", extra="tensorboard", of="hf.metrics.TensorBoard")
        self._writer = writing.SummaryWriter(os.fspath(log_dir))
        self._sums: dict[str, float] = defaultdict(float)
        self._step = 0

    def close(self) -> None:
        """Write what is buffered, and close the file."""
        self._writer.close()

    def _add(self, measurement: Measurement) -> None:
        tag = "/".join(("holdfast", measurement.instrument.name, *measurement.labels.values()))
        self._step = measurement.step if measurement.step is not None else self._step
        value = measurement.value
        if measurement.instrument.form is Form.COUNT:
            self._sums[tag] += value
            value = self._sums[tag]
        self._writer.add_scalar(tag, value, self._step)
        self._writer.flush()
