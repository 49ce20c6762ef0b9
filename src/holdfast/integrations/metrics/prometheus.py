"""Prometheus: metrics on a page that it scrapes."""

from __future__ import annotations

from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.integrations.metrics.exporter import Exporter, needed
from holdfast.integrations.metrics.instruments import INSTRUMENTS, Form, Instrument, Measurement

_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


class Prometheus(Exporter):
    """Publishes metrics for Prometheus, with names that begin with ``holdfast_``. Needs ``holdfast[prometheus]``.

    Args:
        port: Serve them on this port; 0 chooses a free one. None: your program serves the registry.
        address: Who can reach the port: ``"0.0.0.0"`` for other machines, too.
        registry: The ``CollectorRegistry`` to add them to. None: the default one. Two exporters need two registries.

    Raises:
        ConfigurationError: prometheus-client is not installed, the port is taken, or the registry has such metrics.
    """

    def __init__(self, *, port: int | None = None, address: str = "127.0.0.1", registry: Any = None) -> None:
        super().__init__()
        self._client = needed("prometheus_client", extra="prometheus", of="hf.metrics.Prometheus")
        self._registry = registry if registry is not None else self._client.REGISTRY
        self._metrics = {each.name: self._made(each) for each in INSTRUMENTS}
        self._server: Any = None
        if port is not None:
            self._server = self._serve(port, address)

    @property
    def port(self) -> int | None:
        """The port that is served. None: your program serves the registry."""
        return int(self._server.server_port) if self._server is not None else None

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _add(self, measurement: Measurement) -> None:
        metric = self._metrics[measurement.instrument.name]
        series = metric.labels(**measurement.labels) if measurement.instrument.labels else metric
        match measurement.instrument.form:
            case Form.COUNT:
                series.inc(measurement.value)
            case Form.LAST:
                series.set(measurement.value)
            case Form.SECONDS:
                series.observe(measurement.value)

    def _made(self, each: Instrument) -> Any:
        kinds = {Form.COUNT: self._client.Counter, Form.LAST: self._client.Gauge, Form.SECONDS: self._client.Histogram}
        options = {"buckets": _BUCKETS_S} if each.form is Form.SECONDS else {}
        try:
            return kinds[each.form](f"holdfast_{each.name}", each.help, each.labels, registry=self._registry, **options)
        except ValueError as error:
            raise ConfigurationError(
                f"the registry has a metric holdfast_{each.name} already: give each exporter its own registry="
            ) from error

    def _serve(self, port: int, address: str) -> Any:
        try:
            server, _ = self._client.start_http_server(port, addr=address, registry=self._registry)
        except OSError as error:
            raise ConfigurationError(f"{address}:{port} cannot be served: {error}; choose another, or 0") from error
        return server
