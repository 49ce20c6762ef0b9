"""OpenTelemetry: metrics by whatever exporters the program has set up."""

from __future__ import annotations

from typing import Any

from holdfast.integrations.metrics.exporter import Exporter, needed
from holdfast.integrations.metrics.instruments import INSTRUMENTS, Form, Instrument, Measurement


class OpenTelemetry(Exporter):
    """Records metrics with OpenTelemetry, under names that begin with ``holdfast.``. Needs ``holdfast[opentelemetry]``.

    Where they go, and what happens while a collector is down, is up to the ``MeterProvider`` of your program: its
    exporters send in the background.

    Args:
        provider: The ``MeterProvider``. None: the global one.

    Raises:
        ConfigurationError: opentelemetry-api is not installed.
    """

    def __init__(self, *, provider: Any = None) -> None:
        super().__init__()
        metrics = needed("opentelemetry.metrics", extra="opentelemetry", of="hf.metrics.OpenTelemetry")
        self._meter = metrics.get_meter("holdfast", meter_provider=provider)
        self._instruments = {each.name: self._made(each) for each in INSTRUMENTS}

    def _made(self, each: Instrument) -> Any:
        unit = "s" if each.form is Form.SECONDS else "By" if each.name.endswith("_bytes") else "1"
        make = {
            Form.COUNT: self._meter.create_counter,
            Form.LAST: self._meter.create_gauge,
            Form.SECONDS: self._meter.create_histogram,
        }[each.form]
        return make(f"holdfast.{each.name}", unit=unit, description=each.help)

    def _add(self, measurement: Measurement) -> None:
        instrument, labels = self._instruments[measurement.instrument.name], dict(measurement.labels)
        match measurement.instrument.form:
            case Form.COUNT:
                instrument.add(measurement.value, labels)
            case Form.LAST:
                instrument.set(measurement.value, labels)
            case Form.SECONDS:
                instrument.record(measurement.value, labels)
