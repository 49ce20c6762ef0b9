"""What happens to a training, as metrics: the same in every backend, and never in training's way."""

from __future__ import annotations

import logging
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import ConfigurationError
from holdfast.events import Happening, Recovery
from holdfast.integrations.metrics.instruments import Measurement
from holdfast.integrations.metrics.measuring import measured
from holdfast.storage import MemoryStore
from tests.docs.docstrings import arguments, explained, members
from tests.integrations.metrics.kept import Kept
from tests.tiny import build, train_step

ODD = 'val/AUC@10 {"x"}\n'  # what backends refuse in names


def train(**hooks: Any) -> MemoryStore:
    """Ten steps, and two saves."""
    store = MemoryStore()
    model, optimizers = build()
    options = {"save": hf.EverySteps(5), "overlap": hf.Overlap.WAIT}
    with hf.Checkpointer(store, model=model, optimizer=optimizers, **options, **hooks) as guard:
        guard.resume()
        for step in range(10):
            train_step(model, optimizers, step)
            guard.step(**{ODD: float(step)})
    return store


def test_saves_commits_bytes_stalls_and_metrics_are_measured() -> None:
    exporter = Kept()
    store = train(**exporter.hooks)
    written = sum(info.size_bytes for info in hf.open_run(store).checkpoints())
    assert exporter.total("saves") == exporter.total("commits") == 2
    assert exporter.total("written_bytes") >= written > 0
    assert exporter.last("last_commit_step").value == 10
    assert exporter.last("stall_seconds").value >= 0
    assert exporter.last("checkpoint_metric") == Measurement(
        instrument=exporter.last("checkpoint_metric").instrument, value=9.0, labels={"name": ODD}, step=10
    )


def test_recoveries_tell_their_rung() -> None:
    options: dict[str, Any] = {"step": 9, "checkpoint_step": 5, "term": 2, "at_s": 1.0, "duration_s": 0.5}
    event = Recovery(what=Happening.RECOVERED_PART, lost_share=0.25, pls=0.01, **options)
    found = {each.instrument.name: each for each in measured(event)}
    assert found["recoveries"].labels == found["recovery_seconds"].labels == {"rung": "partial"}
    assert found["pls"].value == 0.01 and found["recovery_seconds"].value == 0.5


def test_a_backend_that_fails_is_told_of_once_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Down(hf.metrics.Exporter):
        def _add(self, measurement: Measurement) -> None:
            raise ConnectionError("the server is down")

    with caplog.at_level(logging.WARNING, "holdfast"):
        store = train(**Down().hooks)
    assert hf.open_run(store).checkpoints()[-1].step == 10
    assert [record.message for record in caplog.records if "could not record" in record.message] == [
        "Down could not record a metric; training continues, and further errors are not logged"
    ]


def test_prometheus_serves_every_metric_under_names_that_it_accepts() -> None:
    client = pytest.importorskip("prometheus_client", reason="needs holdfast[prometheus]")
    from prometheus_client.parser import text_string_to_metric_families

    exporter = hf.metrics.Prometheus(port=0, registry=client.CollectorRegistry())
    try:
        train(**exporter.hooks)
        with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics") as answer:
            page = answer.read().decode()
        with pytest.raises(ConfigurationError, match="choose another"):
            hf.metrics.Prometheus(port=exporter.port, registry=client.CollectorRegistry())
    finally:
        exporter.close()
    assert "holdfast_commits_total" in page and "holdfast_last_commit_step 10.0" in page
    series = {sample.name: sample for family in text_string_to_metric_families(page) for sample in family.samples}
    assert series["holdfast_checkpoint_metric"].labels["name"] == ODD


def test_two_exporters_need_two_registries() -> None:
    client = pytest.importorskip("prometheus_client", reason="needs holdfast[prometheus]")
    registry = client.CollectorRegistry()
    hf.metrics.Prometheus(registry=registry)
    with pytest.raises(ConfigurationError, match="its own registry"):
        hf.metrics.Prometheus(registry=registry)


def test_opentelemetry_gets_every_metric() -> None:
    pytest.importorskip("opentelemetry.sdk.metrics", reason="needs opentelemetry-sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    train(**hf.metrics.OpenTelemetry(provider=MeterProvider([reader])).hooks)
    (resource,) = reader.get_metrics_data().resource_metrics
    found = {metric.name: metric.data.data_points for scope in resource.scope_metrics for metric in scope.metrics}
    assert sum(point.value for point in found["holdfast.commits"]) == 2
    assert found["holdfast.checkpoint_metric"][0].attributes == {"name": ODD}
    assert sum(point.count for point in found["holdfast.stall_seconds"]) == 2


def test_tensorboard_reads_what_was_written_by_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs holdfast[tensorboard]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    exporter = hf.metrics.TensorBoard(tmp_path)
    train(**exporter.hooks)
    exporter.close()
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert [(each.step, each.value) for each in read.Scalars("holdfast/last_commit_step")] == [(5, 5.0), (10, 10.0)]
    assert any(tag.startswith("holdfast/checkpoint_metric/") for tag in read.Tags()["scalars"])


@pytest.mark.parametrize(
    ("name", "package"),
    [("TensorBoard", "tensorboard"), ("Prometheus", "prometheus_client"), ("OpenTelemetry", "opentelemetry.metrics")],
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    given = (tmp_path,) if name == "TensorBoard" else ()
    with pytest.raises(ConfigurationError, match=rf"holdfast\[{name.lower()}\]"):
        getattr(hf.metrics, name)(*given)


@pytest.mark.parametrize("name", hf.metrics.__all__)
def test_every_argument_is_explained(name: str) -> None:
    kind = getattr(hf.metrics, name)
    assert explained(kind) == arguments(kind)
    for member, value in members(kind):
        if not isinstance(value, property):
            assert explained(value) == arguments(value), member
