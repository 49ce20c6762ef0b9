"""Metrics of saves, failures and recoveries, for TensorBoard, Prometheus and OpenTelemetry."""

from __future__ import annotations

from holdfast.integrations.metrics.exporter import Exporter
from holdfast.integrations.metrics.opentelemetry import OpenTelemetry
from holdfast.integrations.metrics.prometheus import Prometheus
from holdfast.integrations.metrics.tensorboard import TensorBoard

__all__ = ["Exporter", "OpenTelemetry", "Prometheus", "TensorBoard"]
