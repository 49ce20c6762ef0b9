"""A backend that keeps what it is given."""

from __future__ import annotations

import holdfast as hf
from holdfast.integrations.metrics.instruments import Measurement


class Kept(hf.metrics.Exporter):
    """An exporter of a user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Measurement] = []

    def _add(self, measurement: Measurement) -> None:
        self.kept.append(measurement)

    def of(self, name: str) -> list[Measurement]:
        """All of one instrument."""
        return [each for each in self.kept if each.instrument.name == name]

    def total(self, name: str) -> float:
        """Of one instrument that counts."""
        return sum(each.value for each in self.of(name))

    def last(self, name: str) -> Measurement:
        """Of one instrument."""
        return self.of(name)[-1]
